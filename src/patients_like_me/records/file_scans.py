"""Scanning one file of a table lazily: its header, and its columns in the wanted types, times in any usual form."""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import TIME
from patients_like_me.records.file_errors import broken_gzip, conversion, explained
from patients_like_me.records.table_files import NDJSON, ending_of

#: The minutes of a century.
CENTURY: Final = 100 * 366 * 24 * 60
_TIME_FORM: Final = "%Y-%m-%d %H:%M:%S"
# A cell may be longer than Python's reader of CSV expects; rows are read one at a time.
csv.field_size_limit(1 << 30)

Columns = Mapping[str, "pl.DataType | type[pl.DataType]"]


def header_of(path: Path) -> list[str]:
    """Return the names of a file's columns."""
    ending = ending_of(path)
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


def scanned_csv(path: Path, present: Mapping[str, str], columns: Columns) -> pl.LazyFrame:
    """Scan a CSV file; ``present`` are the file's own names of the wanted columns."""
    types = {original: columns[name] for name, original in present.items() if columns[name] != TIME}
    # A name may hold square brackets: it is never a pattern.
    scanned = pl.scan_csv(path, infer_schema=False, null_values="", schema_overrides=types, encoding="utf8", glob=False)
    return scanned.select(_parsed(original, columns[name]).alias(name) for name, original in present.items())


def scanned_parquet(path: Path, present: Mapping[str, str], columns: Columns) -> pl.LazyFrame:
    """Scan a Parquet file; a column whose stored type would lose something is refused."""
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


def scanned_ndjson(path: Path, present: Mapping[str, str], columns: Columns) -> pl.LazyFrame:
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
