"""The metrics that tasks name, as pure functions of labels and probabilities; None where one is not available.

Averages are part of a metric's name: ``..._per_instance`` is computed for each instance's set of codes and averaged
over the instances that have a code, ``..._macro`` is the plain mean over classes, ``..._weighted`` the mean weighted
by how often a class occurs. A class without both positives and negatives has no curve and is left out of the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError

#: The paper's threshold for calling a drug recommended.
PAPER_THRESHOLD: Final = 0.2

Labels = npt.NDArray[np.int64]
Probabilities = npt.NDArray[np.floating[Any]]


def auprc(labels: Labels, probabilities: Probabilities) -> float | None:
    """Return the average precision of one yes-or-no label.

    >>> auprc(np.array([0, 1, 1]), np.array([0.2, 0.9, 0.1]))
    0.8333333333333333
    """
    from sklearn.metrics import average_precision_score

    if len(np.unique(labels)) < 2:
        return None
    return float(average_precision_score(labels, probabilities))


def auroc(labels: Labels, probabilities: Probabilities) -> float | None:
    """Return the area under the receiver operating characteristic of one yes-or-no label."""
    from sklearn.metrics import roc_auc_score

    if len(np.unique(labels)) < 2:
        return None
    return float(roc_auc_score(labels, probabilities))


def auroc_weighted(labels: Labels, probabilities: Probabilities) -> float | None:
    """Return the one-versus-rest AUROC of each class, weighted by the class's frequency."""
    scores = _per_class(auroc, labels, probabilities)
    weights = {number: float((labels == number).sum()) for number in scores}
    if not scores:
        return None
    return sum(scores[number] * weights[number] for number in scores) / sum(weights.values())


def auprc_macro(labels: Labels, probabilities: Probabilities) -> float | None:
    """Return the mean over classes of the one-versus-rest average precision."""
    scores = _per_class(auprc, labels, probabilities)
    return float(np.mean(list(scores.values()))) if scores else None


def f1_macro(labels: Labels, probabilities: Probabilities) -> float | None:
    """Return the mean over classes of F1, the predicted class being the most probable one."""
    from sklearn.metrics import f1_score

    if not len(labels):
        return None
    return float(f1_score(labels, probabilities.argmax(axis=1), average="macro", zero_division=0.0))


def auprc_per_instance(labels: Labels, probabilities: Probabilities) -> float | None:
    """Return the mean over instances of the average precision of their ranked codes; ties share one rank.

    >>> auprc_per_instance(np.array([[1, 0, 1], [0, 0, 0]]), np.array([[0.9, 0.8, 0.7], [0.1, 0.1, 0.1]]))
    0.8333333333333333
    """
    values = average_precision_of_instances(labels, probabilities)
    available = values[~np.isnan(values)]
    return float(available.mean()) if len(available) else None


def average_precision_of_instances(labels: Labels, probabilities: Probabilities) -> npt.NDArray[np.float64]:
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


def f1_per_instance(labels: Labels, probabilities: Probabilities, threshold: float = PAPER_THRESHOLD) -> float | None:
    """Return the mean over instances of F1 between the true and the recommended set."""
    both, true, recommended = set_sizes(labels, probabilities, threshold)
    return _mean_of(2 * both, true + recommended, true)


def jaccard_per_instance(
    labels: Labels, probabilities: Probabilities, threshold: float = PAPER_THRESHOLD
) -> float | None:
    """Return the mean over instances of the Jaccard index between the true and the recommended set.

    >>> jaccard_per_instance(np.array([[1, 1, 0]]), np.array([[0.9, 0.1, 0.3]]))
    0.3333333333333333
    """
    both, true, recommended = set_sizes(labels, probabilities, threshold)
    return _mean_of(both, true + recommended - both, true)


METRICS: Final[Mapping[str, Callable[[Labels, Probabilities], float | None]]] = {
    metric.__name__: metric
    for metric in (
        auprc,
        auroc,
        auroc_weighted,
        auprc_macro,
        f1_macro,
        auprc_per_instance,
        f1_per_instance,
        jaccard_per_instance,
    )
}


def score(names: tuple[str, ...], labels: Labels, probabilities: Probabilities) -> dict[str, float | None]:
    """Return the named metrics of one set of predictions."""
    if not np.isfinite(probabilities).all() or (probabilities < 0).any() or (probabilities > 1).any():
        raise PlmError("a probability is outside 0 to 1", remedy="the predictions are damaged: make them anew")
    return {name: METRICS[name](labels, probabilities) for name in names}


def _per_class(
    metric: Callable[[Labels, Probabilities], float | None], labels: Labels, probabilities: Probabilities
) -> dict[int, float]:
    scores = {
        number: metric((labels == number).astype(np.int64), probabilities[:, number])
        for number in range(probabilities.shape[1])
    }
    return {number: value for number, value in scores.items() if value is not None}


def set_sizes(
    labels: Labels, probabilities: Probabilities, threshold: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return per instance how many codes are both true and recommended, true, and recommended.

    >>> [sizes.tolist() for sizes in set_sizes(np.array([[1, 1, 0]]), np.array([[0.9, 0.1, 0.3]]), 0.2)]
    [[1], [2], [2]]
    """
    recommended = probabilities >= threshold
    true = labels.astype(bool)
    return (true & recommended).sum(axis=1), true.sum(axis=1), recommended.sum(axis=1)


def _mean_of(part: npt.NDArray[np.int64], whole: npt.NDArray[np.int64], true: npt.NDArray[np.int64]) -> float | None:
    """Average part / whole over the instances that have a true code."""
    counted = true > 0
    return float((part[counted] / whole[counted]).mean()) if counted.any() else None
