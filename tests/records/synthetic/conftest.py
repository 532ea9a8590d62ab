"""Two written hospitals and one drawn block that the tests of the synthetic hospital share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from patients_like_me.records.synthetic import SyntheticHospital, SyntheticSummary, write_synthetic_hospital
from patients_like_me.records.synthetic.calibration import SCALES
from patients_like_me.records.synthetic.contents import Contents, draw_contents
from patients_like_me.records.synthetic.courses import Courses, draw_courses
from patients_like_me.records.synthetic.settings import Draws
from patients_like_me.records.synthetic.syndromes import load_knowledge
from patients_like_me.records.synthetic.tables import COLUMNS
from patients_like_me.records.synthetic.timeline import Timeline, draw_timeline

PATIENTS = 3_000


@dataclass(frozen=True)
class Written:
    summary: SyntheticSummary
    tables: dict[str, pl.DataFrame]

    def __getitem__(self, name: str) -> pl.DataFrame:
        return self.tables[name]


@dataclass(frozen=True)
class Block:
    courses: Courses
    contents: Contents
    timeline: Timeline


def read_tables(folder: Path, ending: str) -> dict[str, pl.DataFrame]:
    return {
        name: pl.read_csv(folder / "hosp" / f"{name}{ending}", infer_schema=False, empty_string_is_null=False)
        for name in COLUMNS
    }


@pytest.fixture(scope="session", params=[0, 1], ids=["seed 0", "seed 1"])
def hospital(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("synthetic") / "hospital"
    summary = write_synthetic_hospital(folder, patients=PATIENTS, seed=request.param, compress=False)
    return Written(summary, read_tables(folder, ".csv"))


@pytest.fixture(scope="session")
def block() -> Block:
    """Draw many patients with all that is hidden in the tables, such as severity."""
    knowledge, draws = load_knowledge(), Draws(seed=5, block=0)
    settings = SyntheticHospital(patients=12_000, seed=5)
    courses = draw_courses(knowledge, settings, draws, first_patient=0, patients=settings.patients)
    contents = draw_contents(knowledge, courses, draws, SCALES)
    return Block(courses, contents, draw_timeline(knowledge, courses, contents, draws))
