"""ICD-10-CM diagnoses and ICD-10-PCS procedures, to CCS categories."""

from __future__ import annotations

from functools import partial

from patients_like_me.codes.ccs import ccs_names, icd_to_ccs
from patients_like_me.codes.registry import CodeSystem

CODE_SYSTEM = CodeSystem(
    name="icd10",
    titles={"diagnosis": "ICD-10-CM", "procedure": "ICD-10-PCS"},
    mapper=partial(icd_to_ccs, 10),
    target="CCS",
    names=ccs_names,
    default_for=("diagnosis", "procedure"),
)
