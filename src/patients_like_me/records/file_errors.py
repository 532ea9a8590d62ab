"""What is wrong with a file, in one sentence that names file, row, column and remedy."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.plain_text import form_of, printable
from patients_like_me.records.row_shape import rows_of_csv

#: What a reader writes after a time that cannot be compared with the others, so that reading it fails.
OTHER_ZONE = " of another time zone"


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what polars says about a bad file into one sentence that names file, row, column and remedy."""
    try:
        yield
    except PlmError:
        raise
    except (pl.exceptions.PolarsError, OSError, EOFError, zlib.error) as error:
        try:
            explanation = _explanation(path, str(error))
        except (OSError, EOFError, zlib.error):
            # The file cannot be read a second time either.
            explanation = _gone(path) if not path.exists() else broken_gzip(path)
        raise explanation from error


def _gone(path: Path) -> PlmError:
    return PlmError(f"'{path}' vanished while it was read", remedy="put it back and run the same command again")


def _explanation(path: Path, message: str) -> PlmError:
    if not path.exists():
        return _gone(path)
    if "as dtype `str`" in message:
        return PlmError(f"'{path}' has a quote that is opened and never closed", remedy="find it and close it")
    if "unexpected end of file" in message or "corrupt" in message or "deflate" in message:
        return broken_gzip(path)
    if "utf-8" in message.lower() or "utf8" in message.lower():
        row = _first_row_that_is_not_utf8(path)
        return PlmError(
            f"'{path}' is not UTF-8 text at row {row}",
            remedy=f"convert the file to UTF-8, {conversion(path)}",
        )
    if "TapeError" in message or "json value" in message.lower() or "parsing line" in message or "JSON" in message:
        if (broken := _first_row_that_is_not_json(path)) is not None:
            return PlmError(f"'{path}', row {broken}: not a JSON object", remedy="correct or remove that row")
        return _of_another_form(path)
    if "while building Series of type" in message:
        return _of_another_form(path)
    found = re.search(r"could not parse `(?P<value>.*?)` as dtype `\w+` at column '(?P<column>[^']+)'", message)
    found = found or re.search(
        r"conversion from `str` to `[ui]\d+` failed in column '(?P<column>[^']*)'.*?\[\"(?P<value>.*?)\"", message, re.S
    )
    if found:
        place = _place_of_value(path, found["column"], found["value"])
        return PlmError(
            f"'{path}', {place}: {_value(found)} is not a whole number in column '{found['column']}'",
            remedy="correct or remove that row",
        )
    found = re.search(
        r"conversion from `str` to `datetime.*?` failed in column '(?P<column>[^']*)'.*?\[\"(?P<value>.*?)\"",
        message,
        re.S,
    )
    if found:
        # A bare date was given its midnight before it was read.
        as_written = found["value"].strip().removesuffix(" 00:00:00").removesuffix("T00:00:00")
        if as_written.endswith(OTHER_ZONE):
            as_written = as_written.removesuffix(OTHER_ZONE)
            place = _place_of_value(path, found["column"], as_written)
            return PlmError(
                f"'{path}', {place}: {shown_value(as_written)} is a time of another time zone than those of the visits",
                remedy="export all times in the local time of the hospital",
            )
        return PlmError(
            f"'{path}', {_place_of_value(path, found['column'], as_written)}: "
            f"{shown_value(as_written)} is not a time like 2150-01-31 10:30:00 in column '{found['column']}'",
            remedy="write all times with the year first and hours of 00 to 23, in local time without a zone",
        )
    if "more fields than defined" in message or "found more fields" in message:
        return PlmError(
            f"'{path}' has a row with more fields than its header",
            remedy="look for an unquoted comma and fix it",
        )
    # What polars quotes may be a patient's record.
    reason = re.sub(r"`[^`]*`|\"[^\"]*\"", "...", message.splitlines()[0] if message else "no reason given")
    return PlmError(f"'{path}' cannot be read: {printable(reason)}", remedy="copy or download it again")


def _of_another_form(path: Path) -> PlmError:
    row = _first_row_of_another_shape(path)
    where = "" if row is None else f", row {row}"
    return PlmError(
        f"'{path}'{where}: an entry of another form, a list, an object or a plain value where another of them belongs",
        remedy="check that this is the right file and version",
    )


def _value(found: re.Match[str]) -> str:
    """Return a value as it may be shown; an id is not."""
    return "this id" if found["column"].lower().endswith("id") else shown_value(found["value"])


def shown_value(value: str) -> str:
    """Return a wrong value as it may be shown, by its form alone: where a row is shifted, it may be a name or an id.

    >>> shown_value("2150-02-30"), shown_value("10000032")
    ("a value of the form '9999-99-99'", "a value of the form '99999999'")
    """
    return f"a value of the form '{form_of(value)}'"


def broken_gzip(path: Path) -> PlmError:
    """Say that a gzipped file is damaged."""
    return PlmError(
        f"'{path}' ends too early or is not whole gzip data", remedy="the copy is damaged: download it again"
    )


def conversion(path: Path, form: str = "LATIN1") -> str:
    """Return a command that converts a file to UTF-8."""
    return f"for example with: iconv -f {form} -t UTF-8 '{path.name.removesuffix('.gz')}'"


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


def _first_row_that_is_not_json(path: Path) -> int | None:
    for row, line in enumerate(_lines_of(path), start=1):
        try:
            content = json.loads(line) if line.strip() else {}
        except ValueError:
            return row
        if not isinstance(content, dict):
            return row
    return None


def _first_row_of_another_shape(path: Path) -> int | None:
    """Return the first row with an element (a list, an object, a plain value) that is another thing in most rows."""
    rows: dict[str, dict[type, list[int]]] = {}

    def note(name: str, entry: object, row: int) -> None:
        kind = type(entry) if isinstance(entry, dict | list) else str
        counted = rows.setdefault(name, {}).setdefault(kind, [row, 0])
        counted[1] += 1
        if isinstance(entry, dict):
            for key, value in entry.items():
                if value is not None:
                    note(f"{name}.{key}", value, row)
        elif isinstance(entry, list):
            for value in entry:
                note(f"{name}[]", value, row)

    for row, line in enumerate(_lines_of(path), start=1):
        if line.strip():
            note("", json.loads(line), row)
    several = [kinds.values() for kinds in rows.values() if len(kinds) > 1]
    # Of two that are equally frequent the later one is the odd one.
    return min((min(kinds, key=lambda kind: (kind[1], -kind[0]))[0] for kinds in several), default=None)


def _place_of_value(path: Path, column: str, value: str) -> str:
    """Say which row holds a bad value; Parquet has no rows that a person could open."""
    if path.suffix.lower() == ".parquet":
        return f"column '{column}'"
    if ".csv" not in path.name.lower():
        for row, line in enumerate(_lines_of(path), start=1):
            found = {str(name).lower(): entry for name, entry in json.loads(line or "{}").items()}
            inside = f'"{value}'.encode() in line
            if inside or str(found.get(column.lower())).removesuffix(":00") == value.removesuffix(":00"):
                return f"row {row}"
        return f"column '{column}'"
    reader = rows_of_csv(path, _lines_of(path))
    header = [name.strip().lower().lstrip("\ufeff") for name in next(reader, [])]
    wanted = value.strip().replace("T", " ")
    position = header.index(column.lower()) if column.lower() in header else None
    for row, fields in enumerate(reader, start=2):
        # A column that was renamed on reading is looked for in all fields.
        candidates = fields if position is None else fields[position : position + 1]
        written = [field.strip().replace("T", " ") for field in candidates if field.strip()]
        if any(field in (wanted, wanted.removesuffix(":00")) for field in written):
            return f"row {row}"
    return f"column '{column}'"
