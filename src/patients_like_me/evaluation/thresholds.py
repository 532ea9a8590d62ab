"""Decision thresholds: a fixed one, and one tuned on validation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from patients_like_me.evaluation.definitions import definition_of
from patients_like_me.evaluation.predictions import Predictions
from patients_like_me.tasks.forms import value_of
from patients_like_me.tasks.kinds import PAPER_THRESHOLD

#: The thresholds among which a multi-label task chooses.
GRID: Final = tuple(number / 100 for number in range(1, 100))


@dataclass(frozen=True)
class Threshold:
    """A threshold, a short name for it, and in words where it comes from."""

    name: str
    value: float | None
    origin: str

    def as_json(self) -> dict[str, Any]:
        """Return the threshold as plain data."""
        return asdict(self)


FIXED: Final = Threshold("0.2", PAPER_THRESHOLD, "fixed, the paper's")


def tuned_threshold(validation: Predictions) -> Threshold:
    """Choose the threshold with the highest F1 on validation; of equal ones that nearest to the fixed 0.2.

    Binary tasks choose among the probabilities that occur (the exact optimum), multi-label tasks among 0.01 to 0.99
    in steps of 0.01 by the mean of F1 per instance. Test instances must not be given.

    >>> tuned_threshold(Predictions.of("binary", [0, 1, 1], [0.1, 0.3, 0.9])).value
    0.3
    """
    if validation.kind.tuned_for is None:
        return Threshold("tuned", None, "none: the most probable class is the answer")
    origin = f"tuned on validation: highest {validation.kind.tuned_for[1]}"
    if validation.probabilities.ndim == 1:
        return Threshold("tuned", _best_of_binary(validation), origin)
    scores = {number: f1_at(validation, number) for number in GRID}
    available = {number: value for number, value in scores.items() if value is not None}
    return Threshold("tuned", _best(available), origin)


def _best_of_binary(validation: Predictions) -> float | None:
    if not (validation.labels == 1).any():
        return None
    order = np.argsort(-validation.probabilities, kind="stable")
    ranked, hits = validation.probabilities[order], np.cumsum(validation.labels[order])
    ends = np.flatnonzero(np.append(ranked[:-1] != ranked[1:], True))
    scores = 2 * hits[ends] / (ends + 1 + hits[-1])
    return _best(dict(zip(ranked[ends].tolist(), scores.tolist(), strict=True)))


def _best(scores: dict[float, float]) -> float | None:
    if not scores:
        return None
    highest = max(scores.values())
    # Rounding must not decide between thresholds that do equally well.
    equal = [number for number, value in scores.items() if value >= highest - 1e-12]
    return min(equal, key=lambda number: (abs(number - PAPER_THRESHOLD), number))


def f1_at(predictions: Predictions, threshold: float) -> float | None:
    """Return the F1 that a threshold is tuned for, at some threshold."""
    if predictions.kind.tuned_for is None:
        return None
    form_at = definition_of(predictions.kind, predictions.kind.tuned_for[0]).form_at
    return None if form_at is None else value_of(form_at(predictions, threshold), predictions)
