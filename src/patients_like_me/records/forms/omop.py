"""Write MIMIC-IV's tables as OMOP CDM 5.4 in Parquet, one hospital visit per admission.

Every ICD code gets a concept of the site's own, listed in a small ``concept`` table with its vocabulary, so that the
version of a code is known. Lost: insurance, language and marital status, for which the tables have no column, and the
race of a single admission (OMOP has one per person). A diagnosis must have a date and gets that of the admission,
marked as a billing record; a drug is written by its NDC where there is one, else by its name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from patients_like_me.files import atomic_folder
from patients_like_me.records.forms.form import Form
from patients_like_me.records.forms.mimic4_tables import copy_notice, open_mimic4
from patients_like_me.records.omop_codes import FIRST_LOCAL_CONCEPT
from patients_like_me.records.omop_tables import SYNTHETIC
from patients_like_me.records.source_files import SourceTable

INPATIENT: Final = 9201
BILLING_RECORD, EHR, PRESCRIPTION = 32821, 32817, 32838
_SEX: Final = {"M": 8507, "F": 8532}
_LED_TO: Final = {
    "DIED": 4216643,
    "HOME": 8536,
    "HOME HEALTH CARE": 8536,
    "SKILLED NURSING FACILITY": 8863,
    "REHAB": 8920,
    "HOSPICE": 8546,
}
_VOCABULARY: Final = {
    ("diagnoses_icd", "9"): "ICD9CM",
    ("diagnoses_icd", "10"): "ICD10CM",
    ("procedures_icd", "9"): "ICD9Proc",
    ("procedures_icd", "10"): "ICD10PCS",
}


def write_omop(folder: Path, out: Path) -> None:
    """Write the tables of ``folder`` in OMOP's form."""
    tables = open_mimic4(folder)
    admissions = tables["admissions"].collect()
    patients = tables["patients"].collect()
    concepts = _concepts(tables)
    with atomic_folder(out) as temporary:
        copy_notice(folder, temporary)
        made_up = (temporary / "SYNTHETIC.json").is_file()
        small = {
            "cdm_source": _cdm_source(made_up=made_up),
            "person": _persons(patients, admissions),
            "visit_occurrence": _visits(admissions),
            "death": _deaths(patients, admissions),
            "concept": concepts.drop("table", "icd_version"),
        }
        for name, frame in small.items():
            frame.write_parquet(temporary / f"{name}.parquet")
        began = admissions.lazy().select("hadm_id", pl.col("admittime").alias("began"))
        large = {
            "condition_occurrence": _conditions(tables["diagnoses_icd"], concepts, began),
            "procedure_occurrence": _procedures(tables["procedures_icd"], concepts),
            "drug_exposure": _drugs(tables["prescriptions"]),
        }
        for name, rows in large.items():
            rows.sink_parquet(temporary / f"{name}.parquet", row_group_size=500_000)


def _cdm_source(*, made_up: bool) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "cdm_source_name": "MIMIC-IV's tables",
            "cdm_source_abbreviation": SYNTHETIC if made_up else "mimic4",
            "cdm_version": "5.4",
        }
    )


def _persons(patients: pl.DataFrame, admissions: pl.DataFrame) -> pl.DataFrame:
    race = admissions.group_by("subject_id").agg(pl.col("race").drop_nulls().first())
    return patients.join(race, on="subject_id", how="left", maintain_order="left").select(
        pl.col("subject_id").alias("person_id"),
        pl.col("gender").replace_strict(_SEX, default=0, return_dtype=pl.Int32).alias("gender_concept_id"),
        (pl.col("anchor_year") - pl.col("anchor_age")).alias("year_of_birth"),
        pl.lit(0, pl.Int32).alias("race_concept_id"),
        pl.lit(0, pl.Int32).alias("ethnicity_concept_id"),
        pl.col("race").alias("race_source_value"),
    )


def _visits(admissions: pl.DataFrame) -> pl.DataFrame:
    died = pl.col("hospital_expire_flag").str.strip_chars() == "1"
    place = pl.when(died).then(pl.lit("DIED")).otherwise(pl.col("discharge_location").replace("DIED", None))
    return admissions.select(
        pl.col("hadm_id").alias("visit_occurrence_id"),
        pl.col("subject_id").alias("person_id"),
        pl.lit(INPATIENT, pl.Int32).alias("visit_concept_id"),
        pl.col("admittime").dt.date().alias("visit_start_date"),
        pl.col("admittime").alias("visit_start_datetime"),
        pl.col("dischtime").dt.date().alias("visit_end_date"),
        pl.col("dischtime").alias("visit_end_datetime"),
        pl.lit(EHR, pl.Int32).alias("visit_type_concept_id"),
        place.replace_strict(_LED_TO, default=0, return_dtype=pl.Int32).alias("discharged_to_concept_id"),
    )


def _deaths(patients: pl.DataFrame, admissions: pl.DataFrame) -> pl.DataFrame:
    in_hospital = admissions.group_by("subject_id").agg(pl.col("deathtime").max())
    died = patients.join(in_hospital, on="subject_id", how="left", maintain_order="left")
    time = pl.coalesce("deathtime", "dod")
    return died.filter(time.is_not_null()).select(
        pl.col("subject_id").alias("person_id"),
        time.dt.date().alias("death_date"),
        time.alias("death_datetime"),
        pl.lit(EHR, pl.Int32).alias("death_type_concept_id"),
    )


def _concepts(tables: dict[str, SourceTable]) -> pl.DataFrame:
    """Number the distinct ICD codes of both tables from the first number that is a site's own."""
    found = [
        tables[name]
        .then(lambda frame: frame.select("icd_version", pl.col("icd_code").str.strip_chars()).unique())
        .collect()
        .unique()
        .sort("icd_version", "icd_code")
        .with_columns(
            pl.lit(name).alias("table"),
            pl.col("icd_version")
            .replace_strict({version: text for (table, version), text in _VOCABULARY.items() if table == name})
            .alias("vocabulary_id"),
        )
        for name in ("diagnoses_icd", "procedures_icd")
    ]
    return (
        pl.concat(found)
        .with_row_index("concept_id", offset=FIRST_LOCAL_CONCEPT)
        .select(
            pl.col("concept_id").cast(pl.Int64),
            pl.col("icd_code").alias("concept_name"),
            "vocabulary_id",
            pl.lit("site's own").alias("concept_class_id"),
            pl.col("icd_code").alias("concept_code"),
            "table",
            "icd_version",
        )
    )


def _with_concept(table: SourceTable, name: str, concepts: pl.DataFrame) -> pl.LazyFrame:
    of_table = concepts.lazy().filter(pl.col("table") == name)
    rows = pl.concat([part.frame for part in table.parts]).with_columns(pl.col("icd_code").str.strip_chars())
    return rows.join(
        of_table.select("icd_version", pl.col("concept_code").alias("icd_code"), "concept_id"),
        on=["icd_version", "icd_code"],
        how="left",
        maintain_order="left",
    )


def _conditions(table: SourceTable, concepts: pl.DataFrame, began: pl.LazyFrame) -> pl.LazyFrame:
    rows = _with_concept(table, "diagnoses_icd", concepts)
    return rows.join(began, on="hadm_id", how="left", maintain_order="left").select(
        pl.int_range(1, pl.len() + 1).alias("condition_occurrence_id"),
        pl.col("subject_id").alias("person_id"),
        pl.lit(0, pl.Int32).alias("condition_concept_id"),
        pl.col("began").dt.date().alias("condition_start_date"),
        pl.col("began").alias("condition_start_datetime"),
        pl.lit(BILLING_RECORD, pl.Int32).alias("condition_type_concept_id"),
        pl.col("hadm_id").alias("visit_occurrence_id"),
        pl.col("icd_code").alias("condition_source_value"),
        pl.col("concept_id").alias("condition_source_concept_id"),
    )


def _procedures(table: SourceTable, concepts: pl.DataFrame) -> pl.LazyFrame:
    return _with_concept(table, "procedures_icd", concepts).select(
        pl.int_range(1, pl.len() + 1).alias("procedure_occurrence_id"),
        pl.col("subject_id").alias("person_id"),
        pl.lit(0, pl.Int32).alias("procedure_concept_id"),
        pl.col("chartdate").dt.date().alias("procedure_date"),
        pl.lit(BILLING_RECORD, pl.Int32).alias("procedure_type_concept_id"),
        pl.col("hadm_id").alias("visit_occurrence_id"),
        pl.col("icd_code").alias("procedure_source_value"),
        pl.col("concept_id").alias("procedure_source_concept_id"),
    )


def _drugs(table: SourceTable) -> pl.LazyFrame:
    rows = pl.concat([part.frame for part in table.parts])
    ndc = pl.col("ndc").str.strip_chars().replace(["", "0"], None)
    return rows.select(
        pl.int_range(1, pl.len() + 1).alias("drug_exposure_id"),
        pl.col("subject_id").alias("person_id"),
        pl.lit(0, pl.Int32).alias("drug_concept_id"),
        pl.col("starttime").dt.date().alias("drug_exposure_start_date"),
        pl.col("starttime").alias("drug_exposure_start_datetime"),
        pl.lit(PRESCRIPTION, pl.Int32).alias("drug_type_concept_id"),
        pl.col("hadm_id").alias("visit_occurrence_id"),
        pl.coalesce(ndc, "drug").alias("drug_source_value"),
        pl.lit(0, pl.Int32).alias("drug_source_concept_id"),
    )


FORM = Form("omop", "OMOP CDM 5.4", write_omop)
