"""Tuning: halving keeps the better candidates, trials are kept and continued, test labels decide nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.systems.frequency import SYSTEM as FREQUENCY
from patients_like_me.systems.linear import SYSTEM as LINEAR
from patients_like_me.systems.problem import problem_of
from patients_like_me.systems.tuning import SHARES, TRIALS, Tuned, tune
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.registry import find_task

CHOOSING = replace(LINEAR, choices={"penalties": ((0.1,), (1000.0,), (1e6,))})


@pytest.fixture(scope="module")
def instances(make_cohort: Callable[..., Path]) -> Instances:
    return build_instances(Cohort.load(make_cohort(patients=80, seed=4)), find_task("readmission"))


def tuned(instances: Instances, folder: Path, system: Any = CHOOSING, **options: Any) -> Tuned:
    settings = LINEAR.settings_of(None, penalties=[10.0], block_factors=[])
    options = {"minutes": 10.0, "identity": {"run": "this"}, **options}
    return tune(system, problem_of(instances), settings, folder, **options)


def test_the_better_half_goes_on_and_the_given_settings_stay(instances: Instances, tmp_path: Path) -> None:
    found = tuned(instances, tmp_path)
    rounds = [[trial for trial in found.trials if trial.share == share] for share in SHARES]
    assert len(rounds[0]) == 4
    assert 1 <= len(rounds[2]) <= len(rounds[1]) < 4
    assert all({} in [trial.changes for trial in each] for each in rounds)
    assert found.given is not None
    assert found.best.validation_score == max(trial.validation_score or 0 for trial in rounds[2])
    worst = min(rounds[0], key=lambda trial: trial.validation_score or 0)
    assert not worst.changes or worst.changes not in [trial.changes for trial in rounds[1]]


def test_the_same_command_continues_and_another_tuning_is_refused(instances: Instances, tmp_path: Path) -> None:
    nothing = tuned(instances, tmp_path, minutes=0.0)
    assert [(trial.changes, trial.share) for trial in nothing.trials] == [({}, 1.0)]
    whole = tuned(instances, tmp_path)
    kept = (tmp_path / TRIALS).read_text()
    assert tuned(instances, tmp_path) == Tuned(whole.changes, whole.trials)
    assert (tmp_path / TRIALS).read_text() == kept
    with pytest.raises(PlmError, match="another tuning"):
        tuned(instances, tmp_path, seed=1)
    with pytest.raises(PlmError, match="nothing to tune"):
        tuned(instances, tmp_path / "other", system=FREQUENCY)


@pytest.mark.parametrize("damage", ["cut", "list", "trials", "score"])
def test_damaged_trials_are_a_sentence(instances: Instances, tmp_path: Path, damage: str) -> None:
    tuned(instances, tmp_path, minutes=0.0)
    path = tmp_path / TRIALS
    text = path.read_text()
    content = json.loads(text)
    if damage == "trials":
        content["trials"] = [{"share": 1.0}]
    elif damage == "score":
        content["trials"][0]["validation_score"] = 0.999
    path.write_text({"cut": text[:-40], "list": "[1]"}.get(damage) or json.dumps(content))
    with pytest.raises(PlmError, match=r"trials.*(is not readable JSON|are damaged: .*remove the file)"):
        tuned(instances, tmp_path)


def test_labels_of_test_patients_decide_nothing(instances: Instances, tmp_path: Path) -> None:
    labels = instances.labels.copy()
    labels[instances.rows_of("test")] = 1 - labels[instances.rows_of("test")]
    first, other = tuned(instances, tmp_path / "a"), tuned(replace(instances, labels=labels), tmp_path / "b")
    assert [trial.validation_score for trial in first.trials] == [trial.validation_score for trial in other.trials]


def test_the_command_prints_what_to_train(cohort_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLM_CACHE", str(tmp_path / "cache"))
    words = ["--system", "boosting", "--candidates", "3", "--set", "trees=[5]", "--set", "leaf_instances=5"]
    shown = CliRunner().invoke(
        app, ["tune", str(cohort_folder), "--task", "readmission", "--out", str(tmp_path / "tuning"), *words]
    )
    assert shown.exit_code == 0, shown.output
    assert "as given" in shown.output
    trials = json.loads((tmp_path / "tuning" / TRIALS).read_text())["trials"]
    assert {trial["share"] for trial in trials} == set(SHARES)
    assert np.isfinite([trial["validation_score"] for trial in trials]).all()
