"""ICD-9-CM diagnoses and ICD-9 procedures, to CCS categories."""

from __future__ import annotations

from functools import partial

from patients_like_me.codes.ccs import ccs_names, icd_to_ccs
from patients_like_me.codes.registry import CodeSystem

CODE_SYSTEM = CodeSystem(
    name="icd9",
    titles={"diagnosis": "ICD-9-CM", "procedure": "ICD-9 procedures"},
    mapper=partial(icd_to_ccs, 9),
    target="CCS",
    names=ccs_names,
)
