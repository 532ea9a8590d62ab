"""Measures carry their meaning, do not depend on any order, leave inputs alone, and say when they are not available."""

from __future__ import annotations

import numpy as np
import pytest
from evaluation.test_forms import random_predictions
from hypothesis import given, settings
from hypothesis import strategies as st

from patients_like_me.codes.interactions import Interactions
from patients_like_me.evaluation.drug_interactions import count_pairs
from patients_like_me.evaluation.evaluate import with_intervals
from patients_like_me.evaluation.measures import Measure, interaction_measures, measures_of
from patients_like_me.evaluation.predictions import Predictions
from patients_like_me.evaluation.thresholds import FIXED, GRID, Threshold, f1_at, tuned_threshold

KINDS = ("binary", "multiclass", "multilabel")
TUNED = Threshold("tuned", 0.4, "tuned on validation")
TABLE = Interactions(frozenset({("A", "B"), ("B", "C")}), frozenset("ABCD"))


def named(measures: list[Measure]) -> dict[str, float | None]:
    return {measure.name: measure.value for measure in measures}


def with_outputs(made: Predictions, outputs: str) -> Predictions:
    return Predictions(made.kind, made.labels, made.probabilities, made.patients, outputs=tuple(outputs))


@pytest.mark.parametrize("kind", KINDS)
def test_every_measure_says_what_it_is(kind: str) -> None:
    found = measures_of(random_predictions(kind, 1), [FIXED, TUNED])
    assert len({measure.name for measure in found}) == len(found)
    for measure in found:
        assert measure.value is not None
        assert measure.definition
        assert measure.averaging
        assert ("@" in measure.name) == (measure.threshold is not None)
        assert measure.as_json()["definition"] == measure.definition
    if kind == "binary":
        assert {"f1@0.2", "f1@tuned", "brier", "calibration_slope", "calibration_error"} <= {m.name for m in found}


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from(KINDS), st.booleans())
def test_the_order_of_instances_and_metrics_changes_nothing(seed: int, kind: str, ties: bool) -> None:
    made = random_predictions(kind, seed, ties=ties)
    order = np.random.default_rng(seed).permutation(len(made))
    straight = with_intervals(measures_of(made, [FIXED]), made.number_of_patients, replicates=20)
    shuffled = with_intervals(measures_of(made.take(order), [FIXED]), made.number_of_patients, replicates=20)
    for one, other in zip(straight, shuffled, strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-9), one.name
        if one.interval is not None and not one.name.startswith("calibration_"):
            assert other.interval is not None
            assert (one.interval.low, one.interval.high) == pytest.approx((other.interval.low, other.interval.high))
    backwards = with_intervals(measures_of(made, [FIXED])[::-1], made.number_of_patients, replicates=20)
    assert {each.name: each.as_json() for each in straight} == {each.name: each.as_json() for each in backwards}
    alone = measures_of(made, [FIXED], only=[straight[0].metric])
    assert alone[0].value == straight[0].value


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_are_left_alone(kind: str) -> None:
    made = random_predictions(kind, 3)
    before = made.labels.copy(), made.probabilities.copy(), made.patients.copy()
    for array in (made.labels, made.probabilities, made.patients):
        array.setflags(write=False)
    with_intervals(measures_of(made, [FIXED, TUNED]), made.number_of_patients, replicates=5)
    assert all(
        np.array_equal(*pair) for pair in zip(before, (made.labels, made.probabilities, made.patients), strict=True)
    )


def test_one_class_is_not_available_with_its_reason() -> None:
    found = {m.name: m for m in measures_of(Predictions.of("binary", [0, 0, 0], [0.1, 0.5, 0.3]), [FIXED])}
    for name in ("auprc", "auroc", "f1@0.2", "calibration_slope", "calibration_intercept"):
        assert found[name].value is None
        assert found[name].unavailable
    assert found["brier"].value == pytest.approx((0.01 + 0.25 + 0.09) / 3)
    assert found["prevalence"].value == 0.0
    classes = {m.name: m for m in measures_of(Predictions.of("multiclass", [1, 1], [[0.5, 0.5], [0.2, 0.8]]))}
    assert classes["auroc_weighted"].value is None
    assert "no class has both" in str(classes["auroc_weighted"].unavailable)


def test_an_empty_drug_set_is_not_available_with_its_reason() -> None:
    nothing = Predictions.of("multilabel", np.zeros((3, 4), int), np.full((3, 4), 0.1))
    found = {measure.name: measure for measure in measures_of(nothing, [FIXED])}
    assert found["auprc_per_instance"].value is None
    assert found["f1_per_instance@0.2"].unavailable == "no instance has a code of the vocabulary"
    drugs = {m.name: m for m in interaction_measures(with_outputs(nothing, "ABCD"), [FIXED], TABLE)}
    assert drugs["interaction_rate@0.2"].value is None
    assert "no likely set has such a pair" in str(drugs["interaction_rate@0.2"].unavailable)


def test_one_patient_has_values_but_no_interval() -> None:
    made = Predictions.of("binary", [0, 1, 0], [0.1, 0.5, 0.3], subjects=["a", "a", "a"])
    found = with_intervals(measures_of(made, [FIXED]), 1, replicates=20)
    assert named(found)["auroc"] == 1.0
    assert all(measure.interval is None for measure in found)


def test_interactions_by_hand() -> None:
    # Recommended: {A, B, E} and {A, C}; E is outside the table. A-B interacts, A-C does not.
    probabilities = np.array([[0.9, 0.8, 0.1, 0.1, 0.7], [0.9, 0.1, 0.8, 0.1, 0.1]])
    labels = np.array([[0, 1, 1, 0, 0], [0, 0, 0, 0, 1]])
    made = with_outputs(Predictions.of("multilabel", labels, probabilities), "ABCDE")
    found = named(interaction_measures(made, [FIXED], TABLE))
    assert found["interaction_rate@0.2"] == pytest.approx(1 / 2)
    assert found["interaction_unknown@0.2"] == pytest.approx(2 / 4)
    assert found["interaction_rate_given"] == 1.0
    assert found["interaction_unknown_given"] == 0.0


@given(st.integers(0, 10_000))
def test_pairs_equal_a_plain_loop(seed: int) -> None:
    generator = np.random.default_rng(seed)
    sets = generator.random((4, 5)) < 0.5
    counts = count_pairs(sets, tuple("ABCDE"), TABLE)
    for row, chosen in enumerate(sets):
        codes = [code for code, is_in in zip("ABCDE", chosen, strict=True) if is_in]
        pairs = [(a, b) for at, a in enumerate(codes) for b in codes[at + 1 :]]
        known = [pair for pair in pairs if set(pair) <= TABLE.covered]
        assert (counts.pairs[row], counts.known[row]) == (len(pairs), len(known))
        assert counts.interacting[row] == sum(pair in TABLE.pairs for pair in known)


def test_without_a_table_the_interaction_rate_is_named_as_missing() -> None:
    made = with_outputs(random_predictions("multilabel", 0), "ABCDEF")
    for measure in interaction_measures(made, [FIXED], None):
        assert measure.value is None
        assert "no table of drug interactions is installed" in str(measure.unavailable)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from(["binary", "multilabel"]))
def test_the_tuned_threshold_is_the_best_on_validation(seed: int, kind: str) -> None:
    made = random_predictions(kind, seed, rows=25)
    found = tuned_threshold(made)
    assert found.value is not None
    best = f1_at(made, found.value)
    tried = made.probabilities if kind == "binary" else np.array(GRID)
    for other in (*tried[:15].tolist(), 0.2, 0.5):
        score = f1_at(made, other)
        assert best is not None
        assert score is not None
        assert score <= best + 1e-9


def test_no_threshold_without_a_positive_label() -> None:
    found = tuned_threshold(Predictions.of("binary", [0, 0], [0.1, 0.2]))
    assert found.value is None
    measures = {m.name: m for m in measures_of(Predictions.of("binary", [0, 1], [0.1, 0.2]), [FIXED, found])}
    assert measures["f1@tuned"].value is None
    assert "no threshold could be tuned" in str(measures["f1@tuned"].unavailable)
    assert tuned_threshold(Predictions.of("multiclass", [0, 1], [[0.5, 0.5]] * 2)).value is None
