"""Finding and opening a hospital's tables: any usual folder level, header case, and CSV, gzip or Parquet."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import TIME

ENDINGS = (".parquet", ".csv", ".csv.gz")
_DEEPEST_LEVEL = 3
_TIME_FORM = "%Y-%m-%d %H:%M:%S"


@dataclass
class SourceFolder:
    """A folder of tables in which each is found by its name, whatever its level, letter case or ending.

    ``used`` collects every file that was opened, for the cohort's provenance.
    """

    folder: Path
    source: str
    used: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.folder.exists():
            raise PlmError(f"the folder '{self.folder}' does not exist", remedy="check the path")
        if not self.folder.is_dir():
            raise PlmError(
                f"'{self.folder}' is a file, but {self.source} is read from a folder of tables",
                remedy="give the folder that holds it",
            )

    @property
    def is_synthetic(self) -> bool:
        """Tell whether the folder (or the one above, where ``hosp/`` was given) says that its hospital is made up."""
        return any((folder / "SYNTHETIC.json").is_file() for folder in (self.folder, self.folder.parent))

    def find(self, table: str, *, required: bool = True) -> Path | None:
        """Return the file of a table: the nearest to the given folder; Parquet before CSV before gzipped CSV."""
        candidates = sorted(
            (len(path.relative_to(self.folder).parts), ENDINGS.index(ending), path)
            for path in _files_below(self.folder)
            for ending in ENDINGS
            if path.name.lower() == table + ending
        )
        if candidates:
            level = candidates[0][0]
            folders = {path.parent for depth, _, path in candidates if depth == level}
            if len(folders) > 1:
                places = " and ".join(f"'{folder}'" for folder in sorted(folders))
                raise PlmError(f"the table '{table}' lies in {places}", remedy="give one of these folders")
            return candidates[0][2]
        if not required:
            return None
        seen = sorted({path.name for path in _files_below(self.folder) if path.name.lower().endswith(ENDINGS)})
        there = f"tables there: {', '.join(seen[:8])}" if seen else "no .csv, .csv.gz or .parquet file is there"
        raise PlmError(
            f"no table '{table}' ({' or '.join(table + ending for ending in ENDINGS)}) in '{self.folder}' ({there})",
            remedy=f"give the folder that holds the {self.source} tables",
        )

    def open(
        self,
        table: str,
        columns: Mapping[str, pl.DataType | type[pl.DataType]],
        *,
        optional: tuple[str, ...] = (),
    ) -> SourceTable:
        """Open a table lazily with lower-case column names; only ``columns`` are read, as the given types."""
        path = self.find(table)
        assert path is not None
        return self.open_file(path, columns, optional=optional)

    def open_file(
        self,
        path: Path,
        columns: Mapping[str, pl.DataType | type[pl.DataType]],
        *,
        optional: tuple[str, ...] = (),
    ) -> SourceTable:
        """Open one file as :meth:`open` does."""
        self.used.append(path)
        return open_table(path, columns, optional=optional)


@dataclass(frozen=True)
class SourceTable:
    """One table opened lazily: ``frame`` has exactly the wanted columns, absent optional ones as nulls."""

    path: Path
    frame: pl.LazyFrame

    def collect(self) -> pl.DataFrame:
        """Read the wanted columns into memory."""
        with explained(self.path):
            return self.frame.collect(engine="streaming")

    def batches(self, rows: int = 500_000) -> Iterator[pl.DataFrame]:
        """Read the wanted columns in pieces of about ``rows`` rows, in file order, so that memory stays bounded."""
        with explained(self.path):
            yield from self.frame.collect_batches(chunk_size=rows, maintain_order=True)

    def row_of(self, condition: pl.Expr) -> int:
        """Return the first row that meets a condition, counted as a text editor does (the header is row 1)."""
        return self.row_and_value(condition)[0]

    def row_and_value(self, condition: pl.Expr, column: str | None = None) -> tuple[int, object]:
        """Return the first row that meets a condition, and what stands there in a column."""
        with explained(self.path):
            hit = self.frame.with_row_index("row").filter(condition).head(1).collect().row(0, named=True)
        return int(hit["row"]) + 2, None if column is None else hit[column]


def open_table(
    path: Path, columns: Mapping[str, pl.DataType | type[pl.DataType]], *, optional: tuple[str, ...] = ()
) -> SourceTable:
    r"""Open a CSV, gzipped CSV or Parquet file lazily; missing required columns are named in the error.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "visits.csv"
    >>> _ = path.write_text("VISIT_ID,Other\n007,x\n")
    >>> open_table(path, {"visit_id": pl.String, "age": pl.Int16}, optional=("age",)).collect().rows()
    [('007', None)]
    """
    if path.stat().st_size == 0:
        raise PlmError(f"the file '{path}' is empty", remedy="copy or download it again")
    header = _header_of(path)
    by_lower: dict[str, str] = {}
    for name in header:
        by_lower.setdefault(name.strip().lower(), name)
    missing = [name for name in columns if name not in by_lower and name not in optional]
    if missing:
        raise PlmError(
            f"'{path}' has no column {', '.join(repr(name) for name in missing)} (it has: {', '.join(header[:30])})",
            remedy="check that this is the right file and version",
        )
    present = {name: by_lower[name] for name in columns if name in by_lower}
    if path.suffix.lower() == ".parquet":
        stored = pl.scan_parquet(path)
        schema = stored.collect_schema()
        _refuse_time_zones(path, {name: schema[original] for name, original in present.items()})
        scanned = stored.select(
            (
                _parsed(original, columns[name])
                if schema[original] == pl.String and columns[name] == TIME
                else pl.col(original).cast(columns[name])
            ).alias(name)
            for name, original in present.items()
        )
    else:
        scanned = pl.scan_csv(
            path,
            infer_schema=False,
            null_values="",
            schema_overrides={original: columns[name] for name, original in present.items() if columns[name] != TIME},
            encoding="utf8",
        ).select(_parsed(original, columns[name]).alias(name) for name, original in present.items())
    absent = [pl.lit(None, dtype=columns[name]).alias(name) for name in columns if name not in present]
    return SourceTable(path, scanned.with_columns(absent).select(list(columns)))


def _parsed(column: str, wanted: pl.DataType | type[pl.DataType]) -> pl.Expr:
    """Parse times after reading: a column's own text stays at hand for the error message."""
    return pl.col(column).map_batches(_as_times, return_dtype=TIME) if wanted == TIME else pl.col(column)


def _as_times(given: pl.Series) -> pl.Series:
    """Read a column of times; the usual form is tried first, since all others together take several times as long."""
    usual = given.str.to_datetime(_TIME_FORM, time_unit="us", strict=False, cache=False)
    if usual.null_count() == given.null_count():
        return usual
    return given.to_frame().select(_times_of_any_form(given.name)).to_series()


def _times_of_any_form(column: str) -> pl.Expr:
    text = pl.col(column).str.strip_chars().replace("", None)
    # Fractions of a second are dropped; a time zone is not a fraction, and is refused as no time.
    plain = text.str.replace(r"\.\d+$", "").str.replace("T", " ", literal=True)
    whole = pl.when(plain.str.len_bytes() == 10).then(plain + " 00:00:00").otherwise(plain)
    whole = pl.when(whole.str.len_bytes() == 16).then(whole + ":00").otherwise(whole)
    return whole.str.to_datetime(_TIME_FORM, time_unit="us")


def _refuse_time_zones(path: Path, schema: Mapping[str, pl.DataType]) -> None:
    for name, kind in schema.items():
        if isinstance(kind, pl.Datetime) and kind.time_zone is not None:
            raise PlmError(
                f"'{path}', column '{name}': its times carry the time zone '{kind.time_zone}'",
                remedy="store plain local times in all tables, so that they can be compared",
            )


def _files_below(folder: Path) -> Iterator[Path]:
    pending = [(folder, 1)]
    while pending:
        current, level = pending.pop()
        for path in sorted(current.iterdir()):
            if path.is_file():
                yield path
            elif path.is_dir() and level < _DEEPEST_LEVEL and not _is_passed_over(path):
                pending.append((path, level + 1))


def _is_passed_over(folder: Path) -> bool:
    """Hidden folders, and cohorts that were written into the source's own folder."""
    return folder.name.startswith(".") or (folder / "cohort.json").is_file()


def _header_of(path: Path) -> list[str]:
    if path.suffix.lower() == ".parquet":
        with explained(path):
            return pl.scan_parquet(path).collect_schema().names()
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as stream:
            first = stream.readline(1 << 20)
        text = first.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error):
        raise _broken_gzip(path) from None
    except UnicodeDecodeError:
        raise PlmError(
            f"the header of '{path}' is not UTF-8 text",
            remedy=f"convert the file to UTF-8, {_conversion(path)}",
        ) from None
    if "\0" in text:
        raise PlmError(
            f"'{path}' looks like UTF-16, not UTF-8", remedy=f"convert the file to UTF-8, {_conversion(path)}"
        )
    if not text.strip():
        raise PlmError(f"the file '{path}' has no header row", remedy="copy or download it again")
    return next(csv.reader([text.rstrip("\r\n")]))


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what polars says about a bad file into one sentence that names file, row, column and remedy."""
    try:
        yield
    except PlmError:
        raise
    except (pl.exceptions.PolarsError, OSError, EOFError) as error:
        raise _explanation(path, str(error)) from error


def _explanation(path: Path, message: str) -> PlmError:
    if "unexpected end of file" in message or "corrupt" in message or "deflate" in message:
        return _broken_gzip(path)
    if "utf-8" in message.lower() or "utf8" in message.lower():
        row = _first_row_that_is_not_utf8(path)
        return PlmError(
            f"'{path}' is not UTF-8 text at row {row}",
            remedy=f"convert the file to UTF-8, {_conversion(path)}",
        )
    found = re.search(r"could not parse `(?P<value>.*?)` as dtype `\w+` at column '(?P<column>[^']+)'", message)
    if found:
        place = _place_of_value(path, found["column"], found["value"])
        return PlmError(
            f"'{path}', {place}: '{found['value']}' is not a whole number in column '{found['column']}'",
            remedy="correct or remove that row",
        )
    found = re.search(
        r"conversion from `str` to `datetime.*?` failed in column '(?P<column>[^']*)'.*?\[\"(?P<value>.*?)\"",
        message,
        re.S,
    )
    if found:
        # A bare date was given its midnight before it was read.
        as_written = found["value"].strip().removesuffix(" 00:00:00")
        return PlmError(
            f"'{path}', {_place_of_value(path, found['column'], as_written)}: "
            f"'{as_written}' is not a time like 2150-01-31 10:30:00 in column '{found['column']}'",
            remedy="correct that value",
        )
    if "more fields than defined" in message or "found more fields" in message:
        return PlmError(
            f"'{path}' has a row with more fields than its header",
            remedy="look for an unquoted comma, and mend it",
        )
    return PlmError(f"'{path}' cannot be read: {message.splitlines()[0]}", remedy="copy or download it again")


def _broken_gzip(path: Path) -> PlmError:
    return PlmError(
        f"'{path}' ends too early or is not whole gzip data", remedy="the copy is damaged: download it again"
    )


def _conversion(path: Path) -> str:
    return f"for example with: iconv -f LATIN1 -t UTF-8 '{path.name.removesuffix('.gz')}'"


def _lines_of(path: Path) -> Iterator[bytes]:
    with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as stream:
        yield from stream


def _first_row_that_is_not_utf8(path: Path) -> int:
    for row, line in enumerate(_lines_of(path), start=1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            return row
    return 1


def _place_of_value(path: Path, column: str, value: str) -> str:
    """Say in which row a bad value stands; CSV only, Parquet has no rows a person could open."""
    if path.suffix.lower() == ".parquet":
        return f"column '{column}'"
    reader = csv.reader(line.decode("utf-8", "replace") for line in _lines_of(path))
    header = [name.strip().lower().lstrip("\ufeff") for name in next(reader)]
    position = header.index(column.lower()) if column.lower() in header else None
    for row, fields in enumerate(reader, start=2):
        # A column that was renamed on reading is looked for in all fields.
        candidates = fields if position is None else fields[position : position + 1]
        if any(field.strip() in (value, value.removesuffix(":00")) for field in candidates if field.strip()):
            return f"row {row}"
    return f"column '{column}'"
