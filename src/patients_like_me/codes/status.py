"""Say which code tables are there, what each is needed for, and where a user gets what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING

import polars as pl

from patients_like_me.codes.code_tables import CodeTable, all_code_tables
from patients_like_me.codes.hcup import ICD_TABLES, package_of, packaged_map

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore

_WITH_PACKAGE = "Comes with plm; rows of your own (header such as {columns}) added with plm codes add win over it."


@dataclass(frozen=True)
class StatusRow:
    """One code table: whether it is there, how large it is, where it came from, and how to get it."""

    table: str
    title: str
    installed: bool
    entries: int
    source: str
    needed_for: str
    how_to_get: str


def status(store: CodeStore) -> list[StatusRow]:
    """Return one row for each code table, packaged, installed or missing.

    >>> import tempfile; from pathlib import Path; from patients_like_me.codes.store import CodeStore
    >>> rows = status(CodeStore(Path(tempfile.mkdtemp())))
    >>> " ".join(row.table for row in rows if not row.installed)
    'icd9proc_ccs ndc_rxcui rxcui_atc3 ndc_atc3 atc3_interactions atc3_covered ccs_multi_dx ccs_multi_pr atc3_smiles'
    """
    return [_row(table, store) for table in all_code_tables().values()]


def _row(table: CodeTable, store: CodeStore) -> StatusRow:
    if table.recognise is None:
        entries, sources, how = _ingredient_names(), ["inside plm"], table.how_to_get
    else:
        sources = [f"{source.file} ({source.added})" for source in store.sources(table.name)]
        entries, how = store.entries(table.name), table.how_to_get
    icd_table = next((name for name in ICD_TABLES if name == table.name), None)
    if icd_table is not None and (package := package_of(icd_table)):
        frames = [frame for frame in (packaged_map(icd_table), store.table(icd_table)) if frame is not None]
        entries = pl.concat(frames)["code"].n_unique()
        sources = [f"package {package} {version(package)}", *sources]
        how = _WITH_PACKAGE.format(columns=table.name.replace("_", ","))
    source = "; ".join(sources) or ("none (optional)" if table.optional else "missing")
    return StatusRow(table.name, table.title, bool(sources), entries, source, table.needed_for, how)


def _ingredient_names() -> int:
    """Return the number of names in the table of ingredients inside plm."""
    text = files("patients_like_me.codes").joinpath("ingredients.csv").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return len(rows) - 1
