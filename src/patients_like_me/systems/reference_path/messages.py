"""Messages: what the outcomes of an instance's references say beyond what their own records suggested.

    m^r_ik = sum_j A^r_ij R_jk / (sum_j A^r_ij I_jk + lambda_rk)

R_j = y_j - p(u_j) is the residual of reference j under an own path that did not know y_j. I_jk is 1 ("degree": the
denominator is the degree d^r_i and the message a shrunken mean residual) or p_jk (1 - p_jk) ("information": the message
is one Newton step of a local intercept, so a rare output moves as far on the logit scale as a frequent one).
lambda_r is half the median degree, times the mean of I_k: an instance with few or weak references is corrected less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from patients_like_me.systems.reference_path.links import Array, probabilities, residuals
from patients_like_me.systems.reference_path.relations import Neighbours, Relation, raised

Denominator = Literal["degree", "information"]


@dataclass(frozen=True)
class BankOutcomes:
    """What the bank's instances send: residuals R [J, K], and I [J, K], or None where it is 1."""

    residuals: Array
    information: Array | None = None


def bank_outcomes(targets: Array, logits: Array, *, exclusive: bool, denominator: Denominator) -> BankOutcomes:
    """Return R and I of bank instances from their outcomes y and their out-of-fold answers u."""
    chances = probabilities(logits, exclusive)
    information = chances * (1.0 - chances) if denominator == "information" else None
    return BankOutcomes(residuals(targets, logits, exclusive), information)


def half_median_degree(neighbours: Neighbours, relation: Relation) -> float:
    """Return lambda_r from lists in the whole bank; instances without a reference do not count."""
    degree = relation.weights(neighbours).sum(axis=1)
    return 0.5 * float(np.median(degree[degree > 0])) if (degree > 0).any() else 1.0


def floors(lambdas: npt.NDArray[np.float64], outcomes: BankOutcomes) -> npt.NDArray[np.float64]:
    """Return lambda_rk [R, K] (or [R, 1] where I is 1)."""
    if outcomes.information is None:
        return lambdas[:, None]
    found: npt.NDArray[np.float64] = lambdas[:, None] * outcomes.information.mean(axis=0, dtype=np.float64)[None, :]
    return found


def messages(
    lists: Mapping[str, Neighbours],
    relations: Sequence[Relation],
    lambdas: npt.NDArray[np.float64],
    outcomes: BankOutcomes,
) -> Array:
    """Return m [R, N, K] in the precision of the residuals.

    Relations of one similarity and power are read off one pass over the list: the first k of a longer list are the
    shorter one.

    >>> lists = {"codes": Neighbours(np.array([[1, 0]], np.int32), np.array([[1.0, 0.5]], np.float32))}
    >>> outcomes = BankOutcomes(np.array([[0.8], [-0.2]]))
    >>> messages(lists, [Relation("codes", 1), Relation("codes", 2)], np.array([1.0, 0.5]), outcomes).ravel().tolist()
    [-0.1, 0.1]
    """
    first = next(iter(lists.values()))
    dtype = outcomes.residuals.dtype
    found = np.zeros((len(relations), len(first.columns), outcomes.residuals.shape[1]), dtype)
    least = floors(lambdas, outcomes)
    for similarity, power in dict.fromkeys((relation.similarity, relation.power) for relation in relations):
        places = [
            n for n, relation in enumerate(relations) if (relation.similarity, relation.power) == (similarity, power)
        ]
        neighbours = lists[similarity]
        weights = raised(neighbours.similarities, power).astype(dtype)
        numerator = np.zeros(found.shape[1:], dtype)
        total = np.zeros(found.shape[1:] if outcomes.information is not None else (len(weights), 1), dtype)
        start = 0
        for place in sorted(places, key=lambda n: relations[n].k):
            end = relations[place].k
            numerator += _product(neighbours.columns, weights, start, end, outcomes.residuals)
            if outcomes.information is None:
                total += weights[:, start:end].sum(axis=1, keepdims=True)
            else:
                total += _product(neighbours.columns, weights, start, end, outcomes.information)
            found[place] = numerator / (total + least[place].astype(dtype))
            start = end
    return found


def _product(columns: npt.NDArray[np.int32], weights: Array, start: int, end: int, sent: Array) -> Array:
    """Return sum_j A_ij X_jk over the places start to end of every list."""
    from scipy.sparse import csr_array

    size, width = len(columns), min(end, columns.shape[1]) - start
    if width <= 0:
        return np.zeros((size, sent.shape[1]), sent.dtype)
    pointers = np.arange(0, size * width + 1, width, dtype=np.int64)
    parts = (weights[:, start:end].ravel(), columns[:, start:end].ravel().astype(np.int64), pointers)
    product: Array = csr_array(parts, shape=(size, len(sent))) @ sent
    return product
