"""Reader for MIMIC-IV 2.2 and 3.1: ``hosp/`` tables patients, admissions, diagnoses, procedures, prescriptions."""

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


def read_mimic4(source: SourceFolder, store: CodeStore) -> SourceRecords:
    """Open the MIMIC-IV tables; the event tables are read later, piece by piece."""
    patients = source.open(
        "patients",
        {"subject_id": pl.Int64, "gender": pl.String, "anchor_age": pl.Int32, "anchor_year": pl.Int32, "dod": TIME},
        optional=("dod",),
    ).collect()
    admissions_table = open_admissions(source, ("insurance", "language", "marital_status", "race"))
    admissions = admissions_table.collect()
    visits = admissions.join(patients, on="subject_id", how="left").select(
        *visit_columns(pl.col("anchor_age") + pl.col("admittime").dt.year() - pl.col("anchor_year")),
        known_text("insurance"),
        known_text("language"),
        pl.lit(None, dtype=pl.String).alias("religion"),
        known_text("marital_status"),
        known_text("race").alias("ethnicity"),
    )
    return SourceRecords(
        source="mimic4",
        patients=patients_with_death(patients, admissions),
        visits=visits,
        visits_table=admissions_table,
        streams=[
            icd_stream("diagnosis", _events(source, "diagnoses_icd"), store),
            icd_stream("procedure", _events(source, "procedures_icd", time="chartdate"), store),
            drug_stream(open_prescriptions(source, time="starttime"), store),
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
    frame = table.frame.select(
        pl.col("hadm_id").alias("visit_id"),
        "icd_version",
        pl.col("icd_code").str.strip_chars(),
        (pl.lit(None) if time is None else pl.col(time)).alias("time"),
    )
    return SourceTable(table.path, frame)
