"""Faithfulness of references that bring their outcomes: those with the largest shares move predictions most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from patients_like_me.errors import PlmError
from patients_like_me.explanation.masking_experiment import Masking
from patients_like_me.explanation.reference_faithfulness import assess_references
from patients_like_me.runs.run import load_run
from patients_like_me.systems.train import train

SMALL = {
    "own_path": ["linear"],
    "part_settings": {"linear": {"penalties": [3.0], "block_factors": []}},
    "folds": 2,
    "k": [10],
    "powers": [1.0],
    "gate_penalties": [0.1],
    "output_penalties": [None],
}


@pytest.fixture(scope="module")
def cohort(make_cohort: Callable[..., Path]) -> Path:
    return make_cohort(patients=90, seed=5)


def test_the_first_references_move_more_than_random_ones(cohort: Path, tmp_path: Path) -> None:
    settings = {**SMALL, "may_stay_out": False}
    train(cohort, "drug_recommendation", tmp_path / "run", system="references", settings=settings)
    found = assess_references(load_run(tmp_path / "run"), Masking([1, 3, 1000], replicates=30))
    one, three, every = found.removed
    for few in (one, three):
        assert few.factor is not None
        assert few.low is not None
        assert few.high is not None
        assert 1 < few.low <= few.factor <= few.high
    assert three.first > one.first
    # Whoever loses all references is predicted by the own path, in whatever order they were removed.
    assert every.factor == pytest.approx(1.0)
    assert np.isclose(every.first, every.random)
    assert "times as much" in one.sentence
    assert one.first_low <= one.first <= one.first_high
    assert "times as far as without random ones" in found.verdict(3)
    # A large factor of a change that is small beside the differences between patients is no praise.
    assert "hardly matter" in replace(found, spread=100 * three.first_high).verdict(3)
    assert (found.write(tmp_path / "out") / "faithfulness.json").is_file()


def test_a_run_that_leans_on_nobody_is_refused(cohort: Path, tmp_path: Path) -> None:
    settings = {**SMALL, "control": "no_references"}
    train(cohort, "drug_recommendation", tmp_path / "run", system="references", settings=settings)
    with pytest.raises(PlmError, match="all gates of the run"):
        assess_references(load_run(tmp_path / "run"))
