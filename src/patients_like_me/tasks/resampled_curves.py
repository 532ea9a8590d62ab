"""AUROC and average precision of many resamples of patients at once, from one sorting.

A resample gives every patient a weight, how often the patient was drawn. Going once through the instances in the order
of their probabilities then gives the area exactly as scikit-learn does with these sample weights, ties included.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from patients_like_me.workers import kernel

Floats = npt.NDArray[np.float64]


def auroc_of_resamples(
    positive: npt.NDArray[np.bool_], scores: Floats, patients: npt.NDArray[np.int64], weights: Floats
) -> Floats:
    """Return the AUROC under each row of ``weights`` [resamples, patients]; NaN where one class is missing.

    >>> auroc_of_resamples(np.array([False, True]), np.array([0.1, 0.9]), np.array([0, 1]), np.ones((1, 2)))
    array([1.])
    """
    order = np.argsort(scores, kind="stable")
    areas: Floats = _areas_below(*_sorted_by(order, positive, scores, patients), weights)
    return areas


def average_precision_of_resamples(
    positive: npt.NDArray[np.bool_], scores: Floats, patients: npt.NDArray[np.int64], weights: Floats
) -> Floats:
    """Return the average precision under each row of ``weights``; NaN where one class is missing."""
    order = np.argsort(-scores, kind="stable")
    precisions: Floats = _average_precisions(*_sorted_by(order, positive, scores, patients), weights)
    return precisions


def _sorted_by(
    order: npt.NDArray[np.int64],
    positive: npt.NDArray[np.bool_],
    scores: Floats,
    patients: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    ranked = scores[order]
    ends_tie = np.ones(len(ranked), dtype=np.bool_)
    ends_tie[:-1] = ranked[:-1] != ranked[1:]
    return positive[order], patients[order], ends_tie


@kernel
def _areas_below(
    positive: npt.NDArray[np.bool_], patients: npt.NDArray[np.int64], ends_tie: npt.NDArray[np.bool_], weights: Floats
) -> Floats:
    areas = np.empty(weights.shape[0])
    for resample in range(weights.shape[0]):
        area, positives, negatives, tied_positives, tied_negatives = 0.0, 0.0, 0.0, 0.0, 0.0
        for place in range(len(positive)):
            weight = weights[resample, patients[place]]
            if positive[place]:
                tied_positives += weight
            else:
                tied_negatives += weight
            if ends_tie[place]:
                area += tied_positives * (negatives + tied_negatives / 2)
                positives += tied_positives
                negatives += tied_negatives
                tied_positives, tied_negatives = 0.0, 0.0
        areas[resample] = area / (positives * negatives) if positives > 0 and negatives > 0 else np.nan
    return areas


@kernel
def _average_precisions(
    positive: npt.NDArray[np.bool_], patients: npt.NDArray[np.int64], ends_tie: npt.NDArray[np.bool_], weights: Floats
) -> Floats:
    precisions = np.empty(weights.shape[0])
    for resample in range(weights.shape[0]):
        total, positives, everyone, tied_positives = 0.0, 0.0, 0.0, 0.0
        for place in range(len(positive)):
            weight = weights[resample, patients[place]]
            everyone += weight
            if positive[place]:
                tied_positives += weight
            if ends_tie[place]:
                if tied_positives > 0:
                    positives += tied_positives
                    total += tied_positives * positives / everyone
                tied_positives = 0.0
        both = positives > 0 and everyone > positives
        precisions[resample] = total / positives if both else np.nan
    return precisions
