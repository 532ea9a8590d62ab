"""The files of a MEDS dataset: shards, metadata, splits of subjects and label files, each checked with a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.files import read_json
from patients_like_me.plain_text import counted, printable
from patients_like_me.records.cohort import TIME
from patients_like_me.records.file_scans import Columns
from patients_like_me.records.source_files import SourceFolder, SourceTable, open_table
from patients_like_me.records.table_files import not_a_file, notes_on_missing_parts

#: The columns that every event has; their types are those of the package ``meds``.
COLUMNS: Final = {"subject_id": pl.Int64(), "time": TIME, "code": pl.String()}
VERSIONS: Final = ("0.3", "0.4")
_VALUES: Final = ("boolean_value", "integer_value", "categorical_value")


def event_files(source: SourceFolder) -> list[Path]:
    """Return the shards below ``data/``; a folder without it may hold Parquet files of events itself."""
    found = []
    for folder in source.folders:
        data = folder / "data"
        files = sorted(data.rglob("*.parquet") if data.is_dir() else folder.glob("*.parquet"))
        found += [path for path in files if not path.name.startswith(".")]
        if files and not data.is_dir():
            source.notes.append("there is no folder 'data': the Parquet files are taken for the events")
    if not found:
        places = " or ".join(f"'{folder / 'data'}'" for folder in source.folders)
        raise PlmError(
            f"no Parquet file in {places}", remedy="give the folder of a MEDS dataset: data/**/*.parquet, metadata/"
        )
    for path in found:
        _refuse_other_columns(path)
    source.notes += notes_on_missing_parts(found)
    return found


def looks_like_meds(source: SourceFolder) -> bool:
    """Tell whether a folder holds events of MEDS."""
    for folder in source.folders:
        files = [*(folder / "data").rglob("*.parquet"), *folder.glob("*.parquet")]
        if not files:
            return False
        try:
            if not set(COLUMNS) <= set(pl.read_parquet_schema(files[0])):
                return False
        except (pl.exceptions.PolarsError, OSError):
            return False
    return True


def open_events(paths: list[Path], extra: list[str]) -> SourceTable:
    """Open the shards with the columns of MEDS and those of ``extra`` that every shard has: whole numbers, or text."""
    schemas = [pl.read_parquet_schema(path) for path in paths]
    there = {
        name: pl.Int64() if all(schema[name].is_integer() for schema in schemas) else pl.String()
        for name in extra
        if all(name in schema for schema in schemas)
    }
    return open_table(paths, {**COLUMNS, **there})


def _refuse_other_columns(path: Path) -> None:
    """Refuse a file whose columns are not those of MEDS; their types must be the standard's, in any width."""
    schema = _schema_of(path)
    if "subject_id" not in schema and "patient_id" in schema:
        raise PlmError(
            f"'{path}' has the columns of MEDS 0.2 or older (patient_id)",
            remedy=f"extract it again with MEDS {' or '.join(VERSIONS)}",
        )
    missing = [name for name in COLUMNS if name not in schema]
    if missing:
        there = printable(", ".join(list(schema)[:30]))
        raise PlmError(f"'{path}' has no column '{missing[0]}' (it has: {there})", remedy="see docs/meds.md")
    time, code = schema["time"], schema["code"]
    for name, fits, wanted in (
        ("subject_id", schema["subject_id"].is_integer(), "a whole number"),
        ("time", isinstance(time, pl.Datetime), "a time"),
        ("code", code == pl.String or isinstance(code, pl.Categorical | pl.Enum), "text"),
    ):
        if not fits:
            raise PlmError(f"'{path}': column '{name}' is {schema[name]}, not {wanted}", remedy="see docs/meds.md")


def _schema_of(path: Path) -> dict[str, pl.DataType]:
    try:
        return dict(pl.read_parquet_schema(path))
    except (pl.exceptions.PolarsError, OSError):
        raise PlmError(f"'{path}' is not a whole Parquet file", remedy="copy or download it again") from None


def check_metadata(source: SourceFolder) -> None:
    """Refuse another version of MEDS; a dataset without metadata is read, and the cohort's notes say so."""
    for folder in source.folders:
        path = folder / "metadata" / "dataset.json"
        if not _is_there(path):
            source.notes.append("there is no metadata/dataset.json: the version of MEDS is not known")
            continue
        source.used.append(path)
        about = read_json(path, what="MEDS metadata")
        version = str(about.get("meds_version") or "") if isinstance(about, dict) else ""
        if not version:
            source.notes.append("metadata/dataset.json names no version of MEDS")
        elif not version.startswith(tuple(f"{known}." for known in VERSIONS)) and version not in VERSIONS:
            raise PlmError(
                f"'{path}' says MEDS {printable(version)}; versions {' and '.join(VERSIONS)} are read",
                remedy="extract the dataset again, or correct the version",
            )


def _is_there(path: Path) -> bool:
    """Tell whether an optional file is there; something else in its place is refused, not passed over."""
    if not path.is_file() and (path.exists() or path.is_symlink()):
        raise not_a_file(path)
    return path.is_file()


def codes_of(source: SourceFolder, events: SourceTable) -> pl.Series:
    """Return the distinct codes: those that the metadata list, else those of the events; blank ones are said later."""
    listed = [folder / "metadata" / "codes.parquet" for folder in source.folders]
    there = [path for path in listed if _is_there(path)]
    if len(there) == len(listed):
        source.used.extend(there)
        return open_table(listed, {"code": pl.String}).collect()["code"].drop_nulls().unique()
    return events.then(lambda frame: frame.select(pl.col("code").unique())).collect()["code"].drop_nulls().unique()


def of_splits(events: SourceTable, source: SourceFolder, wanted: str) -> SourceTable:
    """Return the events of the subjects of some splits; splits that nobody decided about are refused."""
    paths = [folder / "metadata" / "subject_splits.parquet" for folder in source.folders]
    paths = [path for path in paths if _is_there(path)]
    if not paths:
        if wanted not in ("refuse", "ignore"):
            raise PlmError("the dataset has no metadata/subject_splits.parquet", remedy="leave subject_splits out")
        return events
    source.used.extend(paths)
    if wanted == "ignore":
        source.notes.append("the dataset's own splits of subjects were ignored: a task draws its own")
        return events
    splits = open_table(paths, {"subject_id": pl.Int64, "split": pl.String}).collect()
    names = sorted(splits["split"].drop_nulls().unique().to_list())
    if wanted == "refuse":
        raise PlmError(
            f"'{paths[0]}' gives the subjects splits of their own ({printable(', '.join(names))}), but a task "
            "draws its own",
            remedy="read a part with --set subject_splits=NAME (or NAME+NAME), and predict the other as newcomers; or "
            "read all with --set subject_splits=ignore",
        )
    several = splits.unique().filter(pl.col("subject_id").is_duplicated())["subject_id"].n_unique()
    if several:
        raise PlmError(
            f"'{paths[0]}' puts {counted(several, 'subject')} into several splits", remedy="keep one split of each"
        )
    chosen = [name.strip() for name in wanted.split("+")]
    if unknown := [name for name in chosen if name not in names]:
        raise PlmError(
            f"'{paths[0]}' has no split '{printable(unknown[0])}'", remedy=f"use {printable(', '.join(names))}"
        )
    subjects = splits.filter(pl.col("split").is_in(chosen)).select("subject_id").unique().lazy()
    source.notes.append(f"only subjects of the split {printable(' and '.join(chosen))} were read")
    return events.then(lambda frame: frame.join(subjects, on="subject_id", how="semi", maintain_order="left"))


def read_labels(written: str, visits: pl.DataFrame, source: SourceFolder) -> pl.DataFrame:
    """Read label files; each becomes an own task, called like its file or, for the shards in a folder, like the folder.

    A label belongs to the last visit that has ended by its prediction time, for an own task sees a visit up to its end.
    Where that time is within a later visit, the label would ask about a visit that the task does not see; such labels
    are left out and counted, as are second labels of one visit.
    """
    place = Path(written).expanduser()
    if not place.exists():
        raise PlmError(f"there are no labels at '{place}'", remedy="check the path")
    tasks: dict[str, list[Path]] = {}
    for path in [place] if place.is_file() else sorted(place.rglob("*.parquet")):
        shard = place.is_dir() and path.parent != place
        tasks.setdefault(path.relative_to(place).parts[0] if shard else path.stem, []).append(path)
    if not tasks:
        raise PlmError(f"no Parquet file in '{place}'", remedy="give a MEDS label file or a folder of them")
    return pl.concat([_labels_of_task(task, paths, visits, source) for task, paths in tasks.items()])


def _labels_of_task(task: str, paths: list[Path], visits: pl.DataFrame, source: SourceFolder) -> pl.DataFrame:
    if not task.replace("-", "").replace("_", "").isalnum():
        raise PlmError(
            f"'{printable(task)}' is not a valid name for a task", remedy="use letters, digits, - and _ only"
        )
    source.used.extend(paths)
    schemas = [_schema_of(path) for path in paths]
    given = [name for name in _VALUES if any(name in schema for schema in schemas)]
    columns: Columns = {"subject_id": pl.Int64, "prediction_time": TIME, **dict.fromkeys(_VALUES, pl.String)}
    rows = open_table(paths, columns, optional=_VALUES).collect()
    filled = [name for name in given if rows[name].null_count() < rows.height]
    if len(filled) != 1:
        what = "no value" if not filled else f"values in {' and '.join(filled)}"
        raise PlmError(
            f"the labels '{paths[0]}' have {what}",
            remedy=f"fill exactly one of {', '.join(_VALUES)}; numbers with fractions cannot be a task",
        )
    value = pl.col(filled[0]).replace({"true": "1", "false": "0"}).alias("value")
    labels = rows.filter(pl.col(filled[0]).is_not_null()).select("subject_id", "prediction_time", value)
    ordered = visits.select("subject_id", "visit_id", "admission_time", "discharge_time").sort("admission_time")
    labels = labels.sort("prediction_time").join_asof(
        ordered, left_on="prediction_time", right_on="admission_time", by="subject_id", check_sortedness=False
    )
    ended = (pl.col("discharge_time") <= pl.col("prediction_time")).fill_null(False)
    usable = labels.filter(ended).unique("visit_id", keep="first", maintain_order=True)
    if usable.is_empty():
        raise PlmError(
            f"no label of '{paths[0]}' has a prediction time after the end of a visit",
            remedy="an own task sees the current visit up to its end, so it cannot answer earlier: see docs/meds.md",
        )
    if early := labels.height - labels.filter(ended).height:
        source.notes.append(f"labels of '{task}' that ask before the end of a visit, left out: {early:,}")
    if second := labels.filter(ended).height - usable.height:
        source.notes.append(f"labels of '{task}' of a visit that has an earlier one, left out: {second:,}")
    return usable.select("visit_id", pl.lit(task).alias("task"), "value")
