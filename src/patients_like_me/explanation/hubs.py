"""Hubs: the few instances that are neighbours of very many, whose long rows are kept as dense columns.

A count of shared diagnoses makes hubs of instances with many diagnoses: in a graph of 20,000 instances with the
strongest 32 neighbours each, some have thousands. Nearly every two-step walk passes through one of them, so they are
treated apart: their entries of Â can be looked up in ``values``, and what one hub passes on to another over a node in
between is summed up beforehand in ``pairs``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from patients_like_me.explanation.known_pass import KnownPass
from patients_like_me.explanation.target_edges import Floats, Integers
from patients_like_me.workers import announced, kernel

_MOST_HUBS = 256
_MOST_ENTRIES = 1 << 24
_TIMES_THE_MEAN = 4


class Hubs(NamedTuple):
    """``number_of`` [N] is -1 for other nodes; ``values`` [N, hubs] their columns of Â; ``pairs`` [hubs, hubs, F]."""

    number_of: Integers
    values: Floats
    pairs: Floats


def hubs_of(known: KnownPass, *, most: int = _MOST_HUBS) -> Hubs:
    """Find the hubs of a symmetric graph; a graph in which some nodes only receive is treated as having none."""
    graph, size = known.graph, len(known)
    counts = np.diff(graph.indptr)
    chosen: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
    if known.layers > 1 and len(graph.columns) and (graph.reverse >= 0).all():
        room = max(min(most, _MOST_ENTRIES // size), 0)
        strongest = np.argsort(-counts, kind="stable")[:room]
        chosen = np.sort(strongest[counts[strongest] > _TIMES_THE_MEAN * counts.mean()])
    number_of = np.full(size, -1, dtype=np.int64)
    number_of[chosen] = np.arange(len(chosen))
    values = np.zeros((size, len(chosen)))
    rows = np.repeat(np.arange(size), counts)
    to_hub = number_of[graph.columns] >= 0
    values[rows[to_hub], number_of[graph.columns[to_hub]]] = graph.values[to_hub]
    values[chosen, np.arange(len(chosen))] = graph.loops[chosen]
    deep = known.layers > 2
    pairs = np.zeros((len(chosen), len(chosen), known.width) if deep else (0, 0, known.width))
    if deep and len(chosen):
        with announced(_pairs_of_hubs):
            _pairs_of_hubs(graph.indptr, graph.columns, number_of, values, known.states.active[1], pairs)
    return Hubs(number_of, values, pairs)


@kernel
def _pairs_of_hubs(indptr: Any, columns: Any, hub_of: Any, hub_values: Any, active: Any, out: Any) -> None:
    """Add up, for every two hubs, the product of their entries at each node, at the node's active places."""
    size, width = active.shape
    near = np.empty(max(hub_values.shape[1], 1), dtype=np.int64)
    for node in range(size):
        count = 0
        for entry in range(indptr[node] - 1, indptr[node + 1]):
            hub = hub_of[node if entry < indptr[node] else columns[entry]]
            if hub >= 0:
                near[count] = hub
                count += 1
        for first in range(count):
            for second in range(count):
                factor = hub_values[node, near[first]] * hub_values[node, near[second]]
                row = out[near[first], near[second]]
                for place in range(width):
                    if active[node, place]:
                        row[place] += factor
