"""The named checks that every plain model must pass, whatever it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patients_like_me.systems.settings import PLAIN_MODELS, PlainSettings, plain_settings

from patients_like_me.records.cohort import Cohort
from patients_like_me.systems.problem import Problem, problem_of
from patients_like_me.systems.train import fit, train_baseline
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.registry import TASKS

pytestmark = pytest.mark.parametrize("model", PLAIN_MODELS)
every_task = pytest.mark.parametrize("task", list(TASKS))

#: Small grids and small trees, so that all checks together take seconds.
QUICK: dict[str, dict[str, Any]] = {
    "logistic": {"inverse_penalty": [0.03, 1.0]},
    "boosting": {"trees": [5, 20], "leaf_instances": 5, "minimum_positives": 5},
    "neighbors": {"tau": [2, 4], "max_neighbors": [8, None], "prior": [30.0, 3.0]},
}
#: Grids with one choice: validation has nothing to decide.
ONE_CHOICE: dict[str, dict[str, Any]] = {
    "logistic": {"inverse_penalty": [0.3]},
    "boosting": {"trees": [10], "leaf_instances": 5, "minimum_positives": 5},
    "neighbors": {"tau": [3], "max_neighbors": [8], "prior": [10.0]},
}


def quick(model: str) -> PlainSettings:
    return plain_settings(model, **QUICK.get(model, {}))


def one_choice(model: str) -> PlainSettings:
    return plain_settings(model, **ONE_CHOICE.get(model, {}))


@pytest.fixture(scope="module")
def instances_of(cohort_folder: Path) -> Callable[[str], Instances]:
    cohort = Cohort.load(cohort_folder)
    return lambda task: build_instances(cohort, TASKS[task])


def flipped(instances: Instances, split: str) -> Instances:
    """Return the instances with every label of one split another one."""
    labels, rows = instances.labels.copy(), np.flatnonzero(instances.splits == split)
    labels[rows] = (labels[rows] + 1) % (10 if instances.task.kind == "multiclass" else 2)
    return replace(instances, labels=labels)


@every_task
def test_probabilities_are_probabilities(model: str, task: str, instances_of: Callable[[str], Instances]) -> None:
    problem = problem_of(instances_of(task))
    chances = fit(model, problem, quick(model)).best.chances
    assert chances.shape == (len(problem.evaluated), problem.targets.shape[1])
    assert np.isfinite(chances).all()
    assert chances.min() >= 0
    assert chances.max() <= 1
    if problem.kind == "multiclass":
        assert np.allclose(chances.sum(axis=1), 1)


@every_task
def test_labels_of_test_never_reach_the_fit(model: str, task: str, instances_of: Callable[[str], Instances]) -> None:
    instances = instances_of(task)
    before, after = (fit(model, problem_of(given), quick(model)) for given in (instances, flipped(instances, "test")))
    assert np.array_equal(before.best.chances, after.best.chances)
    assert before.tried == after.tried


@every_task
def test_labels_of_validation_decide_the_choice_and_nothing_else(
    model: str, task: str, instances_of: Callable[[str], Instances]
) -> None:
    instances = instances_of(task)
    before, after = (
        fit(model, problem_of(given), one_choice(model)) for given in (instances, flipped(instances, "validation"))
    )
    assert np.array_equal(before.best.chances, after.best.chances)


def test_labels_of_validation_and_test_are_not_in_the_problem(
    model: str, instances_of: Callable[[str], Instances]
) -> None:
    problem = problem_of(instances_of("readmission"))
    del model
    assert not problem.instances.labels[problem.evaluated].any()
    assert problem.instances.labels[problem.train].any()


@every_task
def test_the_order_of_training_instances_changes_nothing(
    model: str, task: str, instances_of: Callable[[str], Instances]
) -> None:
    problem = problem_of(instances_of(task))
    order = np.random.default_rng(3).permutation(len(problem.train))
    shuffled = replace(problem, train=problem.train[order], targets=problem.targets[order])
    before, after = (fit(model, given, quick(model)).best for given in (problem, shuffled))
    assert before.choice == after.choice
    assert np.allclose(before.chances, after.chances, atol=2e-4)


@every_task
def test_who_else_is_predicted_changes_nothing(model: str, task: str, instances_of: Callable[[str], Instances]) -> None:
    problem = problem_of(instances_of(task))
    half = len(problem.evaluated) // 2
    alone: Problem = replace(problem, evaluated=problem.evaluated[half:], judge=lambda chances: None)
    before, after = (fit(model, given, one_choice(model)).best for given in (problem, alone))
    assert np.allclose(before.chances[half:], after.chances, atol=1e-12)


def test_two_trainings_are_equal(model: str, instances_of: Callable[[str], Instances]) -> None:
    first, second = (
        fit(model, problem_of(instances_of("drug_recommendation")), quick(model)).best.chances for _ in range(2)
    )
    assert np.array_equal(first, second)


def test_shuffled_labels_give_chance_on_fresh_patients(model: str, make_shuffled: Path, tmp_path: Path) -> None:
    """The leak alarm: with labels that mean nothing, a score above chance could only come from a leak."""
    run = train_baseline(make_shuffled, "readmission", tmp_path / "run", model=model, settings=QUICK.get(model))
    assert abs(run.about["scores"]["test"]["auroc"] - 0.5) < 0.17


@pytest.fixture(scope="module")
def make_shuffled(make_cohort: Callable[..., Path]) -> Path:
    return make_cohort(patients=220, seed=9, shuffle_labels=True)


def test_what_is_in_the_codes_is_learned(model: str, make_learnable: Path, tmp_path: Path) -> None:
    run = train_baseline(make_learnable, "readmission", tmp_path / "run", model=model, settings=QUICK.get(model))
    floor = {"logistic": 0.95, "boosting": 0.95, "neighbors": 0.6, "repeat": 0.5, "frequency": 0.5}[model]
    assert run.about["scores"]["test"]["auroc"] >= floor


@pytest.fixture(scope="module")
def make_learnable(make_cohort: Callable[..., Path]) -> Path:
    return make_cohort(patients=150, seed=4)
