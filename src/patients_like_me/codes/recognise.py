"""Recognise what code table a file, folder or zip holds, and read it."""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import TypeVar

import polars as pl

from patients_like_me.codes import rxnorm, table_files
from patients_like_me.codes.code_tables import GivenFile, installable_tables
from patients_like_me.codes.drug_tables import ParsedTable
from patients_like_me.errors import PlmError
from patients_like_me.files import sha256_of_file

ACCEPTED = (
    "give an RxNorm release (folder or zip with RXNSAT.RRF and RXNCONSO.RRF), HCUP's ICD-9 procedure file "
    "('$prref 2015.csv', AppendixBSinglePR.txt or its zip) or multi-level files (ccs_multi_dx_2015.csv), SMILES "
    "per code (JSON, or CSV with atc3 and smiles), or a CSV, TSV or Parquet table whose header "
    "names two of ndc, rxcui and atc3, one of icd9proc, icd9cm, icd10cm and icd10pcs together with ccs, or atc3_a and "
    "atc3_b (interactions)"
)

_PathType = TypeVar("_PathType", bound=PurePath)


@dataclass(frozen=True)
class Found:
    """The tables that a user's file holds, with its size and hash, and sentences on what it lacks."""

    tables: list[ParsedTable]
    size: int
    sha256: str
    notes: list[str] = field(default_factory=list)


def read_any(path: Path, *, table: str | None = None) -> Found:
    """Read whatever is accepted; anything else is a ``PlmError`` that names what would be."""
    if not path.exists():
        raise PlmError(f"there is no file or folder '{path}'", remedy="check the path")
    if path.is_dir():
        return _read_folder(path, table)
    if path.name.upper() in rxnorm.RELEASE_FILES:
        return _read_folder(path.parent, table)
    size, sha256 = path.stat().st_size, sha256_of_file(path)
    if path.suffix.lower() == ".zip" or zipfile.is_zipfile(path):
        with tempfile.TemporaryDirectory(prefix="plm-codes-") as scratch:
            table_files.unpack_zip(path, Path(scratch), choose=_choose_members)
            found = _read_folder(Path(scratch), table, named=path)
        return replace(found, size=size, sha256=sha256)
    return Found(_read_file(path, table), size, sha256)


def _read_folder(folder: Path, table: str | None, *, named: Path | None = None) -> Found:
    """Read an RxNorm release, or else the one HCUP file that a folder holds."""
    files = list(rxnorm.find_release(folder).values())
    notes: list[str] = []
    if files:
        if table is not None and table not in ("ndc_rxcui", "rxcui_atc3"):
            raise PlmError(
                f"'{named or folder}' is an RxNorm release and holds no table '{table}'",
                remedy="leave out --as",
            )
        release = rxnorm.read_release({path.name.upper(): path for path in files})
        tables = [part for part in release.tables if table in (None, part.table)]
        notes = release.notes
    else:
        files = _hcup_files(sorted(folder.iterdir()))
        if len(files) != 1:
            raise PlmError(f"'{named or folder}' holds no code table that plm knows", remedy=ACCEPTED)
        tables = _read_file(files[0], table)
    hashes = sorted((path.name, sha256_of_file(path)) for path in files)
    sha256 = hashlib.sha256(repr(hashes).encode()).hexdigest()
    return Found(tables, sum(path.stat().st_size for path in files), sha256, notes)


def _choose_members(members: Iterable[PurePosixPath]) -> list[PurePosixPath]:
    members = list(members)
    return list(rxnorm.choose_release_files(members).values()) or _hcup_files(members)


def _hcup_files(paths: Iterable[_PathType]) -> list[_PathType]:
    """Pick HCUP's procedure file among others; where there is none, the only table there is."""
    paths = list(paths)
    procedures = [path for path in paths if "prref" in path.name.lower() or "singlepr" in path.name.lower()]
    tables = [path for path in paths if path.name.lower().endswith((".csv", ".csv.gz", ".tsv", ".txt", ".parquet"))]
    return procedures or (tables if len(tables) == 1 else [])


def _read_file(path: Path, table: str | None) -> list[ParsedTable]:
    """Ask the table that was named, or all of them, whether the file is theirs."""
    if table_files.is_parquet(path):
        file = GivenFile(path, table_files.read_parquet_table(path), None)
    else:
        text = table_files.read_text(path)
        file = GivenFile(path, _frame_of(text, path), text)
    known = sorted(installable_tables().values(), key=lambda each: each.tried)
    # The tables of a family share one recogniser.
    recognisers = dict.fromkeys(each.recognise for each in known if table in (None, each.name))
    for recognise in recognisers:
        found = None if recognise is None else recognise(file, table)
        if found is not None:
            return found
    raise PlmError(
        f"'{path}' is not a code table that plm knows (its columns are {', '.join(file.columns.columns[:8])})",
        remedy=ACCEPTED,
    )


def _frame_of(text: str, path: Path) -> pl.DataFrame:
    """Read a text file as a table: JSON in a form that some table knows, or delimited text."""
    known = installable_tables().values()
    for of_json in dict.fromkeys(table.of_json for table in known if table.of_json is not None):
        listed = of_json(text, source=path)
        if listed is not None:
            return listed
    words = tuple(dict.fromkeys(word for table in known for word in table.header_words))
    return table_files.read_delimited(text, source=path, header_words=words)
