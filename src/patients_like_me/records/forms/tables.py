"""Write MIMIC-IV's tables as a hospital's own tables (``docs/own-tables.md``): ``visits`` and ``events`` in Parquet.

Drugs are written by their names; NDCs are left out, since an own table gives one code per row.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from patients_like_me.files import atomic_folder
from patients_like_me.records.forms.form import Form
from patients_like_me.records.forms.mimic4_tables import copy_notice, open_mimic4
from patients_like_me.records.readers.mimic4 import OLDEST_AGE, known_text
from patients_like_me.records.source_files import SourceTable


def write_tables(folder: Path, out: Path) -> None:
    """Write the tables of ``folder`` as own tables."""
    tables = open_mimic4(folder)
    with atomic_folder(out) as temporary:
        copy_notice(folder, temporary)
        _visits(tables).write_parquet(temporary / "visits.parquet")
        events = [
            _coded(tables["diagnoses_icd"], "diagnosis", None),
            _coded(tables["procedures_icd"], "procedure", "chartdate"),
            _drugs(tables["prescriptions"]),
        ]
        pl.concat(events).sink_parquet(temporary / "events.parquet", row_group_size=500_000)


def _visits(tables: dict[str, SourceTable]) -> pl.DataFrame:
    patients, admissions = tables["patients"].collect(), tables["admissions"].collect()
    in_hospital = admissions.group_by("subject_id").agg(pl.col("deathtime").max().alias("last_deathtime"))
    age = pl.col("anchor_age").cast(pl.Int64) + pl.col("admittime").dt.year() - pl.col("anchor_year")
    joined = admissions.join(patients, on="subject_id", how="left", maintain_order="left")
    return joined.join(in_hospital, on="subject_id", how="left", maintain_order="left").select(
        pl.col("subject_id").cast(pl.String),
        pl.col("hadm_id").cast(pl.String).alias("visit_id"),
        pl.col("admittime").alias("admission_time"),
        pl.col("dischtime").alias("discharge_time"),
        pl.col("gender").alias("sex"),
        age.clip(upper_bound=OLDEST_AGE).alias("age"),
        pl.col("hospital_expire_flag").str.strip_chars().alias("died"),
        pl.coalesce("last_deathtime", "dod").alias("death_time"),
        *(known_text(name) for name in ("insurance", "language", "marital_status")),
        known_text("race").alias("ethnicity"),
    )


def _coded(table: SourceTable, kind: str, time: str | None) -> pl.LazyFrame:
    return _rows(table).select(
        pl.col("subject_id").cast(pl.String),
        pl.col("hadm_id").cast(pl.String).alias("visit_id"),
        (pl.lit(None, pl.Datetime("us")) if time is None else pl.col(time)).alias("time"),
        pl.format(f"{kind}/icd{{}}", "icd_version").alias("kind"),
        pl.col("icd_code").str.strip_chars().alias("code"),
    )


def _drugs(table: SourceTable) -> pl.LazyFrame:
    return _rows(table).select(
        pl.col("subject_id").cast(pl.String),
        pl.col("hadm_id").cast(pl.String).alias("visit_id"),
        pl.col("starttime").alias("time"),
        pl.lit("medication/name").alias("kind"),
        pl.col("drug").alias("code"),
    )


def _rows(table: SourceTable) -> pl.LazyFrame:
    return pl.concat([part.frame for part in table.parts])


FORM = Form("tables", "own tables", write_tables)
