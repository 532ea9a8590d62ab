"""How often two drugs of a recommended set are known to interact, and how often nobody knows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from patients_like_me.codes.interactions import Interactions
from patients_like_me.evaluation.predictions import Predictions
from patients_like_me.tasks.forms import MetricForm, ratio_form


@dataclass(frozen=True)
class PairCounts:
    """Per instance the pairs of codes in its set: all, those the table covers, and those that interact."""

    pairs: npt.NDArray[np.int64]
    known: npt.NDArray[np.int64]
    interacting: npt.NDArray[np.int64]


def count_pairs(sets: npt.NDArray[np.bool_], codes: tuple[str, ...], interactions: Interactions) -> PairCounts:
    """Count the pairs of each row of a 0/1 matrix over ``codes``; a code outside the table makes a pair unknown.

    >>> table = Interactions(frozenset({("A01A", "B03B")}), frozenset({"A01A", "B03B", "C07A"}))
    >>> found = count_pairs(np.array([[True, True, True]]), ("A01A", "B03B", "Z99Z"), table)
    >>> found.pairs.tolist(), found.known.tolist(), found.interacting.tolist()
    ([3], [1], [1])
    """
    covered = np.array([code in interactions.covered for code in codes], dtype=bool)
    matrix = interactions.matrix(codes).astype(np.float64)
    chosen = sets.astype(np.float64)
    interacting = ((chosen @ matrix) * chosen).sum(axis=1) / 2
    return PairCounts(
        pairs=_pairs_of(sets.sum(axis=1)),
        known=_pairs_of((sets & covered).sum(axis=1)),
        interacting=interacting.round().astype(np.int64),
    )


def interaction_rate_form(predictions: Predictions, interactions: Interactions, threshold: float | None) -> MetricForm:
    """Return the form of interacting pairs / known pairs of the recommended sets (the true ones without threshold)."""
    counts = count_pairs(_sets(predictions, threshold), predictions.outputs, interactions)
    return ratio_form(predictions, counts.interacting, counts.known)


def unknown_share_form(predictions: Predictions, interactions: Interactions, threshold: float | None) -> MetricForm:
    """Return the form of the share of pairs of which the table knows nothing."""
    counts = count_pairs(_sets(predictions, threshold), predictions.outputs, interactions)
    return ratio_form(predictions, counts.pairs - counts.known, counts.pairs)


def _sets(predictions: Predictions, threshold: float | None) -> npt.NDArray[np.bool_]:
    chosen = predictions.labels > 0 if threshold is None else predictions.probabilities >= threshold
    return np.asarray(chosen, dtype=bool)


def _pairs_of(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.asarray(sizes * (sizes - 1) // 2, dtype=np.int64)
