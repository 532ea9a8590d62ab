"""Reader for MIMIC-IV 2.2 and 3.1: ``hosp/`` tables patients, admissions, diagnoses, procedures, prescriptions.

MIMIC-III, whose tables are similar, is read with the functions of this file.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from patients_like_me.codes.registry import SystemColumn
from patients_like_me.plain_text import counted
from patients_like_me.records.cohort import TIME
from patients_like_me.records.events import EventStream
from patients_like_me.records.file_scans import Columns
from patients_like_me.records.registry import Reader, ReaderSettings, SourceRecords
from patients_like_me.records.source_files import SourceFolder, SourceTable
from patients_like_me.records.values import (
    letter_of_sex,
    refuse_ages,
    refuse_other_sexes,
    refuse_other_words,
    refuse_rows,
    yes_or_no,
)

#: Ages above 89 are grouped in MIMIC; one value is used for all of them.
OLDEST_AGE: Final = 90
#: How missing values are written.
_UNKNOWN: Final = (
    "",
    "?",
    "UNKNOWN",
    "UNKNOWN (DEFAULT)",
    "UNKNOWN/NOT SPECIFIED",
    "UNABLE TO OBTAIN",
    "NOT SPECIFIED",
    "OTHER/UNKNOWN",
)
_ICD = SystemColumn("icd_version", {9: "icd9", 10: "icd10"}, title="ICD version")


def read_mimic4(source: SourceFolder, settings: ReaderSettings) -> SourceRecords:
    """Open the MIMIC-IV tables; the event tables are read later, piece by piece."""
    del settings
    patients_table = source.open(
        "patients",
        {"subject_id": pl.Int64, "gender": pl.String, "anchor_age": pl.Int32, "anchor_year": pl.Int32, "dod": TIME},
        optional=("dod",),
    )
    patients = one_row_per_patient(patients_table)
    refuse_ages(patients, pl.col("anchor_age"), patients_table, "'anchor_age'")
    admissions_table = open_admissions(source, ("insurance", "language", "marital_status", "race"))
    admissions = admissions_table.collect()
    age = pl.col("anchor_age").cast(pl.Int64) + pl.col("admittime").dt.year() - pl.col("anchor_year")
    source.notes += notes_on_deaths(admissions)
    with_patients = admissions.join(patients, on="subject_id", how="left", maintain_order="left")
    refuse_flags_and_ages(with_patients, age, admissions_table, "anchor_age and anchor_year")
    visits = with_patients.select(
        *visit_columns(age),
        *(known_text(name) for name in ("insurance", "language", "marital_status")),
        known_text("race").alias("ethnicity"),
    )
    return SourceRecords(
        patients=patients_with_death(patients, admissions),
        visits=visits,
        visits_table=admissions_table,
        streams=[
            EventStream("diagnosis", _events(source, "diagnoses_icd"), {"icd_code": _ICD}),
            EventStream("procedure", _events(source, "procedures_icd", time="chartdate"), {"icd_code": _ICD}),
            prescriptions(source, time="starttime"),
        ],
        time_column_names=("admittime", "dischtime"),
    )


def open_admissions(source: SourceFolder, demographics: tuple[str, ...]) -> SourceTable:
    """Open the admissions with the demographics that a release has."""
    columns: Columns = {
        "subject_id": pl.Int64,
        "hadm_id": pl.Int64,
        "admittime": TIME,
        "dischtime": TIME,
        "deathtime": TIME,
        **dict.fromkeys(demographics, pl.String),
        "hospital_expire_flag": pl.String,
    }
    return source.open("admissions", columns, optional=("deathtime",))


def visit_columns(age: pl.Expr) -> list[pl.Expr]:
    """Return the columns of a visit that have the same names in both releases; ``age`` is in years."""
    return [
        pl.col("subject_id"),
        pl.col("hadm_id").alias("visit_id"),
        pl.col("admittime").alias("admission_time"),
        pl.col("dischtime").alias("discharge_time"),
        age.clip(upper_bound=OLDEST_AGE).cast(pl.Int16).alias("age"),
        died_in_hospital().alias("died"),
    ]


def died_in_hospital() -> pl.Expr:
    """Tell whether a patient died during an admission: its flag says so, or a time of death that it alone records."""
    return yes_or_no("hospital_expire_flag") | pl.col("deathtime").is_not_null()


def notes_on_deaths(admissions: pl.DataFrame) -> list[str]:
    """Say how many admissions have a time of death although their flag says that the patient lived."""
    count = admissions.filter(died_in_hospital() & ~yes_or_no("hospital_expire_flag")).height
    verb = "has" if count == 1 else "have"
    what = f"{counted(count, 'admission')} {verb} a 'deathtime' although 'hospital_expire_flag' is 0"
    return [f"{what}: taken as deaths in hospital"] if count else []


def one_row_per_patient(table: SourceTable) -> pl.DataFrame:
    """Read the patients; a patient who is named twice is refused, for the visits would be doubled."""
    patients = table.collect()
    repeated = pl.col("subject_id").is_duplicated() & ~pl.col("subject_id").is_first_distinct()
    refuse_rows(patients, repeated, table, "this patient is in an earlier row too")
    refuse_other_sexes(patients, "gender", table)
    return patients


def refuse_flags_and_ages(visits: pl.DataFrame, age: pl.Expr, table: SourceTable, source_of_age: str) -> None:
    """Refuse a death that is neither yes nor no, and an age at admission that nobody has."""
    refuse_other_words(visits, "hospital_expire_flag", table, blank=False)
    refuse_ages(visits, age, table, f"the age at admission, from {source_of_age},")


def known_text(column: str) -> pl.Expr:
    """Return a column with null for every way in which a missing value is written."""
    text = pl.col(column).str.strip_chars()
    return pl.when(text.str.to_uppercase().is_in(_UNKNOWN)).then(None).otherwise(text).alias(column)


def patients_with_death(patients: pl.DataFrame, admissions: pl.DataFrame) -> pl.DataFrame:
    """Take the time of death from the admission it happened in, else the recorded date of death."""
    in_hospital = admissions.group_by("subject_id").agg(pl.col("deathtime").max())
    return (
        patients.join(in_hospital, on="subject_id", how="left")
        .with_columns(letter_of_sex("gender").alias("sex"), pl.coalesce("deathtime", "dod").alias("death_time"))
        .select("subject_id", "sex", "death_time")
    )


def prescriptions(source: SourceFolder, *, time: str) -> EventStream:
    """Open the prescriptions: the NDC decides where a table has it (0 and blank mean none), else the drug's name."""
    table = source.open(
        "prescriptions",
        {"subject_id": pl.Int64, "hadm_id": pl.Int64, time: pl.String, "drug": pl.String, "ndc": pl.String},
        optional=("subject_id", time),
    )
    events = table.then(
        lambda frame: frame.select(
            "subject_id", pl.col("hadm_id").alias("visit_id"), "ndc", "drug", pl.col(time).alias("time")
        )
    )
    return EventStream("medication", events, {"ndc": "ndc", "drug": "name"})


def _events(source: SourceFolder, name: str, *, time: str | None = None) -> SourceTable:
    columns: Columns = {"subject_id": pl.Int64, "hadm_id": pl.Int64, "icd_code": pl.String, "icd_version": pl.Int8}
    if time is not None:
        columns = {**columns, time: pl.String}
    table = source.open(name, columns, optional=("subject_id", *(() if time is None else (time,))))
    return table.then(
        lambda frame: frame.select(
            "subject_id",
            pl.col("hadm_id").alias("visit_id"),
            "icd_version",
            pl.col("icd_code").str.strip_chars(),
            (pl.lit(None) if time is None else pl.col(time)).alias("time"),
        )
    )


def _looks_like(source: SourceFolder) -> bool:
    return source.has("patients", "anchor_age") and source.has("admissions", "hadm_id")


READER = Reader("mimic4", "MIMIC-IV", _looks_like, read_mimic4)
