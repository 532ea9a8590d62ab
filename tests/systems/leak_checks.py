"""A check that something fitted does not depend on test patients, and a way to plant the leak that it must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from patients_like_me.systems.problem import Problem, problem_of
from patients_like_me.tasks.instances import Instances


def with_all_labels(instances: Instances) -> Problem:
    """Return the problem with the labels of validation and test still there, as if nobody had taken them away."""
    problem = problem_of(instances)
    return replace(problem, instances=replace(problem.instances, labels=instances.labels))


def with_other_test_labels(problem: Problem) -> Problem:
    """Return the problem with every label of the test patients turned round; 0/1 labels and sets of them alone."""
    labels = problem.instances.labels.copy()
    labels[problem.test] = 1 - labels[problem.test]
    return replace(problem, instances=replace(problem.instances, labels=labels))


def with_other_test_patients(problem: Problem) -> Problem:
    """Return the problem with every code of the test patients replaced by another known code of its kind."""
    instances = problem.instances
    subjects = instances.frame[problem.test.tolist()]["subject"].unique()
    visits = instances.cohort.visits.filter(pl.col("subject").is_in(subjects.implode()))["visit"]
    codes = {}
    for kind, frame in instances.cohort.codes.items():
        known = sorted(frame["code"].unique().to_list())
        turned = {code: known[(at + 1) % len(known)] for at, code in enumerate(known)}
        own = pl.col("visit").is_in(visits.implode())
        codes[kind] = frame.with_columns(
            pl.when(own).then(pl.col("code").replace(turned)).otherwise(pl.col("code")).alias("code")
        )
    changed = replace(problem, instances=replace(instances, cohort=replace(instances.cohort, codes=codes)))
    assert not changed.instances.cohort.codes["diagnosis"].equals(instances.cohort.codes["diagnosis"])
    return changed


def with_a_leak(problem: Problem) -> Problem:
    """Return the problem with the test instances among those that are trained on: the leak that must be found."""
    kind = problem.kind
    labels = kind.targets(problem.instances.labels[problem.test], problem.outputs)
    return replace(
        problem,
        train=np.concatenate([problem.train, problem.test]),
        targets=np.concatenate([problem.targets, labels]),
    )


def check_blind_to_test(
    problem: Problem,
    fitted: Callable[[Problem], list[Any]],
    change: Callable[[Problem], Problem] = with_other_test_patients,
) -> None:
    """Refuse what changes when the records of test patients do, or their labels."""
    before, after = fitted(problem), fitted(change(problem))
    assert len(before) == len(after) > 0
    for one, other in zip(before, after, strict=True):
        assert np.shape(one) == np.shape(other), "the records of test patients changed what was fitted"
        assert np.array_equal(one, other), "the records of test patients changed what was fitted"
