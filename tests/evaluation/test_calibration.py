"""Calibration equals hand-computed values and an unpenalised logistic regression."""

from __future__ import annotations

import numpy as np
import pytest
from evaluation.test_forms import random_predictions
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from patients_like_me.evaluation.calibration import (
    bin_forms,
    brier_form,
    calibration_bins,
    calibration_error_form,
    intercept_form,
    slope_form,
)
from patients_like_me.evaluation.intervals import interval_of, resampled_values
from patients_like_me.evaluation.predictions import Predictions
from patients_like_me.tasks.forms import value_of


def simulated(rows: int = 20_000, *, slope: float = 1.0, intercept: float = 0.0, seed: int = 0) -> Predictions:
    """Draw outcomes from logit P = intercept + slope * logit p."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(-0.5, 1.2, rows)
    happened = generator.random(rows) < 1 / (1 + np.exp(-(intercept + slope * logits)))
    return Predictions.of("binary", happened.astype(int), 1 / (1 + np.exp(-logits)))


@pytest.mark.parametrize(("slope", "intercept"), [(1.0, 0.0), (0.5, 0.0), (1.8, 0.0), (1.0, -0.7)])
def test_slope_and_intercept_find_what_was_put_in(slope: float, intercept: float) -> None:
    made = simulated(slope=slope, intercept=intercept)
    assert value_of(slope_form(made), made) == pytest.approx(slope, abs=0.06)
    if slope == 1.0:
        assert value_of(intercept_form(made), made) == pytest.approx(intercept, abs=0.06)


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_slope_equals_an_unpenalised_logistic_regression(seed: int) -> None:
    made = random_predictions("binary", seed, rows=80)
    if len(np.unique(made.labels)) < 2:
        return
    logits = np.log(made.probabilities / (1 - made.probabilities))[:, None]
    fitted = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(logits, made.labels)
    assert value_of(slope_form(made), made) == pytest.approx(float(fitted.coef_[0, 0]), abs=1e-4)
    # Newton's root of the score equation, by hand: the expected positives equal the observed ones.
    intercept = value_of(intercept_form(made), made)
    expected = 1 / (1 + np.exp(-(logits[:, 0] + intercept)))
    assert expected.sum() == pytest.approx(made.labels.sum(), abs=1e-6)


def test_groups_of_logits_change_nothing_that_matters() -> None:
    made = simulated(2_000, slope=0.8)
    weights = np.random.default_rng(1).integers(0, 3, (3, len(made))).astype(float)
    exact, grouped = slope_form(made, groups=4_000)(weights), slope_form(made)(weights)
    assert grouped == pytest.approx(exact, abs=2e-3)
    exact, grouped = intercept_form(made, groups=4_000)(weights), intercept_form(made)(weights)
    assert grouped == pytest.approx(exact, abs=2e-3)


def test_a_weighted_fit_equals_the_fit_of_repeated_rows() -> None:
    made = random_predictions("multilabel", 3, rows=30)
    counts = np.random.default_rng(2).integers(0, 3, made.number_of_patients)
    rows = np.repeat(np.arange(len(made)), counts[made.patients])
    repeated = made.take(rows)
    for form in (slope_form, intercept_form, calibration_error_form):
        assert form(made)(counts[None].astype(float))[0] == pytest.approx(value_of(form(repeated), repeated))


@pytest.mark.parametrize(
    ("labels", "probabilities"),
    [([1, 1, 1], [0.2, 0.5, 0.7]), ([0, 0, 1, 1], [0.1, 0.2, 0.6, 0.9]), ([0, 1, 0, 1], [0.5] * 4)],
    ids=["one class", "parted", "one probability"],
)
def test_no_slope_without_overlap(labels: list[int], probabilities: list[float]) -> None:
    made = Predictions.of("binary", labels, probabilities)
    assert value_of(slope_form(made), made) is None
    assert (value_of(intercept_form(made), made) is None) == (len(set(labels)) == 1)


def test_probabilities_of_0_and_1_are_no_trouble() -> None:
    made = Predictions.of("binary", [0, 1, 0, 1, 1, 0], [0.0, 1.0, 1.0, 0.0, 0.6, 0.4])
    assert value_of(slope_form(made), made) is not None
    assert value_of(intercept_form(made), made) == pytest.approx(0.0, abs=1e-9)


def test_calibration_error_by_hand() -> None:
    made = Predictions.of("binary", [0, 1, 1, 1], [0.12, 0.18, 0.95, 1.0])
    # Two in 0.1-0.2 (mean 0.15, observed 0.5), two in 0.9-1 (mean 0.975, observed 1).
    assert value_of(calibration_error_form(made), made) == pytest.approx((2 * 0.35 + 2 * 0.025) / 4)
    assert [(each.low, each.number) for each in calibration_bins(made)] == [(0.1, 2), (0.9, 2)]
    classes = Predictions.of("multiclass", [0, 1], [[0.8, 0.2], [0.7, 0.3]])
    assert value_of(calibration_error_form(classes), classes) == pytest.approx((0.2 + 0.7) / 2)
    sets = Predictions.of("multilabel", [[1, 0]], [[0.8, 0.85]])
    assert value_of(calibration_error_form(sets), sets) == pytest.approx(abs((0.8 + 0.85) / 2 - 0.5))


def test_brier_by_hand() -> None:
    classes = Predictions.of("multiclass", [0, 1], [[0.8, 0.2], [0.7, 0.3]])
    assert value_of(brier_form(classes), classes) == pytest.approx((0.08 + 0.98) / 2)
    sets = Predictions.of("multilabel", [[1, 0]], [[0.8, 0.5]])
    assert value_of(brier_form(sets), sets) == pytest.approx((0.04 + 0.25) / 2)


def test_bins_have_intervals_over_patients() -> None:
    generator = np.random.default_rng(1)
    probabilities = generator.random(600)
    labels = (generator.random(600) < probabilities).astype(np.int64)
    found = Predictions.of("binary", labels, probabilities, subjects=np.arange(600) // 3)
    forms = bin_forms(found)
    for each in calibration_bins(found):
        form = forms[round(each.low * 10)]
        assert value_of(form, found) == pytest.approx(each.observed)
    values = resampled_values(forms, found.number_of_patients, replicates=300, seed=0)
    inside = 0
    for each in calibration_bins(found):
        interval = interval_of(values[round(each.low * 10)])
        assert interval is not None
        assert interval.low <= each.observed <= interval.high
        inside += interval.low <= each.predicted <= interval.high
    assert inside >= 8
