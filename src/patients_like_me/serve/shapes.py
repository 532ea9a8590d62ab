"""What the API takes: newcomers in the form of docs/own-tables.md or FHIR Bundles, within limits, with examples.

The fields of a newcomer are those of :mod:`patients_like_me.records.newcomers`; here they have limits, so that one
request cannot occupy the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from patients_like_me.codes.registry import Kind, systems_of
from patients_like_me.records.newcomers import Newcomer, NewVisit
from patients_like_me.serve.problems import FieldProblems, fields_of

MOST_PATIENTS: Final = 100
MOST_VISITS: Final = 200
MOST_CODES: Final = 500
#: Of all patients of one request together.
MOST_CODES_IN_ALL: Final = 20_000
MOST_RESOURCES: Final = 20_000

Text = Annotated[str, Field(min_length=1, max_length=200)]

ADA: Final[dict[str, Any]] = {
    "id": "ada",
    "age": 71,
    "sex": "F",
    "visits": [
        {"admission": "2024-05-03", "discharge": "2024-05-09", "diagnoses": ["I50.9", "icd9:428.0"]},
        {"admission": "2024-06-01", "diagnoses": ["E11.9"], "medications": ["furosemide 40 mg", "atc:A10BA02"]},
    ],
}
BUNDLE: Final[dict[str, Any]] = {
    "resourceType": "Bundle",
    "type": "collection",
    "entry": [
        {"resource": {"resourceType": "Patient", "id": "ada", "gender": "female", "birthDate": "1953-02-01"}},
        {
            "resource": {
                "resourceType": "Encounter",
                "id": "v1",
                "status": "finished",
                "class": {"system": "http://terminology.hl7.org/CodeSystem/v3-ActCode", "code": "IMP"},
                "subject": {"reference": "Patient/ada"},
                "period": {"start": "2024-06-01T08:00:00", "end": "2024-06-05T11:00:00"},
            }
        },
        {
            "resource": {
                "resourceType": "Condition",
                "id": "c1",
                "subject": {"reference": "Patient/ada"},
                "encounter": {"reference": "Encounter/v1"},
                "code": {"coding": [{"system": "http://hl7.org/fhir/sid/icd-10-cm", "code": "I50.9"}]},
            }
        },
    ],
}


def _of_known_system(kind: Kind) -> AfterValidator:
    """Check that a code that names its system names one that is read."""

    def check(written: str) -> str:
        system, colon, _ = written.partition(":")
        if colon and system.strip().lower() not in (known := [each.name for each in systems_of(kind)]):
            raise ValueError(f"the code system before the colon is not known; use {', '.join(known)}")
        return written

    return AfterValidator(check)


def _first_moment(time: datetime | date) -> datetime:
    return time if isinstance(time, datetime) else datetime(time.year, time.month, time.day)


class VisitIn(NewVisit):
    """One visit; ``discharge`` is missing while the patient is in hospital."""

    id: Text | None = None
    diagnoses: tuple[Annotated[Text, _of_known_system("diagnosis")], ...] = Field((), max_length=MOST_CODES)
    procedures: tuple[Annotated[Text, _of_known_system("procedure")], ...] = Field((), max_length=MOST_CODES)
    medications: tuple[Annotated[Text, _of_known_system("medication")], ...] = Field((), max_length=MOST_CODES)

    @field_validator("admission", "discharge")
    @classmethod
    def _is_local(cls, time: datetime | date | None) -> datetime | date | None:
        if isinstance(time, datetime) and time.tzinfo is not None:
            raise ValueError("give the local time, without a time zone")
        return time

    @field_validator("discharge")
    @classmethod
    def _is_after_admission(cls, left: datetime | date | None, info: ValidationInfo) -> datetime | date | None:
        came = info.data.get("admission")
        if left is not None and came is not None and _first_moment(left) < _first_moment(came):
            raise ValueError("the discharge is before the admission")
        return left


def _codes_of(visits: Sequence[VisitIn]) -> int:
    return sum(len(visit.diagnoses) + len(visit.procedures) + len(visit.medications) for visit in visits)


#: Said of a record that holds nothing a prediction could rest on.
EMPTY: Final = "the record is empty: give at least one diagnosis, procedure or drug, or the age or the sex"


class PatientIn(Newcomer):
    """One patient with the visits up to the one that is predicted, oldest first where they have no dates."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra={"examples": [ADA]})

    id: Text | None = None
    sex: Text | None = None
    insurance: Text | None = None
    language: Text | None = None
    religion: Text | None = None
    marital_status: Text | None = None
    ethnicity: Text | None = None
    visits: tuple[VisitIn, ...] = Field(min_length=1, max_length=MOST_VISITS)

    @field_validator("visits")
    @classmethod
    def _within_limits(cls, visits: tuple[VisitIn, ...]) -> tuple[VisitIn, ...]:
        if _codes_of(visits) > MOST_CODES_IN_ALL:
            raise ValueError(f"the visits have more than {MOST_CODES_IN_ALL:,} codes together")
        return visits

    @field_validator("visits")
    @classmethod
    def _is_not_empty(cls, visits: tuple[VisitIn, ...], info: ValidationInfo) -> tuple[VisitIn, ...]:
        about = {name: value for name, value in info.data.items() if name != "id"}
        # A field that is wrong is not among the data, and not missing.
        if "age" in about and "sex" in about and not _codes_of(visits) and all(each is None for each in about.values()):
            raise ValueError(EMPTY)
        return visits


class BundleIn(BaseModel):
    """A FHIR R4 Bundle; the resources of ``plm prepare fhir`` are read, others are ignored."""

    model_config = ConfigDict(extra="allow", frozen=True, json_schema_extra={"examples": [BUNDLE]})

    resourceType: Literal["Bundle"]  # noqa: N815 - FHIR's own name
    entry: tuple[dict[str, Any], ...] = Field(min_length=1, max_length=MOST_RESOURCES)


class PatientsIn(BaseModel):
    """Several patients."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    patients: tuple[PatientIn, ...] = Field(min_length=1, max_length=MOST_PATIENTS)

    @model_validator(mode="after")
    def _within_limits(self) -> PatientsIn:
        if sum(_codes_of(patient.visits) for patient in self.patients) > MOST_CODES_IN_ALL:
            raise ValueError(f"the patients have more than {MOST_CODES_IN_ALL:,} codes together")
        return self


def check_limits(given: Any) -> None:
    """Refuse newcomers beyond the limits of the API, field by field."""
    if isinstance(given, Mapping) and "resourceType" in given:
        shape: type[BaseModel] = BundleIn
    else:
        shape, given = PatientsIn, {"patients": [given] if isinstance(given, Mapping) else list(given)}
    try:
        shape.model_validate(given)
    except ValidationError as error:
        raise FieldProblems(fields_of(error.errors())) from None


def _form(given: Any) -> str:
    """Tell in which form patients are given."""
    if isinstance(given, Mapping):
        return "(bundle)" if "resourceType" in given else "(patients)" if "patients" in given else "(patient)"
    if isinstance(given, BundleIn):
        return "(bundle)"
    return "(patients)" if isinstance(given, PatientsIn) else "(patient)"


OnePatient = Annotated[
    Annotated[PatientIn, Tag("(patient)")] | Annotated[BundleIn, Tag("(bundle)")], Discriminator(_form)
]
SomePatients = Annotated[
    Annotated[PatientIn, Tag("(patient)")]
    | Annotated[BundleIn, Tag("(bundle)")]
    | Annotated[PatientsIn, Tag("(patients)")],
    Discriminator(_form),
]
#: The names of forms appear in the places of errors, but are no fields.
TAGS: Final = frozenset({"(patient)", "(bundle)", "(patients)"})

Pseudonym = Annotated[str, Field(pattern=r"^[PN][1-9][0-9]{0,6}$", description="a patient of the worklist")]
Threshold = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


class Asked(BaseModel):
    """A patient, by pseudonym or with the record, and what is asked about."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pseudonym: Pseudonym | None = None
    patient: OnePatient | None = None
    drug: Text | None = Field(None, description="one code of a task whose answer is a set")
    threshold: Threshold | None = Field(None, description="probability from which the answer is yes")

    @model_validator(mode="after")
    def _one_of_both(self) -> Asked:
        if (self.pseudonym is None) == (self.patient is None):
            raise ValueError("give either 'pseudonym' or 'patient'")
        return self


class ExplainIn(Asked):
    """What is to be explained."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra={"examples": [{"patient": ADA}]})


class ReferencesIn(Asked):
    """Whose references are listed."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, json_schema_extra={"examples": [{"patient": ADA, "most": 5}]}
    )

    most: int = Field(10, ge=1, le=10)


class ChangeIn(BaseModel):
    """What is to be different: references to drop, another tau, diagnoses and drugs to add or remove."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    drop: Annotated[tuple[Annotated[str, Field(pattern=r"^[Rr][0-9]{1,2}$")], ...], Field(max_length=10)] = ()
    tau: int | None = Field(None, ge=1, le=100)
    add: Annotated[tuple[Text, ...], Field(max_length=50)] = ()
    remove: Annotated[tuple[Text, ...], Field(max_length=50)] = ()
    add_drugs: Annotated[tuple[Text, ...], Field(max_length=50)] = ()
    remove_drugs: Annotated[tuple[Text, ...], Field(max_length=50)] = ()


class WhatIfIn(Asked):
    """A patient and a change."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, json_schema_extra={"examples": [{"patient": ADA, "change": {"remove": ["108"]}}]}
    )

    change: ChangeIn
