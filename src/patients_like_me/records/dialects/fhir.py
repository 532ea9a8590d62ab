"""What a FHIR server's own identifiers and code systems mean; the standard URIs are known without a dialect.

{"name": "our hospital",
 "visit_classes": ["IMP", "OBSENC"],
 "systems": {"diagnosis": {"http://our.hospital/diagnoses": "icd10"}}}
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from patients_like_me.codes.registry import Kind, systems_of
from patients_like_me.records.dialects.loading import load_dialect, shipped_dialects

MedicationResource = Literal["MedicationRequest", "MedicationAdministration", "MedicationStatement"]


class FhirDialect(BaseModel):
    """How one server writes what FHIR leaves open; every entry may be left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    about: str = ""
    visit_identifiers: tuple[str, ...] = Field((), description="an encounter with such an identifier is a visit")
    visit_classes: tuple[str, ...] = Field(
        ("IMP", "ACUTE", "NONAC", "OBSENC", "SS"), description="else an encounter of these classes is one"
    )
    parts: Literal["merge", "leave"] = Field(
        "merge", description="codes of parts of a visit are the visit's, or no one's"
    )
    patient_identifier: str = Field("", description="the identifier that becomes the patient's id; blank: resource id")
    visit_identifier: str = Field("", description="the identifier that becomes the visit's id; blank: resource id")
    systems: dict[Kind, dict[str, str]] = Field(default_factory=dict, description="code systems by kind and URI")
    medication_names: tuple[str, ...] = Field((), description="identifiers of a Medication that are its name")
    medications: tuple[MedicationResource, ...] = (
        "MedicationRequest",
        "MedicationAdministration",
        "MedicationStatement",
    )
    request_time: Literal["authored", "start"] = Field(
        "authored", description="a request counts from its order or start"
    )
    died: tuple[str, ...] = Field((), description="discharge dispositions that mean death")
    birth_year_only: bool = Field(False, description="only the year of birth means something")
    oldest_age: int | None = Field(None, ge=0, description="older patients get this age")

    @model_validator(mode="after")
    def _systems_exist(self) -> FhirDialect:
        for kind, systems in self.systems.items():
            known = [system.name for system in systems_of(kind)]
            for uri, name in systems.items():
                if name not in known:
                    raise ValueError(f"'{name}' ({uri}) is not a code system of a {kind}: use {', '.join(known)}")
        return self

    def systems_of_kind(self, kind: Kind) -> dict[str, str]:
        """Return the code systems of a kind by URI, the dialect's own first, then the standard ones.

        >>> find_fhir_dialect("standard").systems_of_kind("diagnosis")["http://hl7.org/fhir/sid/icd-10-cm"]
        'icd10'
        """
        return {**self.systems.get(kind, {}), **_standard().systems.get(kind, {})}


@cache
def _standard() -> FhirDialect:
    return load_dialect(FhirDialect, "fhir", "standard")


def find_fhir_dialect(written: str) -> FhirDialect:
    """Return a dialect by its shipped name or its path."""
    return load_dialect(FhirDialect, "fhir", written)


def suiting_dialect(identifiers: set[str]) -> FhirDialect:
    """Return the shipped dialect whose visits have one of these identifiers, else the standard one."""
    for name in shipped_dialects("fhir"):
        dialect = find_fhir_dialect(name)
        if set(dialect.visit_identifiers) & identifiers:
            return dialect
    return find_fhir_dialect("standard")
