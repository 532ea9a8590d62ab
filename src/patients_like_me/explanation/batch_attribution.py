r"""The importance of all references of many instances at once.

With D^(l) = ∂t_i/∂Z^(l), the adjoint of target i, and g_ab = Σ_l ⟨D^(l)_a, M^(l)_b⟩ = ∂t_i/∂Â_ab,

.. math:: \mathrm{Imp}(i, j) = s_i s_j (g_{ij} + g_{ji}) - \frac{E_{i \to i}}{2 d_i} - \frac{E_{j \to i}}{2 d_j},
          \qquad E_{j \to i} = \frac{\partial t_i}{\partial \ln s_j}

(an edge that only i receives through has no g_ji and no E_{j→i}). A backward pass per target would go through the whole
graph each time. Here the two parts are computed where each is cheap:

* **Direct terms** g_ij, g_ji need the adjoint at i and its neighbours only. D^(L-1) is at i alone; D^(L-2) is
  Â_ij r_i at the active places of j, with one r_i = W^(L-1) D^(L-1)_i for all neighbours; D^(L-3) at the
  neighbours needs the triangles of i.
* **Degree effects** E_{j→i} are a tangent that starts at j. It is the same for all targets that receive from j, so it
  is carried forward once per j, over two hops, and read by each of them as ⟨r_i, Σ_k Â_ik δH_k⟩.
* Walks through ``hubs`` are looked up instead of walked.
* What both need of W^(1), the rows (M^(0)_j at the active places of a) W^(1), is one matrix product.

So the work grows with the number of two-step walks of the graph times the width, and the matrix products with the
number of edges. Networks of more than three layers, and few targets, go one target at a time without autograd.
"""

from __future__ import annotations

import queue

import numpy as np
import numpy.typing as npt

from patients_like_me.explanation.hubs import hubs_of
from patients_like_me.explanation.known_pass import KnownPass
from patients_like_me.explanation.target_edges import Floats, Integers, Progress, TargetEdges
from patients_like_me.workers import in_threads, number_of_threads

#: Rows of the matrix product that are held at once.
_ROWS_AT_ONCE = 24_000
_KERNEL_LAYERS = 3


def attribute(
    known: KnownPass,
    edges: TargetEdges,
    choice: Floats,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Floats:
    """Return Imp(i, j) of all edges of the targets; ``choice`` [targets, outputs] makes up their target logits."""
    if choice.shape != (len(edges), len(known.classifier)):
        raise ValueError(f"a choice of {choice.shape} for {len(edges)} targets and {len(known.classifier)} outputs")
    if not edges.edges:
        return np.zeros(0)
    readout = choice.astype(np.float64) @ known.classifier
    last = np.where(known.active[-1][edges.targets], readout, 0.0)
    if known.layers > _KERNEL_LAYERS or _few_targets(known, edges):
        return one_by_one(known, edges, last, threads=threads, progress=progress)
    pulled = last @ known.layer_weights[-1].T if known.layers > 1 else np.zeros_like(last)
    direct, own, others = _both_parts(known, edges, last, pulled, threads, progress)
    return _combined(known, edges, direct, own, others)


def one_by_one(
    known: KnownPass,
    edges: TargetEdges,
    last: Floats,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Floats:
    """Return the same by the adjoint of each target over the whole graph, for any number of layers."""
    from scipy.sparse import csr_array

    size = len(known)
    pulling = csr_array((known.values, known.columns, known.indptr), shape=(size, size)).T.tocsr()

    def one(number: int) -> Floats:
        node, row = int(edges.targets[number]), edges.row(number)
        neighbors = edges.neighbors[row]
        adjoint = np.zeros((size, known.width))
        adjoint[node] = last[number]
        direct, own, others = np.zeros(len(neighbors)), 0.0, np.zeros(len(neighbors))
        reverse = known.reverse[edges.entries[row]] >= 0
        for layer in reversed(range(known.layers)):
            back = pulling @ adjoint + known.loops[:, None] * adjoint
            mixed = known.mixed[layer]
            direct += mixed[neighbors] @ adjoint[node] + reverse * (adjoint[neighbors] @ mixed[node])
            own += adjoint[node] @ known.spread[layer, node] + back[node] @ mixed[node]
            others += (adjoint[neighbors] * known.spread[layer, neighbors] + back[neighbors] * mixed[neighbors]).sum(1)
            if layer:
                adjoint = np.where(known.active[layer - 1], back @ known.layer_weights[layer - 1].T, 0.0)
        single = TargetEdges(edges.targets[[number]], np.array([0, len(neighbors)]), neighbors, edges.entries[row])
        return _combined(known, single, direct, np.array([own]), others)

    return np.concatenate(in_threads(one, range(len(edges)), threads=threads, progress=progress))


def _combined(known: KnownPass, edges: TargetEdges, direct: Floats, own: Floats, others: Floats) -> Floats:
    """Put direct terms and degree effects together, by the formula above."""
    nodes, neighbors = edges.targets[edges.target_of_edge], edges.neighbors
    scale = 1.0 / np.sqrt(known.degrees)
    both_ways = known.reverse[edges.entries] >= 0
    result = scale[nodes] * scale[neighbors] * direct
    result -= (own / (2 * known.degrees[edges.targets]))[edges.target_of_edge]
    result -= np.where(both_ways, others / (2 * known.degrees[neighbors]), 0.0)
    return result


def _few_targets(known: KnownPass, edges: TargetEdges) -> bool:
    """Tell whether whole passes for each target cost less than the tangents of all their neighbours."""
    walks = np.add.reduceat(
        np.append(np.diff(known.listener_indptr)[known.listeners], 0), np.append(known.listener_indptr[:-1], 0)
    )[:-1]
    walks = np.where(np.diff(known.listener_indptr) > 0, walks, 0)
    reached = np.unique(np.concatenate([edges.targets, edges.neighbors]))
    whole = len(edges) * (len(known.columns) + len(known)) * max(known.layers - 1, 1)
    # Measured: an entry of a whole pass costs about twice as much as a walk, most of which are looked up.
    return bool(2 * whole < walks[reached].sum() + len(reached))


def _both_parts(
    known: KnownPass,
    edges: TargetEdges,
    last: Floats,
    pulled: Floats,
    threads: int | None,
    progress: Progress | None,
) -> tuple[Floats, Floats, Floats]:
    from patients_like_me.explanation.attribution_kernels import degree_effects, direct_terms, masked_inputs
    from patients_like_me.workers import announced

    size, width = len(known), known.width
    target_number = np.full(size, -1, dtype=np.int64)
    target_number[edges.targets] = np.arange(len(edges))
    # Where the reverse of an entry is among the listeners of its row's node.
    place_among_listeners = np.full(len(known.columns), -1, dtype=np.int64)
    counts = np.diff(known.listener_indptr)
    place_of_entry = np.empty(len(known.columns), dtype=np.int64)
    place_of_entry[known.listener_entries] = np.arange(len(known.columns)) - np.repeat(
        known.listener_indptr[:-1], counts
    )
    two_ways = known.reverse >= 0
    place_among_listeners[two_ways] = place_of_entry[known.reverse[two_ways]]

    nodes = np.unique(np.concatenate([edges.targets, edges.neighbors[known.reverse[edges.entries] >= 0]]))
    blocks = _blocks(nodes, counts)
    hubs = hubs_of(known)
    direct, own, entry_effects = np.zeros(edges.edges), np.zeros(len(edges)), np.zeros(len(known.columns))
    rooms: queue.SimpleQueue[tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_], Floats, Integers]] = (
        queue.SimpleQueue()
    )
    for _ in range(number_of_threads(threads)):
        rooms.put((np.empty(size, np.int32), np.zeros(size, bool), np.zeros((size, width)), np.full(size, -1)))

    def block(chosen: Integers) -> None:
        offsets = np.concatenate([[0], np.cumsum(counts[chosen] + 1)])
        images = np.zeros((1, width))
        if known.layers == _KERNEL_LAYERS:
            inputs = np.empty((offsets[-1], width))
            with announced(masked_inputs):
                masked_inputs(
                    chosen, known.listener_indptr, known.listeners, known.loops, known.mixed, known.spread,
                    known.active, offsets, inputs,
                )  # fmt: skip
            images = inputs @ known.layer_weights[0]
        numbers = target_number[chosen]
        wanted = numbers >= 0
        touched, is_touched, tangent, slot_of = rooms.get()
        try:
            with announced(direct_terms):
                direct_terms(
                    chosen[wanted], known.indptr, known.columns, known.values, known.loops, known.reverse,
                    place_among_listeners, known.mixed, known.active, known.layer_weights, last[numbers[wanted]],
                    pulled[numbers[wanted]], offsets[:-1][wanted], images, edges.indptr[numbers[wanted]],
                    hubs.number_of, hubs.values, slot_of,
                    np.empty((int(np.diff(known.indptr)[chosen].max(initial=0)) + 1, width)), direct,
                )  # fmt: skip
            with announced(degree_effects):
                degree_effects(
                    chosen, known.indptr, known.columns, known.values, known.loops, known.listener_indptr,
                    known.listeners, known.listener_entries, known.mixed, known.spread, known.active, target_number,
                    last, pulled, offsets, images, hubs.number_of, hubs.values, hubs.pairs, touched, is_touched,
                    tangent, own, entry_effects,
                )  # fmt: skip
        finally:
            rooms.put((touched, is_touched, tangent, slot_of))

    in_threads(block, blocks, threads=threads, progress=progress)
    return direct, own, entry_effects[edges.entries]


def _blocks(nodes: Integers, counts: Integers) -> list[Integers]:
    """Cut nodes into parts whose rows of the matrix product fit the memory set aside."""
    ends = np.cumsum(counts[nodes] + 1)
    return [part for part in np.split(nodes, np.flatnonzero(np.diff(ends // _ROWS_AT_ONCE)) + 1) if len(part)]
