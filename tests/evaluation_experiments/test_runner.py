"""Runs in processes of their own; each costs seconds of imports, so there are few of them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from patients_like_me.evaluation.experiments.engine import run_experiment
from patients_like_me.evaluation.experiments.jobs import Job, Plan
from patients_like_me.evaluation.experiments.runner import IgnoringListener, run_jobs
from patients_like_me.evaluation.experiments.worker import Purpose, train_job
from patients_like_me.runs.run import load_run


class Notes(IgnoringListener):
    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.first_word = threading.Event()

    def started(self, job: Job, purpose: Purpose) -> None:
        self.events.append((f"started {purpose}", job.variant.name))

    def progressed(self, job: Job, share: float, words: str) -> None:
        assert 0 <= share <= 1
        self.first_word.set()

    def ended(self, job: Job, purpose: Purpose, problem: str | None) -> None:
        self.events.append((f"ended {purpose}" if problem is None else "failed", job.variant.name))


def test_two_workers_tell_a_failure_and_give_the_scores_of_one_process(
    make_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    out, notes = tmp_path / "out", Notes()
    plan = make_plan("tau", out, values=("2", "3"))
    broken = plan.jobs[1]
    assert broken.settings is not None
    # A backbone that has gone since the plan was made.
    gone = broken.settings.model_copy(
        update={"backbone": broken.settings.backbone.model_copy(update={"name": "no-such-model"})}
    )
    plan = replace(plan, jobs=(plan.jobs[0], replace(broken, settings=gone)))
    outcome = run_experiment(plan, workers=2, cache=None, listener=notes)
    assert {event for event in notes.events if event[0] in ("failed", "ended train")} == {
        ("ended train", "tau 2"),
        ("failed", "tau 3"),
    }
    assert ["there is no backbone 'no-such-model'" in problem for problem in outcome.failed.values()] == [True]
    assert (out / "tau" / "table.md").is_file()
    (job,) = make_plan("tau", tmp_path / "here", values=("2",)).jobs
    train_job(job, None)
    there = load_run(out / job.folder.relative_to(tmp_path / "here")).results.scores
    assert there == load_run(job.folder).results.scores


def test_ctrl_c_ends_the_children_and_what_they_saved_is_taken_up(
    make_plan: Callable[..., Plan], tmp_path: Path, tiny_changes: dict[str, object]
) -> None:
    notes = Notes()
    changes = {**tiny_changes, "epochs": 400, "patience": 400}
    plan = make_plan("tau", tmp_path / "out", values=("2",), changes=changes)
    (job,) = plan.jobs

    def interrupt() -> None:
        deadline = time.monotonic() + 300
        while not (job.folder / "checkpoint.safetensors").is_file() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    # Where the tests run in the background, the shell makes them ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    watching = threading.Thread(target=interrupt)
    watching.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_jobs([job], workers=1, threads=1, cache=None, logs=tmp_path / "logs", listener=notes)
    finally:
        watching.join()
        signal.signal(signal.SIGINT, before)
    run = plan.run_of(job)
    assert run is not None
    assert not run.is_finished
    assert not list(job.folder.glob(".*partial"))
    assert notes.first_word.is_set()
