"""Every form equals scikit-learn's or a hand-computed value, for plain and for weighted instances."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, brier_score_loss, f1_score, roc_auc_score

from patients_like_me.evaluation.calibration import brier_form
from patients_like_me.evaluation.definitions import DEFINITIONS
from patients_like_me.evaluation.measures import measures_of
from patients_like_me.evaluation.predictions import Predictions
from patients_like_me.evaluation.thresholds import FIXED
from patients_like_me.tasks import forms
from patients_like_me.tasks.forms import MetricForm, Scored, value_of
from patients_like_me.tasks.metrics import METRICS

SEEDS = st.integers(0, 100_000)


def random_predictions(kind: str, seed: int, *, rows: int = 40, ties: bool = False, patients: int = 15) -> Predictions:
    generator = np.random.default_rng(seed)
    subjects = generator.integers(0, patients, rows)
    if kind == "binary":
        labels, probabilities = generator.integers(0, 2, rows), generator.random(rows)
    elif kind == "multiclass":
        labels, probabilities = generator.integers(0, 4, rows), generator.dirichlet(np.ones(4), rows)
    else:
        labels, probabilities = (generator.random((rows, 6)) < 0.3).astype(int), generator.random((rows, 6))
    if ties:
        probabilities = np.round(probabilities, 1)
        if kind == "multiclass":
            probabilities[:, 0] += 1 - probabilities.sum(axis=1)
            probabilities = np.clip(probabilities, 0, 1)
            probabilities /= probabilities.sum(axis=1, keepdims=True)
    return Predictions.of(kind, labels, probabilities, subjects)  # type: ignore[arg-type]


def as_own_patients(made: Predictions) -> Predictions:
    return Predictions.of(made.kind, made.labels, made.probabilities)


@settings(max_examples=40)
@given(SEEDS, st.booleans(), st.booleans())
def test_weighted_curves_equal_scikit_learn_with_sample_weights(seed: int, ties: bool, whole: bool) -> None:
    made = as_own_patients(random_predictions("binary", seed, ties=ties))
    generator = np.random.default_rng(seed + 1)
    weights = generator.integers(0, 4, (3, len(made))) if whole else generator.random((3, len(made)))
    weights = weights.astype(float)
    for form, expected in ((forms.auroc_form, roc_auc_score), (forms.auprc_form, average_precision_score)):
        found = form(made)(weights)
        for row, value in zip(weights, found, strict=True):
            kept = row > 0
            if len(np.unique(made.labels[kept])) < 2:
                assert np.isnan(value)
            else:
                assert value == pytest.approx(
                    expected(made.labels[kept], made.probabilities[kept], sample_weight=row[kept])
                )


@settings(max_examples=25)
@given(SEEDS, st.booleans())
def test_weighted_class_metrics_equal_scikit_learn_with_sample_weights(seed: int, ties: bool) -> None:
    made = as_own_patients(random_predictions("multiclass", seed, ties=ties, rows=60))
    weights = np.random.default_rng(seed).random((2, len(made))) + 0.1
    one_hot = np.eye(4)[made.labels]
    if (one_hot.sum(axis=0) == 0).any():
        return
    for at, row in enumerate(weights):
        f1 = f1_score(made.labels, made.probabilities.argmax(1), average="macro", sample_weight=row, zero_division=0.0)
        assert forms.f1_macro_form(made)(weights)[at] == pytest.approx(f1)
        precision = average_precision_score(one_hot, made.probabilities, average="macro", sample_weight=row)
        assert forms.auprc_macro_form(made)(weights)[at] == pytest.approx(precision)
        areas = [roc_auc_score(one_hot[:, k], made.probabilities[:, k], sample_weight=row) for k in range(4)]
        assert forms.auroc_weighted_form(made)(weights)[at] == pytest.approx(np.average(areas, weights=row @ one_hot))


@given(SEEDS, st.sampled_from(["binary", "multiclass", "multilabel"]), st.booleans())
def test_weights_of_patients_equal_rows_repeated(seed: int, kind: str, ties: bool) -> None:
    """A resample is what one gets by writing the drawn patients' rows down that often."""
    made = random_predictions(kind, seed, ties=ties)
    counts = np.random.default_rng(seed).integers(0, 3, made.number_of_patients)
    rows = np.repeat(np.arange(len(made)), counts[made.patients])
    if not len(rows):
        return
    repeated = as_own_patients(made.take(rows))
    for definition in DEFINITIONS:
        if definition.kind != kind or definition.metric.startswith("calibration_"):
            continue
        make: Callable[[Scored], MetricForm] = definition.form or (lambda given, at=definition.form_at: at(given, 0.2))
        got = make(made)(counts[None].astype(float))[0]
        expected = value_of(make(repeated), repeated)
        assert np.isnan(got) if expected is None else got == pytest.approx(expected), definition.metric


@settings(max_examples=40)
@given(SEEDS, st.sampled_from(["binary", "multiclass", "multilabel"]), st.booleans())
def test_values_equal_the_metrics_of_the_tasks(seed: int, kind: str, ties: bool) -> None:
    made = random_predictions(kind, seed, ties=ties)
    named = {measure.metric: measure.value for measure in measures_of(made, [FIXED]) if measure.metric in METRICS}
    assert named
    for name, value in named.items():
        assert value == pytest.approx(METRICS[name](made.labels, made.probabilities)), name


@given(SEEDS)
def test_binary_f1_and_brier_equal_scikit_learn(seed: int) -> None:
    made = random_predictions("binary", seed)
    called = (made.probabilities >= 0.4).astype(int)
    assert value_of(forms.f1_form(made, 0.4), made) == pytest.approx(
        f1_score(made.labels, called, zero_division=0.0) if made.labels.any() else None
    )
    assert value_of(brier_form(made), made) == pytest.approx(brier_score_loss(made.labels, made.probabilities))


def test_prevalence_means_what_the_kind_says() -> None:
    binary = Predictions.of("binary", [1, 0, 0, 1, 1], [0.5] * 5)
    assert value_of(forms.share_form(binary), binary) == 0.6
    classes = Predictions.of("multiclass", [2, 2, 0], [[0.2, 0.3, 0.5]] * 3)
    assert value_of(forms.largest_class_form(classes), classes) == pytest.approx(2 / 3)
    sets = Predictions.of("multilabel", [[1, 1, 0, 0], [0, 0, 0, 0]], [[0.5] * 4] * 2)
    assert value_of(forms.share_form(sets), sets) == 0.25


def test_auroc_per_code_leaves_out_codes_that_everybody_or_nobody_has() -> None:
    made = Predictions.of("multilabel", [[1, 1, 0], [0, 1, 0]], [[0.9, 0.1, 0.2], [0.3, 0.4, 0.1]])
    assert value_of(forms.auroc_per_code_form(made), made) == 1.0
