"""Own paths of the system ``references``: the last answer, given scores, other systems, a trained language model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from patients_like_me.errors import PlmError
from patients_like_me.model.hidden_state_cache import HiddenStateCache
from patients_like_me.model.settings import BackboneSettings
from patients_like_me.records.cohort import Cohort
from patients_like_me.systems.contract import Fitted, RunContext
from patients_like_me.systems.frozen_embeddings import FrozenBackbone
from patients_like_me.systems.linear import SYSTEM as LINEAR
from patients_like_me.systems.problem import Problem, only, problem_of
from patients_like_me.systems.references import SYSTEM
from patients_like_me.systems.trained_embeddings import tuned
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task

SMALL: dict[str, Any] = {
    "folds": 2,
    "k": [10],
    "powers": [1.0],
    "gate_penalties": [0.1],
    "output_penalties": [None],
    "may_stay_out": False,
}
ONE_PENALTY = {"penalties": [3.0], "block_factors": []}


@pytest.fixture(scope="module")
def cohort(make_cohort: Callable[..., Path]) -> Cohort:
    return Cohort.load(make_cohort(patients=90, seed=5))


@pytest.fixture(scope="module")
def drugs(cohort: Cohort) -> Problem:
    return problem_of(build_instances(cohort, find_task("drug_recommendation")))


def with_score(cohort: Cohort, told: float) -> Problem:
    """Return readmission with a score that tells the label, times ``told``."""
    instances = build_instances(cohort, find_task("readmission"))
    values = (instances.labels * told).astype(str)
    rows = instances.frame.select("visit").with_columns(
        task=pl.lit("our score"), value=pl.Series(values.tolist(), dtype=pl.String)
    )
    labels = pl.concat([cohort.labels, rows.select(cohort.labels.columns).cast(dict(cohort.labels.schema))])
    given = replace(cohort, labels=labels)
    return problem_of(replace(instances, cohort=given))


def test_linear_uses_the_answer_of_the_visit_before(drugs: Problem) -> None:
    settings = LINEAR.settings_of(None, **ONE_PENALTY)
    fitted = LINEAR.fit(drugs, RunContext(settings))
    # Outputs and the flag "has history".
    assert fitted.arrays["weights.1"].shape == (drugs.outputs + 1, drugs.outputs)
    without = LINEAR.settings_of(None, **ONE_PENALTY, last_answer=False)
    assert "weights.1" not in LINEAR.fit(drugs, RunContext(without)).arrays


def test_fixed_penalties_must_fit_the_blocks(drugs: Problem) -> None:
    with pytest.raises(PlmError, match="1 values, the own path has 2 blocks"):
        LINEAR.fit(drugs, RunContext(LINEAR.settings_of(None, fixed_penalties=[1.0])))


def test_a_hospitals_own_score_is_an_own_path(cohort: Cohort) -> None:
    problem = with_score(cohort, 10.0)
    alone = {"linear": {**ONE_PENALTY, "use_bag": False, "last_answer": False, "scores": ["our score"]}}
    settings = SYSTEM.settings_of(None, **SMALL, own_path=["linear"], part_settings=alone)
    fitted = SYSTEM.fit(problem, RunContext(settings))
    seen = only(problem.instances, problem.train)
    own, outcome = fitted.state.own.logits(seen)[:, 0], problem.targets[:, 0]
    assert own[outcome == 1].min() > own[outcome == 0].max()
    # Newcomers without the score get the answer of the flag alone, whoever they are.
    unknown = replace(seen, cohort=replace(seen.cohort, labels=seen.cohort.labels.clear()))
    assert np.ptp(fitted.state.own.logits(unknown)) == 0


@pytest.mark.parametrize(("name", "words"), [("readmission", "is the label"), ("nothing", "for no training instance")])
def test_a_score_that_is_none_is_refused(cohort: Cohort, name: str, words: str) -> None:
    problem = with_score(cohort, 1.0)
    with pytest.raises(PlmError, match=words):
        LINEAR.fit(problem, RunContext(LINEAR.settings_of(None, **ONE_PENALTY, scores=[name])))


@pytest.mark.parametrize(
    ("system", "changes"),
    [
        ("boosting", {"trees": [5], "leaf_instances": 5, "minimum_positives": 5}),
        ("retain", {"epochs": 1}),
    ],
)
def test_other_systems_are_own_paths(drugs: Problem, system: str, changes: dict[str, Any]) -> None:
    settings = SYSTEM.settings_of(None, **SMALL, own_path=[system], part_settings={system: changes})
    fitted = SYSTEM.fit(drugs, RunContext(settings))
    evaluated = only(drugs.instances, drugs.evaluated)
    kept = Fitted(settings, fitted.arrays, fitted.facts)
    logits = SYSTEM.predict(kept, evaluated)
    assert np.abs(logits - SYSTEM.predict(fitted, evaluated)).max() < 1e-5
    assert np.abs(logits - fitted.state.own.logits(evaluated)).max() > 1e-6


@pytest.mark.parametrize("in_folds", ["fitted", "frozen"])
def test_a_language_model_is_trained_through_the_own_path(
    drugs: Problem, tiny_folder: Path, tmp_path: Path, in_folds: str
) -> None:
    part = {"linear": {**ONE_PENALTY, "epochs": 1, "backbone_rate": 1e-2, "rate": 1e-2}}
    settings = SYSTEM.settings_of(
        None, **SMALL, own_path=["linear"], part_settings=part, language_model="trained", in_folds=in_folds,
        embedder={"name": str(tiny_folder)}, max_tokens=200,
    )  # fmt: skip
    judged = iter(range(1000))
    # Each answer is judged better than the one before: the trained epoch is chosen.
    rising = replace(drugs, judge=lambda _: float(next(judged)))
    fitted = SYSTEM.fit(rising, RunContext(settings, cache=tmp_path))
    assert fitted.account.chosen["linear epochs"] == 1
    trained = [name for name in fitted.arrays if name.startswith("own.linear.lm.")]
    assert trained
    evaluated = only(drugs.instances, drugs.evaluated)
    kept = Fitted(settings, fitted.arrays, fitted.facts)
    logits = SYSTEM.predict(kept, evaluated)
    assert np.isfinite(logits).all()
    assert np.abs(logits - SYSTEM.predict(fitted, evaluated)).max() < 1e-5
    # The trained layers are part of the answer.
    moved = {**fitted.arrays, **{name: 1.5 * fitted.arrays[name] + 0.1 for name in trained}}
    assert np.abs(SYSTEM.predict(Fitted(settings, moved, fitted.facts), evaluated) - logits).max() > 1e-4


def test_prompts_are_read_once_for_the_frozen_and_the_trained_layers(
    drugs: Problem, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layers below are most of the cost: the frozen embeddings come from what the training needs anyway."""
    embedder = BackboneSettings(name=str(tiny_folder), trainable_layers=0)
    whole = FrozenBackbone(embedder).embed(drugs.instances, 200)
    shared = FrozenBackbone(embedder).embed(drugs.instances, 200, tmp_path, layers_to_train=1)
    np.testing.assert_allclose(shared, whole, atol=1e-5)

    def compute(*given: object) -> None:
        raise AssertionError("a prompt is read a second time")

    monkeypatch.setattr(HiddenStateCache, "_compute", compute)
    model = tuned(embedder.model_copy(update={"trainable_layers": 1}))
    model.cache = tmp_path
    assert model.inputs(drugs.instances, 200).level == "hidden"
