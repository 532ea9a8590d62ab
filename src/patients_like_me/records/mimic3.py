"""Reader for MIMIC-III 1.4: ADMISSIONS, PATIENTS, DIAGNOSES_ICD, PROCEDURES_ICD, PRESCRIPTIONS."""

from __future__ import annotations

import polars as pl

from patients_like_me.codes.store import CodeStore
from patients_like_me.records.coded_streams import drug_stream, icd_stream, standard_vocabulary
from patients_like_me.records.cohort import TIME
from patients_like_me.records.mimic import (
    known_text,
    open_admissions,
    open_prescriptions,
    patients_with_death,
    visit_columns,
)
from patients_like_me.records.source_files import SourceFolder, SourceTable
from patients_like_me.records.source_records import SourceRecords


def read_mimic3(source: SourceFolder, store: CodeStore) -> SourceRecords:
    """Open the MIMIC-III tables; all diagnoses and procedures are ICD-9."""
    patients = source.open(
        "patients",
        {"subject_id": pl.Int64, "gender": pl.String, "dob": TIME, "dod": TIME},
        optional=("dod",),
    ).collect()
    admissions_table = open_admissions(source, ("insurance", "language", "religion", "marital_status", "ethnicity"))
    admissions = admissions_table.collect()
    born_before = (pl.col("admittime").dt.month() * 100 + pl.col("admittime").dt.day()) < (
        pl.col("dob").dt.month() * 100 + pl.col("dob").dt.day()
    )
    years = pl.col("admittime").dt.year() - pl.col("dob").dt.year() - born_before.cast(pl.Int32)
    visits = admissions.join(patients, on="subject_id", how="left").select(
        # Birth dates of patients over 89 are shifted 300 years back; the cap of the age undoes that.
        *visit_columns(years),
        known_text("insurance"),
        known_text("language"),
        known_text("religion"),
        known_text("marital_status"),
        known_text("ethnicity"),
    )
    return SourceRecords(
        source="mimic3",
        patients=patients_with_death(patients, admissions),
        visits=visits,
        visits_table=admissions_table,
        streams=[
            icd_stream("diagnosis", _events(source, "diagnoses_icd"), store),
            icd_stream("procedure", _events(source, "procedures_icd"), store),
            drug_stream(open_prescriptions(source, time="startdate"), store),
        ],
        vocabulary=standard_vocabulary(),
    )


def _events(source: SourceFolder, name: str) -> SourceTable:
    """Open an ICD-9 event table; rows without a code, of which the release has a few, are left out."""
    table = source.open(name, {"hadm_id": pl.Int64, "icd9_code": pl.String})
    frame = table.frame.filter(pl.col("icd9_code").is_not_null()).select(
        pl.col("hadm_id").alias("visit_id"),
        pl.lit(9, dtype=pl.Int8).alias("icd_version"),
        pl.col("icd9_code").str.strip_chars().alias("icd_code"),
        pl.lit(None).alias("time"),
    )
    return SourceTable(table.path, frame)
