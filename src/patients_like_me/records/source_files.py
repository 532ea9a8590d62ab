"""Finding and opening the tables of a source: any usual folder level and header case, one file or many parts.

A table is one file, or several parts that belong together: numbered files (``events-0001.parquet``), a folder of the
table's name, or one file in each of several folders. Files are CSV, Parquet or NDJSON (one JSON object per line);
CSV and NDJSON may be gzipped.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.plain_text import printable
from patients_like_me.records.cohort import TIME
from patients_like_me.records.file_errors import broken_gzip, conversion, explained
from patients_like_me.records.row_shape import notes_on_last_row

#: How the name of a table's file ends; a folder that holds one table in several forms is refused.
ENDINGS: Final = (".parquet", ".csv", ".csv.gz", ".ndjson", ".ndjson.gz", ".jsonl", ".jsonl.gz")
NDJSON: Final = (".ndjson", ".ndjson.gz", ".jsonl", ".jsonl.gz")
_DEEPEST_LEVEL: Final = 3
#: The minutes of a century.
CENTURY: Final = 100 * 366 * 24 * 60
_TIME_FORM: Final = "%Y-%m-%d %H:%M:%S"
# A cell may be longer than Python's reader of CSV expects; rows are read one at a time.
csv.field_size_limit(1 << 30)
#: What may follow a table's name where it is stored in numbered parts: -0001, _part3, .7, -0-of-8.
_PART: Final = r"[-_.]?(part|shard|chunk)?[-_.]?\d+([-_.]of[-_.]\d+)?"

Columns = Mapping[str, "pl.DataType | type[pl.DataType]"]


@dataclass(frozen=True)
class Part:
    """One file of a table, opened lazily; ``first_row`` is the row of its first record as a text editor counts."""

    path: Path
    frame: pl.LazyFrame
    first_row: int = 2


@dataclass(frozen=True)
class SourceTable:
    """One table opened lazily, in one or many parts, with exactly the wanted columns; absent optional ones are null."""

    parts: tuple[Part, ...]

    @property
    def path(self) -> Path:
        """The file of the table, the first one where there are several."""
        return self.parts[0].path

    @property
    def label(self) -> str:
        """What reports call the table: the name of its file."""
        more = len(self.parts) - 1
        return self.path.name if not more else f"{self.path.name} and {more} more"

    @property
    def size(self) -> int:
        """The bytes of the files; 0 for one that is gone, which reading tells."""
        return sum(part.path.stat().st_size for part in self.parts if part.path.is_file())

    @property
    def schema(self) -> pl.Schema:
        """The columns of the table; the same in every part."""
        with explained(self.path):
            return self.parts[0].frame.collect_schema()

    def then(self, change: Callable[[pl.LazyFrame], pl.LazyFrame]) -> SourceTable:
        """Return the table with the same change made to every part, such as a selection or a filter."""
        changed = []
        for part in self.parts:
            with explained(part.path):
                changed.append(Part(part.path, change(part.frame), part.first_row))
        return SourceTable(tuple(changed))

    def collect(self) -> pl.DataFrame:
        """Read the wanted columns into memory."""
        frames = []
        for part in self.parts:
            with explained(part.path):
                frames.append(part.frame.collect(engine="streaming"))
        return frames[0] if len(frames) == 1 else pl.concat(frames)

    def batches(self, rows: int = 131_072) -> Iterator[pl.DataFrame]:
        """Read the wanted columns in pieces of about ``rows`` rows, in file order, so that memory stays bounded."""
        for part in self.parts:
            with explained(part.path):
                yield from part.frame.collect_batches(chunk_size=rows, maintain_order=True)

    def first(self, condition: pl.Expr) -> tuple[str, dict[str, object]]:
        """Return the place (file and row) of the first row that meets a condition, and what is in that row."""
        for part in self.parts:
            with explained(part.path):
                hit = part.frame.with_row_index("row number").filter(condition).head(1).collect()
            if hit.height:
                found = hit.row(0, named=True)
                return f"'{part.path}', row {found.pop('row number') + part.first_row}", found
        raise ValueError("no row meets the condition")

    def place_of(self, condition: pl.Expr) -> str:
        """Return file and row of the first row that meets a condition."""
        return self.first(condition)[0]

    def place_of_number(self, number: int) -> str:
        """Return file and row of a record by its number over all parts, from 0."""
        for part in self.parts:
            with explained(part.path):
                rows = part.frame.select(pl.len()).collect().item() if len(self.parts) > 1 else number + 1
            if number < rows:
                return f"'{part.path}', row {number + part.first_row}"
            number -= rows
        raise ValueError("the table has fewer rows")


@dataclass
class SourceFolder:
    """The folder or folders of a source, in which each table is found by name, whatever its level, case or ending.

    ``title`` is what messages call the source. ``used`` collects every file that was opened, for the provenance;
    ``notes`` what the coverage should mention, such as optional tables that are missing or empty. ``fingerprints`` are
    those of tables that are not files of the user's, by the name of the file that holds the copy.
    """

    folders: tuple[Path, ...]
    title: str
    used: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fingerprints: dict[str, dict[str, int | str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for folder in self.folders:
            if not folder.exists():
                raise PlmError(f"the folder '{folder}' does not exist", remedy="check the path")
            if not folder.is_dir():
                raise PlmError(
                    f"'{folder}' is a file, but {self.title} is read from a folder of tables",
                    remedy="give the folder that holds it",
                )

    @property
    def is_synthetic(self) -> bool:
        """Tell whether a folder (or the one above, where ``hosp/`` was given) says that its hospital is made up."""
        places = (place for folder in self.folders for place in (folder, folder.absolute().parent))
        return any((place / "SYNTHETIC.json").is_file() for place in places)

    def find(self, table: str, *, required: bool = True) -> list[Path]:
        """Return the files of a table: in each folder the nearest one, in the preferred form, or its parts."""
        found = [path for folder in self.folders for path in _files_of_table(folder, table.lower())]
        if found or not required:
            return found
        places = " or ".join(f"'{folder}'" for folder in self.folders)
        seen = sorted({path.name for folder in self.folders for path in _files_below(folder) if _ending_of(path)})
        there = f"tables there: {', '.join(seen[:8])}" if seen else f"no file there ends in {', '.join(ENDINGS)}"
        raise PlmError(
            f"no table '{table}' ({table}.csv, .csv.gz, .parquet or .ndjson) in {places} ({there})",
            remedy=f"give the folder that holds the {self.title.removesuffix(' tables')} tables",
        )

    def has(self, table: str, *columns: str) -> bool:
        """Tell whether a table with these columns is there; an unreadable one is not."""
        try:
            paths = self.find(table, required=False)
            return bool(paths) and set(columns) <= {name.strip().lower() for name in header_of(paths[0])}
        except PlmError:
            return False

    def open(self, table: str, columns: Columns, *, optional: Sequence[str] = ()) -> SourceTable:
        """Open a table lazily with lower-case column names; only ``columns`` are read, as the given types."""
        return self._opened(self.find(table), columns, optional)

    def open_optional(self, table: str, columns: Columns, *, optional: Sequence[str] = ()) -> SourceTable | None:
        """Open a table that a source may lack; None, and a note, where it is missing or an empty file."""
        paths = self.find(table, required=False)
        filled = [path for path in paths if path.stat().st_size]
        if filled:
            return self._opened(filled, columns, optional)
        self.notes.append(f"the optional table '{table}' is {'empty' if paths else 'not there'}")
        return None

    def _opened(self, paths: list[Path], columns: Columns, optional: Sequence[str]) -> SourceTable:
        self.used.extend(paths)
        self.notes += notes_on_missing_parts(paths)
        self.notes += [note for path in paths for note in notes_on_last_row(path)]
        return open_table(paths, columns, optional=optional)


def open_table(paths: Path | Sequence[Path], columns: Columns, *, optional: Sequence[str] = ()) -> SourceTable:
    r"""Open the file or files of a table lazily; missing required columns are named in the error.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "visits.csv"
    >>> _ = path.write_text("VISIT_ID,Other\n007,x\n")
    >>> open_table(path, {"visit_id": pl.String, "age": pl.Int16}, optional=("age",)).collect().rows()
    [('007', None)]
    """
    files = [paths] if isinstance(paths, Path) else list(paths)
    return SourceTable(tuple(_opened_part(path, columns, optional) for path in files))


def _opened_part(path: Path, columns: Columns, optional: Sequence[str]) -> Part:
    with explained(path):
        return _scanned_part(path, columns, optional)


def _scanned_part(path: Path, columns: Columns, optional: Sequence[str]) -> Part:
    if path.stat().st_size == 0:
        raise PlmError(f"the file '{path}' is empty", remedy="copy or download it again")
    header = header_of(path)
    by_lower: dict[str, str] = {}
    for name in header:
        if (other := by_lower.setdefault(name.strip().lower(), name)) is not name and name.strip().lower() in columns:
            raise PlmError(
                f"'{path}' has two columns of one name, '{printable(other)}' and '{printable(name)}'",
                remedy="remove or rename one; upper and lower case do not tell columns apart",
            )
    missing = [name for name in columns if name not in by_lower and name not in optional]
    if missing:
        # What is there may be a record, written with another separator, and is not shown.
        if any(re.fullmatch(r"\s*[\d.:/ -]+\s*", part) for name in header for part in re.split(r"[;|\t]", name)):
            raise PlmError(
                f"the first row of '{path}' looks like data, not like a header with {', '.join(map(repr, missing))}",
                remedy="put the names of the columns into the first row",
            )
        if len(header) == 1 and (sign := re.search(r"[;|\t]", header[0])):
            shown = "tabs" if sign.group() == "\t" else f"'{sign.group()}'"
            raise PlmError(
                f"the columns of '{path}' are separated by {shown}, not by commas", remedy="save the table with commas"
            )
        there = printable(", ".join("..." if re.search(r"\d{3}", name) else name for name in header[:30]))
        raise PlmError(
            f"'{path}' has no column {', '.join(repr(name) for name in missing)} (it has: {there})",
            remedy="check that this is the right file and version",
        )
    present = {name: by_lower[name] for name in columns if name in by_lower}
    ending = _ending_of(path)
    if ending in NDJSON:
        # The first objects need not have every key; one that none has gives nulls.
        present = {name: by_lower.get(name, name) for name in columns}
    scan = _scanned_parquet if ending == ".parquet" else _scanned_ndjson if ending in NDJSON else _scanned_csv
    scanned = scan(path, present, columns)
    absent = [pl.lit(None, dtype=columns[name]).alias(name) for name in columns if name not in present]
    return Part(path, scanned.with_columns(absent).select(list(columns)), 1 if ending in NDJSON else 2)


def _scanned_csv(path: Path, present: Mapping[str, str], columns: Columns) -> pl.LazyFrame:
    types = {original: columns[name] for name, original in present.items() if columns[name] != TIME}
    # A name may hold square brackets: it is never a pattern.
    scanned = pl.scan_csv(path, infer_schema=False, null_values="", schema_overrides=types, encoding="utf8", glob=False)
    return scanned.select(_parsed(original, columns[name]).alias(name) for name, original in present.items())


def _scanned_parquet(path: Path, present: Mapping[str, str], columns: Columns) -> pl.LazyFrame:
    stored = pl.scan_parquet(path, glob=False)
    schema = stored.collect_schema()
    _refuse_times_of_another_kind(
        path, {name: schema[original] for name, original in present.items()}, [n for n in present if columns[n] == TIME]
    )

    def as_wanted(original: str, wanted: pl.DataType | type[pl.DataType]) -> pl.Expr:
        there = schema[original]
        if there == pl.String and wanted == TIME:
            return _parsed(original, wanted)
        if wanted.is_integer() and (there.is_float() or there.is_decimal()):
            # A fraction would be cut off without a word; NaN is how such a column writes a missing value.
            known = pl.col(original).fill_nan(None) if there.is_float() else pl.col(original)
            return known.cast(pl.String).str.replace(r"\.0+$", "").cast(wanted)
        return pl.col(original).cast(wanted)

    return stored.select(as_wanted(original, columns[name]).alias(name) for name, original in present.items())


def _scanned_ndjson(path: Path, present: Mapping[str, str], columns: Columns) -> pl.LazyFrame:
    """Scan JSON lines: plain values are read as text and then parsed, nested ones in the shape that was asked for."""
    types = {original: _json_type(columns[name]) for name, original in present.items()}
    return pl.scan_ndjson(_literal(path), schema=types).select(
        (_parsed(original, columns[name]) if columns[name] == TIME else pl.col(original).cast(columns[name])).alias(
            name
        )
        for name, original in present.items()
    )


def scan_ndjson(path: Path, schema: Columns) -> pl.LazyFrame:
    """Scan JSON lines in the shape of a schema; what it does not name is passed over."""
    return pl.scan_ndjson(_literal(path), schema=dict(schema))


def _literal(path: Path) -> Path:
    """Return a path whose square brackets are not read as a pattern, where polars cannot be told so."""
    return Path(re.sub(r"([\[*?])", r"[\1]", str(path)))


def _json_type(wanted: pl.DataType | type[pl.DataType]) -> pl.DataType | type[pl.DataType]:
    return wanted if wanted.is_nested() else pl.String


def _parsed(column: str, wanted: pl.DataType | type[pl.DataType]) -> pl.Expr:
    """Parse times after reading, so that the text of a column is still there for the error message."""
    return pl.col(column).map_batches(_as_times, return_dtype=TIME) if wanted == TIME else pl.col(column)


def _as_times(given: pl.Series) -> pl.Series:
    """Read a column of times; the usual form is tried first, since all others together take several times as long."""
    usual = given.str.to_datetime(_TIME_FORM, time_unit="us", strict=False, cache=False)
    if usual.null_count() == given.null_count():
        return usual
    return given.to_frame().select(_times_of_any_form(given.name)).to_series()


def _times_of_any_form(column: str) -> pl.Expr:
    text = pl.col(column).str.strip_chars().replace("", None)
    # Fractions of a second are dropped; a time zone is not a fraction, and is refused as not a time.
    plain = text.str.replace(r"(:\d\d)\.\d+$", "$1").str.replace("T", " ", literal=True)
    whole = pl.when(plain.str.len_bytes() == 10).then(plain + " 00:00:00").otherwise(plain)
    whole = pl.when(whole.str.len_bytes() == 16).then(whole + ":00").otherwise(whole)
    return whole.str.to_datetime(_TIME_FORM, time_unit="us")


def minutes_after(origin: str, minutes: str) -> pl.Expr:
    """Return the time that is a number of minutes after another one, for sources that count from an admission.

    More than a century counts as one: it would not fit into a time, and so it is said to be far away.

    >>> from datetime import datetime
    >>> frame = pl.DataFrame({"admitted": [datetime(2150, 1, 1)], "offset": [-30]})
    >>> frame.select(minutes_after("admitted", "offset")).item()
    datetime.datetime(2149, 12, 31, 23, 30)
    """
    return pl.col(origin) + pl.duration(minutes=pl.col(minutes).clip(-CENTURY, CENTURY))


def _refuse_times_of_another_kind(path: Path, schema: Mapping[str, pl.DataType], times: Sequence[str]) -> None:
    for name, kind in schema.items():
        if isinstance(kind, pl.Datetime) and kind.time_zone is not None:
            raise PlmError(
                f"'{path}', column '{name}': its times carry the time zone '{kind.time_zone}'",
                remedy="store plain local times in all tables, so that they can be compared",
            )
        if name in times and not (isinstance(kind, pl.Datetime | pl.Date) or kind in (pl.String, pl.Null)):
            raise PlmError(
                f"'{path}', column '{name}' holds {kind}, not times",
                remedy="store times, or text like 2150-01-31 10:30:00",
            )


def _ending_of(path: Path) -> str:
    """Return the ending of a table's file; an empty text for any other file."""
    name = path.name.lower()
    return next((ending for ending in sorted(ENDINGS, key=len, reverse=True) if name.endswith(ending)), "")


def _files_of_table(folder: Path, table: str) -> list[Path]:
    """Return the one file of a table that is nearest to a folder, or else the parts in which it is stored."""
    files = [(path, ending) for path in _files_below(folder, table) if (ending := _ending_of(path))]
    whole = [(path, ending) for path, ending in files if path.name.lower() == table + ending]
    in_parts = [
        (path, ending)
        for path, ending in files
        if path.parent.name.lower() == table or re.fullmatch(table + _PART, path.name.lower().removesuffix(ending))
    ]
    for candidates, are_parts in ((whole, False), (in_parts, True)):
        if not candidates:
            continue
        level = min(len(path.parts) for path, _ in candidates)
        nearest = [(path, ending) for path, ending in candidates if len(path.parts) == level]
        if not are_parts and (beside := _parts_beside(nearest[0][0], [path for path, _ in in_parts], table)):
            raise PlmError(
                f"'{beside.parent}' holds a part of the table '{table}', '{beside.name}', and "
                f"'{nearest[0][0]}' is the whole",
                remedy="keep one of them: only you know which is right",
            )
        places = sorted({path.parent for path, _ in nearest})
        if len(places) > 1:
            shown = " and ".join(f"'{place}'" for place in places)
            raise PlmError(f"the table '{table}' is in {shown}", remedy="give one of these folders")
        chosen = sorted(path for path, _ in nearest)
        one_of_each = {ending: path.name for path, ending in sorted(nearest, reverse=True)}
        if len(one_of_each) > 1 or (len(chosen) > 1 and not are_parts):
            first, second, *_ = [*one_of_each.values()] if are_parts else [path.name for path in chosen]
            raise PlmError(
                f"the table '{table}' is in '{places[0]}' more than once: '{first}' and '{second}'",
                remedy="keep one of them: only you know which is right",
            )
        return chosen
    return []


def _parts_beside(whole: Path, parts: Sequence[Path], table: str) -> Path | None:
    """Return a numbered part next to the one file of a table, or one in a folder of the table's name next to it."""
    for path in parts:
        numbered = re.fullmatch(table + _PART, path.name.lower().removesuffix(_ending_of(path)))
        if path.parent == whole.parent / path.parent.name or (numbered and path.parent == whole.parent):
            return path
    return None


def notes_on_missing_parts(paths: Sequence[Path]) -> list[str]:
    """Say, for each folder, that parts of a table are numbered with a gap: a part may not have been copied."""
    notes = []
    for folder in dict.fromkeys(path.parent for path in paths):
        names = [path.name.lower().removesuffix(_ending_of(path)) for path in paths if path.parent == folder]
        numbered = [re.fullmatch(r".*?(\d+)([-_.]of[-_.]\d+)?", name) for name in names]
        if len(names) < 2 or None in numbered:
            continue
        numbers = {int(found[1]) for found in numbered if found}
        missing = max(numbers) - min(numbers) + 1 - len(numbers)
        # With wider gaps they are dates or other numbers that do not count the parts.
        if 0 < missing <= 10 * len(numbers):
            verb = "is" if missing == 1 else "are"
            first = next(path.name for path in paths if path.parent == folder)
            whole = f"from {min(numbers)} to {max(numbers)}"
            notes.append(f"the parts of '{first}' are numbered {whole}, but {missing:,} of these {verb} not there")
    return notes


def _files_below(folder: Path, table: str = "") -> Iterator[Path]:
    """Yield the files of a folder; what has the name of the wanted table but is not a file is refused, not skipped."""
    pending = [(folder, 1)]
    while pending:
        current, level = pending.pop()
        for path in sorted(current.iterdir()):
            if path.is_file():
                yield path
            elif table and (ending := _ending_of(path)) and path.name.lower() == table + ending:
                raise not_a_file(path)
            elif path.is_dir() and level < _DEEPEST_LEVEL and not _is_passed_over(path):
                pending.append((path, level + 1))


def not_a_file(path: Path) -> PlmError:
    """Say that something with the name of a table is none: it is not the same as a table that is not there."""
    what = "a folder" if path.is_dir() else "a link to nothing" if path.is_symlink() else "a pipe or device"
    return PlmError(f"'{path}' is {what}, not a file", remedy="put the table there or remove it")


def _is_passed_over(folder: Path) -> bool:
    """Hidden folders, and cohorts that were written into the source's own folder."""
    return folder.name.startswith(".") or (folder / "cohort.json").is_file()


def header_of(path: Path) -> list[str]:
    """Return the names of a file's columns."""
    ending = _ending_of(path)
    if ending == ".parquet" or ending in NDJSON:
        with explained(path):
            scanned = (
                pl.scan_parquet(path, glob=False)
                if ending == ".parquet"
                else pl.scan_ndjson(_literal(path), infer_schema_length=1000)
            )
            return scanned.collect_schema().names()
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as stream:
            first = stream.readline(1 << 20)
        if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in first:
            raise PlmError(
                f"'{path}' looks like UTF-16, not UTF-8",
                remedy=f"convert the file to UTF-8, {conversion(path, 'UTF-16')}",
            )
        text = first.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error):
        raise broken_gzip(path) from None
    except UnicodeDecodeError:
        raise PlmError(
            f"the header of '{path}' is not UTF-8 text",
            remedy=f"convert the file to UTF-8, {conversion(path)}",
        ) from None
    if "\r" in text.rstrip("\r\n"):
        raise PlmError(
            f"the lines of '{path}' end in a carriage return alone, as on very old systems",
            remedy=f"convert them, for example with: tr '\\r' '\\n' < '{path.name}'",
        )
    if not text.strip():
        raise PlmError(f"the file '{path}' has no header row", remedy="copy or download it again")
    return next(csv.reader([text.rstrip("\r\n")]))
