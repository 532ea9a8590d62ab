"""The golden figures of the public records, through the readers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from patients_like_me.codes.store import CodeStore
from patients_like_me.records.assemble import CohortSettings
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.prepare import prepare
from patients_like_me.settings import checked, preset_values
from patients_like_me.tasks.audit import audit
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import all_tasks
from patients_like_me.tasks.task import TaskSettings

TASKS = all_tasks()

GOLDEN = {
    "mimic3": {
        "readmission": (29, 3),
        "stays": [10, 4, 18, 6, 12, 11, 8, 10, 33, 17],
        "pairs": {1: 3983, 3: 1786, 5: 582, 8: 108, 10: 30},
    },
    "mimic4": {
        "readmission": (175, 20),
        "stays": [30, 25, 32, 25, 28, 26, 17, 16, 50, 26],
        "pairs": {1: 4409, 3: 3133, 5: 1988, 8: 1065, 10: 732},
    },
}


@pytest.fixture(scope="module")
def store(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> CodeStore:
    store = CodeStore(tmp_path_factory.mktemp("codes"))
    store.add(shared_data / "codes" / "icd9proc_to_ccs.csv.gz")
    return store


@pytest.fixture(scope="module", params=["mimic3", "mimic4"])
def prepared(
    request: pytest.FixtureRequest,
    shared_data: Path,
    store: CodeStore,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, Path]:
    source: str = request.param
    folder = tmp_path_factory.mktemp("cohorts") / source
    return source, prepare(source, shared_data / f"{source}_demo", folder, store=store).folder


def test_the_cohort_of_the_paper_has_a_code_of_every_kind_in_each_visit(
    shared_data: Path, store: CodeStore, tmp_path: Path
) -> None:
    settings = checked(CohortSettings, **preset_values("paper")["prepare"])
    folder = prepare("mimic4", shared_data / "mimic4_demo", tmp_path / "cohort", store=store, settings=settings).folder
    cohort = Cohort.load(folder)
    assert cohort.visits.height == 186
    for codes in cohort.codes.values():
        assert codes["visit"].n_unique() == 186
    assert len(build_instances(cohort, TASKS["readmission"])) == 108
    flow = json.loads((folder / "flow.json").read_text())
    assert flow[0]["visits"] == 275
    assert sum(step["visits_left_out"] for step in flow) == 275 - 186


def test_readmissions_and_stays(prepared: tuple[str, Path]) -> None:
    source, folder = prepared
    cohort = Cohort.load(folder)
    readmission = build_instances(cohort, TASKS["readmission"])
    assert (len(readmission), int(readmission.labels.sum())) == GOLDEN[source]["readmission"]
    assert np.bincount(build_instances(cohort, TASKS["length_of_stay"]).labels).tolist() == GOLDEN[source]["stays"]


def test_every_diagnosis_and_procedure_row_has_a_category(prepared: tuple[str, Path]) -> None:
    maps = json.loads((prepared[1] / "coverage.json").read_text())
    icd = [row for row in maps if row["map"].startswith(("diagnosis", "procedure"))]
    assert len(icd) == (2 if prepared[0] == "mimic3" else 4)
    assert all(row["share"] == 1.0 for row in icd)


def test_pairs_of_patients_by_shared_diagnoses(prepared: tuple[str, Path]) -> None:
    source, folder = prepared
    cohort = Cohort.load(folder)
    codes = cohort.codes["diagnosis"].join(cohort.visits.select("visit", "subject"), on="visit")
    sets = codes.select("subject", "code").unique()
    matrix = np.zeros((cohort.patients.height, sets["code"].n_unique()), dtype=int)
    matrix[sets["subject"].to_numpy(), sets["code"].rank("dense").to_numpy() - 1] = 1
    shared = (matrix @ matrix.T)[np.triu_indices(len(matrix), 1)]
    assert {k: int((shared >= k).sum()) for k in GOLDEN[source]["pairs"]} == GOLDEN[source]["pairs"]


@pytest.mark.parametrize("task", list(TASKS))
@pytest.mark.parametrize("inputs", ["retrospective", "known"])
def test_no_leak(prepared: tuple[str, Path], task: str, inputs: str) -> None:
    found = audit(Cohort.load(prepared[1]), TASKS[task], TaskSettings.model_validate({"inputs": inputs}))
    assert found.leaks == []


def test_drug_names_alone_map_the_prescriptions(prepared: tuple[str, Path]) -> None:
    drugs = next(row for row in json.loads((prepared[1] / "coverage.json").read_text()) if row["map"].startswith("med"))
    assert set(drugs["mapped_by_way"]) == {"name"}
    assert drugs["share"] >= 0.95


def test_diabetes_records_through_own_tables(shared_data: Path, store: CodeStore, tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "diabetes130.py"
    raw = shared_data / "uci_diabetes130" / "diabetic_data.csv.gz"
    subprocess.run(
        [sys.executable, str(example), str(raw), "--out", str(tmp_path / "own"), "--patients", "1500"],
        check=True,
    )
    cohort = Cohort.load(prepare("tables", tmp_path / "own", tmp_path / "cohort", store=store).folder)
    assert cohort.patients.height == 1500
    diagnoses = next(
        row for row in json.loads((tmp_path / "cohort" / "coverage.json").read_text()) if row["map"].startswith("diag")
    )
    assert diagnoses["share"] > 0.99
    for task in TASKS.values():
        instances = build_instances(
            cohort, task, task.settings({"window_days": 30} if task.name == "readmission" else {})
        )
        assert audit(cohort, task, instances.settings).leaks == []
    readmitted = build_instances(cohort, TASKS["readmission"])
    assert 0.08 < readmitted.labels.mean() < 0.15
    assert len(build_instances(cohort, TASKS["drug_recommendation"]).label_vocabulary) >= 8
    ordered = cohort.visits.with_columns(pl.col("visit_id").cast(pl.Int64)).with_columns(
        before=pl.col("visit_id").shift(1).over("subject")
    )
    assert ordered.filter(pl.col("visit_id") < pl.col("before")).is_empty()
