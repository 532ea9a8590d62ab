"""Reader for MIMIC-IV 2.2 and 3.1: ``hosp/`` tables patients, admissions, diagnoses, procedures, prescriptions."""

from __future__ import annotations

import polars as pl

from patients_like_me.codes.store import CodeStore
from patients_like_me.records.coded_streams import drug_stream, icd_stream, standard_vocabulary
from patients_like_me.records.cohort import TIME
from patients_like_me.records.source_files import SourceFolder, SourceTable
from patients_like_me.records.source_records import SourceRecords

#: Ages above 89 are grouped in MIMIC; one value stands for all of them.
OLDEST_AGE = 90


def read_mimic4(source: SourceFolder, store: CodeStore) -> SourceRecords:
    """Open the MIMIC-IV tables; the event tables are read later, piece by piece."""
    patients = source.open(
        "patients",
        {
            "subject_id": pl.Int64,
            "gender": pl.String,
            "anchor_age": pl.Int32,
            "anchor_year": pl.Int32,
            "dod": TIME,
        },
        optional=("dod",),
    ).collect()
    admissions_table = source.open(
        "admissions",
        {
            "subject_id": pl.Int64,
            "hadm_id": pl.Int64,
            "admittime": TIME,
            "dischtime": TIME,
            "deathtime": TIME,
            "insurance": pl.String,
            "language": pl.String,
            "marital_status": pl.String,
            "race": pl.String,
            "hospital_expire_flag": pl.String,
        },
        optional=("deathtime",),
    )
    admissions = admissions_table.collect()
    visits = admissions.join(patients, on="subject_id", how="left").select(
        "subject_id",
        pl.col("hadm_id").alias("visit_id"),
        pl.col("admittime").alias("admission_time"),
        pl.col("dischtime").alias("discharge_time"),
        pl.lit(None, dtype=pl.Int64).alias("order"),
        age_at(pl.col("anchor_age") + pl.col("admittime").dt.year() - pl.col("anchor_year")),
        (pl.col("hospital_expire_flag") == "1").fill_null(False).alias("died"),
        known_text("insurance"),
        known_text("language"),
        pl.lit(None, dtype=pl.String).alias("religion"),
        known_text("marital_status"),
        known_text("race").alias("ethnicity"),
    )
    return SourceRecords(
        source="mimic4",
        patients=patients_with_death(patients.select("subject_id", pl.col("gender").alias("sex"), "dod"), admissions),
        visits=visits,
        visits_table=admissions_table,
        streams=[
            icd_stream("diagnosis", _events(source, "diagnoses_icd"), store),
            icd_stream("procedure", _events(source, "procedures_icd", time="chartdate"), store),
            drug_stream(prescriptions(source, time="starttime"), store),
        ],
        vocabulary=standard_vocabulary(),
    )


def _events(source: SourceFolder, name: str, *, time: str | None = None) -> SourceTable:
    columns: dict[str, pl.DataType | type[pl.DataType]] = {
        "hadm_id": pl.Int64,
        "icd_code": pl.String,
        "icd_version": pl.Int8,
    }
    if time is not None:
        columns[time] = pl.String
    table = source.open(name, columns, optional=() if time is None else (time,))
    return SourceTable(table.path, _as_icd_events(table.frame, time))


def _as_icd_events(frame: pl.LazyFrame, time: str | None) -> pl.LazyFrame:
    return frame.select(
        pl.col("hadm_id").alias("visit_id"),
        "icd_version",
        pl.col("icd_code").str.strip_chars(),
        (pl.lit(None, dtype=pl.String) if time is None else pl.col(time)).alias("time"),
    )


def prescriptions(source: SourceFolder, *, time: str) -> SourceTable:
    """Open a MIMIC prescriptions table as drug events; NDC 0 and blank mean that none was recorded."""
    table = source.open(
        "prescriptions",
        {"hadm_id": pl.Int64, time: pl.String, "drug": pl.String, "ndc": pl.String},
        optional=(time,),
    )
    return SourceTable(
        table.path,
        table.frame.select(pl.col("hadm_id").alias("visit_id"), "ndc", "drug", pl.col(time).alias("time")),
    )


def known_text(column: str) -> pl.Expr:
    """Treat blank, ``?`` and spelled-out ignorance as not recorded."""
    text = pl.col(column).str.strip_chars()
    unknown = text.str.to_uppercase().is_in(
        [
            "",
            "?",
            "UNKNOWN",
            "UNKNOWN (DEFAULT)",
            "UNKNOWN/NOT SPECIFIED",
            "UNABLE TO OBTAIN",
            "NOT SPECIFIED",
            "OTHER/UNKNOWN",
        ]
    )
    return pl.when(unknown).then(None).otherwise(text).alias(column)


def age_at(years: pl.Expr) -> pl.Expr:
    """Return the age in whole years, all above 89 as one group."""
    return years.clip(upper_bound=OLDEST_AGE).cast(pl.Int16).alias("age")


def patients_with_death(patients: pl.DataFrame, admissions: pl.DataFrame) -> pl.DataFrame:
    """Take the time of death from the admission it happened in, else the recorded date of death."""
    in_hospital = admissions.group_by("subject_id").agg(pl.col("deathtime").max())
    return (
        patients.join(in_hospital, on="subject_id", how="left")
        .with_columns(pl.coalesce("deathtime", "dod").alias("death_time"))
        .select("subject_id", "sex", "death_time")
    )
