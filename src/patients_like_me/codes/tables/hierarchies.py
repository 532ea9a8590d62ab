"""Ancestors of CCS categories."""

from __future__ import annotations

from patients_like_me.codes.code_tables import CodeTable, GivenFile
from patients_like_me.codes.drug_tables import ParsedTable
from patients_like_me.codes.hierarchy import COLUMNS, HEADER_WORDS, HIERARCHY_TABLES, parse_hierarchy

_MULTI_LEVEL = (
    "Optional: on HCUP's site, hcup-us.ahrq.gov, open Tools & Software, CCS for ICD-9-CM, multi level, and download "
    "Multi_Level_CCS_2015.zip; free, no registration. It holds one file of diagnoses and one of procedures. "
    "Then, for each: plm codes add FILE."
)


def recognise(file: GivenFile, table: str | None) -> list[ParsedTable] | None:
    """Read HCUP's multi-level file, or a table of ancestors."""
    wanted = next((name for name in HIERARCHY_TABLES if name == table), None)
    return parse_hierarchy(file.columns, source=file.path, table=wanted)


CODE_TABLE = (
    CodeTable(
        name="ccs_multi_dx",
        title="CCS diagnosis categories and their ancestors",
        needed_for="GRAM, G-BERT, KEHGCN and GraphCare",
        columns=COLUMNS,
        recognise=recognise,
        header_words=HEADER_WORDS,
        place=40,
        tried=10,
        how_to_get=_MULTI_LEVEL,
        optional=True,
    ),
    CodeTable(
        name="ccs_multi_pr",
        title="CCS procedure categories and their ancestors",
        needed_for="GRAM, G-BERT and GraphCare",
        columns=COLUMNS,
        recognise=recognise,
        header_words=HEADER_WORDS,
        place=40,
        tried=10,
        how_to_get=_MULTI_LEVEL,
        optional=True,
    ),
)
