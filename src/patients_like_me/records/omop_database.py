"""An OMOP database as a source: what is needed of it is copied, in one read-only transaction, into a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, Protocol

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.records.databases import Copied, Database, copy_table, is_database, opened_database
from patients_like_me.records.omop_tables import DEATH, EVENTS, PERSON, SYNTHETIC, VISIT, event_columns
from patients_like_me.records.omop_vocabulary import ATC_THIRD, VOCABULARY_TABLES
from patients_like_me.records.source_files import SourceFolder

_USED_VOCABULARIES: Final = (
    "ICD9CM",
    "ICD10CM",
    "ICD10",
    "ICD10GM",
    "ICD9Proc",
    "ICD10PCS",
    "SNOMED",
    "RxNorm",
    "RxNorm Extension",
    "NDC",
    "ATC",
)


class Places(Protocol):
    """The settings that say where the tables of a database are."""

    @property
    def cdm_schema(self) -> str: ...  # noqa: D102
    @property
    def vocabulary_schema(self) -> str: ...  # noqa: D102
    @property
    def vocabulary(self) -> str: ...  # noqa: D102


def open_database(place: str, settings: Places, scratch: Path) -> SourceFolder | None:
    """Copy what is needed of a database into a folder; None where the place is a folder."""
    if not is_database(place):
        return None
    schemas = tuple(schema for schema in (settings.cdm_schema, settings.vocabulary_schema) if schema)
    copied = Copied(scratch)
    with opened_database(place, marker="person", schemas=schemas) as database:
        wanted = {
            "cdm_source": ("cdm_source_abbreviation", "cdm_version"),
            "person": tuple(PERSON),
            "visit_occurrence": tuple(VISIT),
            "death": tuple(DEATH),
            **{name: tuple(event_columns(name)[0]) for name in EVENTS},
            **(VOCABULARY_TABLES if not settings.vocabulary else {}),
        }
        if "person" not in database.tables:
            raise PlmError("no table 'person' in the database", remedy="check --set cdm_schema=NAME")
        for name, columns in wanted.items():
            if name in database.tables:
                copy_table(database, name, _selection(database, name, columns), copied)
    _mark_synthetic(scratch)
    return SourceFolder((scratch,), "OMOP", fingerprints=copied.fingerprints)


def _selection(database: Database, name: str, columns: tuple[str, ...]) -> str:
    """Write the query for a table: the columns that it has, and of the vocabulary only what can be used."""
    there = database.columns[name]
    chosen = ", ".join(f"{there[column]} AS {column}" for column in columns if column in there)
    tables = database.tables
    query = f"SELECT {chosen} FROM {tables[name]}"  # noqa: S608
    if name not in VOCABULARY_TABLES or "concept" not in tables:
        return query
    concept = tables["concept"]
    if name == "concept":
        names = "', '".join(_USED_VOCABULARIES)
        return f"{query} WHERE vocabulary_id IN ('{names}')"
    if name == "concept_relationship":
        icd = f"SELECT concept_id FROM {concept} WHERE vocabulary_id IN ('ICD10CM', 'ICD10PCS')"  # noqa: S608
        return f"{query} WHERE relationship_id = 'Maps to' AND concept_id_1 IN ({icd})"
    used = [
        f"SELECT {column} FROM {tables[table]}"  # noqa: S608
        for table, column in (
            ("condition_occurrence", "condition_concept_id"),
            ("procedure_occurrence", "procedure_concept_id"),
            ("drug_exposure", "drug_concept_id"),
        )
        if table in tables
    ]
    atc = f"SELECT concept_id FROM {concept} WHERE concept_class_id = '{ATC_THIRD}' OR vocabulary_id = 'SNOMED'"  # noqa: S608
    return f"{query} WHERE descendant_concept_id IN ({' UNION '.join(used)}) AND ancestor_concept_id IN ({atc})"


def _mark_synthetic(folder: Path) -> None:
    """Say of a copied database what its own table says: that its hospital is made up."""
    path = folder / "cdm_source.parquet"
    if path.is_file() and SYNTHETIC in pl.read_parquet(path).get_column(
        "cdm_source_abbreviation", default=pl.Series([""])
    ):
        (folder / "SYNTHETIC.json").write_text(json.dumps({"synthetic": True}) + "\n", encoding="utf-8")
