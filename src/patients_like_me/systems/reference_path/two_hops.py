"""Two hops: the references of an instance's references, as one more similarity.

    s2_il = sum_j s_ij^p s_jl^p / sum_j s_ij^p        j: the nearest of i in the bank, l: the nearest of j in the bank

Only codes are compared on the way, so the weights know no outcome. An instance of the same patient is neither on the
way nor at its end, and what a reference l sends is its own residual: shares stay exact.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.graph.people import Bounds, fitting
from patients_like_me.systems.reference_path.relations import Neighbours, raised

TWO_HOPS: Final = "two hops"
#: The similarity of each hop, how many references it follows, and how sharp its weights are.
VIA: Final = "whole bag"
PER_HOP: Final = 30
SHARPNESS: Final = 3.0


def strongest_of_two_hops(
    first: Neighbours,
    second: Neighbours,
    k: int,
    patients: npt.NDArray[Any],
    of_bank: npt.NDArray[Any],
    bounds: tuple[Bounds | None, Bounds | None] = (None, None),
) -> Neighbours:
    """Return the strongest k ends of two hops; ``patients`` and ``of_bank`` number the patients of both sides.

    ``bounds`` of both sides say whom they go with by sex and age: two hops may lead farther than one may.

    >>> near = Neighbours(np.array([[1]], np.int32), np.array([[0.5]], np.float32))
    >>> of_bank = Neighbours(np.array([[1], [2], [0]], np.int32), np.ones((3, 1), np.float32))
    >>> found = strongest_of_two_hops(near, of_bank, 2, np.array([-1]), np.arange(3))
    >>> found.columns.tolist(), found.similarities.tolist()
    ([[2, 0]], [[1.0, 0.0]])
    """
    size = len(second.columns)
    weights = raised(first.similarities, SHARPNESS)
    total = weights.sum(axis=1, keepdims=True)
    one, other = (
        _matrix(each.columns, values, size)
        for each, values in (
            (first, weights / np.where(total > 0, total, 1.0)),
            (second, raised(second.similarities, SHARPNESS)),
        )
    )
    product = (one @ other).tocsr()
    rows = np.repeat(np.arange(product.shape[0]), np.diff(product.indptr))
    # Patients that the bank does not have are numbered -1, which no instance of the bank is.
    strength = np.where(patients[rows] == of_bank[product.indices], 0.0, product.data)
    looking, others = bounds
    if looking is not None and others is not None:
        strength = np.where(fitting(looking[rows], others[product.indices]), strength, 0.0)
    width = min(k, size)
    columns = np.zeros((len(first.columns), width), np.int32)
    similarities = np.zeros((len(first.columns), width), np.float32)
    # By row, then falling strength, then place: equal ones in the order of the bank.
    order = np.lexsort((product.indices, -strength, rows))
    place = np.arange(len(order)) - product.indptr[rows[order]]
    kept = order[(place < width) & (strength[order] > 0)]
    where = place[(place < width) & (strength[order] > 0)]
    columns[rows[kept], where] = product.indices[kept]
    similarities[rows[kept], where] = strength[kept]
    return Neighbours(columns, similarities)


def _matrix(columns: npt.NDArray[np.int32], weights: npt.NDArray[np.float64], size: int) -> Any:
    from scipy.sparse import csr_array

    number, width = columns.shape
    pointers = np.arange(0, number * width + 1, width, dtype=np.int64)
    found = csr_array((weights.ravel(), columns.ravel().astype(np.int64), pointers), shape=(number, size))
    found.sum_duplicates()
    found.eliminate_zeros()
    return found
