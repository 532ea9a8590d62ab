"""What a foreign system, task or code system gives back is checked where it enters: a sentence, never a wrong number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.systems import train as training
from patients_like_me.systems.contract import Fitted
from patients_like_me.systems.frequency import SYSTEM as FREQUENCY
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fit": lambda problem, run: None}, "returned a NoneType, not a Fitted"),
        ({"fit": lambda problem, run: Fitted(run.settings, facts={1: "one"})}, "do not survive JSON"),
        ({"fit": lambda problem, run: Fitted(run.settings, facts={"rates": np.ones(2)})}, "do not survive JSON"),
        ({"predict": lambda fitted, instances: np.zeros((len(instances), 2))}, r"shape \(\d+, 2\) for .* 1 output;"),
        ({"predict": lambda fitted, instances: np.zeros(len(instances))}, r"shape \(\d+,\)"),
        ({"predict": lambda fitted, instances: np.zeros((1, 1))}, r"shape \(1, 1\)"),
        ({"predict": lambda fitted, instances: np.full((len(instances), 1), np.nan)}, "not numbers"),
    ],
)
def test_a_system_that_gives_nonsense_is_refused(
    changes: dict[str, Any], words: str, cohort_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "find_system", lambda name: replace(FREQUENCY, **changes))
    with pytest.raises(PlmError, match=words):
        training.train(cohort_folder, "readmission", tmp_path / "run", system="frequency")


def _relabelled(change: Callable[[pl.DataFrame], pl.DataFrame], task: str = "readmission") -> Any:
    known = find_task(task)
    return replace(known, labeller=lambda cohort, settings: change(known.labeller(cohort, settings)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda frame: pl.concat([frame, frame]), "a visit twice"),
        (lambda frame: frame.drop("label"), "no columns 'visit' and 'label'"),
        (lambda frame: frame.with_columns(label=pl.lit(2)), "labels beyond its 2 classes"),
        (lambda frame: frame.with_columns(label=pl.lit(None, pl.Int64)), "visits without a label"),
        (lambda frame: frame.with_columns(label=pl.lit(1.7)), "neither whole numbers nor words"),
        (lambda frame: frame.with_columns(visit=pl.col("visit") + 10**6), "does not have"),
    ],
)
def test_a_task_that_labels_nonsense_is_refused(
    change: Callable[[pl.DataFrame], pl.DataFrame], words: str, cohort_folder: Path
) -> None:
    with pytest.raises(PlmError, match=words):
        build_instances(Cohort.load(cohort_folder), _relabelled(change))


def test_declared_classes_keep_their_order_where_labels_are_words(cohort_folder: Path) -> None:
    words = {"0": "stays away", "1": "comes back"}
    task = _relabelled(lambda frame: frame.with_columns(pl.col("label").cast(pl.String).replace(words)))
    declared = replace(task, classes=("stays away", "comes back"))
    found = build_instances(Cohort.load(cohort_folder), declared)
    expected = build_instances(Cohort.load(cohort_folder), find_task("readmission"))
    assert found.task.classes == declared.classes
    np.testing.assert_array_equal(found.labels, expected.labels)
