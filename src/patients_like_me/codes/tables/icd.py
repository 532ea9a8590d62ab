"""ICD to CCS: HCUP's single-level categories."""

from __future__ import annotations

from patients_like_me.codes.code_tables import CodeTable, GivenFile
from patients_like_me.codes.drug_tables import ParsedTable
from patients_like_me.codes.hcup import ICD_TABLES, icd_pairs_of, parse_icd_table

_FROM_HCUP = (
    "On HCUP's site, hcup-us.ahrq.gov, open Tools & Software, CCS for ICD-9-CM, single level, and download "
    "Single_Level_CCS_2015.zip (it holds '$prref 2015.csv') or AppendixBSinglePR.txt; free, no registration. "
    "Then: plm codes add Single_Level_CCS_2015.zip. Until then ICD-9 procedures stay unmapped."
)


def recognise(file: GivenFile, table: str | None) -> list[ParsedTable] | None:
    """Read HCUP's text appendix, HCUP's quoted CSV, or a two-column table."""
    wanted = next((name for name in ICD_TABLES if name == table), None)
    if file.text is None:
        found = icd_pairs_of(file.columns, source=file.path, table=wanted)
    elif file.text.lstrip()[:1] in ("[", "{"):
        return None
    else:
        found = parse_icd_table(file.text, source=file.path, table=wanted)
    return None if found is None else [ParsedTable(*found)]


CODE_TABLE = (
    CodeTable(
        name="icd9cm_ccs",
        title="ICD-9-CM diagnosis to CCS",
        needed_for="diagnoses of MIMIC-III and of the older visits of MIMIC-IV",
        columns=("code", "ccs"),
        recognise=recognise,
        one_value_per_code=True,
        place=10,
        tried=30,
    ),
    CodeTable(
        name="icd10cm_ccs",
        title="ICD-10-CM diagnosis to CCS",
        needed_for="diagnoses of the newer visits of MIMIC-IV",
        columns=("code", "ccs"),
        recognise=recognise,
        one_value_per_code=True,
        place=10,
        tried=30,
    ),
    CodeTable(
        name="icd9proc_ccs",
        title="ICD-9 procedure to CCS",
        needed_for="procedures of MIMIC-III and of the older visits of MIMIC-IV",
        columns=("code", "ccs"),
        recognise=recognise,
        one_value_per_code=True,
        place=10,
        tried=30,
        how_to_get=_FROM_HCUP,
    ),
    CodeTable(
        name="icd10pcs_ccs",
        title="ICD-10-PCS procedure to CCS",
        needed_for="procedures of the newer visits of MIMIC-IV",
        columns=("code", "ccs"),
        recognise=recognise,
        one_value_per_code=True,
        place=10,
        tried=30,
    ),
)
