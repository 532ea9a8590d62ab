"""Gates that are rehearsed for a later bank: who does what, and that nothing of the answer reaches them."""

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
from patients_like_me.systems.contract import RunContext
from patients_like_me.systems.problem import Problem, only, problem_of
from patients_like_me.systems.reference_path import rehearsal
from patients_like_me.systems.reference_path.model import ReferenceModel, sites_of, subject_ids_of
from patients_like_me.systems.reference_path.rehearsal import rehearsal_parts, rehearsed_path, times_of
from patients_like_me.systems.references import SYSTEM
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.registry import find_task

SMALL: dict[str, Any] = {
    "own_path": ["linear"],
    "part_settings": {"linear": {"penalties": [10.0], "block_factors": []}},
    "folds": 2,
    "k": [10],
    "powers": [1.0],
    "gate_penalties": [0.1],
    "output_penalties": [None],
    "may_stay_out": False,
    "rehearsal": "later",
}


@pytest.fixture(scope="module")
def instances(make_cohort: Callable[..., Path]) -> Instances:
    """Return a hospital over ten years at three sites; most patients come in one year only."""
    found = build_instances(Cohort.load(make_cohort(patients=240, seed=6)), find_task("readmission"))
    subjects = found.frame["subject"].to_numpy()
    years = 2001 + (subjects + (subjects % 7 == 0) * np.arange(len(found))) % 10
    names = [f"{name}-{year}" for name, year in zip(found.instance_ids, years, strict=True)]
    visits = found.cohort.visits
    sites = visits.with_columns((pl.lit("site ") + (pl.col("subject") % 3).cast(pl.String)).alias("site"))
    return replace(
        found,
        frame=found.frame.with_columns(pl.Series("instance_id", names)),
        cohort=replace(found.cohort, visits=sites.select(visits.columns)),
    )


@pytest.fixture(scope="module")
def problem(instances: Instances) -> Problem:
    return problem_of(instances)


def context(**changes: Any) -> RunContext:
    return RunContext(SYSTEM.settings_of(None, **{**SMALL, **changes}))


@pytest.mark.parametrize("how", ["later", "new_site"])
def test_the_own_path_of_a_rehearsal_sees_nobody_it_is_corrected_on(problem: Problem, how: str) -> None:
    parts = rehearsal_parts(problem, how, seed=0)
    people, times = subject_ids_of(problem.instances), times_of(problem.instances)
    sites = np.array(sites_of(problem.instances))
    everyone = [parts.trained, parts.bank, parts.fitting]
    assert set(np.concatenate(everyone)) <= set(problem.train)
    assert not set(people[parts.trained]) & set(people[np.concatenate(everyone[1:])])
    assert sum(map(len, everyone)) == len(set(np.concatenate(everyone)))
    if how == "later":
        assert times[parts.trained].max() < times[parts.bank].min()
        assert times[parts.bank].max() < times[parts.fitting].min()
    else:
        assert not set(sites[parts.trained]) & set(sites[parts.fitting])
        assert set(sites[parts.bank]) == set(sites[parts.fitting])
        assert not set(people[parts.bank]) & set(people[parts.fitting])


def test_no_label_of_validation_or_test_reaches_the_gates(instances: Instances, problem: Problem) -> None:
    first = SYSTEM.fit(problem, context()).state
    labels = instances.labels.copy()
    evaluated = problem.evaluated
    labels[evaluated] = 1 - labels[evaluated]
    # The own path may choose by validation, and has one penalty here: whatever changed would come through the gates.
    again = SYSTEM.fit(problem_of(replace(instances, labels=labels)), context()).state
    np.testing.assert_array_equal(again.path.gates.values, first.path.gates.values)
    np.testing.assert_array_equal(again.bank.residuals, first.bank.residuals)


def test_what_the_gates_are_fitted_to_reaches_neither_own_path_nor_bank(
    instances: Instances, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle: other labels of those who fit the gates change the gates, and nothing that corrects them."""
    seen: list[Any] = []
    inner = rehearsal.rehearse

    def listened(own: Any, given: Instances, rows: Any, bank: Any, settings: Any) -> Any:
        seen.append((own.logits(only(given, rows)), bank.residuals.copy()))
        return inner(own, given, rows, bank, settings)

    monkeypatch.setattr(rehearsal, "rehearse", listened)
    fitting = rehearsal_parts(problem, "later", seed=0).fitting
    labels = instances.labels.copy()
    labels[fitting] = 1 - labels[fitting]
    gates = [
        rehearsed_path(each, context())[0][0].gates.values
        for each in (problem, problem_of(replace(instances, labels=labels)))
    ]
    np.testing.assert_array_equal(seen[0][0], seen[1][0])
    np.testing.assert_array_equal(seen[0][1], seen[1][1])
    assert np.abs(gates[0] - gates[1]).max() > 1e-3


def test_rehearsed_gates_serve_the_whole_bank_and_are_told(problem: Problem) -> None:
    fitted = SYSTEM.fit(problem, context())
    model: ReferenceModel = fitted.state
    assert model.uses_references
    assert len(model.bank) == len(problem.train)
    assert any("rehearsed for a bank that grows" in note for note in fitted.account.notes)
    assert any("rehearsal_score" in trial for trial in fitted.account.tried)
    assert "later bank" in SYSTEM.title_of(fitted.settings)
    ordinary = SYSTEM.fit(problem, context(rehearsal="none")).state
    assert np.abs(ordinary.path.gates.values - model.path.gates.values).max() > 1e-6
    np.testing.assert_array_equal(ordinary.bank.residuals, model.bank.residuals)


def test_what_cannot_be_rehearsed_is_refused(make_cohort: Callable[..., Path], cohort_folder: Path) -> None:
    timeless = problem_of(build_instances(Cohort.load(cohort_folder), find_task("readmission")))
    with pytest.raises(PlmError, match="three different times"):
        rehearsal_parts(timeless, "later", 0)
    with pytest.raises(PlmError, match="three sites"):
        rehearsal_parts(timeless, "new_site", 0)
    with pytest.raises(PlmError, match="not rehearsed"):
        context(control="rewired")
