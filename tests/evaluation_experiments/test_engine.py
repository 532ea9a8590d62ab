from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments import engine
from patients_like_me.evaluation.experiments.engine import claim, run_experiment
from patients_like_me.evaluation.experiments.estimate import estimate_cost
from patients_like_me.evaluation.experiments.jobs import Job, Plan
from patients_like_me.evaluation.experiments.worker import train_job, warm
from patients_like_me.runs.run import load_run

Trained = Callable[..., tuple[Plan, Path]]


def lines_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Let nobody start a process; return the jobs that would have been done."""
    asked: list[Job] = []

    def refuse(jobs: list[Job], **_: object) -> dict[Job, str]:
        asked.extend(jobs)
        return dict.fromkeys(jobs, "not in this test")

    monkeypatch.setattr(engine, "run_jobs", refuse)
    return asked


EXPECTED = {
    "tau": {"values": ("2", "4"), "seeds": 2},
    "mc-samples": {"values": ("1", "exact")},
    "visits": {},
    "efficiency": {"tasks": ("readmission",)},
    "ablation": {"tasks": ("readmission",)},
    "main": {"tasks": ("readmission",), "systems": ("frequency", "logistic")},
    "records": {"tasks": ("readmission",), "systems": ("frequency",), "rows": ("vem", "lm_only", "frequency")},
    "cohorts": {},
    "edge-weights": {},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_experiment_ends_in_a_table_and_a_figure(
    trained_plan: Trained, no_training: list[Job], name: str
) -> None:
    from matplotlib.image import imread

    plan, out = trained_plan(name, **EXPECTED[name])
    outcome = run_experiment(plan, workers=1, cache=None)
    assert not no_training, "a finished run was trained again"
    assert outcome.findings is not None
    assert not outcome.failed
    folder = out / name
    assert {"table.md", "table.csv", "table.tex", "figure.svg", "figure.png", "experiment.json", "numbers.json"} <= {
        path.name for path in folder.iterdir()
    }
    picture = imread(folder / "figure.png")
    assert min(picture.shape[:2]) > 300
    assert np.ptp(picture[..., :3]) > 0.5
    assert json.loads((folder / "experiment.json").read_text())["status"] == "finished"
    for row in {job.variant.name.removeprefix("tau ") for job in plan.jobs} - {"VEM"}:
        assert row in (folder / "table.md").read_text()


def test_numbers_of_the_table_are_means_over_the_runs_of_the_test_split(
    trained_plan: Trained, no_training: list[Job]
) -> None:
    plan, out = trained_plan("tau", **EXPECTED["tau"])
    run_experiment(plan, workers=1, cache=None)
    records = lines_of(out / "tau" / "table.csv")
    for tau in ("2", "4"):
        runs = [load_run(job.folder).results for job in plan.jobs if job.variant.name == f"tau {tau}"]
        assert len(runs) == 2
        scores = [run.scores["test"]["auroc"] for run in runs]
        shown = next(r for r in records if (r["tau"], r["heading_1"], r["column"]) == (tau, "Test", "AUROC"))
        assert float(shown["mean"]) == pytest.approx(np.mean(scores))
        assert float(shown["sd"]) == pytest.approx(np.std(scores, ddof=1))
        degree = next(r for r in records if (r["tau"], r["heading_1"]) == (tau, "Average"))
        assert runs[0].graph is not None
        graph = runs[0].graph.splits["train"]
        assert float(degree["mean"]) == pytest.approx(2 * graph.edges / graph.nodes)


def test_tau_is_chosen_on_validation_whatever_test_says(trained_plan: Trained, no_training: list[Job]) -> None:
    plan, out = trained_plan("tau", **EXPECTED["tau"])
    validation = {
        tau: np.mean(
            [
                load_run(j.folder).results.scores["validation"]["auprc"]
                for j in plan.jobs
                if j.variant.name == f"tau {tau}"
            ]
        )
        for tau in ("2", "4")
    }
    run_experiment(plan, workers=1, cache=None)
    records = lines_of(out / "tau" / "table.csv")
    marked = {record["tau"] for record in records if record["mark"]}
    assert marked == {max(validation, key=lambda tau: validation[tau])}


def test_every_run_is_listed_with_its_folder(trained_plan: Trained, no_training: list[Job]) -> None:
    plan, out = trained_plan("tau", **EXPECTED["tau"])
    run_experiment(plan, workers=1, cache=None)
    listed = lines_of(out / "tau" / "runs.csv")
    assert [record["seed"] for record in listed] == ["0", "1", "0", "1"]
    for record in listed:
        results = load_run(out / record["folder"]).results
        assert float(record["test_auprc"]) == results.scores["test"]["auprc"]


def test_the_same_experiment_writes_the_same_files(trained_plan: Trained, no_training: list[Job]) -> None:
    plan, out = trained_plan("tau", **EXPECTED["tau"])
    contents = []
    for _ in range(2):
        run_experiment(plan, workers=1, cache=None)
        contents.append({path.name: path.read_bytes() for path in sorted((out / "tau").iterdir())})
    assert contents[0] == contents[1]


def test_a_failed_run_is_told_and_the_others_make_the_table(
    trained_plan: Trained, make_plan: Callable[..., Plan], no_training: list[Job]
) -> None:
    _, out = trained_plan("mc-samples", values=("1", "exact"))
    plan = make_plan("mc-samples", out, values=("1", "exact"), seeds=2)
    outcome = run_experiment(plan, workers=1, cache=None)
    assert [job.seed for job in no_training] == [1, 1]
    assert len(outcome.failed) == 2
    assert outcome.findings is not None
    about = json.loads((out / "mc-samples" / "experiment.json").read_text())
    assert about["status"] == "incomplete"
    assert "2 of 4 runs failed" in (out / "mc-samples" / "table.md").read_text()


def test_other_settings_for_the_same_folder_are_refused_and_more_seeds_are_not(
    make_plan: Callable[..., Plan], tmp_path: Path, tiny_changes: dict[str, object]
) -> None:
    out = tmp_path / "out"
    claim(make_plan("tau", out, values=("2",)))
    claim(make_plan("tau", out, values=("2",), seeds=5))
    with pytest.raises(PlmError, match="epochs is 2 there and 3 here"):
        claim(make_plan("tau", out, values=("2",), changes={**tiny_changes, "epochs": 3}))


def test_a_folder_of_something_else_is_refused(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(PlmError, match="does not hold experiments"):
        claim(make_plan("tau", tmp_path))
    with pytest.raises(PlmError, match="is a file"):
        claim(make_plan("tau", tmp_path / "thesis.txt"))


def test_a_folder_that_was_stopped_before_anything_was_written_is_taken_up(
    make_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    (tmp_path / "tau").mkdir()
    (tmp_path / "tau" / ".experiment.json.x.partial").touch()
    claim(make_plan("tau", tmp_path))


def test_frozen_layers_are_computed_before_several_workers_start_and_once(
    make_plan: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    def note(jobs: list[Job], *, purpose: str = "train", **_: object) -> dict[Job, str]:
        asked.append((purpose, len(jobs)))
        return dict.fromkeys(jobs, "not in this test")

    monkeypatch.setattr(engine, "run_jobs", note)
    plan = make_plan("ablation", tmp_path / "out", seeds=2)
    run_experiment(plan, workers=1, cache=tmp_path)
    run_experiment(plan, workers=2, cache=tmp_path)
    run_experiment(make_plan("efficiency", tmp_path / "out"), workers=2, cache=tmp_path)
    # One per task for two workers; where memory is measured, always.
    assert asked == [("warm", 0), ("train", 30), ("warm", 3), ("train", 30), ("warm", 1), ("train", 5)]


def test_warming_leaves_nothing_to_compute(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    (job,) = make_plan("tau", tmp_path / "out", values=("2",)).jobs
    warm(job, tmp_path / "cache")
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.safetensors")}
    assert kept
    assert not job.folder.exists()
    train_job(job, tmp_path / "cache")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.safetensors")} == kept


def test_the_estimate_counts_what_is_left(trained_plan: Trained, make_plan: Callable[..., Plan]) -> None:
    plan, out = trained_plan("tau", **EXPECTED["tau"])
    done = estimate_cost([plan], workers=2, threads=1, out=out)
    assert (done.runs, done.finished, done.left, done.seconds) == (4, 4, 0, 0.0)
    more = make_plan("tau", out, values=("2", "4"), seeds=4)
    one = estimate_cost([more], workers=1, threads=1, out=out)
    two = estimate_cost([more, more], workers=2, threads=1, out=out)
    assert one.left == two.left == 4
    assert one.basis == "finished runs of the same kind"
    assert two.seconds == pytest.approx(one.seconds / 2)


def test_without_finished_runs_a_few_batches_are_measured(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    said: list[str] = []
    plan = make_plan("tau", tmp_path / "out", values=("2",))
    cost = estimate_cost([plan], workers=1, threads=1, out=tmp_path / "out", report=said.append)
    assert cost.seconds > 0
    assert cost.basis == "a few measured batches"
    assert len(said) == 1
    assert not (tmp_path / "out").exists()
