"""Calibration: are the probabilities right? Brier score, expected calibration error, slope and intercept.

==========  =====================================  =====================================  ==============================
kind        Brier score, mean over instances of    calibration error compares             slope and intercept fit
==========  =====================================  =====================================  ==============================
binary      (p - y)²                               p with y                               logit P(y) = a + b logit p
multiclass  the sum over classes of (p - y)²       the highest p with being right         the same over all (instance,
                                                                                          class) pairs; slope only
multilabel  the mean over codes of (p - y)²        p with y over all (instance, code)     the same over all (instance,
                                                   pairs                                  code) pairs
==========  =====================================  =====================================  ==============================

Probabilities are cut to 1e-6 .. 1 - 1e-6 before their logit is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from patients_like_me.evaluation.intervals import Interval
from patients_like_me.plain_text import SMALLEST_SHOWN, is_small
from patients_like_me.tasks.forms import Floats, MetricForm, Scored, mean_form, patient_sums, quotient, ratio_form

#: Bins of equal width from 0 to 1 in which predicted and observed shares are compared.
BINS: Final = 10
_SMALLEST: Final = 1e-6
#: The largest number of groups of equal logits in a resample: the sums of (patient, group) must fit in memory.
_GROUPS: Final = 256
_STEPS: Final = 60
_STEEPEST: Final = 1e3


@dataclass(frozen=True)
class Bin:
    """One bin of a calibration curve: its bounds, how many pairs fell in, and what was predicted and observed.

    ``interval`` is that of the observed share, where patients were resampled.
    """

    low: float
    high: float
    number: int
    predicted: float
    observed: float
    interval: Interval | None = None


def shown_bins(bins: Sequence[Bin], *, people: bool) -> list[Bin]:
    """Return the bins that may be shown; where pairs are ``people``, few with or without the outcome are hidden too.

    >>> bins = [Bin(0.2, 0.3, number, 0.25, 0.2) for number in (10, 15, 60)]
    >>> [[each.number for each in shown_bins(bins, people=people)] for people in (True, False)]
    [[60], [15, 60]]
    """
    found = []
    for each in bins:
        events = round(each.observed * each.number)
        few = each.number < SMALLEST_SHOWN or (people and (is_small(events) or is_small(each.number - events)))
        found += [] if few else [each]
    return found


def brier_form(predictions: Scored) -> MetricForm:
    """Return the form of the Brier score.

    >>> from patients_like_me.tasks.kinds import MULTICLASS
    >>> made = Scored(MULTICLASS, np.array([0, 1]), np.array([[1.0, 0.0], [0.5, 0.5]]), np.arange(2))
    >>> brier_form(made)(np.ones((1, 2)))
    array([0.25])
    """
    return mean_form(predictions, predictions.kind.brier((predictions.columns - predictions.targets) ** 2))


def calibration_error_form(predictions: Scored) -> MetricForm:
    """Return the form of the expected calibration error over ten bins of equal width.

    The gaps between the mean predicted and the observed share of each bin, weighted by the bins' sizes.
    """
    probabilities, happened = predictions.kind.compared(predictions.labels, predictions.probabilities)
    bins = _bin_of(probabilities)
    gaps = np.zeros((len(predictions), BINS))
    rows = np.repeat(np.arange(len(predictions)), probabilities.shape[1])
    np.add.at(gaps, (rows, bins.ravel()), (probabilities - happened).ravel())
    gap_sums = patient_sums(predictions, gaps)
    pairs = patient_sums(predictions, np.full(len(predictions), float(probabilities.shape[1])))
    return lambda weights: quotient(np.abs(weights @ gap_sums).sum(axis=1), weights @ pairs)


def calibration_bins(predictions: Scored) -> list[Bin]:
    """Return the bins of the calibration curve that hold anything.

    >>> from patients_like_me.tasks.kinds import BINARY
    >>> made = Scored(BINARY, np.array([0, 1, 1]), np.array([0.31, 0.35, 0.9]), np.arange(3))
    >>> [(found.low, found.number, found.observed) for found in calibration_bins(made)]
    [(0.3, 2, 0.5), (0.9, 1, 1.0)]
    """
    pairs = predictions.kind.compared(predictions.labels, predictions.probabilities)
    probabilities, happened = (values.ravel() for values in pairs)
    bins = _bin_of(probabilities)
    numbers = np.bincount(bins, minlength=BINS)
    predicted, observed = (np.bincount(bins, values, minlength=BINS) for values in (probabilities, happened))
    return [
        Bin(at / BINS, (at + 1) / BINS, int(number), float(predicted[at] / number), float(observed[at] / number))
        for at, number in enumerate(numbers)
        if number
    ]


def bin_forms(predictions: Scored) -> dict[int, MetricForm]:
    """Return the form of the observed share of every bin that holds anything, by the number of the bin."""
    probabilities, happened = predictions.kind.compared(predictions.labels, predictions.probabilities)
    bins = _bin_of(probabilities)
    found = {}
    for number in np.unique(bins).tolist():
        inside = bins == number
        events, pairs = (happened * inside).sum(axis=1), inside.sum(axis=1).astype(np.float64)
        found[int(number)] = ratio_form(predictions, events, pairs)
    return found


def slope_form(predictions: Scored, *, groups: int = _GROUPS) -> MetricForm:
    """Return the form of the calibration slope: b in logit P(y) = a + b logit p, by maximum likelihood.

    In resamples logits are taken together in at most ``groups`` groups; the value itself is exact.
    """
    return _recalibration_form(predictions, groups, free_slope=True)


def intercept_form(predictions: Scored, *, groups: int = _GROUPS) -> MetricForm:
    """Return the form of the calibration in the large: a in logit P(y) = a + logit p, the slope held at 1."""
    return _recalibration_form(predictions, groups, free_slope=False)


def _bin_of(probabilities: Floats) -> npt.NDArray[np.int64]:
    return np.minimum((probabilities * BINS).astype(np.int64), BINS - 1)


def _recalibration_form(predictions: Scored, groups: int, *, free_slope: bool) -> MetricForm:
    probabilities = np.clip(predictions.columns, _SMALLEST, 1 - _SMALLEST)
    logits = np.log(probabilities / (1 - probabilities)).ravel()
    happened = predictions.targets.ravel()
    rows = np.repeat(predictions.patients, probabilities.shape[1])
    distinct, group_of = np.unique(logits, return_inverse=True)
    if len(distinct) > groups:
        # Groups of about equally many logits; each is represented by its mean.
        ranks = np.argsort(np.argsort(logits, kind="stable"), kind="stable")
        group_of = ranks * groups // len(logits)
        distinct = np.bincount(group_of, logits) / np.bincount(group_of)
    shape = (predictions.number_of_patients, len(distinct))
    place = rows * len(distinct) + group_of
    numbers = np.bincount(place, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)
    events = np.bincount(place, happened, minlength=shape[0] * shape[1]).reshape(shape)

    def form(weights: Floats) -> Floats:
        if len(weights) == 1 and (weights == 1).all():
            return _fit(logits, np.ones((1, len(logits))), happened[None], free_slope=free_slope)
        return _fit(distinct, weights @ numbers, weights @ events, free_slope=free_slope)

    return form


def _fit(logits: Floats, numbers: Floats, events: Floats, *, free_slope: bool) -> Floats:
    """Fit every row of (numbers, events) by Newton's method; return slopes, or intercepts where the slope is 1."""
    available = _has_both(numbers, events) if not free_slope else _is_mixed(logits, numbers, events)
    intercepts, slopes = np.zeros(len(numbers)), np.ones(len(numbers))
    if free_slope:
        # From a flat line Newton's method converges even where the slope is far from 1.
        shares = np.clip(quotient(events.sum(axis=1), numbers.sum(axis=1)), _SMALLEST, 1 - _SMALLEST)
        intercepts, slopes = np.log(shares / (1 - shares)), np.zeros(len(numbers))
    going = available.copy()
    for _ in range(_STEPS):
        rows = np.flatnonzero(going)
        if not len(rows):
            break
        line = intercepts[rows, None] + slopes[rows, None] * logits
        expected = 1 / (1 + np.exp(-np.clip(line, -500, 500)))
        rest = events[rows] - numbers[rows] * expected
        spread = numbers[rows] * expected * (1 - expected)
        first, information = rest.sum(axis=1), spread.sum(axis=1)
        if free_slope:
            second, cross = rest @ logits, spread @ logits
            square = spread @ logits**2
            determinant = information * square - cross**2
            with np.errstate(divide="ignore", invalid="ignore"):
                steps = (
                    (square * first - cross * second) / determinant,
                    (information * second - cross * first) / determinant,
                )
        else:
            with np.errstate(divide="ignore", invalid="ignore"):
                steps = (first / information, np.zeros(len(rows)))
        # Short steps keep a fit that starts far away from diverging.
        largest = np.maximum(np.abs(steps[0]), np.abs(steps[1]))
        shrink = np.minimum(1.0, 1.0 / np.maximum(largest, 1e-300))
        intercepts[rows] += steps[0] * shrink
        slopes[rows] += steps[1] * shrink
        lost = (
            ~np.isfinite(intercepts[rows]) | (np.abs(slopes[rows]) > _STEEPEST) | (np.abs(intercepts[rows]) > _STEEPEST)
        )
        available[rows[lost]] = False
        going[rows] = ~lost & (largest > 1e-9)
    available &= ~going
    return np.where(available, slopes if free_slope else intercepts, np.nan)


def _has_both(numbers: Floats, events: Floats) -> npt.NDArray[np.bool_]:
    return np.asarray((events.sum(axis=1) > 0) & ((numbers - events).sum(axis=1) > 0))


def _is_mixed(logits: Floats, numbers: Floats, events: Floats) -> npt.NDArray[np.bool_]:
    """Tell in which rows positives and negatives overlap: where a threshold separates them, no slope is the best."""

    def bounds(present: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
        return (
            np.where(present, logits, np.inf).min(axis=1, initial=np.inf),
            np.where(present, logits, -np.inf).max(axis=1, initial=-np.inf),
        )

    lowest_positive, highest_positive = bounds(events > 0)
    lowest_negative, highest_negative = bounds(numbers - events > 0)
    overlap = (lowest_positive < highest_negative) & (lowest_negative < highest_positive)
    return np.asarray(_has_both(numbers, events) & overlap)
