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
from patients_like_me.explanation.reference_scene import audit_of_references
from patients_like_me.explanation.scene import set_scene
from patients_like_me.runs.record import Capabilities
from patients_like_me.runs.run import load_run
from patients_like_me.systems.registry import all_systems, find_system
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


def test_a_run_whose_references_have_no_shares_is_refused(finished_run: Callable[..., Path]) -> None:
    with pytest.raises(PlmError, match="no shares in its predictions; give a run of the system references"):
        audit_of_references(finished_run(references="bank", strategy="lm_only"))


def test_the_paths_of_a_patient_graph_are_audited(finished_run: Callable[..., Path]) -> None:
    (check,), (note,) = audit_of_references(finished_run(references="bank"))
    assert check.check == "no path to another instance of the patient"
    assert check.verdict == "passed"
    assert check.looked_at > 0
    assert note.startswith("References 'bank': ")


def test_references_of_a_foreign_system_are_refused_with_a_sentence(
    cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    able = Capabilities(references=True, newcomers=True)
    foreign = replace(find_system("frequency"), name="foreign", capabilities=able)
    monkeypatch.setitem(all_systems(), "foreign", foreign)  # type: ignore[arg-type]
    run = train(cohort, "readmission", tmp_path / "run", system="foreign")
    with pytest.raises(PlmError, match=r"\(foreign\) have no shares in its predictions"):
        set_scene(run)
