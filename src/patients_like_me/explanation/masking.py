"""The measured effect of removing edges: one target is predicted again without some of its references.

An edge is removed in both directions, the degrees of both ends are what they are without it, and Â is renormalised; an
evaluated instance of ``bank`` mode only receives, so only its own row changes. The rest of the graph stays: one target
at a time, as a question about this target. The result is exact, not a first-order estimate. :func:`logits_without` is
the fast form for the package's own network: only what changed and can reach the target is computed again.
"""

from __future__ import annotations

import queue

import numpy as np

from patients_like_me.explanation.known_pass import KnownPass
from patients_like_me.explanation.network_pass import NetworkPass, check_removals
from patients_like_me.explanation.target_edges import Floats, Integers, TargetEdges
from patients_like_me.workers import Progress, in_threads, number_of_threads

_JOBS_AT_ONCE = 64


def logits_without(
    known: KnownPass,
    targets: Integers,
    removed_indptr: Integers,
    removed_entries: Integers,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Floats:
    """Return the logits [jobs, outputs] of each job's target without the job's edges; see ``NetworkPass``."""
    from patients_like_me.explanation.masking_kernel import MaskingRoom, Removals, states_without
    from patients_like_me.workers import announced

    targets, removed_entries = np.asarray(targets, np.int64), np.asarray(removed_entries, np.int64)
    removed_indptr = np.asarray(removed_indptr, np.int64)
    check_removals(known.graph.indptr, targets, removed_indptr, removed_entries)
    rooms: queue.SimpleQueue[MaskingRoom] = queue.SimpleQueue()
    states = np.empty((len(targets), known.width))
    for _ in range(number_of_threads(threads)):
        rooms.put(MaskingRoom.of(len(known), len(known.graph.columns), known.width))

    def part(first: int) -> None:
        jobs = slice(first, min(first + _JOBS_AT_ONCE, len(targets)))
        removals = Removals(targets[jobs], removed_indptr[jobs.start : jobs.stop + 1], removed_entries)
        room = rooms.get()
        try:
            with announced(states_without):
                states_without(removals, known.graph, known.states, room, states[jobs])
        finally:
            rooms.put(room)

    in_threads(part, range(0, len(targets), _JOBS_AT_ONCE), threads=threads, progress=progress)
    return states @ known.classifier.T + known.constant_logits[targets]


def leave_one_out(
    known: NetworkPass,
    edges: TargetEdges,
    choice: Floats,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Floats:
    """Return for every edge by how much the target logit falls when this edge alone is removed.

    The sign is that of the importance: positive where the reference supports the target.
    """
    which = edges.target_of_edge
    jobs = np.arange(edges.edges + 1)
    without = known.logits_without(edges.targets[which], jobs, edges.entries, threads=threads, progress=progress)
    before = (known.logits[edges.targets] * choice).sum(axis=1)
    return np.asarray(before[which] - (without * choice[which]).sum(axis=1), dtype=np.float64)
