"""The tiny hospital in other forms: MEDS events as rows, FHIR resources as dicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

Event = tuple[int, str | None, str]

#: Subject 1 has two visits, subject 2 dies in the only one; the codes are those of the MIMIC-IV extraction.
EVENTS: list[Event] = [
    (1, None, "GENDER//F"),
    (1, "2090-01-01 00:00", "MEDS_BIRTH"),
    (1, "2150-01-01 10:00", "HOSPITAL_ADMISSION//EW EMER.//EMERGENCY ROOM"),
    (1, "2150-01-01 00:00", "PROCEDURE//ICD//10//5A1D70Z"),
    (1, "2150-01-01 12:00", "MEDICATION//START//Furosemide"),
    (1, "2150-01-01 13:00", "MEDICATION//Furosemide//Administered"),
    (1, "2150-01-02 11:00", "HOSPITAL_DISCHARGE//HOME"),
    (1, "2150-01-02 11:00", "DIAGNOSIS//ICD//9//4280"),
    (1, "2150-02-01 09:00", "MEDICATION//START//Aspirin"),
    (1, "2150-03-01 10:00", "HOSPITAL_ADMISSION//URGENT//UNK"),
    (1, "2150-03-01 08:00", "MEDICATION//START//Insulin"),
    (1, "2150-03-04 09:00", "HOSPITAL_DISCHARGE//HOME"),
    (1, "2150-03-04 09:00", "DIAGNOSIS//ICD//10//I509"),
    (2, None, "GENDER//M"),
    (2, "2059-01-01 00:00", "MEDS_BIRTH"),
    (2, "2151-01-30 08:00", "HOSPITAL_ADMISSION//URGENT//UNK"),
    (2, "2151-01-30 09:00", "MEDICATION//START//Heparin"),
    (2, "2151-02-01 12:00", "HOSPITAL_DISCHARGE//DIED"),
    (2, "2151-02-01 12:00", "DIAGNOSIS//ICD//10//N179"),
    (2, "2151-02-01 12:00", "MEDS_DEATH"),
    (2, "2151-01-31 00:00", "LAB//50912//mg"),
]


def write_meds(
    folder: Path,
    events: Sequence[Event] = EVENTS,
    *,
    visit_ids: dict[tuple[int, str], int] | None = None,
    version: str = "0.4.1",
    shards: int = 2,
) -> Path:
    """Write events as a MEDS dataset; ``visit_ids`` gives some events (subject, code) a hadm_id."""
    frame = pl.DataFrame(
        [(subject, None if time is None else datetime.fromisoformat(time), code) for subject, time, code in events],
        schema={"subject_id": pl.Int64, "time": pl.Datetime("us"), "code": pl.String},
        orient="row",
    )
    if visit_ids is not None:
        given = [visit_ids.get((subject, code)) for subject, _, code in events]
        frame = frame.with_columns(pl.Series("hadm_id", given, dtype=pl.Int64))
    (folder / "data" / "train").mkdir(parents=True)
    (folder / "metadata").mkdir()
    for shard in range(shards):
        frame.filter(pl.col("subject_id") % shards == shard).write_parquet(
            folder / "data" / "train" / f"{shard}.parquet"
        )
    (folder / "metadata" / "dataset.json").write_text(json.dumps({"dataset_name": "tiny", "meds_version": version}))
    return folder


def concept(system: str, code: str, **more: str) -> dict[str, Any]:
    return {"coding": [{"system": system, "code": code, **more}]}


ICD10 = "http://hl7.org/fhir/sid/icd-10-cm"
_ENCOUNTER = {"resourceType": "Encounter", "status": "finished"}

RESOURCES: dict[str, list[dict[str, Any]]] = {
    "Patient": [
        {"resourceType": "Patient", "id": "a", "gender": "female", "birthDate": "1990-06-15"},
        {"resourceType": "Patient", "id": "b", "gender": "male", "birthDate": "1930-01-01", "deceasedDateTime": "2050-02-01"},
    ],
    "Encounter": [
        {**_ENCOUNTER, "id": "e1", "class": {"code": "IMP"}, "subject": {"reference": "Patient/a"}, "period": {"start": "2050-01-01T10:00:00-05:00", "end": "2050-01-02T11:00:00-05:00"}},
        {**_ENCOUNTER, "id": "ed", "class": {"code": "EMER"}, "subject": {"reference": "Patient/a"}, "partOf": {"reference": "Encounter/e1"}, "period": {"start": "2050-01-01T08:00:00-05:00", "end": "2050-01-01T10:00:00-05:00"}},
        {**_ENCOUNTER, "id": "e2", "class": {"code": "IMP"}, "subject": {"reference": "https://x.org/fhir/Patient/a"}, "period": {"start": "2050-07-01T10:00:00-04:00", "end": "2050-07-04T09:00:00-04:00"}},
        {**_ENCOUNTER, "id": "clinic", "class": {"code": "AMB"}, "subject": {"reference": "Patient/a"}, "period": {"start": "2050-09-01T10:00:00-04:00"}},
        {**_ENCOUNTER, "id": "e3", "class": {"code": "IMP"}, "subject": {"reference": "Patient/b"}, "period": {"start": "2050-01-30T08:00:00-05:00", "end": "2050-02-01T12:00:00-05:00"}, "hospitalization": {"dischargeDisposition": concept("http://terminology.hl7.org/CodeSystem/discharge-disposition", "exp")}},
    ],
    "Condition": [
        {"resourceType": "Condition", "code": {"coding": [{"system": "http://snomed.info/sct", "code": "84114007"}, {"system": ICD10, "code": "I50.9"}]}, "encounter": {"reference": "Encounter/e1"}},
        {"resourceType": "Condition", "code": concept(ICD10, "N17.9"), "encounter": {"reference": "Encounter/e3"}, "recordedDate": "2050-02-03T10:00:00-05:00"},
        {"resourceType": "Condition", "code": concept(ICD10, "E11.9"), "encounter": {"reference": "Encounter/ed"}},
        {"resourceType": "Condition", "code": concept(ICD10, "J18.9"), "encounter": {"reference": "Encounter/e2"}, "verificationStatus": concept("http://terminology.hl7.org/CodeSystem/condition-ver-status", "refuted")},
        {"resourceType": "Condition", "code": concept("http://snomed.info/sct", "73211009"), "encounter": {"reference": "Encounter/e2"}},
        {"resourceType": "Condition", "code": concept(ICD10, "I10"), "encounter": {"reference": "Encounter/clinic"}},
    ],
    "Procedure": [
        {"resourceType": "Procedure", "status": "completed", "code": concept("http://www.cms.gov/Medicare/Coding/ICD10", "5A1D70Z"), "encounter": {"reference": "Encounter/e1"}, "performedDateTime": "2050-01-01"},
        {"resourceType": "Procedure", "status": "not-done", "code": concept("http://www.cms.gov/Medicare/Coding/ICD10", "5A1D70Z"), "encounter": {"reference": "Encounter/e2"}, "performedDateTime": "2050-07-02"},
    ],
    "Medication": [
        {"resourceType": "Medication", "id": "m1", "code": {"text": "Furosemide 40 mg"}},
        {"resourceType": "Medication", "id": "m2", "code": concept("http://www.whocc.no/atc", "B01AB01")},
        {"resourceType": "Medication", "id": "mix", "ingredient": [{"itemReference": {"reference": "Medication/m1"}}, {"itemCodeableConcept": {"text": "Insulin"}}]},
    ],
    "MedicationRequest": [
        {"resourceType": "MedicationRequest", "status": "completed", "encounter": {"reference": "Encounter/e1"}, "authoredOn": "2050-01-01T12:00:00-05:00", "medicationReference": {"reference": "Medication/m1"}},
        {"resourceType": "MedicationRequest", "status": "completed", "encounter": {"reference": "Encounter/e2"}, "authoredOn": "2050-07-01T12:00:00-04:00", "medicationReference": {"reference": "Medication/mix"}},
        {"resourceType": "MedicationRequest", "status": "cancelled", "encounter": {"reference": "Encounter/e2"}, "authoredOn": "2050-07-01T12:00:00-04:00", "medicationCodeableConcept": {"text": "Aspirin"}},
        {"resourceType": "MedicationRequest", "status": "active", "encounter": {"reference": "Encounter/e3"}, "authoredOn": "2050-02-02T12:00:00-05:00", "medicationReference": {"reference": "#c"}, "contained": [{"resourceType": "Medication", "id": "c", "code": {"text": "Warfarin"}}]},
    ],
    "MedicationAdministration": [
        {"resourceType": "MedicationAdministration", "status": "completed", "context": {"reference": "Encounter/e3"}, "effectivePeriod": {"start": "2050-01-30T09:00:00-05:00"}, "medicationReference": {"reference": "Medication/m2"}},
    ],
}  # fmt: skip


def write_fhir(folder: Path, resources: dict[str, list[dict[str, Any]]] = RESOURCES) -> Path:
    """Write resources as a bulk export, one file for each type."""
    folder.mkdir(parents=True)
    for kind, rows in resources.items():
        if rows:
            (folder / f"{kind}.000.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def bundle_of(resources: dict[str, list[dict[str, Any]]] = RESOURCES, *, patient: str = "") -> dict[str, Any]:
    """Return resources as one Bundle; ``patient`` keeps that one and what refers to it."""
    entries = [{"resource": row} for rows in resources.values() for row in rows]
    if patient:
        kept = {row["id"] for row in resources["Encounter"] if row["subject"]["reference"].endswith(f"/{patient}")}
        entries = [entry for entry in entries if _belongs(entry["resource"], patient, kept)]
    return {"resourceType": "Bundle", "type": "collection", "entry": entries}


def _belongs(resource: dict[str, Any], patient: str, encounters: set[str]) -> bool:
    if resource["resourceType"] == "Patient":
        return bool(resource["id"] == patient)
    if resource["resourceType"] == "Encounter":
        return resource["id"] in encounters
    where = resource.get("encounter") or resource.get("context")
    return where is None or where["reference"].removeprefix("Encounter/") in encounters
