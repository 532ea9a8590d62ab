"""What MIMIC-III and MIMIC-IV have in common: admissions, deaths, prescriptions, and how ignorance is spelled."""

from __future__ import annotations

import polars as pl

from patients_like_me.records.cohort import TIME
from patients_like_me.records.source_files import SourceFolder, SourceTable

#: Ages above 89 are grouped in MIMIC; one value stands for all of them.
OLDEST_AGE = 90
_UNKNOWN = (
    "",
    "?",
    "UNKNOWN",
    "UNKNOWN (DEFAULT)",
    "UNKNOWN/NOT SPECIFIED",
    "UNABLE TO OBTAIN",
    "NOT SPECIFIED",
    "OTHER/UNKNOWN",
)


def open_admissions(source: SourceFolder, demographics: tuple[str, ...]) -> SourceTable:
    """Open the admissions with the demographics that a release has."""
    columns: dict[str, pl.DataType | type[pl.DataType]] = {
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
    """Return the columns of a visit that both releases name alike; ``age`` is in years."""
    return [
        pl.col("subject_id"),
        pl.col("hadm_id").alias("visit_id"),
        pl.col("admittime").alias("admission_time"),
        pl.col("dischtime").alias("discharge_time"),
        pl.lit(None, dtype=pl.Int64).alias("order"),
        age.clip(upper_bound=OLDEST_AGE).cast(pl.Int16).alias("age"),
        (pl.col("hospital_expire_flag") == "1").fill_null(False).alias("died"),
    ]


def known_text(column: str) -> pl.Expr:
    """Treat blank, ``?`` and spelled-out ignorance as not recorded."""
    text = pl.col(column).str.strip_chars()
    return pl.when(text.str.to_uppercase().is_in(_UNKNOWN)).then(None).otherwise(text).alias(column)


def patients_with_death(patients: pl.DataFrame, admissions: pl.DataFrame) -> pl.DataFrame:
    """Take the time of death from the admission it happened in, else the recorded date of death."""
    in_hospital = admissions.group_by("subject_id").agg(pl.col("deathtime").max())
    return (
        patients.join(in_hospital, on="subject_id", how="left")
        .with_columns(pl.col("gender").alias("sex"), pl.coalesce("deathtime", "dod").alias("death_time"))
        .select("subject_id", "sex", "death_time")
    )


def open_prescriptions(source: SourceFolder, *, time: str) -> SourceTable:
    """Open a prescriptions table as drug events; NDC 0 and blank mean that none was recorded."""
    table = source.open(
        "prescriptions", {"hadm_id": pl.Int64, time: pl.String, "drug": pl.String, "ndc": pl.String}, optional=(time,)
    )
    return SourceTable(
        table.path,
        table.frame.select(pl.col("hadm_id").alias("visit_id"), "ndc", "drug", pl.col(time).alias("time")),
    )
