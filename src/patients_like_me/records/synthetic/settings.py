"""The settings of a synthetic hospital, the seeds of its draws and the summary of what was written."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from patients_like_me.errors import PlmError

PAPER_VISITS_PER_PATIENT = 1.88
# MIMIC-IV has about 35 prescription rows per admission.
DEFAULT_ROWS_PER_DRUG = 1.38
MOST_VISITS = 9_000_000
MOST_VISITS_PER_PATIENT = 10.0

NOTICE = (
    "This hospital is synthetic: every patient, visit, code and date was drawn by a random generator. "
    "It serves demonstrations, tests and measurements of speed. No accuracy claim rests on it."
)


@dataclass(frozen=True)
class SyntheticHospital:
    """Say how large a synthetic hospital is and how its tables are written.

    ``incomplete_visits`` is the share of short observation visits without procedures (half of them without
    prescriptions too) among the visits without surgery, critical illness or death. Real tables have many, and the
    filters of a reader must meet some. The tables of the full MIMIC-IV have about 10.9 diagnosis rows per visit,
    the paper's cohort more: a share of 0.6 comes near the full tables.

    >>> SyntheticHospital(patients=100, seed=7).visits_per_patient
    1.88
    >>> SyntheticHospital(patients=0)
    Traceback (most recent call last):
    patients_like_me.errors.PlmError: a synthetic hospital needs at least 1 patient, got 0; ...
    """

    patients: int
    seed: int = 0
    compress: bool = True
    visits_per_patient: float = PAPER_VISITS_PER_PATIENT
    prescription_rows_per_drug: float = DEFAULT_ROWS_PER_DRUG
    incomplete_visits: float = 0.03

    def __post_init__(self) -> None:
        if self.patients < 1:
            raise PlmError(
                f"a synthetic hospital needs at least 1 patient, got {self.patients}",
                remedy="give a positive number of patients",
            )
        if self.seed < 0:
            raise PlmError(f"the seed is {self.seed}", remedy="give 0 or a positive whole number")
        if not 1.0 <= self.visits_per_patient <= MOST_VISITS_PER_PATIENT:
            raise PlmError(
                f"visits per patient is {self.visits_per_patient}",
                remedy=f"give a number from 1 to {MOST_VISITS_PER_PATIENT:.0f}: every patient is seen once",
            )
        if self.patients * self.visits_per_patient > MOST_VISITS:
            raise PlmError(
                f"{self.patients} patients would have more than {MOST_VISITS} visits, beyond eight-digit identifiers",
                remedy="ask for fewer patients",
            )
        if not 1.0 <= self.prescription_rows_per_drug <= 20.0:
            raise PlmError(
                f"prescription rows per drug is {self.prescription_rows_per_drug}",
                remedy="give a number from 1 to 20: every ordered drug has a row",
            )
        if not 0.0 <= self.incomplete_visits < 1.0:
            raise PlmError(
                f"the share of incomplete visits is {self.incomplete_visits}",
                remedy="give a share from 0 to below 1",
            )


@dataclass(frozen=True)
class SyntheticSummary:
    """Count what a synthetic hospital holds."""

    folder: Path
    patients: int
    visits: int
    deaths_in_hospital: int
    icd9_visits: int
    diagnosis_rows: int
    procedure_rows: int
    prescription_rows: int

    def in_words(self) -> str:
        """Return the counts as a sentence."""
        return (
            f"{self.patients:,} patients, {self.visits:,} visits ({self.icd9_visits:,} coded in ICD-9, "
            f"{self.deaths_in_hospital:,} ended in death), {self.diagnosis_rows:,} diagnoses, "
            f"{self.procedure_rows:,} procedures and {self.prescription_rows:,} prescriptions."
        )


@dataclass(frozen=True)
class Draws:
    """Hand out one independent random stream per purpose within a block of patients.

    Every stream is filled row by row, patient after patient. So what is drawn for a patient depends on the
    seed and on the patient's number, never on how many patients follow.

    >>> import numpy as np
    >>> few, many = Draws(1, 0).stream("age").random(2), Draws(1, 0).stream("age").random(5)
    >>> bool((few == many[:2]).all()), bool((few == Draws(2, 0).stream("age").random(2)).any())
    (True, False)
    """

    seed: int
    block: int

    def stream(self, purpose: str) -> np.random.Generator:
        """Return the generator that serves ``purpose``, always from its start."""
        words = [self.seed, self.block, zlib.crc32(purpose.encode())]
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence(words)))
