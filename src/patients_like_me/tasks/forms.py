"""Metrics as functions of patient weights: one preparation, then the value of every resample.

A form takes weights [resamples, patients], how often each patient was drawn, and returns one value per resample, NaN
where the metric is not available in it. Weights of one give the value itself, which is how every score is computed.
Where a metric is a mean or a ratio of sums, the sums of each patient are all that is kept, and a resample costs one
product.

Averages are part of a metric's name: ``..._per_instance`` is computed for each instance's set of codes and averaged
over the instances that have a code, ``..._macro`` is the plain mean over classes, ``..._weighted`` the mean weighted
by how often a class occurs. A class without both positives and negatives has no curve and is left out of the mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from patients_like_me.tasks.kinds import LabelKind

Floats = npt.NDArray[np.float64]
MetricForm = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Scored:
    """Labels and probabilities of some instances, with the patient of each.

    ``labels`` is an integer per instance, or for multi-label tasks a 0/1 matrix; ``probabilities`` is one number per
    instance for a binary task, else a matrix with a column per output. ``patients`` numbers the patients from 0.
    """

    kind: LabelKind
    labels: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float64]
    patients: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def number_of_patients(self) -> int:
        """The number of different patients."""
        return int(self.patients.max()) + 1 if len(self.patients) else 0

    @cached_property
    def columns(self) -> Floats:
        """The probabilities with a column per output, [N, outputs]."""
        return self.kind.in_columns(self.probabilities)

    @cached_property
    def targets(self) -> Floats:
        """The labels as a 0/1 matrix with a column per output."""
        return self.kind.targets(self.labels, self.columns.shape[1])


def value_of(form: MetricForm, scored: Scored) -> float | None:
    """Return the value of a form over all patients, None where it is not available.

    >>> from patients_like_me.tasks.kinds import BINARY
    >>> made = Scored(BINARY, np.array([0, 1]), np.array([0.1, 0.8]), np.arange(2))
    >>> value_of(auroc_form(made), made)
    1.0
    """
    if not len(scored):
        return None
    value = float(form(np.ones((1, scored.number_of_patients)))[0])
    return None if np.isnan(value) else value


def patient_sums(scored: Scored, values: npt.NDArray[Any]) -> Floats:
    """Add up the values of each patient's instances: [N] to [patients], or [N, width] to [patients, width]."""
    values = np.asarray(values, dtype=np.float64)
    sums = np.zeros((scored.number_of_patients, *values.shape[1:]))
    np.add.at(sums, scored.patients, values)
    return sums


def ratio_form(scored: Scored, part: npt.NDArray[Any], whole: npt.NDArray[Any]) -> MetricForm:
    """Return the form of sum(part) / sum(whole) over instances."""
    parts, wholes = patient_sums(scored, part), patient_sums(scored, whole)

    def form(weights: Floats) -> Floats:
        return quotient(weights @ parts, weights @ wholes)

    return form


def mean_form(scored: Scored, values: npt.NDArray[Any]) -> MetricForm:
    """Return the form of the mean over instances; instances with a NaN are left out of it."""
    counted = ~np.isnan(np.asarray(values, dtype=np.float64))
    return ratio_form(scored, np.where(counted, values, 0.0), counted)


def quotient(part: Floats, whole: Floats) -> Floats:
    """Divide; NaN where there is nothing to divide by."""
    result: Floats = np.divide(part, whole, out=np.full(np.broadcast(part, whole).shape, np.nan), where=whole > 0)
    return result


def auroc_form(scored: Scored) -> MetricForm:
    """Return the form of the AUROC of a binary task."""
    return lambda weights: _of_outputs(scored, "auroc_of_resamples", weights)[:, 0]


def auprc_form(scored: Scored) -> MetricForm:
    """Return the form of the average precision of a binary task."""
    return lambda weights: _of_outputs(scored, "average_precision_of_resamples", weights)[:, 0]


def auroc_weighted_form(scored: Scored) -> MetricForm:
    """Return the form of the one-versus-rest AUROC, weighted by the frequency of the classes that have one."""
    frequency = patient_sums(scored, scored.targets)

    def form(weights: Floats) -> Floats:
        areas = _of_outputs(scored, "auroc_of_resamples", weights)
        frequencies = weights @ frequency
        available = ~np.isnan(areas)
        return quotient((np.nan_to_num(areas) * frequencies).sum(axis=1), (frequencies * available).sum(axis=1))

    return form


def auprc_macro_form(scored: Scored) -> MetricForm:
    """Return the form of the plain mean over classes of the one-versus-rest average precision."""
    return lambda weights: _mean_of_available(_of_outputs(scored, "average_precision_of_resamples", weights))


def auroc_per_code_form(scored: Scored) -> MetricForm:
    """Return the form of the plain mean over codes of the AUROC among instances."""
    return lambda weights: _mean_of_available(_of_outputs(scored, "auroc_of_resamples", weights))


def f1_macro_form(scored: Scored) -> MetricForm:
    """Return the form of the mean of F1 over the classes that are true or predicted somewhere."""
    true = scored.targets
    guessed = np.eye(scored.columns.shape[1])[scored.probabilities.argmax(axis=1)]
    both, either = patient_sums(scored, true * guessed), patient_sums(scored, true + guessed)
    return lambda weights: _mean_of_available(quotient(2 * (weights @ both), weights @ either))


def f1_form(scored: Scored, threshold: float) -> MetricForm:
    """Return the form of F1 of the positive class of a binary task; not available without a positive instance."""
    true, called = scored.labels == 1, scored.probabilities >= threshold
    positives = patient_sums(scored, true)
    ratio = ratio_form(scored, 2.0 * (true & called), true.astype(float) + called)
    return lambda weights: np.where(weights @ positives > 0, ratio(weights), np.nan)


def auprc_per_instance_form(scored: Scored) -> MetricForm:
    """Return the form of the mean over instances of the average precision of their ranked codes."""
    return mean_form(scored, average_precision_of_instances(scored.labels, scored.probabilities))


def f1_per_instance_form(scored: Scored, threshold: float) -> MetricForm:
    """Return the form of the mean over instances of F1 between the true and the recommended set."""
    both, true, recommended = set_sizes(scored.labels, scored.probabilities, threshold)
    return _set_form(scored, 2 * both, true + recommended, true)


def jaccard_per_instance_form(scored: Scored, threshold: float) -> MetricForm:
    """Return the form of the mean over instances of the Jaccard index of the true and the recommended set."""
    both, true, recommended = set_sizes(scored.labels, scored.probabilities, threshold)
    return _set_form(scored, both, true + recommended - both, true)


def share_form(scored: Scored) -> MetricForm:
    """Return the form of how common a positive is: among instances, or among the codes of an instance."""
    return mean_form(scored, scored.targets.mean(axis=1))


def largest_class_form(scored: Scored) -> MetricForm:
    """Return the form of the share of the largest class."""
    frequency = patient_sums(scored, scored.targets)
    return lambda weights: quotient((weights @ frequency).max(axis=1), (weights @ frequency).sum(axis=1))


def average_precision_of_instances(labels: npt.NDArray[np.int64], probabilities: npt.NDArray[Any]) -> Floats:
    """Return the average precision of each instance's ranked codes; NaN for one without a code.

    >>> average_precision_of_instances(np.array([[1, 0, 1], [0, 0, 0]]), np.array([[0.9, 0.8, 0.7]] * 2)).round(3)
    array([0.833,   nan])
    """
    values = np.full(len(labels), np.nan)
    has_code = labels.sum(axis=1) > 0
    if not has_code.any():
        return values
    chosen, scores = labels[has_code], probabilities[has_code]
    order = np.argsort(-scores, axis=1, kind="stable")
    ranked = np.take_along_axis(scores, order, axis=1)
    hits = np.take_along_axis(chosen, order, axis=1)
    width = scores.shape[1]
    ends_group = np.ones_like(ranked, dtype=bool)
    ends_group[:, :-1] = ranked[:, :-1] != ranked[:, 1:]
    end = np.where(ends_group, np.arange(width), width)
    end = np.minimum.accumulate(end[:, ::-1], axis=1)[:, ::-1]
    precision = np.take_along_axis(hits.cumsum(axis=1), end, axis=1) / (end + 1)
    values[has_code] = (precision * hits).sum(axis=1) / hits.sum(axis=1)
    return values


def set_sizes(
    labels: npt.NDArray[np.int64], probabilities: npt.NDArray[Any], threshold: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return per instance how many codes are both true and recommended, true, and recommended.

    >>> [sizes.tolist() for sizes in set_sizes(np.array([[1, 1, 0]]), np.array([[0.9, 0.1, 0.3]]), 0.2)]
    [[1], [2], [2]]
    """
    recommended = probabilities >= threshold
    true = labels.astype(bool)
    return (true & recommended).sum(axis=1), true.sum(axis=1), recommended.sum(axis=1)


def _set_form(
    scored: Scored, part: npt.NDArray[np.int64], whole: npt.NDArray[np.int64], true: npt.NDArray[np.int64]
) -> MetricForm:
    """Average part / whole over the instances that have a true code."""
    return mean_form(scored, np.where(true > 0, part / np.maximum(whole, 1), np.nan))


def _of_outputs(
    scored: Scored, curve: Literal["auroc_of_resamples", "average_precision_of_resamples"], weights: Floats
) -> Floats:
    """Return a curve's area for every output: [resamples, outputs]."""
    # Compiled kernels are slow to import, so only those who need a curve do.
    from patients_like_me.tasks import resampled_curves

    area_of: Callable[..., Floats] = getattr(resampled_curves, curve)
    true = scored.targets.T > 0
    columns = np.ascontiguousarray(scored.columns.T)
    areas = [area_of(true[at], columns[at], scored.patients, weights) for at in range(len(columns))]
    return np.stack(areas, axis=1) if areas else np.full((len(weights), 0), np.nan)


def _mean_of_available(values: Floats) -> Floats:
    return quotient(np.nan_to_num(values).sum(axis=1), (~np.isnan(values)).sum(axis=1).astype(np.float64))
