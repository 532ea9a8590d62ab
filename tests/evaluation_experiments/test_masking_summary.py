"""``plm experiment masking``: all tasks in one table and one figure, with the numbers of ``plm faithfulness``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.evaluation.experiments.engine import notes_of
from patients_like_me.evaluation.experiments.jobs import open_cohorts, plan_experiment
from patients_like_me.evaluation.experiments.request import Request
from patients_like_me.evaluation.experiments.result_table import Number
from patients_like_me.evaluation.experiments.results import ExperimentResults, FinishedJob
from patients_like_me.evaluation.experiments.worker import train_job
from patients_like_me.explanation import masking_summary
from patients_like_me.explanation.faithfulness import assess_faithfulness
from patients_like_me.explanation.masking_experiment import PROBABILITY, MaskedChange, Masking
from patients_like_me.explanation.masking_summary import EXPERIMENT, METHODS, summarize
from patients_like_me.runs.run import load_run

MEASURES = ("AUPRC", "probabilities")


def test_the_table_has_the_numbers_of_the_faithfulness_of_the_runs(
    cohort_folder: Path, make_request: Callable[..., Request], tiny_changes: dict[str, object], tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    request = make_request(tmp_path, seeds=1, tasks=("readmission",), changes={**tiny_changes, "epochs": 1})
    plan = plan_experiment(EXPERIMENT, open_cohorts([cohort_folder]), request)
    (job,) = plan.jobs
    train_job(job, None)
    found = summarize(ExperimentResults(plan, (FinishedJob(job, load_run(job.folder)),)))
    (table,), (figure,) = found.tables, found.figures
    assert [row.heads for row in table.rows] == [(words,) for words in METHODS.values()]
    result = assess_faithfulness([load_run(job.folder)], Masking([3]), methods=["gradient"]).masking[0]
    cell = table.rows[0].cells[1]
    assert isinstance(cell, Number)
    assert cell.mean == pytest.approx(result.change("gradient", 3, PROBABILITY).value)
    assert cell.low is not None
    figure.draw(tmp_path, "masking")
    assert (tmp_path / "masking.svg").stat().st_size > 3000


def test_cohorts_that_lack_a_task_share_one_figure_with_those_that_have_it(
    cohort_folder: Path,
    make_request: Callable[..., Request],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (whole,) = open_cohorts([cohort_folder])
    medications = whole.cohort.codes["medication"].clear()
    drugless = replace(whole.cohort, codes={**whole.cohort.codes, "medication": medications})
    other = replace(whole, title="no drugs", slug="no-drugs", cohort=drugless)
    plan = plan_experiment(EXPERIMENT, [whole, other], make_request(tmp_path))
    assert [(job.cohort, job.task) for job in plan.jobs] == [
        *((whole.title, task) for task in EXPERIMENT.tasks),
        *(("no drugs", task) for task in EXPERIMENT.tasks[:2]),
    ]
    (words,) = plan.without_labels
    assert words.startswith("Drug recommendation, no drugs: no visit of this cohort has a label")
    change = MaskedChange("gradient", 3, "auprc", -0.01, None, None)
    monkeypatch.setattr(
        masking_summary, "_changes", lambda _: {(method, name): change for method in METHODS for name in MEASURES}
    )
    run: Any = SimpleNamespace(folder=tmp_path, uses_graph=True)
    results = ExperimentResults(plan, tuple(FinishedJob(job, run) for job in plan.jobs))
    found = summarize(results)
    assert [len(table.columns) for table in found.tables] == [6, 4]
    (figure,) = found.figures
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(masking_summary, "draw_panels", lambda *_, **given: drawn.update(given))
    figure.draw(tmp_path, "masking")
    assert len(drawn["places"]) == 5
    assert all(None not in series.points for series in drawn["panels"][0].series)
    assert f"No run for {words}." in notes_of(plan, found)


def test_the_experiment_is_among_those_of_the_paper() -> None:
    listed = CliRunner().invoke(app, ["experiment", "list"], env={"COLUMNS": "160"})
    assert listed.exit_code == 0, listed.output
    assert "masking" in listed.output
    assert "do predictions lean on the references" in listed.output.lower()
