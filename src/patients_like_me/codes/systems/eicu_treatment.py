"""Treatment strings of eICU, such as ``renal|dialysis|hemodialysis``, kept as procedure codes of their own.

Two thirds of eICU's treatments are drugs (``cardiovascular|arrhythmias|digoxin``). Among the procedures of a visit they
would give away its medications, so they are set apart as ``drug_treatment``: strings that name a drug or a class of
drugs or fluids in any part after the first.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

import polars as pl

from patients_like_me.codes.registry import AS_GIVEN, CodeSystem, Kind

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore

_DRUG_CLASSES: Final = re.compile(
    r"medication|\badministration\b|\bagents?\b|analges|sedati|anesthetic|antibacterial|antibiotic|antifungal|antiviral"
    r"|antimicrobial|antihypertens|blocker|inhibitor|diuretic|vasopressor|vasodilat|corticoid|steroid|bronchodilator"
    r"|agonist|antagonist|insulin|antiarrhythmic|anticoag|antiplatelet|thrombolytic|anticonvuls|antiemetic|antacid"
    r"|laxative|cathartic|prokinetic|stress ulcer|ulcer treatment|immunosuppress|chemotherap|hormon|vitamin|electrolyte"
    r"|\bfluids?\b|saline|ringer|colloid|antipyretic|nmbs|neuromuscular block|antipsychotic|antidepress|narcotic"
    r"|benzodiazep|barbitur|opioid|reversal|antidote|agent specific|stimulating factor|clotting factor|vaccine|globulin"
    r"|bicarbonate|potassium|calcium|magnesium|phosph|\biron\b|topical|mucolytic|surfactant|hypoglycemic"
    r"|glucose control|drug therapy|therapeutic drug",
    re.IGNORECASE,
)
_DRUG_TREATMENT: Final = "drug_treatment"


def keep_procedures(kind: Kind, codes: pl.Series, store: CodeStore) -> pl.DataFrame:
    """Keep the strings that name a procedure, and set drug treatments apart."""
    del kind, store
    rows = [([], _DRUG_TREATMENT) if is_drug_treatment(code) else ([code], AS_GIVEN) for code in codes.to_list()]
    return pl.DataFrame(rows, schema={"codes": pl.List(pl.String), "way": pl.String}, orient="row")


@cache
def is_drug_treatment(treatment: str) -> bool:
    """Tell whether a treatment string names a drug or a class of drugs.

    >>> is_drug_treatment("cardiovascular|arrhythmias|digoxin"), is_drug_treatment("renal|dialysis|hemodialysis")
    (True, False)
    """
    from patients_like_me.codes.drug_names import match_drug_name

    parts = treatment.split("|")[1:]
    return any(_DRUG_CLASSES.search(part) or match_drug_name(part).kind == "medicine" for part in parts)


CODE_SYSTEM = CodeSystem(
    name="eicu_treatment",
    titles={"procedure": "eICU treatment"},
    mapper=keep_procedures,
    set_apart=(_DRUG_TREATMENT,),
)
