"""Messages: what the outcomes of an instance's references say beyond what their own records suggested.

    m^r_ik = sum_j A^r_ij R_jk / (d^r_i + lambda_r),        d^r_i = sum_j A^r_ij

R_j = y_j - p(u_j) is the residual of reference j under an own path that did not know y_j. lambda_r is half the median
degree: a message is a mean residual that is shrunk towards 0 where an instance has few or weak references.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from patients_like_me.systems.reference_path.links import Array
from patients_like_me.systems.reference_path.relations import Neighbours, Relation, Sent, raised, sent_by


def half_median_degree(neighbours: Neighbours, relation: Relation) -> float:
    """Return lambda_r from lists in the whole bank; instances without a reference do not count."""
    degree = relation.weights(neighbours).sum(axis=1)
    return 0.5 * float(np.median(degree[degree > 0])) if (degree > 0).any() else 1.0


def messages(
    lists: Mapping[str, Neighbours],
    relations: Sequence[Relation],
    lambdas: npt.NDArray[np.float64],
    sent: Sent,
) -> Array:
    """Return m [R, N, K], in the precision of what the bank sends [J, K]: its residuals.

    Relations of one similarity and power are read off one pass over the list: its first k are those of a shorter list.

    >>> lists = {"codes": Neighbours(np.array([[1, 0]], np.int32), np.array([[1.0, 0.5]], np.float32))}
    >>> sent = np.array([[0.8], [-0.2]])
    >>> messages(lists, [Relation("codes", 1), Relation("codes", 2)], np.array([1.0, 0.5]), sent).ravel().tolist()
    [-0.1, 0.1]
    """
    size = len(next(iter(lists.values())).columns)
    first = next(iter(sent.values())) if isinstance(sent, Mapping) else sent
    dtype = first.dtype
    found = np.zeros((len(relations), size, first.shape[1]), dtype)
    groups: dict[tuple[str, float, str], list[int]] = {}
    for number, relation in enumerate(relations):
        groups.setdefault((relation.similarity, relation.power, relation.sends), []).append(number)
    for (similarity, power, _), chosen in groups.items():
        neighbours, residuals = lists[similarity], sent_by(sent, relations[chosen[0]])
        weights = raised(neighbours.similarities, power).astype(dtype)
        total, degree, start = np.zeros(found.shape[1:], dtype), np.zeros((size, 1), dtype), 0
        for place in sorted(chosen, key=lambda n: relations[n].k):
            end = min(relations[place].k, weights.shape[1])
            total += _product(neighbours.columns[:, start:end], weights[:, start:end], residuals)
            degree += weights[:, start:end].sum(axis=1, keepdims=True)
            found[place] = total / (degree + dtype.type(lambdas[place]))
            start = end
    return found


def _product(columns: npt.NDArray[np.int32], weights: Array, residuals: Array) -> Array:
    """Return sum_j A_ij R_jk over some places of every list."""
    from scipy.sparse import csr_array

    size, width = columns.shape
    if not width:
        return np.zeros((size, residuals.shape[1]), residuals.dtype)
    pointers = np.arange(0, size * width + 1, width, dtype=np.int64)
    matrix = csr_array((weights.ravel(), columns.ravel().astype(np.int64), pointers), shape=(size, len(residuals)))
    product: Array = matrix @ residuals
    return product
