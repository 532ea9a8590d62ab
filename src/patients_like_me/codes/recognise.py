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

from patients_like_me.codes import drug_tables, hcup, hierarchy, interactions, molecules, rxnorm, table_files
from patients_like_me.codes.drug_tables import DRUG_TABLES, ParsedTable
from patients_like_me.codes.hcup import ICD_TABLES
from patients_like_me.codes.hierarchy import HIERARCHY_TABLES
from patients_like_me.codes.interactions import INTERACTION_TABLES
from patients_like_me.codes.molecules import SMILES_TABLE
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
    drug_table = next((name for name in DRUG_TABLES if name == table), None)
    icd_table = next((name for name in ICD_TABLES if name == table), None)
    pair_table = next((name for name in INTERACTION_TABLES if name == table), None)
    tree_table = next((name for name in HIERARCHY_TABLES if name == table), None)
    text = None
    if table_files.is_parquet(path):
        raw = table_files.read_parquet_table(path)
    else:
        text = table_files.read_text(path)
        raw = _frame_of(text, path)
    if tree_table is not None or table is None:
        trees = hierarchy.parse_hierarchy(raw, source=path, table=tree_table)
        if trees is not None:
            return trees
    if table in (None, SMILES_TABLE):
        smiles = molecules.parse_smiles(raw, source=path, wanted=table is not None)
        if smiles is not None:
            return smiles
    if icd_table is not None or table is None:
        icd = (
            hcup.icd_pairs_of(raw, source=path, table=icd_table)
            if text is None
            else hcup.parse_icd_table(text, source=path, table=icd_table)
            if not _is_json(text)
            else None
        )
        if icd is not None:
            return [ParsedTable(*icd)]
    if pair_table is not None or table is None:
        pairs = interactions.parse_interactions(raw, source=path, table=pair_table)
        if pairs is not None:
            return pairs
    drugs = drug_tables.parse_drug_table(raw, source=path, table=drug_table) if icd_table is None else None
    if drugs is None:
        raise PlmError(
            f"'{path}' is not a code table that plm knows (its columns are {', '.join(raw.columns[:8])})",
            remedy=ACCEPTED,
        )
    return drugs


def _is_json(text: str) -> bool:
    return text.lstrip()[:1] in ("[", "{")


def _frame_of(text: str, path: Path) -> pl.DataFrame:
    """Read a text file as a table: a JSON list of codes, a JSON object of SMILES, or delimited text."""
    for of_json in (interactions.codes_of_json, molecules.smiles_of_json):
        listed = of_json(text, source=path)
        if listed is not None:
            return listed
    words = (*drug_tables.HEADER_WORDS, *interactions.HEADER_WORDS, *hierarchy.HEADER_WORDS)
    return table_files.read_delimited(text, source=path, header_words=words)
