"""Say which code tables are there, what each is needed for, and where a user gets what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING

import polars as pl

from patients_like_me.codes.hcup import ICD_TABLES, package_of, packaged_map

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore

DRUG_NAMES = "drug_names"

_TITLES = {
    "icd9cm_ccs": "ICD-9-CM diagnosis to CCS",
    "icd10cm_ccs": "ICD-10-CM diagnosis to CCS",
    "icd9proc_ccs": "ICD-9 procedure to CCS",
    "icd10pcs_ccs": "ICD-10-PCS procedure to CCS",
    "ndc_rxcui": "NDC to RxCUI",
    "rxcui_atc3": "RxCUI to ATC-3",
    "ndc_atc3": "NDC to ATC-3, directly",
    "atc3_interactions": "ATC-3 drug interactions",
    "atc3_covered": "ATC-3 codes that the interactions cover",
    "ccs_multi_dx": "CCS diagnosis categories and their ancestors",
    "ccs_multi_pr": "CCS procedure categories and their ancestors",
    "atc3_smiles": "ATC-3 codes and their molecules (SMILES)",
    DRUG_NAMES: "Drug name to ATC-3",
}
_NEEDED_FOR = {
    "icd9cm_ccs": "diagnoses of MIMIC-III and of the older visits of MIMIC-IV",
    "icd10cm_ccs": "diagnoses of the newer visits of MIMIC-IV",
    "icd9proc_ccs": "procedures of MIMIC-III and of the older visits of MIMIC-IV",
    "icd10pcs_ccs": "procedures of the newer visits of MIMIC-IV",
    "ndc_rxcui": "medications by NDC, first step",
    "rxcui_atc3": "medications by NDC, second step",
    "ndc_atc3": "medications by NDC where the two steps give nothing",
    "atc3_interactions": "the drug-drug-interaction rate of recommended sets; GAMENet, SafeDrug, MICRON and MoleRec",
    "atc3_covered": "telling a pair without interaction from an unknown one",
    "ccs_multi_dx": "GRAM and G-BERT",
    "ccs_multi_pr": "GRAM and G-BERT",
    "atc3_smiles": "SafeDrug and MoleRec",
    DRUG_NAMES: "medications whose NDC is missing or gives nothing",
}
_FROM_HCUP = (
    "On HCUP's site, hcup-us.ahrq.gov, open Tools & Software, CCS for ICD-9-CM, single level, and download "
    "Single_Level_CCS_2015.zip (it holds '$prref 2015.csv') or AppendixBSinglePR.txt; free, no registration. "
    "Then: plm codes add Single_Level_CCS_2015.zip. Until then ICD-9 procedures stay unmapped."
)
_FROM_NLM = (
    "On NLM's site, www.nlm.nih.gov/research/umls/rxnorm, download the RxNorm Full Monthly Release "
    "(RxNorm_full_MMDDYYYY.zip); it needs a free UMLS licence. Then: plm codes add RxNorm_full_MMDDYYYY.zip. "
    "Tables of your own with the headers ndc,rxcui and rxcui,atc3 serve as well. Without both, the NDC "
    "cannot be mapped and the drug's name is used."
)
_MULTI_LEVEL = (
    "Optional: on HCUP's site, hcup-us.ahrq.gov, open Tools & Software, CCS for ICD-9-CM, multi level, and download "
    "Multi_Level_CCS_2015.zip; free, no registration. It holds one file of diagnoses and one of procedures. "
    "Then, for each: plm codes add FILE."
)
_HOW_TO_GET = {
    "icd9proc_ccs": _FROM_HCUP,
    "ndc_rxcui": _FROM_NLM,
    "rxcui_atc3": _FROM_NLM,
    "ndc_atc3": "Optional: any table of your own with a header such as ndc,atc3. Then: plm codes add FILE.",
    "atc3_interactions": (
        "Optional: a table of interacting pairs with the header atc3_a,atc3_b, made from a source such as TWOSIDES; "
        "research code for drug recommendation often has one. Then: plm codes add FILE. Without it the interaction "
        "rate is not available."
    ),
    "atc3_covered": (
        "Optional: the codes that the interaction table was made for, as a CSV with the one column atc3 or a JSON "
        "list. Then: plm codes add FILE. Without it a code that has no interaction at all counts as unknown."
    ),
    "ccs_multi_dx": _MULTI_LEVEL,
    "ccs_multi_pr": _MULTI_LEVEL,
    "atc3_smiles": (
        "Optional: the molecules of each ATC-3 code, as a CSV with the header atc3,smiles or a JSON object such as "
        '{"A01A": ["CCO"]}; research code for drug recommendation often has one. Then: plm codes add FILE. Reading '
        "molecules needs rdkit: pip install 'patients-like-me[molecules]'."
    ),
}
_OPTIONAL = ("ndc_atc3", "atc3_interactions", "atc3_covered", "ccs_multi_dx", "ccs_multi_pr", "atc3_smiles")
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
    return [_row(table, store) for table in _TITLES]


def _row(table: str, store: CodeStore) -> StatusRow:
    if table == DRUG_NAMES:
        entries, sources, how = _ingredient_names(), ["inside plm"], "Comes with plm."
    else:
        sources = [f"{source.file} ({source.added})" for source in store.sources(table)]
        entries, how = store.entries(table), _HOW_TO_GET.get(table, "")
    icd_table = next((name for name in ICD_TABLES if name == table), None)
    if icd_table is not None and (package := package_of(icd_table)):
        frames = [frame for frame in (packaged_map(icd_table), store.table(icd_table)) if frame is not None]
        entries = pl.concat(frames)["code"].n_unique()
        sources = [f"package {package} {version(package)}", *sources]
        how = _WITH_PACKAGE.format(columns=table.replace("_", ","))
    source = "; ".join(sources) or ("none (optional)" if table in _OPTIONAL else "missing")
    return StatusRow(table, _TITLES[table], bool(sources), entries, source, _NEEDED_FOR[table], how)


def _ingredient_names() -> int:
    """Return the number of names in the table of ingredients inside plm."""
    text = files("patients_like_me.codes").joinpath("ingredients.csv").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return len(rows) - 1
