"""Rows of a CSV file that have fewer or more fields than its header: a file cut short, an unquoted comma.

polars fills short rows with missing values and stops reading a row after the last wanted column, so it sees neither.
Here a compiled loop counts the separators of every row, which costs little more than reading the file; only where their
number does not fit in some row is the file read again to say in which.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from patients_like_me.errors import PlmError
from patients_like_me.records.row_kernels import (
    COMMAS,
    COMMAS_OF_HEADER,
    IS_QUOTED,
    ROWS,
    SIGNS_OF_ROW,
    STATE_SIZE,
    UNEVEN,
    count_separators,
)

_CHUNK: Final = 1 << 22
#: Larger gzipped files are not decompressed a second time, which would cost more than all other checks: a copy that
#: was cut off is found by gzip's own checksum, a table that was cut before it was packed is not.
LARGEST_GZIP: Final = 1 << 23


def refuse_uneven_rows(path: Path) -> None:
    r"""Refuse a CSV file in which some row has not as many fields as the header.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "visits.csv"
    >>> _ = path.write_text("a,b,c\n1,2,3\n4,5")
    >>> refuse_uneven_rows(path)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    patients_like_me.errors.PlmError: '.../visits.csv', row 3 has 2 fields where the header has 3...
    """
    is_gzip = path.suffix.lower() == ".gz"
    if ".csv" not in path.name.lower() or (is_gzip and path.stat().st_size > LARGEST_GZIP):
        return
    if _separators_fit(path):
        return
    with _opened(path) as stream:
        rows = rows_of_csv(path, stream)
        fields = len(next(rows, []))
        for number, row in enumerate(rows, start=2):
            if row and len(row) != fields:
                why = (
                    "look for an unquoted comma and fix it"
                    if len(row) > fields
                    else "the file may have been cut off there: copy or export it again"
                )
                raise PlmError(
                    f"'{path}', row {number} has {len(row)} fields where the header has {fields}", remedy=why
                )


def notes_on_last_row(path: Path) -> list[str]:
    r"""Say that a CSV file does not end in a line end: it may have been cut inside its last field.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "visits.csv"
    >>> _ = path.write_text("a,b\n1,2")
    >>> notes_on_last_row(path)
    ["the last row of 'visits.csv' has no line end: look whether the file was cut off inside it"]
    """
    if path.suffix.lower() != ".csv" or not path.stat().st_size:
        return []
    with path.open("rb") as stream:
        stream.seek(-1, 2)
        is_whole = stream.read(1) in (b"\n", b"\r")
    what = f"the last row of '{path.name}' has no line end: look whether the file was cut off inside it"
    return [] if is_whole else [what]


def rows_of_csv(path: Path, lines: Iterable[bytes]) -> Iterator[list[str]]:
    """Yield the rows of a CSV file; one that no reader of CSV takes is refused."""
    rows = csv.reader(line.decode("utf-8", "replace") for line in lines)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error:
            raise PlmError(
                f"'{path}', line {rows.line_num}: there is a carriage return inside a field without quotes, or a field "
                f"of more than {csv.field_size_limit():,} characters",
                remedy="export the table again, with quotes around texts",
            ) from None
        yield row


def _separators_fit(path: Path) -> bool:
    """Tell whether every row has as many commas outside quotes as the header, and no quote is left open."""
    state = np.zeros(STATE_SIZE, dtype=np.int64)
    for chunk in _chunks(path):
        signs = np.frombuffer(chunk, dtype=np.uint8)
        count_separators(signs, len(signs), state)
        if state[UNEVEN]:
            return False
    is_even = state[ROWS] == 0 or state[COMMAS] in (0, state[COMMAS_OF_HEADER])
    return not state[IS_QUOTED] and (bool(is_even) or not state[SIGNS_OF_ROW])


def _opened(path: Path) -> gzip.GzipFile:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def _chunks(path: Path) -> Iterator[bytes]:
    with _opened(path) as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk
