"""A kept fit is found again for the same problem alone, predicts the same, and a damaged one is fitted again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from patients_like_me.codes.store import CodeStore
from patients_like_me.records.cohort import Cohort
from patients_like_me.systems.contract import Fitted, RunContext, System
from patients_like_me.systems.linear import SYSTEM
from patients_like_me.systems.problem import Problem, problem_of
from patients_like_me.systems.reference_path.kept_fits import FOLDER, kept_fit
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.registry import find_task


@pytest.fixture(scope="module")
def instances(make_cohort: Callable[..., Path]) -> Instances:
    return build_instances(Cohort.load(make_cohort(patients=60, seed=4)), find_task("length_of_stay"))


def test_only_the_same_problem_finds_a_kept_fit(instances: Instances, tmp_path: Path) -> None:
    settings = SYSTEM.settings_of(None, penalties=[3.0], block_factors=[])
    fits = 0

    def fit(problem: Problem, penalty: float = 3.0) -> Fitted:
        given = settings.model_copy(update={"penalties": (penalty,)})

        def really() -> Fitted:
            nonlocal fits
            fits += 1
            return SYSTEM.fit(problem, RunContext(given))

        return kept_fit(tmp_path, SYSTEM, problem, given, really)

    problem = problem_of(instances)
    first, again = fit(problem), fit(problem)
    assert fits == 1
    np.testing.assert_array_equal(SYSTEM.predict(again, instances), SYSTEM.predict(first, instances))
    assert again.account == first.account
    fit(problem, penalty=1.0)
    assert fits == 2
    flipped = instances.labels.copy()
    flipped[problem.train[0]] = (flipped[problem.train[0]] + 1) % 10
    fit(problem_of(replace(instances, labels=flipped)))
    assert fits == 3
    flipped = instances.labels.copy()
    flipped[problem.validation[0]] = (flipped[problem.validation[0]] + 1) % 10
    fit(problem_of(replace(instances, labels=flipped)))
    assert fits == 4
    swapped = instances.splits.astype(object)
    swapped[[problem.train[0], problem.test[0]]] = ["test", "train"]
    frame = instances.frame.with_columns(pl.Series("split", swapped.tolist(), dtype=pl.String))
    fit(problem_of(replace(instances, frame=frame)))
    assert fits == 5
    flipped = instances.labels.copy()
    flipped[problem.test] = 0
    fit(problem_of(replace(instances, labels=flipped)))
    assert fits == 5, "labels of test instances decide nothing"
    for kept in (tmp_path / FOLDER).iterdir():
        kept.write_bytes(kept.read_bytes()[:40])
    np.testing.assert_array_equal(SYSTEM.predict(fit(problem), instances), SYSTEM.predict(first, instances))
    assert fits == 6


def test_a_fit_is_kept_for_the_code_and_the_knowledge_that_it_came_from(
    instances: Instances, tmp_path: Path, made_up_knowledge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, settings = problem_of(instances), SYSTEM.settings_of(None)
    fitted = SYSTEM.fit(problem, RunContext(settings.model_copy(update={"penalties": (3.0,), "block_factors": ()})))

    def is_fitted(system: System) -> bool:
        fits: list[Fitted] = []
        kept_fit(tmp_path, system, problem, settings, lambda: fits.append(fitted) or fitted)  # type: ignore[func-returns-value]
        return bool(fits)

    knowing = replace(SYSTEM, knowledge=("atc3_interactions",))
    assert [is_fitted(knowing), is_fitted(knowing)] == [True, False]
    (tmp_path / "pairs.csv").write_text("atc3_a,atc3_b\nA10A,B05D\n")
    monkeypatch.setenv("PLM_CODES", str(tmp_path / "codes"))
    CodeStore(tmp_path / "codes").add(tmp_path / "pairs.csv")
    assert is_fitted(knowing)
    # The code of another package may change, and no digest would tell.
    foreign = replace(SYSTEM, fit=lambda problem, run: fitted)
    assert [is_fitted(foreign), is_fitted(foreign)] == [True, True]
