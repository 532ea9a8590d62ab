"""Some rows of a graph with the neighbours that are among them, and sums of rows, without arrays larger than these."""

from __future__ import annotations

import tempfile
from functools import cache
from typing import Any, Final

import numpy as np

from patients_like_me.workers import kernel

Array = Any
#: Larger arrays are put on disk, in a file without a name that is gone with the array.
_LARGEST_IN_MEMORY: Final = 1 << 30


def rows_among(
    indptr: Array, neighbors: Array, weights: Array, nodes: Array, number_of: Array
) -> tuple[Array, Array, Array]:
    """Return as CSR the rows of nodes in rising order; ``number_of`` is their new number, -1 for all others.

    >>> indptr, neighbors = np.array([0, 2, 3, 4]), np.array([1, 2, 0, 0], dtype=np.int32)
    >>> found = rows_among(indptr, neighbors, np.array([8, 9, 8, 9]), np.array([0, 2]), np.array([0, -1, 1]))
    >>> [part.tolist() for part in found]
    [[0, 1, 2], [1, 0], [9, 9]]
    """
    count, fill, *_ = _compiled()
    counts = np.zeros(len(nodes) + 1, dtype=np.int64)
    # Plain arrays: kernels are not compiled again for arrays that are mapped from disk.
    indptr, neighbors, weights = (np.asarray(part) for part in (indptr, neighbors, weights))
    count(indptr, neighbors, nodes, number_of, counts)
    found = np.cumsum(counts)
    columns = roomy_array(int(found[-1]), np.int32)
    kept = roomy_array(int(found[-1]), weights.dtype)
    fill(indptr, neighbors, weights, nodes, number_of, found, columns, kept)
    return found, columns, kept


def row_sums(indptr: Array, weights: Array) -> Array:
    """Return the sum of every row in double precision; ``indptr`` may begin anywhere in the weights.

    >>> row_sums(np.array([1, 3, 3]), np.array([9, 2, 4], dtype=np.uint8)).tolist()
    [6.0, 0.0]
    """
    sums = np.zeros(len(indptr) - 1)
    _compiled()[2](np.asarray(indptr), np.asarray(weights), sums)
    return sums


def first_of_pairs(indptr: Array, neighbors: Array) -> Array:
    """Mark one entry of every linked pair, the one in the earlier row where both receive; rows are sorted.

    >>> first_of_pairs(np.array([0, 1, 3, 3]), np.array([1, 0, 2], dtype=np.int32)).tolist()
    [True, False, True]
    """
    marked = np.empty(len(neighbors), dtype=bool)
    _compiled()[3](np.asarray(indptr), np.asarray(neighbors), marked)
    return marked


def roomy_array(length: int, kind: Any) -> Array:
    """Return an array to be filled: in memory, or mapped from a file without a name if it is larger than a GiB.

    The file is in the folder for temporary files (``TMPDIR``).
    """
    if length * np.dtype(kind).itemsize <= _LARGEST_IN_MEMORY:
        return np.empty(length, dtype=kind)
    with tempfile.TemporaryFile() as file:
        return np.asarray(np.memmap(file, dtype=kind, shape=(length,)))


def continued(first: Array, second: Array) -> Array:
    """Return one array after another, on disk if the two are large.

    >>> continued(np.array([1, 2]), np.array([3])).tolist()
    [1, 2, 3]
    """
    whole = roomy_array(len(first) + len(second), np.promote_types(first.dtype, second.dtype))
    whole[: len(first)] = first
    whole[len(first) :] = second
    return whole


@cache
def _compiled() -> Any:
    return kernel(_count_among), kernel(_fill_among), kernel(_add_rows), kernel(_mark_first)


def _add_rows(indptr: Array, weights: Array, sums: Array) -> None:
    for row in range(len(indptr) - 1):
        total = 0
        for entry in range(indptr[row], indptr[row + 1]):
            total += weights[entry]
        sums[row] = total


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


def _mark_first(indptr: Array, neighbors: Array, marked: Array) -> None:
    for row in range(len(indptr) - 1):
        for entry in range(indptr[row], indptr[row + 1]):
            other = neighbors[entry]
            if other > row:
                marked[entry] = True
                continue
            # The pair was seen before if the other, earlier row holds this one.
            low, high = indptr[other], indptr[other + 1]
            while low < high:
                middle = (low + high) // 2
                if neighbors[middle] < row:
                    low = middle + 1
                else:
                    high = middle
            marked[entry] = low == indptr[other + 1] or neighbors[low] != row
