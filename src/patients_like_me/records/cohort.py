"""The cohort: patients, their visits in order, and the codes of every visit, as a folder of Parquet and JSON.

=====================  ==========================================================================
file                   columns
=====================  ==========================================================================
``patients.parquet``   subject, subject_id, sex, death_time
``visits.parquet``     visit, visit_id, subject, position, sequence, admission_time,
                       discharge_time, next_admission_time (also where a filter left that visit out),
                       age, died, insurance, language, religion, marital_status, ethnicity, site, unit
``diagnoses.parquet``  visit, code, time (likewise ``procedures`` and ``medications``)
``vocabulary.parquet`` kind, code, name, chapter
``labels.parquet``     visit, task, value (only where the source brought labels of its own)
``unmapped.parquet``   map, code, rows
``cohort.json``        format, source, settings, provenance, counts, hash, a digest of every file and of itself
``flow.json``, ``flow.svg``, ``coverage.json``
=====================  ==========================================================================

``subject`` and ``visit`` are row numbers. Visits are sorted by patient, then in the order in which they
happened, so the history of a visit is the run of rows of the same patient up to it. ``sequence`` equals ``position``
except where a source cannot order some visits of a patient: those share one ``sequence``, and none of them belongs to
the history of another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import polars as pl

from patients_like_me.codes.registry import KINDS as KINDS
from patients_like_me.codes.registry import VOCABULARY_COLUMNS as VOCABULARY_COLUMNS
from patients_like_me.codes.registry import Kind as Kind
from patients_like_me.errors import PlmError
from patients_like_me.files import is_sealed, read_json, verified_content, verify_files

TABLE_OF_KIND: Final[Mapping[Kind, str]] = {
    "diagnosis": "diagnoses",
    "procedure": "procedures",
    "medication": "medications",
}
DEMOGRAPHICS: Final = ("insurance", "language", "religion", "marital_status", "ethnicity")
#: Where a visit took place: the hospital, and the ward or kind of unit.
PLACES: Final = ("site", "unit")
FORMAT: Final = 4
#: Why a prepared cohort has no code of a kind.
NOT_MAPPED: Final = "could not be read: the records hold such codes, but no code map knows them (see plm codes status)"
NOT_THERE: Final = "not in these records"

TIME: Final[pl.DataType] = pl.Datetime("us")
PATIENT_COLUMNS: Final = pl.Schema(
    {
        "subject": pl.UInt32(),
        "subject_id": pl.String(),
        "sex": pl.String(),
        "death_time": TIME,
    }
)
VISIT_COLUMNS: Final = pl.Schema(
    {
        "visit": pl.UInt32(),
        "visit_id": pl.String(),
        "subject": pl.UInt32(),
        "position": pl.UInt32(),
        "sequence": pl.UInt32(),
        "admission_time": TIME,
        "discharge_time": TIME,
        "next_admission_time": TIME,
        "age": pl.Int16(),
        "died": pl.Boolean(),
        **dict.fromkeys((*DEMOGRAPHICS, *PLACES), pl.String()),
    }
)
CODE_COLUMNS: Final = pl.Schema({"visit": pl.UInt32(), "code": pl.String(), "time": TIME})
LABEL_COLUMNS: Final = pl.Schema({"visit": pl.UInt32(), "task": pl.String(), "value": pl.String()})


@dataclass(frozen=True, repr=False)
class Cohort:
    """Patients, visits and codes of one source, held in memory.

    Load one with :meth:`load`; readers and tests make one from frames. ``hash`` identifies the content. ``unordered``
    says why the times of a patient's visits cannot be compared with one another, and is empty where they can.
    ``folder`` is where it was loaded from.
    """

    patients: pl.DataFrame
    visits: pl.DataFrame
    codes: Mapping[Kind, pl.DataFrame]
    vocabulary: pl.DataFrame
    labels: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=LABEL_COLUMNS))
    source: str = "frames"
    unordered: str = ""
    known_hash: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    def __post_init__(self) -> None:
        _check_columns("patients", self.patients, PATIENT_COLUMNS)
        _check_columns("visits", self.visits, VISIT_COLUMNS)
        for kind in KINDS:
            _check_columns(TABLE_OF_KIND[kind], self.codes[kind], CODE_COLUMNS)
        _check_columns("vocabulary", self.vocabulary, VOCABULARY_COLUMNS)
        _check_columns("labels", self.labels, LABEL_COLUMNS)

    def __repr__(self) -> str:
        return f"<cohort of {self.source}: {self.patients.height:,} patients, {self.visits.height:,} visits>"

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return every table by its file name without ending."""
        return {
            "patients": self.patients,
            "visits": self.visits,
            **{TABLE_OF_KIND[kind]: self.codes[kind] for kind in KINDS},
            "vocabulary": self.vocabulary,
            "labels": self.labels,
        }

    def names(self, kind: Kind) -> dict[str, str]:
        """Return the readable name of every code of a kind."""
        wanted = self.vocabulary.filter(pl.col("kind") == kind)
        return dict(zip(wanted["code"].to_list(), wanted["name"].to_list(), strict=True))

    def statistics(self) -> dict[str, float]:
        """Return counts, and the averages per patient that the paper's cohort table shows."""
        codes = {kind: table.height for kind, table in self.codes.items()}
        return statistics_of(self.patients.height, self.visits.height, codes)

    @cached_property
    def hash(self) -> str:
        """What identifies the content: that of the folder it was loaded from, or computed from the tables."""
        if self.known_hash:
            return self.known_hash
        digest = hashlib.sha256()
        for name, table in self.tables().items():
            digest.update(f"{name}\n{table.write_csv()}".encode())
        return digest.hexdigest()

    @cached_property
    def missing_kinds(self) -> dict[Kind, str]:
        """The kinds of which a prepared cohort has no code at all, and why: none was there, or none could be mapped.

        A cohort that was not loaded from a folder cannot tell a kind that is missing from one that nobody has.
        """
        path = None if self.folder is None else self.folder / "coverage.json"
        if path is None or not path.is_file():
            return {}
        maps = read_json(path, what="coverage of the code maps")
        found: dict[Kind, str] = {}
        for kind in KINDS:
            if self.codes[kind].height:
                continue
            lost = sum(int(each["rows_unmapped"]) for each in maps if each["map"].startswith(f"{kind} "))
            found[kind] = NOT_MAPPED if lost else NOT_THERE
        return found

    @classmethod
    def load(cls, folder: Path | str) -> Cohort:
        """Load a cohort folder that ``plm prepare`` wrote."""
        folder = Path(folder)
        about = read_about(folder)
        tables = {name: _read_table(folder, name, about["digests"]) for name in _table_names()}
        beside = {name: digest for name, digest in about["digests"].items() if Path(name).stem not in tables}
        verify_files(folder, beside, what="cohort", remedy="prepare it again")
        return cls(
            patients=tables["patients"],
            visits=tables["visits"],
            codes={kind: tables[TABLE_OF_KIND[kind]] for kind in KINDS},
            vocabulary=tables["vocabulary"],
            labels=tables["labels"],
            source=about["source"],
            unordered=about["unordered"],
            known_hash=about["hash"],
            about=about,
            folder=folder,
        )


def statistics_of(patients: int, visits: int, codes: Mapping[Kind, int]) -> dict[str, float]:
    """Return the numbers of patients and visits, and the averages of visits and codes per patient.

    >>> statistics_of(2, 3, {"diagnosis": 8, "procedure": 1, "medication": 4})["conditions_per_patient"]
    4.0
    """
    divisor = max(patients, 1)
    return {
        "patients": patients,
        "visits": visits,
        "visits_per_patient": visits / divisor,
        "conditions_per_patient": codes["diagnosis"] / divisor,
        "procedures_per_patient": codes["procedure"] / divisor,
        "drugs_per_patient": codes["medication"] / divisor,
    }


def read_about(folder: Path) -> dict[str, Any]:
    """Read ``cohort.json``; another format and damaged content are refused with a sentence."""
    path = folder / "cohort.json"
    if not path.is_file():
        raise PlmError(
            f"'{folder}' is not a cohort folder (no cohort.json in it)",
            remedy="make one with: plm prepare SOURCE FOLDER --out COHORT",
        )
    about = read_json(path, what="cohort description")
    found = about.get("format") if isinstance(about, dict) else None
    if isinstance(found, int) and found != FORMAT:
        raise PlmError(
            f"the cohort '{folder}' has format {found}, this version reads {FORMAT}", remedy="prepare it again"
        )
    if not is_sealed(about):
        raise PlmError(
            f"the file '{path}' is damaged: its content is not what was written for this cohort",
            remedy="prepare it again with --replace",
        )
    return dict(about)


def _table_names() -> list[str]:
    return ["patients", "visits", *TABLE_OF_KIND.values(), "vocabulary", "labels"]


def _read_table(folder: Path, name: str, digests: Mapping[str, str]) -> pl.DataFrame:
    file = f"{name}.parquet"
    # Read once for both: the digest then costs less than it saves.
    content = verified_content(folder, file, digests.get(file, ""), what="cohort", remedy="prepare it again")
    try:
        return pl.read_parquet(content)
    except pl.exceptions.PolarsError as error:
        raise PlmError(
            f"the cohort's table '{folder / file}' cannot be read ({error})", remedy="prepare it again"
        ) from None


def _check_columns(name: str, table: pl.DataFrame, expected: pl.Schema) -> None:
    if table.schema != expected:
        raise PlmError(f"the table '{name}' has columns {dict(table.schema)}, expected {dict(expected)}")
