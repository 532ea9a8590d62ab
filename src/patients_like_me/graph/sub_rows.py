"""Some rows of a graph with the neighbours that are among them, made without anything as large as the graph."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from patients_like_me.workers import kernel

Array = Any


def rows_among(
    indptr: Array, neighbors: Array, weights: Array, nodes: Array, number_of: Array
) -> tuple[Array, Array, Array]:
    """Return as CSR the rows of nodes in rising order; ``number_of`` is their new number, -1 for all others.

    >>> indptr, neighbors = np.array([0, 2, 3, 4]), np.array([1, 2, 0, 0], dtype=np.int32)
    >>> found = rows_among(indptr, neighbors, np.array([8, 9, 8, 9]), np.array([0, 2]), np.array([0, -1, 1]))
    >>> [part.tolist() for part in found]
    [[0, 1, 2], [1, 0], [9, 9]]
    """
    count, fill = _compiled()
    counts = np.zeros(len(nodes) + 1, dtype=np.int64)
    # Plain arrays: kernels are not compiled again for arrays that are mapped from disk.
    indptr, neighbors, weights = (np.asarray(part) for part in (indptr, neighbors, weights))
    count(indptr, neighbors, nodes, number_of, counts)
    found = np.cumsum(counts)
    columns = np.empty(found[-1], dtype=np.int32)
    kept = np.empty(found[-1], dtype=weights.dtype)
    fill(indptr, neighbors, weights, nodes, number_of, found, columns, kept)
    return found, columns, kept


@cache
def _compiled() -> Any:
    return kernel(_count_among), kernel(_fill_among)


def _count_among(indptr: Array, neighbors: Array, nodes: Array, number_of: Array, counts: Array) -> None:
    for row in range(len(nodes)):
        inside = 0
        for entry in range(indptr[nodes[row]], indptr[nodes[row] + 1]):
            inside += number_of[neighbors[entry]] >= 0
        counts[row + 1] = inside


def _fill_among(
    indptr: Array,
    neighbors: Array,
    weights: Array,
    nodes: Array,
    number_of: Array,
    found: Array,
    columns: Array,
    kept: Array,
) -> None:
    for row in range(len(nodes)):
        place = found[row]
        for entry in range(indptr[nodes[row]], indptr[nodes[row] + 1]):
            number = number_of[neighbors[entry]]
            if number >= 0:
                columns[place] = number
                kept[place] = weights[entry]
                place += 1
