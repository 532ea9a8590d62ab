"""Write MIMIC-IV's tables as a FHIR R4 bulk export (gzipped NDJSON) with the URIs of MIMIC-IV on FHIR.

A patient has one language, marital status and race in FHIR, those of the last admission; insurance would be a resource
of its own, which is not read. Everything else that the reader needs is there.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Final

import polars as pl

from patients_like_me.files import atomic_folder
from patients_like_me.records.forms.form import Form
from patients_like_me.records.forms.mimic4_tables import copy_notice, open_mimic4
from patients_like_me.records.source_files import SourceTable

_MIMIC: Final = "http://mimic.mit.edu/fhir/mimic"
_RACE: Final = "http://hl7.org/fhir/us/core/StructureDefinition/us-core-race"
_UNKNOWN: Final = ("", "?", "UNKNOWN", "UNABLE TO OBTAIN", "NOT SPECIFIED")
#: Made-up hospitals have one clock all year.
_OFFSET: Final = "-05:00"
COMPRESSION_LEVEL: Final = 1


def write_fhir(folder: Path, out: Path) -> None:
    """Write the tables of ``folder`` as an export of Patient, Encounter, Condition, Procedure, MedicationRequest."""
    tables = open_mimic4(folder)
    admissions = tables["admissions"].collect()
    of_patient = (
        admissions.sort("subject_id", "admittime")
        .group_by("subject_id")
        .agg(
            pl.col("deathtime").max(),
            *(_known(name).drop_nulls().last() for name in ("language", "marital_status", "race")),
        )
    )
    with atomic_folder(out) as temporary:
        patients = tables["patients"].then(
            lambda frame: frame.join(of_patient.lazy(), on="subject_id", how="left", maintain_order="left").select(
                _patient()
            )
        )
        for name, table in (
            ("Patient", patients),
            ("Encounter", tables["admissions"].then(lambda frame: frame.select(_encounter()))),
            ("Condition", tables["diagnoses_icd"].then(lambda frame: frame.select(_coded("Condition", "diagnosis")))),
            ("Procedure", tables["procedures_icd"].then(lambda frame: frame.select(_coded("Procedure", "procedure")))),
            ("MedicationRequest", tables["prescriptions"].then(lambda frame: frame.select(_request()))),
        ):
            _write(table, temporary / f"{name}.ndjson.gz")
        copy_notice(folder, temporary)


def _write(table: SourceTable, path: Path) -> None:
    """Write a column of structs as lines of JSON; what is missing is left out, as FHIR asks."""
    line = pl.col("resource").struct.json_encode().str.replace_all(r',"[A-Za-z]+":null', "")
    lines = table.then(lambda frame: frame.select(line))
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=COMPRESSION_LEVEL, mtime=0) as stream,
    ):
        for batch in lines.batches():
            if batch.height:
                stream.write(("\n".join(batch["resource"].to_list()) + "\n").encode())


def _known(column: str) -> pl.Expr:
    text = pl.col(column).str.strip_chars()
    return pl.when(~text.str.to_uppercase().is_in(_UNKNOWN)).then(text).alias(column)


def _time(column: str) -> pl.Expr:
    return pl.col(column).dt.strftime(f"%Y-%m-%dT%H:%M:%S{_OFFSET}")


def _reference(kind: str, column: str) -> pl.Expr:
    return pl.struct(pl.format(f"{kind}/{{}}", column).alias("reference"))


def _identifier(name: str, column: str) -> pl.Expr:
    one = pl.struct(
        pl.lit(f"{_MIMIC}/identifier/{name}").alias("system"), pl.col(column).cast(pl.String).alias("value")
    )
    return pl.concat_list(one).alias("identifier")


def _concept(text: str) -> pl.Expr:
    return pl.when(pl.col(text).is_not_null()).then(pl.struct(pl.col(text).alias("text")))


def _coding(system: pl.Expr, code: pl.Expr) -> pl.Expr:
    return pl.concat_list(pl.struct(system.alias("system"), code.alias("code")))


def _resource(kind: str, *elements: pl.Expr) -> pl.Expr:
    return pl.struct(pl.lit(kind).alias("resourceType"), *elements).alias("resource")


def _patient() -> pl.Expr:
    born = pl.date(pl.col("anchor_year") - pl.col("anchor_age"), 1, 1).dt.strftime("%Y-%m-%d")
    race = pl.struct(
        pl.lit(_RACE).alias("url"),
        pl.concat_list(pl.struct(pl.lit("text").alias("url"), pl.col("race").alias("valueString"))).alias("extension"),
    )
    return _resource(
        "Patient",
        pl.col("subject_id").cast(pl.String).alias("id"),
        _identifier("patient", "subject_id"),
        pl.col("gender").replace({"M": "male", "F": "female"}).alias("gender"),
        born.alias("birthDate"),
        pl.coalesce(_time("deathtime"), pl.col("dod").dt.strftime("%Y-%m-%d")).alias("deceasedDateTime"),
        _concept("marital_status").alias("maritalStatus"),
        pl.when(pl.col("language").is_not_null())
        .then(pl.concat_list(pl.struct(pl.struct(pl.col("language").alias("text")).alias("language"))))
        .alias("communication"),
        pl.when(pl.col("race").is_not_null()).then(pl.concat_list(race)).alias("extension"),
    )


def _encounter() -> pl.Expr:
    by_death = pl.col("hospital_expire_flag").str.strip_chars() == "1"
    place = pl.when(by_death).then(pl.lit("DIED")).otherwise(pl.col("discharge_location").replace("DIED", None))
    system = pl.lit(f"{_MIMIC}/CodeSystem/mimic-discharge-disposition")
    ended = pl.struct(pl.struct(_coding(system, place).alias("coding")).alias("dischargeDisposition"))
    return _resource(
        "Encounter",
        pl.col("hadm_id").cast(pl.String).alias("id"),
        _identifier("encounter-hosp", "hadm_id"),
        pl.lit("finished").alias("status"),
        pl.struct(
            pl.lit("http://terminology.hl7.org/CodeSystem/v3-ActCode").alias("system"), pl.lit("IMP").alias("code")
        ).alias("class"),
        _reference("Patient", "subject_id").alias("subject"),
        pl.struct(_time("admittime").alias("start"), _time("dischtime").alias("end")).alias("period"),
        pl.when(place.is_not_null()).then(ended).alias("hospitalization"),
    )


def _coded(resource: str, kind: str) -> pl.Expr:
    system = pl.format(f"{_MIMIC}/CodeSystem/mimic-{kind}-icd{{}}", "icd_version")
    number = pl.format(f"{kind}-{{}}", pl.int_range(pl.len()))
    elements = [
        number.alias("id"),
        pl.struct(_coding(system, pl.col("icd_code")).alias("coding")).alias("code"),
        _reference("Patient", "subject_id").alias("subject"),
        _reference("Encounter", "hadm_id").alias("encounter"),
    ]
    if resource == "Procedure":
        day = pl.col("chartdate").dt.strftime("%Y-%m-%d")
        elements += [pl.lit("completed").alias("status"), day.alias("performedDateTime")]
    return _resource(resource, *elements)


def _request() -> pl.Expr:
    ndc = pl.when(~pl.col("ndc").str.strip_chars().is_in(["", "0"])).then(pl.col("ndc"))
    which = pl.when(ndc.is_not_null()).then(pl.lit("ndc")).otherwise(pl.lit("name"))
    system = pl.format(f"{_MIMIC}/CodeSystem/mimic-medication-{{}}", which)
    start = _time("starttime")
    valid = pl.struct(pl.struct(start.alias("start")).alias("validityPeriod"))
    return _resource(
        "MedicationRequest",
        pl.format("request-{}", pl.int_range(pl.len())).alias("id"),
        pl.lit("completed").alias("status"),
        pl.lit("order").alias("intent"),
        pl.struct(_coding(system, pl.coalesce(ndc, "drug")).alias("coding"), pl.col("drug").alias("text")).alias(
            "medicationCodeableConcept"
        ),
        _reference("Patient", "subject_id").alias("subject"),
        _reference("Encounter", "hadm_id").alias("encounter"),
        start.alias("authoredOn"),
        pl.when(pl.col("starttime").is_not_null()).then(valid).alias("dispenseRequest"),
    )


FORM = Form("fhir", "FHIR R4", write_fhir)
