"""Reader for a hospital's own long tables: ``visits``, ``events``, and optionally ``labels`` and ``names``.

``visits``
    ``subject_id, visit_id``, and where known ``admission_time, discharge_time, order, sex, age, died,
    death_time, insurance, language, religion, marital_status, ethnicity``.
``events``
    ``visit_id, kind, code``, and where known ``subject_id, time``. ``kind`` is ``diagnosis``, ``procedure`` or
    ``medication``, with the code system behind a slash where it is not the default: ``diagnosis/icd9``.
``labels``
    ``visit_id, task, value``: labels where the data has no dates, and tasks of the user's own.
``names``
    ``kind, code, name``: names of codes in the system ``own``.

Visits without dates keep the column ``order``, or else the order of the file. See ``docs/own-tables.md``.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import polars as pl

from patients_like_me.codes.atc import all_atc3_codes
from patients_like_me.codes.ccs import ccs_categories
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.records.coded_streams import drug_stream, icd_stream, standard_vocabulary
from patients_like_me.records.cohort import DEMOGRAPHICS, KINDS, TIME, Kind
from patients_like_me.records.source_files import SourceFolder, SourceTable
from patients_like_me.records.source_records import EventStream, SourceRecords

SYSTEMS: Final[dict[Kind, tuple[str, ...]]] = {
    "diagnosis": ("icd10", "icd9", "ccs", "own"),
    "procedure": ("icd10", "icd9", "ccs", "own"),
    "medication": ("name", "ndc", "atc", "own"),
}
_YES: Final = ("1", "true", "yes", "y", "t", "1.0")
_NO: Final = ("0", "false", "no", "n", "f", "0.0")
_OLDEST: Final = 130
_TASK_NAME: Final = r"^[A-Za-z0-9_-]+$"
_OPTIONAL_VISIT_COLUMNS: Final = (
    "admission_time",
    "discharge_time",
    "order",
    "sex",
    "age",
    "died",
    "death_time",
    *DEMOGRAPHICS,
)


def read_tables(source: SourceFolder, store: CodeStore) -> SourceRecords:
    """Open a hospital's own tables."""
    visits_table = source.open(
        "visits",
        {
            "subject_id": pl.String,
            "visit_id": pl.String,
            "admission_time": TIME,
            "discharge_time": TIME,
            "order": pl.Int64,
            "sex": pl.String,
            "age": pl.Int32,
            "died": pl.String,
            "death_time": TIME,
            **dict.fromkeys(DEMOGRAPHICS, pl.String),
        },
        optional=_OPTIONAL_VISIT_COLUMNS,
    )
    visits = visits_table.collect().with_row_index("row")
    _refuse_blank(visits, ("subject_id", "visit_id"), visits_table)
    if visits.height and visits["admission_time"].is_null().all() and visits["order"].is_null().all():
        visits = visits.with_columns(pl.col("row").cast(pl.Int64).alias("order"))
    _refuse_values(visits, visits_table)
    visits = visits.with_columns(pl.col("died").str.to_lowercase().is_in(_YES).fill_null(False).alias("died"))
    events = source.open(
        "events",
        {"subject_id": pl.String, "visit_id": pl.String, "time": pl.String, "kind": pl.String, "code": pl.String},
        optional=("subject_id", "time"),
    )
    _refuse_other_patients(events, visits)
    return SourceRecords(
        source="tables",
        patients=visits.group_by("subject_id", maintain_order=True).agg(
            pl.col("sex").drop_nulls().first(), pl.col("death_time").max()
        ),
        visits=visits.drop("sex", "death_time", "row"),
        visits_table=visits_table,
        streams=_streams(events, store),
        vocabulary=_vocabulary(source),
        labels=_labels(source, visits),
        time_column_names=("admission_time", "discharge_time"),
    )


def _streams(events: SourceTable, store: CodeStore) -> list[EventStream]:
    """Make one stream per (kind, system) that occurs."""
    found = SourceTable(events.path, events.frame.select(pl.col("kind").unique())).collect()["kind"].to_list()
    streams = []
    for written in sorted(found, key=str):
        kind, system = _kind_and_system(written, events)
        of_kind = events.frame.filter(pl.col("kind") == written)
        if system in ("icd9", "icd10"):
            frame = of_kind.select(
                "visit_id",
                pl.lit(int(system.removeprefix("icd")), dtype=pl.Int8).alias("icd_version"),
                pl.col("code").str.strip_chars().alias("icd_code"),
                "time",
            )
            assert kind != "medication"
            streams.append(icd_stream(kind, SourceTable(events.path, frame), store, version_column="kind"))
        elif system in ("name", "ndc"):
            blank = pl.lit(None, dtype=pl.String)
            ndc, drug = (pl.col("code"), blank) if system == "ndc" else (blank, pl.col("code"))
            frame = of_kind.select("visit_id", ndc.alias("ndc"), drug.alias("drug"), "time")
            streams.append(drug_stream(SourceTable(events.path, frame), store))
        else:
            frame = of_kind.select("visit_id", pl.col("code").str.strip_chars(), "time")
            streams.append(_category_stream(kind, system, SourceTable(events.path, frame)))
    return streams


def _kind_and_system(written: str | None, events: SourceTable) -> tuple[Kind, str]:
    kind_text, _, system = (written or "").strip().lower().partition("/")
    for kind in KINDS:
        if kind_text == kind:
            system = system or SYSTEMS[kind][0]
            if system in SYSTEMS[kind]:
                return kind, system
    condition = pl.col("kind").is_null() if written is None else pl.col("kind") == written
    known = ", ".join(f"{kind}/{system}" for kind in KINDS for system in SYSTEMS[kind])
    raise PlmError(
        f"'{events.path}', row {events.row_of(condition)}: unknown kind '{written or ''}'",
        remedy=f"use one of {known}",
    )


def _category_stream(kind: Kind, system: str, table: SourceTable) -> EventStream:
    """Stream codes that are categories already: CCS, ATC, or the hospital's own."""
    return EventStream(
        kind=kind,
        table=table,
        keys=("code",),
        map_keys=partial(_map_categories, kind, system),
        map_name=pl.lit(f"{kind} {system} as given"),
        describe_key=pl.col("code").fill_null("(blank)"),
    )


def _map_categories(kind: Kind, system: str, keys: pl.DataFrame) -> pl.DataFrame:
    code = pl.col("code").str.strip_chars()
    if system == "ccs":
        assert kind != "medication"
        known = code.is_in(ccs_categories(kind)["ccs"].implode())
    elif system == "atc":
        code = code.str.to_uppercase().str.slice(0, 4)
        known = code.is_in(list(all_atc3_codes()))
    else:
        known = code.is_not_null() & (code != "")
    empty = pl.lit([], dtype=pl.List(pl.String))
    return keys.with_columns(
        pl.when(known).then(pl.concat_list(code)).otherwise(empty).alias("codes"),
        pl.when(known).then(pl.lit("as given")).otherwise(pl.lit("unmapped")).alias("way"),
    )


def _vocabulary(source: SourceFolder) -> pl.DataFrame:
    path = source.find("names", required=False)
    if path is None:
        return standard_vocabulary()
    own = source.open_file(path, {"kind": pl.String, "code": pl.String, "name": pl.String}).collect()
    own = own.with_columns(
        pl.col("kind").str.to_lowercase().str.split("/").list.first(),
        pl.lit(None, dtype=pl.String).alias("chapter"),
    )
    return pl.concat([own, standard_vocabulary()])


def _labels(source: SourceFolder, visits: pl.DataFrame) -> pl.DataFrame | None:
    path = source.find("labels", required=False)
    if path is None:
        return None
    table = source.open_file(path, {"visit_id": pl.String, "task": pl.String, "value": pl.String})
    labels = table.collect()
    _refuse_blank(labels, ("visit_id", "task", "value"), table)
    strangers = labels.join(visits.select("visit_id"), on="visit_id", how="anti")
    if strangers.height:
        row = table.row_of(pl.col("visit_id") == strangers["visit_id"][0])
        raise PlmError(
            f"'{path}', row {row}: this visit_id is not in the visits table ({strangers.height:,} such rows)",
            remedy="add the visit or remove the label",
        )
    for bad, what in (
        (~pl.col("task").str.strip_chars().str.contains(_TASK_NAME), "a task's name has letters, digits, - and _ only"),
        (
            _is_task("length_of_stay") & (pl.col("value").cast(pl.Float64, strict=False) < 0),
            "a stay has no negative days",
        ),
    ):
        if labels.select(bad.fill_null(False).any()).item():
            raise PlmError(f"'{path}', row {table.row_of(bad.fill_null(False))}: {what}", remedy="correct the value")
    standard = pl.col("task").str.strip_chars().str.to_lowercase()
    known = standard.is_in(["readmission", "length_of_stay", "drug_recommendation"])
    task = pl.when(known).then(standard).otherwise(pl.col("task").str.strip_chars())
    return labels.with_columns(task.alias("task"), pl.col("value").str.strip_chars())


def _is_task(name: str) -> pl.Expr:
    return pl.col("task").str.strip_chars().str.to_lowercase() == name


def _refuse_values(visits: pl.DataFrame, table: SourceTable) -> None:
    """Refuse a death that is neither yes nor no, and an age that nobody has."""
    for bad, what in (
        (~pl.col("died").str.to_lowercase().is_in([*_YES, *_NO]), f"'died' is one of {', '.join((*_YES, *_NO))}"),
        ((pl.col("age") < 0) | (pl.col("age") > _OLDEST), f"'age' lies between 0 and {_OLDEST}"),
    ):
        if visits.select(bad.fill_null(False).any()).item():
            row = table.row_of(bad.fill_null(False))
            raise PlmError(f"'{table.path}', row {row}: {what}", remedy="correct the value")


def _refuse_other_patients(events: SourceTable, visits: pl.DataFrame) -> None:
    """Refuse an event that names another patient than its visit: one of the two ids is wrong."""
    owners = visits.lazy().select("visit_id", pl.col("subject_id").alias("owner"))
    joined = events.frame.with_row_index("row").join(owners, on="visit_id")
    wrong = joined.filter(pl.col("subject_id") != pl.col("owner")).select("row").sort("row").head(1)
    first = SourceTable(events.path, wrong).collect()
    if first.height:
        raise PlmError(
            f"'{events.path}', row {first['row'][0] + 2}: this subject_id is not the patient of the visit",
            remedy="correct the subject_id or the visit_id",
        )


def _refuse_blank(rows: pl.DataFrame, columns: tuple[str, ...], table: SourceTable) -> None:
    for column in columns:
        blank = pl.col(column).is_null() | (pl.col(column).str.strip_chars() == "")
        if rows.select(blank.any()).item():
            raise PlmError(
                f"'{table.path}', row {table.row_of(blank)}: column '{column}' is blank", remedy="fill it in"
            )
