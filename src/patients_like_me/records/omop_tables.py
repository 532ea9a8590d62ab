"""The tables and columns of the OMOP common data model that are read, the same for 5.3 and 5.4."""

from __future__ import annotations

from typing import Final

import polars as pl

from patients_like_me.codes.registry import Kind
from patients_like_me.records.cohort import TIME
from patients_like_me.records.file_scans import Columns

PERSON: Final[Columns] = {
    "person_id": pl.Int64,
    "gender_concept_id": pl.Int64,
    "year_of_birth": pl.Int32,
    "month_of_birth": pl.Int32,
    "day_of_birth": pl.Int32,
    "race_concept_id": pl.Int64,
    "ethnicity_concept_id": pl.Int64,
    "race_source_value": pl.String,
    "ethnicity_source_value": pl.String,
}
VISIT: Final[Columns] = {
    "visit_occurrence_id": pl.Int64,
    "person_id": pl.Int64,
    "visit_concept_id": pl.Int64,
    "visit_start_date": TIME,
    "visit_start_datetime": TIME,
    "visit_end_date": TIME,
    "visit_end_datetime": TIME,
    "care_site_id": pl.String,
    "discharge_to_concept_id": pl.Int64,
    "discharged_to_concept_id": pl.Int64,
}
DEATH: Final[Columns] = {"person_id": pl.Int64, "death_date": TIME, "death_datetime": TIME}
#: Columns that may be missing; 5.4 renamed where a visit led to.
OPTIONAL: Final = {
    "person": ("month_of_birth", "day_of_birth", "race_source_value", "ethnicity_source_value"),
    "visit_occurrence": (
        "visit_start_datetime",
        "visit_end_datetime",
        "care_site_id",
        "discharge_to_concept_id",
        "discharged_to_concept_id",
    ),
    "death": ("death_datetime",),
}
#: The event tables: the kind of their codes, and what the names of their code and time columns begin with.
EVENTS: Final[dict[str, tuple[Kind, str, str]]] = {
    "condition_occurrence": ("diagnosis", "condition", "condition_start"),
    "procedure_occurrence": ("procedure", "procedure", "procedure"),
    "drug_exposure": ("medication", "drug", "drug_exposure_start"),
}
#: How the synthetic hospital names itself in the table ``cdm_source``.
SYNTHETIC: Final = "plm-synthetic"


def event_columns(name: str) -> tuple[Columns, tuple[str, ...]]:
    """Return the columns of an event table, and those of them that may be missing."""
    _, prefix, time = EVENTS[name]
    columns: Columns = {
        "visit_occurrence_id": pl.Int64,
        "person_id": pl.Int64,
        f"{time}_date": TIME,
        f"{time}_datetime": TIME,
        f"{prefix}_concept_id": pl.Int64,
        f"{prefix}_source_value": pl.String,
        f"{prefix}_source_concept_id": pl.Int64,
        f"{prefix}_type_concept_id": pl.Int64,
    }
    if prefix != "condition":
        columns = {column: kind for column, kind in columns.items() if not column.endswith("_type_concept_id")}
    return columns, (f"{time}_datetime", f"{prefix}_source_concept_id", f"{prefix}_type_concept_id")
