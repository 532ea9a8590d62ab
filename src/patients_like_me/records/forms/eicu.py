"""Write MIMIC-IV's tables in the form of eICU 2.0: plain CSV, every hospital stay with one unit stay.

eICU has no dates, so only the year, the time of day and minutes remain, and no procedures by ICD code: they are lost.
Ages above 89 are written "> 89", and a code gets its dot back, by which the version of ICD is told.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from patients_like_me.files import atomic_folder
from patients_like_me.records.forms.form import Form
from patients_like_me.records.forms.mimic4_tables import copy_notice, open_mimic4
from patients_like_me.records.readers.mimic4 import known_text
from patients_like_me.records.source_files import SourceTable

_OLD: Final = 90


def write_eicu(folder: Path, out: Path) -> None:
    """Write the tables of ``folder`` in eICU's form."""
    tables = open_mimic4(folder)
    stays = _stays(tables)
    admitted = stays.lazy().select("hadm_id", "admittime")
    with atomic_folder(out) as temporary:
        copy_notice(folder, temporary)
        _patients(stays).write_csv(temporary / "patient.csv")
        _diagnoses(tables["diagnoses_icd"]).sink_csv(temporary / "diagnosis.csv")
        _drugs(tables["prescriptions"], admitted).sink_csv(temporary / "medication.csv")


def _stays(tables: dict[str, SourceTable]) -> pl.DataFrame:
    patients, admissions = tables["patients"].collect(), tables["admissions"].collect()
    age = pl.col("anchor_age").cast(pl.Int64) + pl.col("admittime").dt.year() - pl.col("anchor_year")
    joined = admissions.join(patients, on="subject_id", how="left", maintain_order="left").with_columns(
        age.alias("age")
    )
    visit_of_year = pl.int_range(1, pl.len() + 1).over("subject_id", pl.col("dischtime").dt.year())
    return joined.sort("subject_id", "admittime").with_columns(visit_of_year.alias("number"))


def _patients(stays: pl.DataFrame) -> pl.DataFrame:
    minutes = (pl.col("dischtime") - pl.col("admittime")).dt.total_minutes()
    died = pl.col("hospital_expire_flag").str.strip_chars() == "1"
    status = pl.when(died).then(pl.lit("Expired")).otherwise(pl.lit("Alive"))
    sex = pl.col("gender").replace_strict({"M": "Male", "F": "Female"}, default="Unknown")
    return stays.select(
        pl.col("hadm_id").alias("patientunitstayid"),
        pl.col("hadm_id").alias("patienthealthsystemstayid"),
        sex.alias("gender"),
        pl.when(pl.col("age") >= _OLD).then(pl.lit("> 89")).otherwise(pl.col("age").cast(pl.String)).alias("age"),
        known_text("race").fill_null("Other/Unknown").alias("ethnicity"),
        pl.lit(1).alias("hospitalid"),
        pl.col("admittime").dt.strftime("%H:%M:%S").alias("hospitaladmittime24"),
        pl.lit(0).alias("hospitaladmitoffset"),
        pl.col("dischtime").dt.year().alias("hospitaldischargeyear"),
        minutes.alias("hospitaldischargeoffset"),
        status.alias("hospitaldischargestatus"),
        pl.lit("Med-Surg ICU").alias("unittype"),
        pl.lit(1).alias("unitvisitnumber"),
        minutes.alias("unitdischargeoffset"),
        status.alias("unitdischargestatus"),
        pl.col("subject_id").alias("uniquepid"),
    )


def _diagnoses(table: SourceTable) -> pl.LazyFrame:
    code = pl.col("icd_code").str.strip_chars()
    before_dot = pl.when((pl.col("icd_version") == "9") & code.str.starts_with("E")).then(4).otherwise(3)
    after_dot = code.str.slice(before_dot)
    dotted = pl.when(after_dot == "").then(code).otherwise(pl.format("{}.{}", code.str.slice(0, before_dot), after_dot))
    return pl.concat([part.frame for part in table.parts]).select(
        pl.int_range(1, pl.len() + 1).alias("diagnosisid"),
        pl.col("hadm_id").alias("patientunitstayid"),
        pl.lit(0).alias("diagnosisoffset"),
        dotted.alias("icd9code"),
    )


def _drugs(table: SourceTable, admitted: pl.LazyFrame) -> pl.LazyFrame:
    rows = pl.concat([part.frame for part in table.parts])
    offset = (pl.col("starttime") - pl.col("admittime")).dt.total_minutes()
    return rows.join(admitted, on="hadm_id", how="left", maintain_order="left").select(
        pl.int_range(1, pl.len() + 1).alias("medicationid"),
        pl.col("hadm_id").alias("patientunitstayid"),
        offset.alias("drugstartoffset"),
        pl.lit("No").alias("drugordercancelled"),
        pl.col("drug").alias("drugname"),
        pl.lit(None, pl.String).alias("drughiclseqno"),
    )


FORM = Form("eicu", "eICU 2.0", write_eicu)
