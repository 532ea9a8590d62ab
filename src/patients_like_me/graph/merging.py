"""From the neighbours that each node keeps to the symmetric graph: an edge stays if either end keeps it."""

from __future__ import annotations

from typing import Any

import numpy as np

from patients_like_me.graph.adders import Number
from patients_like_me.workers import announced, kernel

Array = Any


def symmetrized(indptr: Array, neighbors: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Return the union of a directed CSR graph and its reverse; rows come out sorted.

    >>> indptr, neighbors = np.array([0, 1, 1, 2]), np.array([1, 0], dtype=np.int32)
    >>> [part.tolist() for part in symmetrized(indptr, neighbors, np.array([8, 9], dtype=np.uint8))]
    [[0, 2, 3, 4], [1, 2, 0, 0], [8, 9, 8, 9]]
    """
    nodes = len(indptr) - 1
    return merged((indptr, neighbors, weights), incoming_edges([(0, indptr, neighbors, weights)], 0, nodes))


def incoming_edges(parts: Any, first: int, last: int) -> tuple[Array, Array, Array]:
    """Return as CSR, for the nodes from ``first`` to before ``last``, which nodes keep them, sorted.

    ``parts`` is a collection of ``(first node, indptr, neighbors, weights)`` in the order of their nodes; it is gone
    through twice, so that the parts can come from disk one at a time.
    """
    counts = np.zeros(last - first, dtype=np.int64)
    weight_type = np.dtype(np.uint8)
    with announced(_count_incoming):
        for _, _, neighbors, weights in parts:
            _count_incoming(neighbors, first, last, counts)
            weight_type = np.promote_types(weight_type, weights.dtype)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    sources = np.empty(indptr[-1], dtype=np.int32)
    strengths = np.empty(indptr[-1], dtype=weight_type)
    cursors = indptr[:-1].copy()
    with announced(_place_incoming):
        for start, part_indptr, neighbors, weights in parts:
            _place_incoming(start, part_indptr, neighbors, weights, first, last, cursors, sources, strengths)
    return indptr, sources, strengths


def merged(one: tuple[Array, Array, Array], other: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    """Return the union of two CSR graphs over the same nodes with sorted rows and equal common weights."""
    indptr = np.zeros(len(one[0]), dtype=np.int64)
    with announced(_count_union):
        _count_union(one[0], one[1], other[0], other[1], indptr)
    np.cumsum(indptr, out=indptr)
    neighbors = np.empty(indptr[-1], dtype=np.int32)
    weights = np.empty(indptr[-1], dtype=np.promote_types(one[2].dtype, other[2].dtype))
    with announced(_write_union):
        _write_union(*one, *other, indptr, neighbors, weights)
    return indptr, neighbors, weights


@kernel
def _count_incoming(neighbors: Array, first: Number, last: Number, counts: Array) -> None:
    for place in range(len(neighbors)):
        if first <= neighbors[place] < last:
            counts[neighbors[place] - first] += 1


@kernel
def _place_incoming(
    start: Number,
    indptr: Array,
    neighbors: Array,
    weights: Array,
    first: Number,
    last: Number,
    cursors: Array,
    sources: Array,
    strengths: Array,
) -> None:
    """Write each edge at its target; sources come in rising order, so the rows come out sorted."""
    for row in range(len(indptr) - 1):
        for place in range(indptr[row], indptr[row + 1]):
            if first <= neighbors[place] < last:
                cursor = cursors[neighbors[place] - first]
                sources[cursor] = start + row
                strengths[cursor] = weights[place]
                cursors[neighbors[place] - first] = cursor + 1


@kernel
def _count_union(indptr: Array, neighbors: Array, other_indptr: Array, others: Array, counts: Array) -> None:
    """Write the length of the union of row ``i`` to ``counts[i + 1]``."""
    for row in range(len(indptr) - 1):
        left, right = indptr[row], other_indptr[row]
        length = 0
        while left < indptr[row + 1] and right < other_indptr[row + 1]:
            length += 1
            step_left, step_right = neighbors[left] <= others[right], neighbors[left] >= others[right]
            left += step_left
            right += step_right
        counts[row + 1] = length + (indptr[row + 1] - left) + (other_indptr[row + 1] - right)


@kernel
def _write_union(
    indptr: Array,
    neighbors: Array,
    weights: Array,
    other_indptr: Array,
    others: Array,
    other_weights: Array,
    union_indptr: Array,
    union_neighbors: Array,
    union_weights: Array,
) -> None:
    for row in range(len(indptr) - 1):
        left, right, place = indptr[row], other_indptr[row], union_indptr[row]
        while left < indptr[row + 1] or right < other_indptr[row + 1]:
            from_left = right == other_indptr[row + 1] or (left < indptr[row + 1] and neighbors[left] <= others[right])
            if from_left:
                union_neighbors[place], union_weights[place] = neighbors[left], weights[left]
                right += right < other_indptr[row + 1] and others[right] == neighbors[left]
                left += 1
            else:
                union_neighbors[place], union_weights[place] = others[right], other_weights[right]
                right += 1
            place += 1


def scattered(pieces: list[tuple[Array, Array, Array, Array, Array]], nodes: int) -> tuple[Array, Array, Array]:
    """Put pieces ``(rows, indptr, columns, neighbors, weights)`` together as one graph over all nodes.

    ``rows`` says which node each row is, ``columns`` which node each neighbour number means. Rows named in no piece are
    empty.
    """
    indptr = np.zeros(nodes + 1, dtype=np.int64)
    weight_type = np.dtype(np.uint8)
    for rows, piece_indptr, _, _, weights in pieces:
        indptr[rows + 1] = np.diff(piece_indptr)
        weight_type = np.promote_types(weight_type, weights.dtype)
    np.cumsum(indptr, out=indptr)
    if len(pieces) == 1 and len(pieces[0][0]) == nodes == len(pieces[0][2]):
        return indptr, pieces[0][3], pieces[0][4]
    all_neighbors = np.empty(indptr[-1], dtype=np.int32)
    all_weights = np.empty(indptr[-1], dtype=weight_type)
    with announced(_scatter_rows):
        for rows, piece_indptr, columns, neighbors, weights in pieces:
            _scatter_rows(rows, piece_indptr, columns, neighbors, weights, indptr, all_neighbors, all_weights)
    return indptr, all_neighbors, all_weights


@kernel
def _scatter_rows(
    rows: Array,
    indptr: Array,
    columns: Array,
    neighbors: Array,
    weights: Array,
    all_indptr: Array,
    all_neighbors: Array,
    all_weights: Array,
) -> None:
    for row in range(len(rows)):
        target = all_indptr[rows[row]]
        for place in range(indptr[row], indptr[row + 1]):
            all_neighbors[target] = columns[neighbors[place]]
            all_weights[target] = weights[place]
            target += 1
