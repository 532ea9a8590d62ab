r"""One forward pass of the package's own graph network with everything kept that fast attributions need.

.. math:: M^{(l)} = H^{(l)} W^{(l)}, \qquad Z^{(l)} = \hat A M^{(l)} + b^{(l)}, \qquad
          H^{(l+1)} = \mathrm{ReLU}(Z^{(l)}), \qquad \hat A_{ab} = s_a \tilde A_{ab} s_b, \quad s = \tilde d^{-1/2}

The network itself runs, on a propagation that records what passes through it: M^(l) goes in and Z^(l) - b^(l) comes
out. All targets of a graph share this pass: the ReLU pattern is the same for each of them, so the derivatives of all
target logits are linear in what is recorded. Numbers are kept in double precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from patients_like_me.errors import TooLargeError
from patients_like_me.explanation.network_pass import checked_embeddings, in_double_precision
from patients_like_me.explanation.target_edges import Floats, Integers, TargetEdges
from patients_like_me.model.gcn import GraphConvolution, GraphNetwork
from patients_like_me.model.propagation import EdgePropagation, FixedPropagation, WeightedEdges
from patients_like_me.workers import Progress

if TYPE_CHECKING:
    from patients_like_me.graph.patient_graph import PatientGraph


#: What is held at the same time for an entry of the graph while a pass is made, and for a value of a layer after it.
_BYTES_PER_ENTRY = 90
_BYTES_PER_STATE = 17


class NormalisedGraph(NamedTuple):
    """The graph Â, by rows and by columns; kernels take it as it is."""

    indptr: Integers
    """Row ``a`` of Â off the diagonal is ``values[indptr[a] : indptr[a + 1]]`` at ``columns``."""
    columns: npt.NDArray[np.int32]
    values: Floats
    loops: Floats
    """The diagonal of Â."""
    receiver_indptr: Integers
    """The same entries by column: ``receivers[receiver_indptr[a] : receiver_indptr[a + 1]]`` receive from ``a``."""
    receivers: npt.NDArray[np.int32]
    receiver_entries: Integers
    """Where the entry of each receiver is among ``values``."""
    reverse: Integers
    """The entry (b, a) of each entry (a, b), or -1 where the edge has one direction only."""
    weights: Floats
    degrees: Floats


class LayerStates(NamedTuple):
    """The states of all layers; kernels take them as they are."""

    mixed: Floats
    """M [L, N, F]"""
    spread: Floats
    """Z - b [L, N, F]"""
    active: npt.NDArray[np.bool_]
    """Z > 0 [L, N, F]"""
    biases: Floats
    layer_weights: Floats
    """W of the layers from the second on [L - 1, F, F]."""


@dataclass(frozen=True, eq=False)
class KnownPass:
    """The graph Â and the states of all layers; ``constant_logits`` are those of a node whose H^(L) is zero."""

    graph: NormalisedGraph
    states: LayerStates
    classifier: Floats
    constant_logits: Floats
    logits: Floats

    def __len__(self) -> int:
        return len(self.graph.indptr) - 1

    @property
    def layers(self) -> int:
        """The number of graph convolutions."""
        return len(self.states.mixed)

    @property
    def width(self) -> int:
        """The number of values per node and layer."""
        return int(self.states.mixed.shape[2])

    def importances(
        self, edges: TargetEdges, choice: Floats, *, threads: int | None = None, progress: Progress | None = None
    ) -> Floats:
        """Return Imp(i, j) of all edges of the targets, for many targets at once."""
        from patients_like_me.explanation.batch_attribution import attribute

        return attribute(self, edges, choice, threads=threads, progress=progress)

    def logits_without(
        self,
        targets: Integers,
        removed_indptr: Integers,
        removed_entries: Integers,
        *,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> Floats:
        """Return the logits [jobs, outputs] of each job's target without the job's edges."""
        from patients_like_me.explanation.masking import logits_without

        return logits_without(self, targets, removed_indptr, removed_entries, threads=threads, progress=progress)


class _Recorder:
    """A propagation that keeps what goes in and what comes out, layer by layer; nothing of it is held twice."""

    def __init__(self, graph: FixedPropagation, layers: int, width: int) -> None:
        self.graph = graph
        self.layer = 0
        self.mixed = np.empty((layers, len(graph), width))
        self.spread = np.empty((layers, len(graph), width))

    def propagate(self, states: Tensor) -> Tensor:
        found = self.graph.propagate(states)
        self.mixed[self.layer], self.spread[self.layer] = states.numpy(), found.numpy()
        self.layer += 1
        return found


@torch.no_grad()
def known_pass(network: GraphNetwork, graph: PatientGraph, embeddings: Tensor) -> KnownPass:
    """Run the network once on the graph, without dropout, in double precision."""
    from scipy.sparse import csr_array

    size, width = len(graph), network.settings.width
    refuse_what_memory_cannot_hold(graph, network)
    plain = checked_embeddings(graph, embeddings)
    double = cast(GraphNetwork, in_double_precision(network))
    layers = [layer for layer in double.convolutions if isinstance(layer, GraphConvolution)]
    recorder = _Recorder(FixedPropagation.of_graph(graph), len(layers), width)
    logits = double(plain, recorder).numpy()
    mixed, spread = recorder.mixed, recorder.spread
    # The arrays below are as large as what is kept: one goes before the next is made.
    del recorder

    rows = np.repeat(np.arange(size), graph.degrees)
    edges = WeightedEdges(
        sources=torch.from_numpy(graph.neighbors.astype(np.int64)),
        targets=torch.from_numpy(rows),
        weights=torch.from_numpy(graph.weights.astype(np.float64)),
        self_loops=torch.from_numpy(graph.self_loop_weights()).double(),
    )
    normalised = EdgePropagation(edges)
    del edges
    # The transposed matrix of entry numbers tells where the entry of each receiver is.
    numbered = csr_array((np.arange(1, len(graph.neighbors) + 1), graph.neighbors, graph.indptr), shape=(size, size))
    turned = numbered.T.tocsr()
    turned.sort_indices()
    del numbered
    biases = torch.stack([layer.bias for layer in layers]).numpy()
    further: list[Tensor] = [layer.weight for layer in layers[1:]]
    normalised_graph = NormalisedGraph(
        indptr=np.ascontiguousarray(graph.indptr, dtype=np.int64),
        columns=np.ascontiguousarray(graph.neighbors, dtype=np.int32),
        values=normalised.edge_values.numpy(),
        loops=normalised.loop_values.numpy(),
        receiver_indptr=turned.indptr.astype(np.int64),
        receivers=turned.indices.astype(np.int32),
        receiver_entries=turned.data.astype(np.int64) - 1,
        reverse=_reverse_entries(graph, rows),
        weights=graph.weights.astype(np.float64),
        degrees=normalised.degrees.numpy(),
    )
    states = LayerStates(
        mixed=mixed,
        spread=spread,
        active=np.stack([own + bias > 0 for own, bias in zip(spread, biases, strict=True)]),
        biases=biases,
        layer_weights=torch.stack(further).numpy() if further else np.zeros((0, width, width)),
    )
    return KnownPass(
        normalised_graph,
        states,
        classifier=np.ascontiguousarray(double.classifier.weight[:, :width].numpy()),
        constant_logits=double.classify(torch.zeros(size, width, dtype=plain.dtype), plain).numpy(),
        logits=logits,
    )


def refuse_what_memory_cannot_hold(graph: PatientGraph, network: GraphNetwork, *, times: float = 1.0) -> None:
    """Refuse, with the numbers, a graph of so many entries that its pass would not fit the free memory.

    ``times`` is what the work on a pass takes in all, measured in passes.
    """
    import psutil

    settings = network.settings
    states = len(graph) * settings.layers * settings.width * _BYTES_PER_STATE
    needed = times * (len(graph.neighbors) * _BYTES_PER_ENTRY + states) / 2**30
    free = psutil.virtual_memory().available / 2**30
    if needed > 0.8 * free:
        more, listed = (f"close other programs{sign} or use a machine with more memory" for sign in ("", ","))
        capped = graph.settings.max_neighbors is not None
        raise TooLargeError(
            f"explaining on a graph of {len(graph.neighbors):,} entries needs about {needed:.1f} GiB, and "
            f"{free:.1f} GiB of memory are free",
            remedy=more if capped else f"train with graph.max_neighbors=32, whose graph is small, {listed}",
        )


def _reverse_entries(graph: PatientGraph, rows: npt.NDArray[np.int64]) -> Integers:
    """Return for every entry (a, b) the place of (b, a), or -1."""
    keys = rows * len(graph) + graph.neighbors
    wanted = graph.neighbors.astype(np.int64) * len(graph) + rows
    if not len(keys):
        return np.empty(0, dtype=np.int64)
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, places, -1)
