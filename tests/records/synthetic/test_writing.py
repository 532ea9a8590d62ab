"""Writing is deterministic, atomic, independent of the number of patients, and refuses what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patients_like_me.errors import PlmError
from patients_like_me.records.synthetic import SyntheticHospital, write_synthetic_hospital, writing
from patients_like_me.records.synthetic.tables import ADMISSIONS, COLUMNS, PHARMACY, SUBJECTS, identifiers

from .conftest import read_tables


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_the_same_settings_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_synthetic_hospital(tmp_path / name, patients=60, seed=4)
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")


def test_another_seed_gives_other_patients(tmp_path: Path) -> None:
    for seed in (4, 5):
        write_synthetic_hospital(tmp_path / str(seed), patients=60, seed=seed, compress=False)
    one, other = (read_tables(tmp_path / str(seed), ".csv") for seed in (4, 5))
    assert not any(one[name].equals(other[name]) for name in COLUMNS)


def test_compressed_and_plain_hold_the_same(tmp_path: Path) -> None:
    for compress in (True, False):
        write_synthetic_hospital(tmp_path / str(compress), patients=40, compress=compress)
    plain, packed = read_tables(tmp_path / "False", ".csv"), read_tables(tmp_path / "True", ".csv.gz")
    assert all(plain[name].equals(packed[name]) for name in COLUMNS)


def test_patients_do_not_depend_on_how_many_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "PATIENTS_PER_BLOCK", 50)
    for patients in (30, 50, 130):
        write_synthetic_hospital(tmp_path / str(patients), patients=patients, seed=2, compress=False)
    most = read_tables(tmp_path / "130", ".csv")
    for patients in (30, 50):
        few = read_tables(tmp_path / str(patients), ".csv")
        for name, table in few.items():
            assert table.equals(most[name].head(table.height)), (patients, name)


def test_the_note_says_what_it_is(tmp_path: Path) -> None:
    summary = write_synthetic_hospital(tmp_path / "hospital", patients=20, seed=9, visits_per_patient=2.0)
    note = json.loads((tmp_path / "hospital" / "SYNTHETIC.json").read_text())
    assert note["synthetic"] is True
    assert "No accuracy claim rests on it" in note["notice"]
    assert note["settings"]["seed"] == 9
    assert note["settings"]["visits_per_patient"] == 2.0
    assert note["counts"]["visits"] == summary.visits
    readme = (tmp_path / "hospital" / "README.txt").read_text()
    assert "synthetic" in readme
    assert "No accuracy claim rests on it" in readme
    assert "Seed 9" in readme


def test_the_summary_counts_the_rows(tmp_path: Path) -> None:
    summary = write_synthetic_hospital(tmp_path / "hospital", patients=25)
    tables = read_tables(tmp_path / "hospital", ".csv.gz")
    assert summary.patients == tables["patients"].height == 25
    assert summary.visits == tables["admissions"].height
    assert summary.diagnosis_rows == tables["diagnoses_icd"].height
    assert summary.procedure_rows == tables["procedures_icd"].height
    assert summary.prescription_rows == tables["prescriptions"].height
    assert summary.deaths_in_hospital == (tables["admissions"]["hospital_expire_flag"] == "1").sum()


def test_progress_reaches_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "PATIENTS_PER_BLOCK", 10)
    seen: list[tuple[str, int, int]] = []
    write_synthetic_hospital(tmp_path / "h", patients=25, progress=lambda *step: seen.append(step))
    assert seen == [("patients", 10, 25), ("patients", 20, 25), ("patients", 25, 25)]


def test_an_existing_folder_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "hospital").mkdir()
    (tmp_path / "hospital" / "mine.txt").write_text("mine")
    with pytest.raises(PlmError, match="exists already"):
        write_synthetic_hospital(tmp_path / "hospital", patients=5)
    assert bytes_of(tmp_path) == {"hospital/mine.txt": b"mine"}


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        write_synthetic_hospital(tmp_path / "hospital", patients=5, progress=fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"patients": 0}, "at least 1 patient, got 0; give a positive number"),
        ({"patients": -3}, "at least 1 patient, got -3"),
        ({"patients": 10_000_000}, "more than 9000000 visits"),
        ({"patients": 5, "seed": -1}, "the seed is -1; give 0 or a positive"),
        ({"patients": 5, "visits_per_patient": 0.5}, "visits per patient is 0.5; give a number from 1 to 10"),
        ({"patients": 5, "prescription_rows_per_drug": 0.2}, "rows per drug is 0.2"),
        ({"patients": 5, "incomplete_visits": 1.0}, "share of incomplete visits is 1.0"),
    ],
)
def test_impossible_settings_are_refused_before_writing(wrong: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(PlmError, match=sentence):
        write_synthetic_hospital(tmp_path / "hospital", **wrong)
    assert list(tmp_path.iterdir()) == []


def test_repeated_orders_are_as_asked(tmp_path: Path) -> None:
    drugs: dict[float, float] = {}
    for rows in (1.0, 3.0):
        summary = write_synthetic_hospital(
            tmp_path / str(rows), patients=300, prescription_rows_per_drug=rows, compress=False
        )
        table = read_tables(tmp_path / str(rows), ".csv")["prescriptions"]
        drugs[rows] = summary.prescription_rows / table.select("hadm_id", "drug", "dose_val_rx", "route").n_unique()
    assert drugs[1.0] == pytest.approx(1.0, abs=0.05)
    assert drugs[3.0] == pytest.approx(3.0, rel=0.15)


def test_no_incomplete_visits_when_none_are_wanted(tmp_path: Path) -> None:
    write_synthetic_hospital(tmp_path / "h", patients=400, incomplete_visits=0.0, compress=False)
    tables = read_tables(tmp_path / "h", ".csv")
    assert set(tables["procedures_icd"]["hadm_id"]) == set(tables["admissions"]["hadm_id"])


@settings(max_examples=25)
@given(st.integers(0, 5_000_000), st.integers(0, 5_000_000))
def test_identifiers_do_not_collide(one: int, other: int) -> None:
    for scheme in (SUBJECTS, ADMISSIONS, PHARMACY):
        made = identifiers(np.array([one, other]), scheme)
        assert (made[0] == made[1]) == (one == other)


@settings(max_examples=15, deadline=None)
@given(patients=st.integers(1, 12), seed=st.integers(0, 2**40), visits=st.floats(1.0, 10.0))
def test_small_hospitals_of_any_seed_are_whole(
    tmp_path_factory: pytest.TempPathFactory, patients: int, seed: int, visits: float
) -> None:
    folder = tmp_path_factory.mktemp("any") / "h"
    summary = write_synthetic_hospital(folder, patients=patients, seed=seed, visits_per_patient=visits)
    tables = read_tables(folder, ".csv.gz")
    assert tables["patients"].height == patients
    visits_table = tables["admissions"].select(
        "subject_id", pl.col("admittime", "dischtime").str.to_datetime("%Y-%m-%d %H:%M:%S")
    )
    following = pl.col("admittime").shift(-1).over("subject_id")
    assert visits_table.select((pl.col("dischtime") > pl.col("admittime")).all()).item()
    assert visits_table.filter(following <= pl.col("dischtime")).is_empty()
    assert visits_table["dischtime"].dt.year().max() <= 2200
    assert SyntheticHospital(patients=patients, seed=seed, visits_per_patient=visits).patients == summary.patients
