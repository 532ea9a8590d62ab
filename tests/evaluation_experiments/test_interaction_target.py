"""Targets for interactions: rows for every system that has one, measured sets, and tables that are not installed."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.codes.interactions import Interactions
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments.catalogue import EXPERIMENTS, SYSTEMS_WITH_TARGET, target_rows
from patients_like_me.evaluation.experiments.engine import run_experiment
from patients_like_me.evaluation.experiments.interaction_target import Sets
from patients_like_me.evaluation.experiments.jobs import Plan, open_cohorts, plan_experiment
from patients_like_me.evaluation.experiments.request import Request
from patients_like_me.evaluation.experiments.worker import train_job
from patients_like_me.evaluation.predictions import Predictions
from patients_like_me.records.prepare import prepare
from patients_like_me.runs.run import load_run
from patients_like_me.systems.registry import find_system

SMALL: dict[str, Any] = {"epochs": 1, "batch_size": 16, "width": 8, "rate": 0.02, "optimizer": "adam"}
CHANGES = {"gamenet": {**SMALL, "hidden": 8}, "micron": {**SMALL, "hidden": 16}}


@pytest.fixture(scope="module")
def interacting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cohort in which most visits have three drugs, two of which interact."""
    folder, draw = tmp_path_factory.mktemp("interacting"), np.random.default_rng(0)
    visits, events = ["subject_id,visit_id,order"], ["visit_id,kind,code"]
    for patient, number in ((patient, number) for patient in range(80) for number in range(2)):
        visit, diagnosis = f"{patient}v{number}", int(draw.integers(1, 4))
        visits.append(f"{patient},{visit},{number}")
        drugs = ["A10A", *(drug for drug in ("B01A", "B05D") if draw.random() < 0.9)]
        events += [f"{visit},diagnosis/own,{diagnosis}", *(f"{visit},medication/own,{drug}" for drug in drugs)]
    (folder / "tables").mkdir()
    (folder / "tables" / "visits.csv").write_text("\n".join(visits) + "\n")
    (folder / "tables" / "events.csv").write_text("\n".join(events) + "\n")
    return prepare("tables", folder / "tables", folder / "cohort", store=CodeStore(folder / "codes")).folder


@pytest.fixture
def make(interacting: Path, made_up_knowledge: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    monkeypatch.setenv("PLM_CODES", str(made_up_knowledge))

    def plan(out: Path, name: str = "interaction-target", **options: Any) -> Plan:
        return plan_experiment(EXPERIMENTS[name], open_cohorts([interacting]), Request(out=out, **options))

    return plan


def test_every_target_has_a_row_for_each_system_that_has_one(make: Callable[..., Plan], tmp_path: Path) -> None:
    plan = make(tmp_path, values=("1", "0.05"), seeds=1)
    found = [(job.variant.system, job.settings.target_rate) for job in plan.jobs]
    assert found == [(system, target) for target in (1.0, 0.05) for system in SYSTEMS_WITH_TARGET]
    for system, title in SYSTEMS_WITH_TARGET.items():
        assert find_system(system).title_of(find_system(system).settings_of(None)) == title


@pytest.mark.parametrize("word", ["none", "0", "-0.1", "1.5", "nan"])
def test_a_target_is_a_share(word: str) -> None:
    with pytest.raises(PlmError, match="is not possible"):
        target_rows(word)


def test_sets_are_measured_at_a_threshold() -> None:
    made = Predictions.of("multilabel", [[1, 1, 0], [0, 1, 1]], [[0.9, 0.6, 0.4], [0.9, 0.6, 0.4]])
    predictions = replace(made, outputs=("A01A", "B03B", "C07A"))
    table = Interactions(frozenset({("A01A", "B03B")}), frozenset({"A01A", "B03B", "C07A"}))
    assert Sets.of(predictions, table, 0.5) == Sets(rate=1.0, jaccard=pytest.approx((1 + 1 / 3) / 2))
    assert Sets.of(predictions, table, 0.3) == Sets(rate=pytest.approx(1 / 3), jaccard=pytest.approx(2 / 3))


def test_the_table_holds_rate_jaccard_and_cost_of_every_target(
    make: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pairs.csv").write_text("atc3_a,atc3_b\nA10A,B01A\n")
    (tmp_path / "covered.csv").write_text("atc3\nB05D\n")
    store = CodeStore(tmp_path / "codes")
    for name in ("pairs.csv", "covered.csv"):
        store.add(tmp_path / name)
    monkeypatch.setenv("PLM_CODES", str(store.folder))
    rows = ("GAMENet 1", "MICRON 1", "GAMENet 0.01", "MICRON 0.01")
    plan = make(tmp_path / "out", values=("1", "0.01"), seeds=1, rows=rows, changes=CHANGES)
    torch.set_num_threads(1)
    for job in plan.jobs:
        train_job(job, tmp_path / "cache")
    outcome = run_experiment(plan, workers=1, cache=None)
    assert not outcome.failed

    folder = tmp_path / "out" / "interaction-target"
    with (folder / "table.csv").open() as file:
        records = list(csv.DictReader(file))
    at_loss = {
        (each["system"], each["target"], each["column"]): float(each["mean"])
        for each in records
        if each["heading_1"] == "At 0.5" and each["mean"]
    }
    for job in plan.jobs:
        run = load_run(job.folder)
        predictions = run.predictions().filter(split="test")
        chosen = np.array(predictions["probabilities"].to_list()) >= 0.5
        true = np.array([np.isin(np.arange(3), numbers) for numbers in predictions["label"].to_list()])
        first, second = (list(run.output_labels).index(drug) for drug in ("A10A", "B01A"))
        sizes = chosen.sum(axis=1)
        rate = (chosen[:, first] & chosen[:, second]).sum() / max((sizes * (sizes - 1) // 2).sum(), 1)
        jaccard = ((chosen & true).sum(axis=1) / (chosen | true).sum(axis=1)).mean()
        system, target = job.variant.name.split()
        if (system, target, "interaction rate") in at_loss:
            assert at_loss[system, target, "interaction rate"] == pytest.approx(rate)
        assert at_loss[system, target, "Jaccard"] == pytest.approx(jaccard)
    for system in ("GAMENet", "MICRON"):
        cost = at_loss[system, "0.01", "Jaccard"] - at_loss[system, "1", "Jaccard"]
        assert at_loss[system, "0.01", "cost in Jaccard"] == pytest.approx(cost)
    assert ("GAMENet", "1", "interaction rate") in at_loss
    shown = (folder / "table.md").read_text()
    assert "What was prescribed has an interaction rate of" in shown
    assert "Threshold of the metrics" not in shown
    assert "figure.svg" in {path.name for path in folder.iterdir()}


def test_rows_whose_tables_are_not_installed_are_named_and_not_trained(
    make: Callable[..., Plan], interacting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLM_CODES", str(tmp_path / "no tables"))
    plan = make(tmp_path / "out", values=("1",))
    assert not plan.jobs
    assert list(plan.unavailable) == [f"{title} 1" for title in SYSTEMS_WITH_TARGET.values()]
    assert "atc3_interactions" in plan.unavailable["GAMENet 1"]

    command = ["experiment", "interaction-target", str(interacting), "--yes", "--out", str(tmp_path / "out")]
    refused = CliRunner().invoke(app, command)
    assert isinstance(refused.exception, PlmError)
    assert "no row of the experiment can be trained here (GAMENet 1: it needs tables" in str(refused.exception)


def test_a_row_that_does_without_knowledge_says_so_in_its_name(make: Callable[..., Plan], tmp_path: Path) -> None:
    def systems_of(name: str, **options: Any) -> dict[str, str]:
        rows = make(tmp_path / name, "records", systems=("safedrug", "g_bert"), **options).jobs
        return {job.variant.system: job.variant.name for job in rows if job.variant.system != "patients_like_me"}

    drugs = {"tasks": ("drug_recommendation",)}
    assert systems_of("whole", **drugs) == {"safedrug": "SafeDrug", "g_bert": "G-BERT"}
    without: dict[str, Any] = {"safedrug": {"without": ["molecules"]}}
    assert systems_of("less", changes=without, **drugs)["safedrug"] == "SafeDrug[no-molecules]"
    for_one: dict[str, Any] = {"tasks": {"readmission": {"g_bert": {"without": ["procedure-hierarchy"]}}}}
    with pytest.raises(PlmError, match=r"'g_bert' would be G-BERT\[no-procedure-hierarchy\] and G-BERT, by task"):
        systems_of("one", changes=for_one, tasks=("readmission", "drug_recommendation"))


def test_a_system_that_may_do_without_its_tables_is_a_row_where_they_are_missing(
    make: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLM_CODES", str(tmp_path / "no tables"))
    asked: dict[str, Any] = {"systems": ("gamenet",), "tasks": ("drug_recommendation",)}
    assert "gamenet" in make(tmp_path / "refused", "records", **asked).unavailable
    plan = make(tmp_path / "less", "records", changes={"gamenet": {"without": ["interactions"]}}, **asked)
    assert not plan.unavailable
    assert "GAMENet[no-interactions]" in {job.variant.name for job in plan.jobs}
