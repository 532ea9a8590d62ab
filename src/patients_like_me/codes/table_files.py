"""Read a code table that a user gives: CSV, TSV or Parquet, plain or gzipped, every value as text."""

from __future__ import annotations

import gzip
import io
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

import polars as pl
from polars.exceptions import PolarsError

from patients_like_me.errors import PlmError

_SEPARATORS = ",\t;|"
_LINES_LOOKED_AT = 6


def read_text(path: Path) -> str:
    """Return the whole text of a plain or gzipped file; a damaged gzip or a binary file is a ``PlmError``."""
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise PlmError(
                f"'{path}' is a damaged or incomplete gzip file ({error})", remedy="download it again"
            ) from None
    if b"\0" in content:
        raise PlmError(f"'{path}' is not a text table", remedy="give a CSV, TSV or Parquet file")
    if not content.strip():
        raise PlmError(f"'{path}' is empty", remedy="download it again")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        # Codes are plain ASCII; only descriptions, which are not kept, may be in another encoding.
        return content.decode("cp1252", errors="replace")


def is_parquet(path: Path) -> bool:
    """Tell whether the file starts with Parquet's own mark."""
    with path.open("rb") as stream:
        return stream.read(4) == b"PAR1"


def read_parquet_table(path: Path) -> pl.DataFrame:
    """Read a Parquet table; whole numbers keep their type, so that lost leading zeros can be told."""
    try:
        return pl.read_parquet(path, glob=False)
    except (PolarsError, OSError) as error:
        raise PlmError(f"'{path}' is a damaged Parquet file ({error})", remedy="write it again") from None


def read_delimited(text: str, *, source: Path, header_words: tuple[str, ...] = ()) -> pl.DataFrame:
    r"""Read delimited text whose header is in one of the first lines; every value is text.

    ``header_words`` are cleaned column names (see ``clean_column``) by which a header below a title line is
    found; without them the first line is the header. Single and double quotes around values are removed.

    >>> text = "title\n'ICD CODE','CCS'\n'0001 ','231'\n"
    >>> read_delimited(text, source=Path("own.csv"), header_words=("ccs",)).rows()
    [('0001', '231')]
    """
    lines = text.splitlines()
    header_at = next(
        (
            at
            for at, line in enumerate(lines[:_LINES_LOOKED_AT])
            if any(clean_column(cell) in header_words for cell in line.split(_separator_of(line)))
        ),
        0,
    )
    separator = _separator_of(lines[header_at])
    body = "\n".join(lines[header_at:])
    try:
        frame = pl.read_csv(
            io.StringIO(body),
            separator=separator,
            infer_schema=False,
            quote_char='"',
            truncate_ragged_lines=True,
        )
    except PolarsError as error:
        reason = str(error).splitlines()[0]
        raise PlmError(
            f"'{source}' cannot be read as a table separated by {separator!r} ({reason})",
            remedy="give a CSV or TSV file with one header line",
        ) from None
    return frame.with_columns(pl.all().str.strip_chars("'\" \t\r"))


def unpack_zip(
    path: Path, into: Path, *, choose: Callable[[Iterable[PurePosixPath]], Iterable[PurePosixPath]]
) -> list[Path]:
    """Unpack the members that ``choose`` picks, under their bare names, and return their paths."""
    unpacked = []
    try:
        with zipfile.ZipFile(path) as archive:
            members = [PurePosixPath(name) for name in archive.namelist() if not name.endswith("/")]
            for member in choose(members):
                target = into / member.name
                with archive.open(str(member)) as packed, target.open("wb") as plain:
                    shutil.copyfileobj(packed, plain, 1 << 20)
                unpacked.append(target)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise PlmError(f"'{path}' is a damaged or unreadable zip file ({error})", remedy="download it again") from None
    return unpacked


def clean_column(name: str) -> str:
    """Return a column's name in lower case letters and digits only.

    >>> clean_column("'ICD-9-CM CODE'"), clean_column(" RxCUI ")
    ('icd9cmcode', 'rxcui')
    """
    return "".join(character for character in name.lower() if character.isalnum())


def _separator_of(line: str) -> str:
    """Return the separator that occurs most often in a line; a comma where none does."""
    return max(_SEPARATORS, key=line.count)
