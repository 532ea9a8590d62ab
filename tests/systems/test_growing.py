"""A bank that grows in place: old or new and never a mixture, equal to a bank built at once, and dropped again."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from patients_like_me import files
from patients_like_me.errors import PlmError
from patients_like_me.evaluation.recalibration import calibrate_run
from patients_like_me.explanation.explain import explain
from patients_like_me.explanation.newcomers import scene_of_newcomers
from patients_like_me.explanation.scene import Scene, set_scene
from patients_like_me.graph.build import build_graph
from patients_like_me.records.cohort import Cohort
from patients_like_me.report.patient_page import patient_page
from patients_like_me.runs.bank_versions import BANK, addition_folder, history, read_version
from patients_like_me.runs.predictions import ids_of
from patients_like_me.runs.run import Run, load_run
from patients_like_me.systems import growing
from patients_like_me.systems.growing import add_to_bank, drop_from_bank, growing_system
from patients_like_me.systems.joining_checks import joining_instances, settled_instances
from patients_like_me.systems.keeping import load_fitted
from patients_like_me.systems.predictor import Predictor
from patients_like_me.systems.train import train
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.joining import followed_by, only

SMALL: dict[str, Any] = {
    "own_path": ["linear"],
    "part_settings": {"linear": {"penalties": [30.0], "block_factors": []}},
    "folds": 2,
    "k": [10],
    "powers": [1.0],
    "gate_penalties": [0.03],
    "output_penalties": [None],
    "may_stay_out": False,
}
SYSTEMS = ("references", "patients_like_me")


@pytest.fixture(scope="module")
def trained(
    cohort_folder: Path, finished_run: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Return a run of each system whose bank can grow."""
    out = tmp_path_factory.mktemp("growing") / "references"
    train(cohort_folder, "readmission", out, system="references", settings=SMALL)
    return {"references": out, "patients_like_me": finished_run(references="bank")}


@pytest.fixture(params=SYSTEMS)
def run(request: pytest.FixtureRequest, trained: dict[str, Path], tmp_path: Path) -> Run:
    """Return a copy of a run that a test may change."""
    return copied(trained[request.param], tmp_path / "run")


@pytest.fixture
def references_run(trained: dict[str, Path], tmp_path: Path) -> Run:
    return copied(trained["references"], tmp_path / "run")


@pytest.fixture(scope="module")
def later(make_cohort: Callable[..., Path]) -> Path:
    return make_cohort(patients=25, seed=11, prefix="later")


@pytest.fixture(scope="module")
def latest(make_cohort: Callable[..., Path]) -> Path:
    return make_cohort(patients=20, seed=12, prefix="latest")


@pytest.fixture(scope="module")
def strangers(make_cohort: Callable[..., Path]) -> Cohort:
    return Cohort.load(make_cohort(patients=6, seed=13, prefix="n"))


def copied(folder: Path, to: Path) -> Run:
    shutil.copytree(folder, to)
    return load_run(to)


def predicted(run: Run, cohort: Cohort) -> np.ndarray[Any, Any]:
    """Return what a reader who opens the run now predicts."""
    found = Predictor.load(load_run(run.folder)).predict(cohort)
    return np.array(found["probabilities"].to_list(), dtype=np.float64)


def written(run: Run) -> np.ndarray[Any, Any]:
    return np.array(load_run(run.folder).predictions()["probabilities"].to_list(), dtype=np.float64)


def test_a_bank_grows_in_place_and_shrinks_to_what_it_was(
    run: Run, later: Path, latest: Path, strangers: Cohort
) -> None:
    before, scored = predicted(run, strangers), written(run)
    reader = load_run(run.folder)
    _ = reader.results
    change = add_to_bank(run.folder, later, remark="spring")
    after = predicted(run, strangers)
    assert np.abs(after - before).max() > 1e-6
    assert change.after - change.before == change.version.additions[0].instances > 20
    assert "bank +" in change.run.name
    # A reader who opened the old bank keeps it, whatever it reads first.
    np.testing.assert_array_equal(
        np.array(Predictor.load(reader).predict(strangers)["probabilities"].to_list()), before
    )
    add_to_bank(run.folder, latest)
    both = predicted(run, strangers)
    drop_from_bank(run.folder, [2])
    np.testing.assert_array_equal(predicted(run, strangers), after)
    drop_from_bank(run.folder, added_since=datetime.now(UTC).date() - timedelta(days=1))
    np.testing.assert_array_equal(predicted(run, strangers), before)
    np.testing.assert_array_equal(written(run), scored)
    add_to_bank(run.folder, later)
    add_to_bank(run.folder, latest)
    np.testing.assert_array_equal(predicted(run, strangers), both)
    actions = [(each.action, each.changed) for each in history(run.folder)]
    assert actions == [("add", (1,)), ("add", (2,)), ("drop", (2,)), ("drop", (1,)), ("add", (3,)), ("add", (4,))]
    first = history(run.folder)[0].additions[0]
    assert first.remark == "spring"
    assert first.cohort == Cohort.load(later).hash
    assert datetime.now(UTC) - first.added < timedelta(minutes=10)


def test_an_extended_bank_is_one_that_was_built_at_once(run: Run, later: Path, latest: Path) -> None:
    for cohort in (later, latest):
        add_to_bank(run.folder, cohort)
    grown = load_run(run.folder)
    references = grown.reference_instances
    assert len(references) == len(grown.rows_of("train")) + sum(len(each.instances) for each in grown.additions)
    if run.has_patient_graph:
        graph = grown.graph_bank.graph
        at_once = build_graph(references.diagnosis_sets, graph.settings)
        for name in ("indptr", "neighbors", "weights"):
            np.testing.assert_array_equal(getattr(graph, name), getattr(at_once, name))
        assert list(graph.instance_ids) == references.instance_ids
        return
    model = load_fitted(growing_system(run), grown).state
    trained = _as_trained(run)
    both = [joining_instances(trained, Cohort.load(cohort))[0] for cohort in (later, latest)]
    at_once = load_fitted(growing_system(run), trained).state.grown(followed_by(*both))
    assert model.bank.instance_ids == at_once.bank.instance_ids == tuple(references.instance_ids)
    np.testing.assert_array_equal(model.bank.residuals, at_once.bank.residuals)
    np.testing.assert_array_equal(model.bank.described.codes.toarray(), at_once.bank.described.codes.toarray())
    test = only(grown.instances, grown.rows_of("test"))
    np.testing.assert_array_equal(model.logits(test), at_once.logits(test))


def _as_trained(run: Run) -> Run:
    return Run(run.folder, run.record, run.moved_cohort, {"bank version": None})


def test_a_grown_bank_is_explained_with_the_records_of_what_was_added(run: Run, later: Path, strangers: Cohort) -> None:
    grown = add_to_bank(run.folder, later).run
    scene = set_scene(grown)
    shown = np.array([scene.probabilities(scene.node_of_row(int(row))) for row in scene.own_rows])
    np.testing.assert_allclose(
        shown, np.array(grown.predictions().filter(split="test")["probabilities"].to_list()), atol=1e-6
    )
    new = scene_of_newcomers(grown, strangers)
    found = np.array([new.probabilities(new.node_of_row(int(row))) for row in new.own_rows])
    np.testing.assert_allclose(found, predicted(run, strangers), atol=1e-6)
    assert _added_references(scene) | _added_references(new)
    for each in (scene, new):
        row = next(int(row) for row in each.own_rows if _added_of(each, int(row)))
        page = patient_page(explain(each, row))
        assert "R1" in page
        assert "added to the bank since" in page
    added = grown.additions[0].instances
    assert added.cohort.visits["next_admission_time"].null_count() == added.cohort.visits.height
    assert added.cohort.patients["death_time"].null_count() == added.cohort.patients.height


def _added_of(scene: Scene, row: int) -> set[int]:
    trained = len(scene.run.rows_of("train"))
    neighbors = scene.graph.neighbors_of(scene.node_of_row(row))[0]
    return {int(node) for node in neighbors if trained <= node < len(scene.run.reference_instances)}


def _added_references(scene: Scene) -> set[int]:
    return set().union(*(_added_of(scene, int(row)) for row in scene.own_rows))


def test_nobody_is_a_reference_of_oneself_however_one_came_into_the_bank(run: Run, later: Path) -> None:
    """A patient of the training who comes again in an addition, and one of an addition who is predicted."""
    cohort = Cohort.load(later)
    trained = ids_of(run.instances, run.rows_of("train"))["subject_id"][0]
    first = cohort.patients["subject_id"][0]
    renamed = cohort.patients.with_columns(pl.col("subject_id").replace(first, trained))
    known = replace(cohort, patients=renamed, known_hash="", folder=None)
    change = add_to_bank(run.folder, known)
    assert any("came again" in note for note in change.notes)
    scene = scene_of_newcomers(change.run, known)
    subjects = scene.subject_ids
    pairs = [
        (subjects[int(scene.rows[node])], subjects[int(row)])
        for row in scene.own_rows
        for node in scene.graph.neighbors_of(scene.node_of_row(int(row)))[0]
    ]
    assert pairs
    assert not [pair for pair in pairs if pair[0] == pair[1]]
    if run.has_patient_graph:
        bank = change.run.graph_bank
        rows = np.repeat(np.arange(len(bank.graph)), bank.graph.degrees)
        names = np.array(bank.instances["subject_id"].to_list())
        assert (names[rows] != names[bank.graph.neighbors]).all()


def test_what_may_not_join_is_left_out_or_refused(
    references_run: Run, later: Path, make_cohort: Callable[..., Path], trained: dict[str, Path], finished_run: Any
) -> None:
    run = references_run
    add_to_bank(run.folder, later)
    with pytest.raises(PlmError, match="added to the bank of the run before"):
        add_to_bank(run.folder, later)
    known = Cohort.load(later)
    again = replace(known, source="another export", known_hash="other", folder=None)
    with pytest.raises(PlmError, match="the run knows all its instances"):
        add_to_bank(run.folder, again)
    visits = known.visits.with_columns((pl.lit("p") + pl.col("visit_id").str.slice(5)).alias("visit_id"))
    added, notes = joining_instances(load_run(run.folder), replace(known, visits=visits, known_hash="x", folder=None))
    taken = set(load_run(run.folder).everyone.instance_ids)
    assert any("ids of two sources overlap" in note for note in notes)
    assert not taken & set(added.instance_ids)
    trained_ids = ids_of(run.instances)["subject_id"]
    alike = known.patients.with_columns(
        pl.col("subject_id").replace(known.patients["subject_id"][0], trained_ids[0].swapcase())
    )
    # New ids of visits, so that nothing but the patient's id tells who may be known.
    visits = known.visits.with_columns((pl.lit("new-") + pl.col("visit_id")).alias("visit_id"))
    added, notes = joining_instances(
        load_run(run.folder), replace(known, patients=alike, visits=visits, known_hash="z", folder=None)
    )
    assert any("only in upper and lower case" in note for note in notes)
    assert trained_ids[0].swapcase() not in ids_of(added)["subject_id"].to_list()
    unlabelled = replace(known, labels=known.labels.clear(), known_hash="y", folder=None)
    with pytest.raises(PlmError, match="has a label for the task"):
        joining_instances(load_run(run.folder), unlabelled)
    with pytest.raises(PlmError, match="other codes than the run"):
        add_to_bank(run.folder, make_cohort(patients=12, seed=3, prefix="z", coded=True))
    with pytest.raises(PlmError, match="references are those of the same split"):
        add_to_bank(finished_run(references="cohort"), later)
    with pytest.raises(PlmError, match="bank of this run has grown"):
        calibrate_run(load_run(run.folder))
    with pytest.raises(PlmError, match="no addition 7"):
        drop_from_bank(run.folder, [7])
    with pytest.raises(PlmError, match="is not a day"):
        drop_from_bank(run.folder, added_before="yesterday")
    assert [each.action for each in history(run.folder)] == ["add"]


def test_outcomes_that_are_not_settled_yet_stay_out(run: Run, later: Path) -> None:
    cohort = Cohort.load(later)
    days = pl.int_range(pl.len()).cast(pl.Int64)
    times = (pl.datetime(2026, 1, 1) + pl.duration(days=days)).cast(pl.Datetime("us"))
    dated = cohort.visits.with_columns(times.alias("admission_time"), times.alias("discharge_time"))
    instances = build_instances(replace(cohort, visits=dated), run.task, run.task_settings)
    settled, words = settled_instances(instances)
    last = dated["admission_time"].max()
    started = dated["admission_time"].gather(instances.frame["visit"][settled.tolist()])
    assert started.max() <= last - timedelta(days=15)  # type: ignore[operator]
    assert f"{len(instances) - len(settled)} are left out" in words
    assert 0 < len(settled) < len(instances)


def test_what_is_dropped_can_be_erased(references_run: Run, later: Path, latest: Path, strangers: Cohort) -> None:
    run = references_run
    before = predicted(run, strangers)
    add_to_bank(run.folder, later)
    drop_from_bank(run.folder, [1])
    # Who has dropped it without erasing it, or was stopped before that, can erase it later.
    with pytest.raises(PlmError, match="left the bank already; give --erase"):
        drop_from_bank(run.folder, [1])
    change = drop_from_bank(run.folder, [1], erase_records=True)
    assert change.words == "addition 1 had left the bank before, and the records are erased now"
    with pytest.raises(PlmError, match="no addition 2"):
        drop_from_bank(run.folder, [2], erase_records=True)
    ids = {name.encode() for name in Cohort.load(later).patients["subject_id"]}
    left = b"".join(path.read_bytes() for path in (run.folder / BANK).rglob("*") if path.is_file())
    assert not [name for name in ids if name in left]
    np.testing.assert_array_equal(predicted(run, strangers), before)
    add_to_bank(run.folder, latest)
    assert [each.changed for each in history(run.folder)] == [(1,), (1,), (2,)]


def test_an_erasure_that_was_killed_can_be_repeated(
    references_run: Run, later: Path, latest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between putting the smaller bank into use and erasing the records, nothing says that they are to go."""
    folder = references_run.folder
    add_to_bank(folder, later)
    add_to_bank(folder, latest)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(growing, "erase", killed)
        with pytest.raises(KeyboardInterrupt):
            drop_from_bank(folder, [1], erase_records=True)
    assert addition_folder(folder, 1).is_dir()
    with pytest.raises(PlmError, match="addition 1 has left the bank already; give --erase"):
        drop_from_bank(folder, [1])
    for _ in range(2):
        change = drop_from_bank(folder, [1], erase_records=True)
        assert change.words == "addition 1 had left the bank before, and the records are erased now"
        assert change.version.number == 3
        assert not addition_folder(folder, 1).exists()
    left = drop_from_bank(folder, added_since="2000-01-01", erase_records=True)
    assert left.version.changed == (2,)
    assert not addition_folder(folder, 2).exists()


def test_damage_is_noticed(references_run: Run, later: Path) -> None:
    run = references_run
    add_to_bank(run.folder, later)
    version = read_version(run.folder)
    assert version is not None
    arrays = version.addition_folder(1) / "arrays.safetensors"
    arrays.write_bytes(arrays.read_bytes()[:-1] + b"x")
    with pytest.raises(PlmError, match="is damaged"):
        _ = load_run(run.folder).additions
    (version.place / "version.json").write_text("{}")
    with pytest.raises(PlmError, match="is damaged"):
        _ = load_run(run.folder).results


@pytest.mark.parametrize("instead", ["nothing", "a link to nothing", "a folder"])
def test_a_lost_pointer_is_refused_and_costs_no_addition(references_run: Run, later: Path, instead: str) -> None:
    """Taken for the bank as it was trained, the next writer would remove what was added."""
    add_to_bank(references_run, later)
    pointer = references_run.folder / BANK / "current.json"
    pointer.unlink()
    if instead == "a link to nothing":
        pointer.symlink_to(pointer.with_name("nowhere"))
    elif instead == "a folder":
        pointer.mkdir()
    before = sorted((references_run.folder / BANK / "additions").rglob("*"))
    with pytest.raises(PlmError, match="which says what version of the bank is in use, is gone"):
        drop_from_bank(references_run.folder, additions=(1,))
    assert before
    assert sorted((references_run.folder / BANK / "additions").rglob("*")) == before


def test_every_state_on_the_disk_is_the_old_bank_or_the_new_one(
    references_run: Run, later: Path, strangers: Cohort, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the folder at every rename is what a process would leave that is killed there."""
    run, copies = references_run, []
    old = predicted(run, strangers)

    def kept(name: str) -> Callable[..., Any]:
        inner = getattr(Path, name)

        def step(self: Path, target: Any) -> Any:
            for _ in range(2):
                if run.folder in self.parents:
                    copies.append(tmp_path / f"state{len(copies)}")
                    shutil.copytree(run.folder, copies[-1], ignore=shutil.ignore_patterns(files.LOCK))
                if not self.exists():
                    break
                found = inner(self, target)
            return found

        return step

    for name in ("rename", "replace"):
        monkeypatch.setattr(Path, name, kept(name))
    add_to_bank(run.folder, later)
    monkeypatch.undo()
    new = predicted(run, strangers)
    assert len(copies) > 8
    seen = []
    for place in copies:
        state = load_run(place)
        found, is_new = predicted(state, strangers), state.bank_version is not None
        np.testing.assert_array_equal(found, new if is_new else old)
        assert ("bank +" in state.name) == is_new
        np.testing.assert_array_equal(written(state), written(run) if is_new else written(_as_trained(state)))
        seen.append(is_new)
    assert seen == sorted(seen)
    assert set(seen) == {False, True}
    # Whatever was left, the next writer goes on from there.
    add_to_bank(copies[len(copies) // 2], later)
    np.testing.assert_array_equal(predicted(load_run(copies[len(copies) // 2]), strangers), new)


KILLED = """
import sys
from pathlib import Path
from patients_like_me.systems import growing
from patients_like_me.systems.growing import add_to_bank
import patients_like_me.systems.linear, patients_like_me.systems.references, scipy.optimize, scipy.sparse
print("ready", flush=True)
add_to_bank(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_a_killed_extension_leaves_the_old_bank_or_the_new_one(
    references_run: Run, later: Path, strangers: Cohort, tmp_path: Path
) -> None:
    """Real kills at random moments, few here; ``benchmarks/bank.py --kills 200`` does many."""
    run, chance = references_run, random.Random(7)
    old = predicted(run, strangers)
    new = predicted(add_to_bank(copied(run.folder, tmp_path / "whole").folder, later).run, strangers)
    for _ in range(2):
        program = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(run.folder), str(later)], stdout=subprocess.PIPE, text=True
        )
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0.0, 0.8))
        os.kill(program.pid, signal.SIGKILL)
        program.wait()
        program.stdout.close()
        state = load_run(run.folder)
        np.testing.assert_array_equal(predicted(state, strangers), old if state.bank_version is None else new)
        if state.bank_version is not None:
            drop_from_bank(run.folder, [each.number for each in state.bank_version.record.additions])
