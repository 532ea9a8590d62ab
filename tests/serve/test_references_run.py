"""A served run whose references bring their outcomes: the same answers as the commands give, also after its bank grew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from serve.test_api import OWN, close

from patients_like_me.evaluation.run_bank import RunBank
from patients_like_me.explanation.explain import explain
from patients_like_me.explanation.newcomers import scene_of_newcomers
from patients_like_me.explanation.what_if import Change
from patients_like_me.model.settings import BackboneSettings
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.newcomers import cohort_of_newcomers
from patients_like_me.runs.predictions import ids_of
from patients_like_me.runs.run import load_run
from patients_like_me.serve.bank_view import hubs
from patients_like_me.serve.patients import one_patient
from patients_like_me.systems.frozen_embeddings import FEW, FrozenBackbone
from patients_like_me.systems.predictor import Predictor
from patients_like_me.systems.train import train
from patients_like_me.tasks.instances import build_instances, instances_to_predict
from patients_like_me.tasks.registry import find_task
from patients_like_me.tasks.task import TaskSettings

SETTINGS = {
    "own_path": ["logistic"],
    "k": [5],
    "powers": [1.0],
    "relations": ["diagnoses", "all codes"],
    "folds": 2,
    "gate_penalties": [0.1],
    "may_stay_out": False,
}


@pytest.fixture(scope="module")
def other(
    make_served: Callable[..., Any], cohort_folder: Path, today: Path, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    folder = tmp_path_factory.mktemp("references") / "run"
    return make_served(
        train(cohort_folder, "readmission", folder, system="references", settings=SETTINGS).folder, today
    )


def check_predictions(other: Any, today: Path) -> None:
    """Compare all patients at once, and two alone, with what the command predicts."""
    cohort = Cohort.load(today)
    expected = Predictor.load(load_run(other.state.model.folder)).predict(cohort)
    found = other.state.predict(cohort)
    for plain, row in zip(found, expected.iter_rows(named=True), strict=True):
        assert list(plain.probabilities.values()) == pytest.approx(row["probabilities"], abs=1e-6)
        assert plain.references == row["references"]
    for place in (0, 1):
        alone = other.state.patient(f"P{place + 1}").prediction
        assert list(alone.probabilities.values()) == pytest.approx(expected["probabilities"][place], abs=1e-6)
        line = other.state.listing.row(f"P{place + 1}")
        assert line.probability == pytest.approx(alone.probability, abs=1e-6)


def test_answers_are_those_of_the_commands(other: Any, today: Path) -> None:
    check_predictions(other, today)
    run = load_run(other.state.model.folder)
    for number in (1, 2):
        scene = scene_of_newcomers(run, one_patient(Cohort.load(today), number - 1))
        answer = other.client.post("/api/v1/explain", json={"pseudonym": f"P{number}"}).json()
        close(answer["explanation"], explain(scene, int(scene.own_rows[0])).as_json())
        assert answer["explanation"]["references"]


def test_what_if_is_that_of_the_command(other: Any) -> None:
    scene = scene_of_newcomers(load_run(other.state.model.folder), cohort_of_newcomers(OWN))
    dropped = other.client.post("/api/v1/what-if", json={"patient": OWN, "change": {"drop": ["R1"]}}).json()
    expected = explain(scene, int(scene.own_rows[0]), change=Change(drop=("R1",))).as_json()
    close(dropped["what_if"], expected["what_if"])
    assert dropped["difference"] != 0
    # A changed record is predicted as a patient with that record is.
    changed = other.client.post("/api/v1/what-if", json={"patient": OWN, "change": {"remove": ["sepsis"]}}).json()
    without = [{**visit, "diagnoses": [x for x in visit["diagnoses"] if x != "own:sepsis"]} for visit in OWN["visits"]]
    alone = other.client.post("/api/v1/predict", json={**OWN, "visits": without}).json()["predictions"][0]
    assert changed["what_if"]["after"]["probability"] == pytest.approx(alone["probability"], abs=1e-9)
    refused = other.client.post("/api/v1/what-if", json={"patient": OWN, "change": {"tau": 3}})
    assert refused.status_code == 422


def test_what_became_known_since_is_shown_once_outcomes_were_added(
    other: Any, today: Path, make_cohort: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = other.state
    before = state.bank(wait=True)
    # A hub is counted in the test patients whom it is shown to, whatever the number of its visits.
    model = state.model.current
    lists = model.predictor.fitted.state.lists(model.run.instances)
    rows = model.run.rows_of("test")
    subjects = ids_of(model.run.instances)["subject_id"].to_list()
    bank = model.predictor.fitted.state.bank.described.subjects
    audiences: dict[str, set[str]] = {}
    for row in rows.tolist():
        for each in lists.values():
            for place, likeness in zip(each.columns[row], each.similarities[row], strict=True):
                if likeness > 0:
                    audiences.setdefault(bank[place], set()).add(subjects[row])
    largest = max(len(each) for each in audiences.values())
    # The hospital of the tests is small; what is shown for a large one is the same.
    monkeypatch.setattr("patients_like_me.serve.bank_view.is_small", lambda count: False)
    everyone = len({subjects[row] for row in rows.tolist()})
    assert hubs(model)[0][0][1].startswith(f"shown to {largest} of {everyone} test patients")
    assert (before.since, before.added, before.history) == (None, "0", ())
    assert "Not known yet" in other.client.get("/bank", headers={"accept": "text/html"}).text

    # The run is served while its bank is replaced; then the new one answers.
    change = RunBank(load_run(state.model.folder)).add(make_cohort(patients=45, seed=6, prefix="u"), remark="spring")
    assert state.model.current.version == before.version
    state.model.look(wait=True)
    after = state.bank(wait=True)
    assert after.version != before.version
    assert after.added == str(change.after - change.before)
    assert "(spring)" in after.history[0]
    check = RunBank(load_run(state.model.folder)).check()
    known = [each for each in check.findings if each.title.endswith("since training")]
    assert known
    assert after.since is not None
    assert [line.what for line in after.since.calibration] == [each.title for each in known]
    for line, each in zip(after.since.calibration, known, strict=True):
        assert line.now.startswith(f"{each.now:.2f}")
        assert line.beyond == each.beyond
    page = other.client.get("/bank", headers={"accept": "text/html"}).text
    assert "On what became known since the training" in page
    assert "bserved over predicted rate" in page
    # A metric goes by its name in words.
    assert not [line.what for line in after.since.calibration if line.what.startswith(("auroc", "auprc"))]
    check_predictions(other, today)


def test_the_texts_that_a_server_reads_are_not_remembered(tiny_folder: Path, cohort_folder: Path, today: Path) -> None:
    frozen = FrozenBackbone(BackboneSettings(name=str(tiny_folder)))
    few = instances_to_predict(Cohort.load(today), find_task("readmission"), TaskSettings())
    read = frozen.embed(few, 200)
    assert frozen._kept == {}
    many = build_instances(Cohort.load(cohort_folder), find_task("readmission"))
    assert len(frozen.embed(many, 200)) == len(many) > FEW
    assert frozen._kept
    assert frozen.embed(few, 200) == pytest.approx(read, abs=1e-5)
