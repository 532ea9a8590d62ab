"""Metrics as functions of patient weights: one preparation, then the value of every resample.

A form takes weights [resamples, patients], how often each patient was drawn, and returns one value per resample, NaN
where the metric is not available in it. Weights of one give the value itself. Where a metric is a mean or a ratio
of sums, the sums of each patient are all that is kept, and a resample costs one product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from patients_like_me.evaluation.predictions import Predictions
from patients_like_me.evaluation.resampled_curves import auroc_of_resamples, average_precision_of_resamples
from patients_like_me.tasks.metrics import average_precision_of_instances, set_sizes

Floats = npt.NDArray[np.float64]
Form = Callable[[Floats], Floats]


def value_of(form: Form, predictions: Predictions) -> float | None:
    """Return the value of a form over all patients, None where it is not available.

    >>> made, one_class = Predictions.of("binary", [0, 1], [0.1, 0.8]), Predictions.of("binary", [1, 1], [0.1, 0.8])
    >>> value_of(auroc_form(made), made), value_of(auroc_form(one_class), one_class)
    (1.0, None)
    """
    if not len(predictions):
        return None
    value = float(form(np.ones((1, predictions.number_of_patients)))[0])
    return None if np.isnan(value) else value


def patient_sums(predictions: Predictions, values: npt.NDArray[Any]) -> Floats:
    """Add up the values of each patient's instances: [N] to [patients], or [N, width] to [patients, width]."""
    values = np.asarray(values, dtype=np.float64)
    sums = np.zeros((predictions.number_of_patients, *values.shape[1:]))
    np.add.at(sums, predictions.patients, values)
    return sums


def ratio_form(predictions: Predictions, part: npt.NDArray[Any], whole: npt.NDArray[Any]) -> Form:
    """Return the form of sum(part) / sum(whole) over instances."""
    parts, wholes = patient_sums(predictions, part), patient_sums(predictions, whole)

    def form(weights: Floats) -> Floats:
        return quotient(weights @ parts, weights @ wholes)

    return form


def mean_form(predictions: Predictions, values: npt.NDArray[Any]) -> Form:
    """Return the form of the mean over instances; instances with a NaN are left out of it."""
    counted = ~np.isnan(np.asarray(values, dtype=np.float64))
    return ratio_form(predictions, np.where(counted, values, 0.0), counted)


def quotient(part: Floats, whole: Floats) -> Floats:
    """Divide; NaN where there is nothing to divide by."""
    result: Floats = np.divide(part, whole, out=np.full(np.broadcast(part, whole).shape, np.nan), where=whole > 0)
    return result


def auroc_form(predictions: Predictions) -> Form:
    """Return the form of the AUROC of a binary task."""
    positive = predictions.labels == 1
    return lambda weights: auroc_of_resamples(positive, predictions.probabilities, predictions.patients, weights)


def auprc_form(predictions: Predictions) -> Form:
    """Return the form of the average precision of a binary task."""
    positive = predictions.labels == 1
    return lambda weights: average_precision_of_resamples(
        positive, predictions.probabilities, predictions.patients, weights
    )


def auroc_weighted_form(predictions: Predictions) -> Form:
    """Return the form of the one-versus-rest AUROC, weighted by the frequency of the classes that have one."""
    frequency = patient_sums(predictions, one_hot(predictions))

    def form(weights: Floats) -> Floats:
        areas = _of_outputs(predictions, auroc_of_resamples, weights)
        frequencies = weights @ frequency
        available = ~np.isnan(areas)
        return quotient((np.nan_to_num(areas) * frequencies).sum(axis=1), (frequencies * available).sum(axis=1))

    return form


def auprc_macro_form(predictions: Predictions) -> Form:
    """Return the form of the plain mean over classes of the one-versus-rest average precision."""
    return lambda weights: _mean_of_available(_of_outputs(predictions, average_precision_of_resamples, weights))


def auroc_per_code_form(predictions: Predictions) -> Form:
    """Return the form of the plain mean over codes of the AUROC among instances."""
    return lambda weights: _mean_of_available(_of_outputs(predictions, auroc_of_resamples, weights))


def f1_macro_form(predictions: Predictions) -> Form:
    """Return the form of the mean of F1 over the classes that are true or predicted somewhere."""
    true = one_hot(predictions)
    guessed = np.eye(predictions.number_of_outputs)[predictions.probabilities.argmax(axis=1)]
    both, either = patient_sums(predictions, true * guessed), patient_sums(predictions, true + guessed)
    return lambda weights: _mean_of_available(quotient(2 * (weights @ both), weights @ either))


def f1_form(predictions: Predictions, threshold: float) -> Form:
    """Return the form of F1 of the positive class of a binary task; not available without a positive instance."""
    true, called = predictions.labels == 1, predictions.probabilities >= threshold
    positives = patient_sums(predictions, true)
    ratio = ratio_form(predictions, 2.0 * (true & called), true.astype(float) + called)
    return lambda weights: np.where(weights @ positives > 0, ratio(weights), np.nan)


def auprc_per_instance_form(predictions: Predictions) -> Form:
    """Return the form of the mean over instances of the average precision of their ranked codes."""
    return mean_form(predictions, average_precision_of_instances(predictions.labels, predictions.probabilities))


def f1_per_instance_form(predictions: Predictions, threshold: float) -> Form:
    """Return the form of the mean over instances of F1 between the true and the recommended set."""
    both, true, recommended = set_sizes(predictions.labels, predictions.probabilities, threshold)
    return _set_form(predictions, 2 * both, true + recommended, true)


def jaccard_per_instance_form(predictions: Predictions, threshold: float) -> Form:
    """Return the form of the mean over instances of the Jaccard index of the true and the recommended set."""
    both, true, recommended = set_sizes(predictions.labels, predictions.probabilities, threshold)
    return _set_form(predictions, both, true + recommended - both, true)


def prevalence_form(predictions: Predictions) -> Form:
    """Return the form of how common a positive is: of instances, of the largest class, or of an instance's codes."""
    if predictions.kind == "multiclass":
        frequency = patient_sums(predictions, one_hot(predictions))
        return lambda weights: quotient((weights @ frequency).max(axis=1), (weights @ frequency).sum(axis=1))
    labels = predictions.labels.astype(np.float64)
    return mean_form(predictions, labels if predictions.kind == "binary" else labels.mean(axis=1))


def one_hot(predictions: Predictions) -> Floats:
    """Return the labels as a 0/1 matrix with a column per output."""
    if predictions.kind == "multiclass":
        return np.eye(predictions.number_of_outputs)[predictions.labels]
    return predictions.labels.reshape(len(predictions), -1).astype(np.float64)


def _set_form(
    predictions: Predictions, part: npt.NDArray[np.int64], whole: npt.NDArray[np.int64], true: npt.NDArray[np.int64]
) -> Form:
    """Average part / whole over the instances that have a true code."""
    return mean_form(predictions, np.where(true > 0, part / np.maximum(whole, 1), np.nan))


def _of_outputs(predictions: Predictions, curve: Callable[..., Floats], weights: Floats) -> Floats:
    """Return a curve's area for every output: [resamples, outputs]."""
    true = one_hot(predictions).T > 0
    columns = np.ascontiguousarray(predictions.probabilities.T)
    areas = [curve(true[at], columns[at], predictions.patients, weights) for at in range(len(columns))]
    return np.stack(areas, axis=1) if areas else np.full((len(weights), 0), np.nan)


def _mean_of_available(values: Floats) -> Floats:
    return quotient(np.nan_to_num(values).sum(axis=1), (~np.isnan(values)).sum(axis=1).astype(np.float64))
