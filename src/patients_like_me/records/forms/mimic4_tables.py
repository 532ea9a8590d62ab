"""The tables of MIMIC-IV's form, opened for writing them in another form."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import polars as pl

from patients_like_me.records.cohort import TIME
from patients_like_me.records.file_scans import Columns
from patients_like_me.records.source_files import SourceFolder, SourceTable

_TABLES: Final[dict[str, Columns]] = {
    "patients": {
        "subject_id": pl.Int64,
        "gender": pl.String,
        "anchor_age": pl.Int32,
        "anchor_year": pl.Int32,
        "dod": TIME,
    },
    "admissions": {
        "subject_id": pl.Int64,
        "hadm_id": pl.Int64,
        "admittime": TIME,
        "dischtime": TIME,
        "deathtime": TIME,
        "admission_type": pl.String,
        "admission_location": pl.String,
        "discharge_location": pl.String,
        "insurance": pl.String,
        "language": pl.String,
        "marital_status": pl.String,
        "race": pl.String,
        "hospital_expire_flag": pl.String,
    },
    "diagnoses_icd": {"subject_id": pl.Int64, "hadm_id": pl.Int64, "icd_code": pl.String, "icd_version": pl.String},
    "procedures_icd": {
        "subject_id": pl.Int64,
        "hadm_id": pl.Int64,
        "chartdate": TIME,
        "icd_code": pl.String,
        "icd_version": pl.String,
    },
    "prescriptions": {
        "subject_id": pl.Int64,
        "hadm_id": pl.Int64,
        "starttime": TIME,
        "drug": pl.String,
        "ndc": pl.String,
    },
}


def open_mimic4(folder: Path) -> dict[str, SourceTable]:
    """Open the five tables lazily."""
    source = SourceFolder((folder,), "MIMIC-IV")
    optional = ("dod", "deathtime", "admission_type", "admission_location", "discharge_location", "ndc")
    return {name: source.open(name, columns, optional=optional) for name, columns in _TABLES.items()}


def copy_notice(folder: Path, out: Path) -> None:
    """Copy the note that says that a hospital is made up, where there is one."""
    for place in (folder, folder.absolute().parent):
        if (place / "SYNTHETIC.json").is_file():
            shutil.copyfile(place / "SYNTHETIC.json", out / "SYNTHETIC.json")
            return
