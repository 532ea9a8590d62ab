"""Hubs: the few instances that are neighbours of very many, whose long rows are kept as dense columns.

A count of shared diagnoses makes hubs of instances with many diagnoses: in a graph of 20,000 instances with the
strongest 32 neighbours each, some have thousands. Nearly every two-step walk passes through one of them, so they are
treated apart: their entries of Â can be looked up in ``values``, and what one hub passes on to another over a node in
between is summed up beforehand in ``pairs``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from patients_like_me.explanation.known_pass import KnownPass
from patients_like_me.explanation.target_edges import Floats, Integers

_MOST_HUBS = 256
_MOST_ENTRIES = 1 << 24
_TIMES_THE_MEAN = 4


@dataclass(frozen=True, eq=False)
class Hubs:
    """``number_of`` [N] is -1 for other nodes; ``values`` [N, hubs] their columns of Â; ``pairs`` [hubs, hubs, F]."""

    number_of: Integers
    values: Floats
    pairs: Floats


def hubs_of(known: KnownPass, *, most: int = _MOST_HUBS) -> Hubs:
    """Find the hubs of a symmetric graph; a graph in which some nodes only receive is treated as having none."""
    size = len(known)
    counts = np.diff(known.indptr)
    chosen: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
    if known.layers > 1 and len(known.columns) and (known.reverse >= 0).all():
        room = max(min(most, _MOST_ENTRIES // size), 0)
        strongest = np.argsort(-counts, kind="stable")[:room]
        chosen = np.sort(strongest[counts[strongest] > _TIMES_THE_MEAN * counts.mean()])
    number_of = np.full(size, -1, dtype=np.int64)
    number_of[chosen] = np.arange(len(chosen))
    values = np.zeros((size, len(chosen)))
    rows = np.repeat(np.arange(size), counts)
    to_hub = number_of[known.columns] >= 0
    values[rows[to_hub], number_of[known.columns[to_hub]]] = known.values[to_hub]
    values[chosen, np.arange(len(chosen))] = known.loops[chosen]
    deep = known.layers > 2
    pairs = np.zeros((len(chosen), len(chosen), known.width) if deep else (0, 0, known.width))
    if deep and len(chosen):
        from patients_like_me.explanation.attribution_kernels import pairs_of_hubs
        from patients_like_me.workers import announced

        with announced(pairs_of_hubs):
            pairs_of_hubs(known.indptr, known.columns, number_of, values, known.active[1], pairs)
    return Hubs(number_of, values, pairs)
