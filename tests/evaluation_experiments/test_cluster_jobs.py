from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from dask_cluster import TestedCluster

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments import cluster
from patients_like_me.evaluation.experiments.engine import run_experiment
from patients_like_me.evaluation.experiments.jobs import Job, Plan
from patients_like_me.evaluation.experiments.worker import ProgressSender, train_job
from patients_like_me.runs.run import load_run

#: Workers that are killed while a study runs: ``PLM_KILLS=10`` before pytest kills ten, and trains language models too.
KILLS = int(os.environ.get("PLM_KILLS", "2"))


def test_a_study_of_twelve_jobs_finishes_although_workers_are_killed_and_two_coordinators_run_it(
    make_plan: Callable[..., Plan],
    tmp_path: Path,
    dask_cluster: TestedCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "_SECONDS_UNTIL_ASKED_AGAIN", 0.2)
    torch.set_num_threads(1)
    systems = ("frequency", "logistic")
    rows, splits = (systems, 6) if KILLS < 10 else (("VEM", "LM-only", *systems), 3)
    chosen = {"tasks": ("readmission",), "systems": systems, "rows": rows, "splits": tuple(range(splits))}
    plan = make_plan("main", tmp_path / "out", **chosen)
    assert len(plan.jobs) == 12
    stopped, killed = threading.Event(), []

    def kill_while_they_train() -> None:
        drawn = random.Random(KILLS)
        while len(killed) < KILLS and not stopped.wait(0.005):
            if list((tmp_path / "out" / "progress").glob("*.json")):
                # Some moment of a run: while it imports, trains, or writes what it found.
                stopped.wait(drawn.uniform(0, 0.1 if KILLS < 10 else 1.5))
                killed.append(drawn.randrange(4))
                dask_cluster.kill_one(killed[-1])

    killer = threading.Thread(target=kill_while_they_train)
    killer.start()
    try:
        with ThreadPoolExecutor(2) as coordinators:
            asked = [
                coordinators.submit(run_experiment, plan, workers=dask_cluster.workers, cache=None) for _ in range(2)
            ]
            outcomes = [each.result() for each in asked]
    finally:
        stopped.set()
        killer.join()
    assert len(killed) == KILLS
    for outcome in outcomes:
        assert not outcome.failed
        assert outcome.findings is not None
    quiet = make_plan("main", tmp_path / "here", **chosen)
    for job in quiet.jobs:
        train_job(job, None)
        there = load_run(tmp_path / "out" / job.folder.relative_to(tmp_path / "here")).results
        assert there.scores == load_run(job.folder).results.scores
    # All jobs are finished: what is left to do is to write the tables.
    local = run_experiment(quiet, workers=1, cache=None)
    tables = [(each.folder / "table.csv").read_text().splitlines() for each in (*outcomes, local)]
    # How long a training took is not the same twice.
    scores = [[line for line in lines if ",seconds," not in line] for lines in tables]
    assert scores[0] == scores[1] == scores[2]
    assert len(scores[0]) > len(tables[0]) / 2


def test_a_run_goes_on_when_its_progress_cannot_be_written_and_that_of_others_stays(
    make_plan: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = make_plan("tau", tmp_path / "out", values=("2",)).jobs
    others = tmp_path / "progress" / "of another coordinator.json"
    others.parent.mkdir()
    others.write_text("{}")
    told: list[float] = []

    def progressing(job: Job, purpose: str, cache: object, sender: ProgressSender) -> None:
        sender.report("working")

    def removed_meanwhile(path: Path, content: object) -> None:
        told.append(1.0)
        raise FileNotFoundError(path)

    monkeypatch.setattr(cluster, "do_job", progressing)
    monkeypatch.setattr(cluster, "write_json", removed_meanwhile)
    with ThreadPoolExecutor(1) as executor:
        assert not cluster.run_jobs_on_cluster([job], workers=executor, cache=None, logs=tmp_path / "logs")
    assert told
    assert others.is_file()


def test_a_study_runs_on_any_executor(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    chosen = {"tasks": ("readmission",), "systems": ("frequency",), "rows": ("frequency",), "splits": (0,)}
    with ThreadPoolExecutor(1) as executor:
        outcome = run_experiment(make_plan("main", tmp_path / "out", **chosen), workers=executor, cache=None)
        assert not outcome.failed
        assert outcome.findings is not None
        with pytest.raises(PlmError, match="measures time and memory"):
            run_experiment(make_plan("efficiency", tmp_path / "alone"), workers=executor, cache=None)


def test_runs_that_are_measured_alone_are_refused_on_a_cluster(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    with pytest.raises(PlmError, match="measures time and memory"):
        run_experiment(make_plan("efficiency", tmp_path / "out"), workers="dask://127.0.0.1:1", cache=None)
    assert not (tmp_path / "out").exists()


def test_a_failing_job_returns_its_reason_and_writes_the_whole_message_to_a_file(
    make_plan: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = make_plan("tau", tmp_path / "out", values=("2",)).jobs

    def broken(*_: object) -> None:
        raise ValueError("a secret of patient 17")

    monkeypatch.setattr(cluster, "do_job", broken)
    with ThreadPoolExecutor(1) as executor:
        failed = cluster.run_jobs_on_cluster([job], workers=executor, cache=None, logs=tmp_path / "logs")
    assert "ValueError (full message:" in failed[job]
    assert "secret" not in failed[job], "a reason passes through the scheduler"
    assert "a secret of patient 17" in next((tmp_path / "logs").glob("*.txt")).read_text()
