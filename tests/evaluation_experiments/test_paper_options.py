"""What the paper did beyond a grid: the sample of the edge-weight study, cohort statistics, marks, and its preset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from patients_like_me.evaluation.experiments.catalogue import EXPERIMENTS
from patients_like_me.evaluation.experiments.edge_weights import drawn_patients
from patients_like_me.evaluation.experiments.engine import run_experiment
from patients_like_me.evaluation.experiments.jobs import Plan
from patients_like_me.evaluation.experiments.request import Request, departures_from_paper
from patients_like_me.evaluation.experiments.result_table import Column, ResultTable, TableRow
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets


def test_the_sample_has_one_node_of_each_drawn_patient_the_last_one() -> None:
    patients = [0, 0, 0, 1, 2, 2, 3, 4, 4, 5]
    splits = ["train"] * 6 + ["test"] * 3 + ["validation"]
    sets = DiagnosisSets.from_lists([[str(number)] for number in range(10)], patients=patients, splits=splits)
    whole = drawn_patients(sets, (10, 10), seed=0)
    assert whole.instance_ids == ("2", "3", "5", "6", "8")
    seen = set()
    for seed in range(20):
        part = drawn_patients(sets, (2, 1), seed)
        assert part.splits is not None
        assert [int((part.splits == split).sum()) for split in ("train", "test", "validation")] == [2, 1, 0]
        assert set(part.instance_ids) <= set(whole.instance_ids)
        seen.add(part.instance_ids)
    assert len(seen) > 1


def test_edge_weights_of_a_sample_are_means_over_the_draws(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    plan = make_plan("edge-weights", tmp_path / "out", sample=(20, 9), seeds=4)
    outcome = run_experiment(plan, workers=1, cache=None)
    assert outcome.findings is not None
    (table,) = outcome.findings.tables
    assert [row.heads[:2] for row in table.rows] == [("train", "20"), ("test", "9")]
    assert all(getattr(cell, "seeds", None) == 4 for row in table.rows for cell in row.cells)
    assert "drawn 4 times" in table.caption
    assert any("4 draws: Jensen-Shannon divergence" in note for note in outcome.findings.notes)
    few = run_experiment(
        make_plan("edge-weights", tmp_path / "few", sample=(6000, 2000), seeds=2), workers=1, cache=None
    )
    assert few.findings is not None
    assert sum("fewer than the" in note for note in few.findings.notes) == 2


def test_cohort_statistics_are_those_of_the_cohort(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    plan = make_plan("cohorts", tmp_path / "out")
    outcome = run_experiment(plan, workers=1, cache=None)
    assert outcome.findings is not None
    (table,) = outcome.findings.tables
    cohort = plan.cohorts[0].cohort
    shown = dict(zip((column.name for column in table.columns), table.rows[0].cells, strict=True))
    assert shown["patients"] == cohort.patients.height
    assert shown["drugs/patient"] == pytest.approx(cohort.codes["medication"].height / cohort.patients.height)


def test_the_second_best_is_marked_where_asked_for() -> None:
    rows = tuple(TableRow((name,), (value, value)) for name, value in (("a", 0.3), ("b", 0.5), ("c", 0.4), ("d", 0.4)))
    columns = (Column("AUPRC"), Column("loss", best="low"))
    table = ResultTable("", "t", ("Row",), columns, rows, second_best=True)
    assert [line.split("|")[2].strip() for line in table.markdown().splitlines()[4:]] == [
        "30.0", "**50.0**", "*40.0*", "*40.0*",
    ]  # fmt: skip
    assert table.latex().count(r"\underline{40.0}") == 4
    plain = ResultTable("", "t", ("Row",), columns, rows)
    assert r"\underline" not in plain.latex()


def test_departures_from_the_paper_are_named_and_the_papers_own_form_has_none() -> None:
    main = EXPERIMENTS["main"]
    asked = Request(Path("out"), preset="paper", seeds=10)
    assert departures_from_paper(main, asked, 10, main.paper_backbones) == []
    other = Request(Path("out"), changes={"graph": {"tau": 2}}, tasks=("readmission",), quick=True)
    words = " ".join(departures_from_paper(main, other, 2, ["minilm-2"]))
    for expected in ("preset is 'quick'", "quick form", "graph.tau", "tasks are", "seeds is 2", "minilm-2"):
        assert expected in words
    assert departures_from_paper(EXPERIMENTS["records"], other, 2, ["minilm-2"]) == []


def test_tables_name_the_preset(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    run_experiment(make_plan("cohorts", tmp_path / "out"), workers=1, cache=None)
    text = (tmp_path / "out" / "cohorts" / "table.md").read_text()
    assert "Preset 'quick'." in text
    assert "Not the paper's experiment: the preset is 'quick'" in text
    assert np.char.count(text, "Preset") == 1
