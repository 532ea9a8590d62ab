"""Reader for MIMIC-III 1.4: ADMISSIONS, PATIENTS, DIAGNOSES_ICD, PROCEDURES_ICD, PRESCRIPTIONS."""

from __future__ import annotations

import polars as pl

from patients_like_me.records.cohort import DEMOGRAPHICS, TIME
from patients_like_me.records.events import EventStream
from patients_like_me.records.file_scans import Columns
from patients_like_me.records.readers.mimic4 import (
    OLDEST_AGE,
    known_text,
    notes_on_deaths,
    one_row_per_patient,
    open_admissions,
    patients_with_death,
    prescriptions,
    refuse_flags_and_ages,
    visit_columns,
)
from patients_like_me.records.registry import Reader, ReaderSettings, SourceRecords
from patients_like_me.records.source_files import SourceFolder, SourceTable
from patients_like_me.records.values import SHIFTED, completed_years


def read_mimic3(source: SourceFolder, settings: ReaderSettings) -> SourceRecords:
    """Open the MIMIC-III tables; all diagnoses and procedures are ICD-9."""
    del settings
    patients = one_row_per_patient(
        source.open(
            "patients",
            {"subject_id": pl.Int64, "gender": pl.String, "dob": TIME, "dod": TIME},
            optional=("dod",),
        )
    )
    admissions_table = open_admissions(source, DEMOGRAPHICS)
    admissions = admissions_table.collect()
    years = completed_years("dob", "admittime")
    # Birth dates of patients over 89 are shifted 300 years back.
    age = pl.when(years.is_between(*SHIFTED)).then(OLDEST_AGE).otherwise(years)
    source.notes += notes_on_deaths(admissions)
    with_patients = admissions.join(patients, on="subject_id", how="left", maintain_order="left")
    refuse_flags_and_ages(with_patients, age, admissions_table, "dob")
    visits = with_patients.select(
        *visit_columns(age),
        *(known_text(name) for name in DEMOGRAPHICS),
    )
    return SourceRecords(
        patients=patients_with_death(patients, admissions),
        visits=visits,
        visits_table=admissions_table,
        streams=[
            EventStream("diagnosis", _events(source, "diagnoses_icd"), {"icd9_code": "icd9"}),
            EventStream("procedure", _events(source, "procedures_icd"), {"icd9_code": "icd9"}),
            prescriptions(source, time="startdate"),
        ],
        time_column_names=("admittime", "dischtime"),
    )


def _events(source: SourceFolder, name: str) -> SourceTable:
    """Open an ICD-9 event table; rows without a code, of which the release has a few, are counted as unmapped."""
    columns: Columns = {"subject_id": pl.Int64, "hadm_id": pl.Int64, "icd9_code": pl.String}
    table = source.open(name, columns, optional=("subject_id",))
    return table.then(
        lambda frame: frame.select(
            "subject_id",
            pl.col("hadm_id").alias("visit_id"),
            pl.col("icd9_code").str.strip_chars(),
            pl.lit(None).alias("time"),
        )
    )


def _looks_like(source: SourceFolder) -> bool:
    return source.has("patients", "dob") and source.has("admissions", "hadm_id")


READER = Reader("mimic3", "MIMIC-III", _looks_like, read_mimic3)
