"""Rows of a CSV file that have fewer or more fields than its header: a file cut short, an unquoted comma.

polars fills short rows with missing values and stops reading a row after the last wanted column, so it sees neither.
Here the separators of the whole file are counted, which costs little more than reading it; only where their number
does not fit is the file read row by row.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError

_CHUNK: Final = 1 << 22
#: Larger gzipped files are not decompressed a second time, which would cost more than all other checks: a copy that
#: was cut off is found by gzip's own checksum, a table that was cut before it was packed is not.
LARGEST_GZIP: Final = 1 << 23
_COMMA, _LINE_END, _QUOTE = (ord(sign) for sign in ',\n"')


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
    """Tell whether the commas and line ends outside quotes are those of whole rows."""
    commas = line_ends = commas_of_header = 0
    is_quoted, last = False, _LINE_END
    for chunk in _chunks(path):
        signs = np.frombuffer(chunk, dtype=np.uint8)
        at_comma, at_end = signs == _COMMA, signs == _LINE_END
        outside, is_quoted = _outside_quotes(signs, is_quoted)
        if outside is not None:
            at_comma &= outside
            at_end &= outside
        if not line_ends:
            first_end = int(np.argmax(at_end)) if at_end.any() else len(signs)
            commas_of_header += int(np.count_nonzero(at_comma[:first_end]))
        commas += int(np.count_nonzero(at_comma))
        line_ends += int(np.count_nonzero(at_end))
        last = int(signs[-1])
    rows = line_ends + (last != _LINE_END)
    return not is_quoted and commas == rows * commas_of_header


def _outside_quotes(signs: npt.NDArray[np.uint8], is_quoted: bool) -> tuple[npt.NDArray[np.bool_] | None, bool]:
    """Return which signs are outside quotes (None for all), and whether a quote is open at the end."""
    quotes = signs == _QUOTE
    count = int(np.count_nonzero(quotes))
    if not count and not is_quoted:
        return None, False
    inside = np.logical_xor.accumulate(quotes) ^ is_quoted
    return ~inside, bool(inside[-1])


def _opened(path: Path) -> gzip.GzipFile:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def _chunks(path: Path) -> Iterator[bytes]:
    with _opened(path) as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk
