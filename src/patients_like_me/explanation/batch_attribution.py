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
from collections.abc import Sequence

import numpy as np

from patients_like_me.explanation.attribution_kernels import (
    AttributionRoom,
    Block,
    Targets,
    degree_effects,
    direct_terms,
    masked_inputs,
)
from patients_like_me.explanation.hubs import hubs_of
from patients_like_me.explanation.known_pass import KnownPass
from patients_like_me.explanation.target_edges import Floats, Integers, TargetEdges
from patients_like_me.workers import Progress, announced, in_threads, number_of_threads

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
    last = last_adjoint(known, edges, choice)
    if known.layers > _KERNEL_LAYERS or _few_targets(known, edges):
        return one_by_one(known, edges, last, threads=threads, progress=progress)
    work = AttributionWork(known, edges, last)
    direct, own, effects = work.compute(work.blocks_of(work.nodes), threads=threads, progress=progress)
    return combined(known, edges, direct, own, effects[edges.entries])


def last_adjoint(known: KnownPass, edges: TargetEdges, choice: Floats) -> Floats:
    """Return D^(L-1) at every target [targets, F]."""
    readout = choice.astype(np.float64) @ known.classifier
    np.copyto(readout, 0.0, where=~known.states.active[-1][edges.targets])
    return readout


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
    pulling = csr_array((known.graph.values, known.graph.columns, known.graph.indptr), shape=(size, size)).T.tocsr()

    def one(number: int) -> Floats:
        node, row = int(edges.targets[number]), edges.row(number)
        neighbors = edges.neighbors[row]
        adjoint = np.zeros((size, known.width))
        adjoint[node] = last[number]
        direct, own, others = np.zeros(len(neighbors)), 0.0, np.zeros(len(neighbors))
        reverse = known.graph.reverse[edges.entries[row]] >= 0
        for layer in reversed(range(known.layers)):
            back = pulling @ adjoint + known.graph.loops[:, None] * adjoint
            mixed = known.states.mixed[layer]
            direct += mixed[neighbors] @ adjoint[node] + reverse * (adjoint[neighbors] @ mixed[node])
            own += adjoint[node] @ known.states.spread[layer, node] + back[node] @ mixed[node]
            others += (
                adjoint[neighbors] * known.states.spread[layer, neighbors] + back[neighbors] * mixed[neighbors]
            ).sum(1)
            if layer:
                adjoint = np.where(known.states.active[layer - 1], back @ known.states.layer_weights[layer - 1].T, 0.0)
        single = TargetEdges(edges.targets[[number]], np.array([0, len(neighbors)]), neighbors, edges.entries[row])
        return combined(known, single, direct, np.array([own]), others)

    return np.concatenate(in_threads(one, range(len(edges)), threads=threads, progress=progress))


def combined(known: KnownPass, edges: TargetEdges, direct: Floats, own: Floats, others: Floats) -> Floats:
    """Put direct terms and degree effects together, by the formula above."""
    nodes, neighbors = edges.targets[edges.target_of_edge], edges.neighbors
    scale = 1.0 / np.sqrt(known.graph.degrees)
    both_ways = known.graph.reverse[edges.entries] >= 0
    result = scale[nodes] * scale[neighbors] * direct
    result -= (own / (2 * known.graph.degrees[edges.targets]))[edges.target_of_edge]
    result -= np.where(both_ways, others / (2 * known.graph.degrees[neighbors]), 0.0)
    return result


def _few_targets(known: KnownPass, edges: TargetEdges) -> bool:
    """Tell whether whole passes for each target cost less than the tangents of all their neighbours."""
    graph = known.graph
    receivers = np.diff(graph.receiver_indptr)
    walks = np.add.reduceat(np.append(receivers[graph.receivers], 0), np.append(graph.receiver_indptr[:-1], 0))[:-1]
    walks = np.where(receivers > 0, walks, 0)
    reached = np.unique(np.concatenate([edges.targets, edges.neighbors]))
    whole = len(edges) * (len(graph.columns) + len(known)) * max(known.layers - 1, 1)
    # Measured: an entry of a whole pass costs about twice as much as a walk, most of which are looked up.
    return bool(2 * whole < walks[reached].sum() + len(reached))


class AttributionWork:
    """All that the blocks of one attribution share; a block is some nodes, and what it computes depends on them alone.

    Of a block come the direct terms of its targets, and the degree effects of its nodes on everybody who receives from
    them. So each node is walked from once, whichever targets need it, and in a block of its own if need be.
    """

    def __init__(self, known: KnownPass, edges: TargetEdges, last: Floats) -> None:
        graph, size = known.graph, len(known)
        pulled = last @ known.states.layer_weights[-1].T if known.layers > 1 else np.zeros_like(last)
        target_number = np.full(size, -1, dtype=np.int64)
        target_number[edges.targets] = np.arange(len(edges))
        self.known, self.edges = known, edges
        self.targets = Targets(target_number, last, pulled, edges.indptr[:-1])
        self.counts = np.diff(graph.receiver_indptr)
        # Where the reverse of an entry is among the receivers of its row's node.
        self.receiver_places = np.full(len(graph.columns), -1, dtype=np.int64)
        place_of_entry = np.empty(len(graph.columns), dtype=np.int64)
        place_of_entry[graph.receiver_entries] = np.arange(len(graph.columns)) - np.repeat(
            graph.receiver_indptr[:-1], self.counts
        )
        two_ways = graph.reverse >= 0
        self.receiver_places[two_ways] = place_of_entry[graph.reverse[two_ways]]
        self.nodes = np.unique(np.concatenate([edges.targets, edges.neighbors[graph.reverse[edges.entries] >= 0]]))
        self.most_neighbors = int(np.diff(graph.indptr)[edges.targets].max(initial=0))
        self.hubs = hubs_of(known)

    def compute(
        self, blocks: Sequence[Integers], *, threads: int | None = None, progress: Progress | None = None
    ) -> tuple[Floats, Floats, Floats]:
        """Return direct terms [edges], own effects [targets] and effects [entries of the graph] of some blocks."""
        known, graph, states = self.known, self.known.graph, self.known.states
        size, width = len(known), known.width
        direct, own, effects = np.zeros(self.edges.edges), np.zeros(len(self.edges)), np.zeros(len(graph.columns))
        rooms: queue.SimpleQueue[AttributionRoom] = queue.SimpleQueue()
        for _ in range(number_of_threads(threads)):
            rooms.put(AttributionRoom.of(size, self.most_neighbors, width))

        def attribute_block(chosen: Integers) -> None:
            offsets = np.concatenate([[0], np.cumsum(self.counts[chosen] + 1)])
            images = np.zeros((1, width))
            if known.layers == _KERNEL_LAYERS:
                inputs = np.empty((offsets[-1], width))
                with announced(masked_inputs):
                    masked_inputs(chosen, offsets, graph, states, inputs)
                images = inputs @ states.layer_weights[0]
            block = Block(chosen, offsets, images)
            room = rooms.get()
            try:
                with announced(direct_terms):
                    direct_terms(block, self.targets, graph, states, self.hubs, self.receiver_places, room, direct)
                with announced(degree_effects):
                    degree_effects(block, self.targets, graph, states, self.hubs, room, own, effects)
            finally:
                rooms.put(room)

        in_threads(attribute_block, blocks, threads=threads, progress=progress)
        return direct, own, effects

    def blocks_of(self, nodes: Integers) -> list[Integers]:
        """Cut nodes into parts whose rows of the matrix product fit the memory set aside."""
        ends = np.cumsum(self.counts[nodes] + 1)
        return [part for part in np.split(nodes, np.flatnonzero(np.diff(ends // _ROWS_AT_ONCE)) + 1) if len(part)]
