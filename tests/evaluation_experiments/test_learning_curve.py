"""The learning curve: nested samples of training patients, the same test patients, one fit for both lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.evaluation.experiments import learning_curve, measured_parts
from patients_like_me.evaluation.experiments.learning_curve import CONTROLS, ROWS, WITH, _table, measure
from patients_like_me.evaluation.experiments.measured_parts import identity_of
from patients_like_me.files import read_json
from patients_like_me.records.cohort import Cohort
from patients_like_me.systems.registry import find_system
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.registry import find_task

SMALL = {
    "part_settings": {"linear": {"penalties": [10.0], "block_factors": []}},
    "k": [10],
    "powers": [1.0],
    "gate_penalties": [0.3],
    "output_penalties": [None],
}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning_curve, "SIZES", (30, 60, 10000))


@pytest.fixture(scope="module")
def folder(make_cohort: Callable[..., Path]) -> Path:
    return make_cohort(patients=160, seed=3)


def test_every_size_has_all_rows_and_the_whole_split_is_the_last(folder: Path) -> None:
    instances: Instances = build_instances(Cohort.load(folder), find_task("drug_recommendation"))
    settings = find_system("references").settings_of(None, own_path=["linear"], may_stay_out=False, **SMALL)
    found = measure(instances, settings)
    patients = instances.frame.filter(split="train")["subject"].n_unique()
    assert found["sizes"] == [30, 60, patients]
    assert all(set(scores) == set(ROWS) for scores in found["scores"])
    assert all(low <= value <= high for rows in found["differences"] for value, low, high in rows.values())
    for scores in found["scores"]:
        assert len({scores[row][instances.task.metrics[0]] for row in (WITH, *CONTROLS)}) == 3
    (table,) = {each.title: each for each in [_table(instances, {"linear": [found]}, "about", "label")]}.values()
    assert [row.heads for row in table.rows] == [
        ("linear", f"{size:,}", row) for size in found["sizes"] for row in ROWS
    ]
    # Outcomes of test instances reach nothing but the scores.
    labels = instances.labels.copy()
    labels[instances.rows_of("test")] = 1 - labels[instances.rows_of("test")]
    turned = measure(replace(instances, labels=labels), settings)
    assert turned["gates_open"] == found["gates_open"]
    assert turned["scores"] != found["scores"]


def test_the_command_writes_a_table_and_a_figure_and_continues(folder: Path, tmp_path: Path) -> None:
    words = [f"--set=references.{name}={value}" for name, value in (("k", "[10]"), ("powers", "[1.0]"))]
    command = ["experiment", "learning-curve", str(folder), "--quick", "--yes", "--out", str(tmp_path), *words]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    assert "with references" in (tmp_path / "learning-curve" / "table.md").read_text()
    assert list((tmp_path / "learning-curve").glob("*.svg"))
    (part,) = (tmp_path / "runs" / "learning-curve").rglob("*-split0.json")
    written = part.stat().st_mtime_ns
    assert read_json(part, what="part")["sizes"][-1] > 60
    assert CliRunner().invoke(app, command).exit_code == 0
    assert part.stat().st_mtime_ns == written


def test_parts_of_other_code_are_computed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instances = build_instances(Cohort.load(folder), find_task("drug_recommendation"))
    settings = find_system("references").settings_of(None)
    first = identity_of(instances, settings, learning_curve.__file__)
    assert identity_of(instances, settings, learning_curve.__file__) == first
    assert identity_of(instances, settings, __file__) != first
    monkeypatch.setattr(measured_parts, "digest_of_sources", lambda: "other systems")
    assert identity_of(instances, settings, learning_curve.__file__) != first
