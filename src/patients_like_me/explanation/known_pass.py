r"""One forward pass of the graph network with everything kept that attributions need.

.. math:: M^{(l)} = H^{(l)} W^{(l)}, \qquad Z^{(l)} = \hat A M^{(l)} + b^{(l)}, \qquad
          H^{(l+1)} = \mathrm{ReLU}(Z^{(l)}), \qquad \hat A_{ab} = s_a \tilde A_{ab} s_b, \quad s = \tilde d^{-1/2}

All targets of a graph share this pass: the ReLU's pattern is the same for each of them, so the derivatives of all
target logits are linear in what stands here. Numbers are kept in double precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from patients_like_me.model.gcn import GraphConvolution

if TYPE_CHECKING:
    from torch import Tensor

    from patients_like_me.graph.patient_graph import PatientGraph
    from patients_like_me.model.gcn import GraphNetwork

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class KnownPass:
    """The graph Â and the states of all layers.

    Row ``a`` of Â off the diagonal is ``values[indptr[a] : indptr[a + 1]]`` at ``columns``; ``loops`` is its diagonal.
    ``listener_...`` hold the same entries by column: who receives from ``a``. ``reverse[e]`` is the entry (b, a) of
    entry e = (a, b), or -1 where the edge has one direction only. ``mixed`` is M [L, N, F], ``spread`` Z - b
    [L, N, F], ``active`` Z > 0, ``layer_weights`` W of the layers from the second on [L - 1, F, F].
    """

    indptr: Integers
    columns: npt.NDArray[np.int32]
    values: Floats
    loops: Floats
    listener_indptr: Integers
    listeners: npt.NDArray[np.int32]
    listener_entries: Integers
    reverse: Integers
    weights: Floats
    degrees: Floats
    mixed: Floats
    spread: Floats
    active: npt.NDArray[np.bool_]
    biases: Floats
    layer_weights: Floats
    classifier: Floats
    constant_logits: Floats

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def layers(self) -> int:
        """The number of graph convolutions."""
        return len(self.mixed)

    @property
    def width(self) -> int:
        """The number of values per node and layer."""
        return int(self.mixed.shape[2])

    @property
    def last_states(self) -> Floats:
        """H^(L) of all nodes."""
        states: Floats = np.maximum(self.spread[-1] + self.biases[-1], 0.0)
        return states

    @property
    def logits(self) -> Floats:
        """The logits of all nodes."""
        logits: Floats = self.last_states @ self.classifier.T + self.constant_logits
        return logits


def known_pass(network: GraphNetwork, graph: PatientGraph, embeddings: Tensor) -> KnownPass:
    """Run the network once on the graph, without dropout, in double precision."""
    from scipy.sparse import csr_array

    size, width = len(graph), network.settings.width
    if embeddings.shape[0] != size:
        raise ValueError(f"{embeddings.shape[0]} embeddings for {size} nodes")
    raw = graph.weights.astype(np.float64)
    own = graph.self_loop_weights().astype(np.float64)
    rows = np.repeat(np.arange(size), graph.degrees)
    degrees = own + np.bincount(rows, weights=raw, minlength=size)
    scale = 1.0 / np.sqrt(degrees)
    values = scale[rows] * raw * scale[graph.neighbors]
    # The transposed matrix of entry numbers says where each listener's entry stands.
    numbered = csr_array((np.arange(1, len(raw) + 1), graph.neighbors, graph.indptr), shape=(size, size))
    turned = numbered.T.tocsr()
    turned.sort_indices()
    spreading = csr_array((values, graph.neighbors, graph.indptr), shape=(size, size))

    layers = [layer for layer in network.convolutions if isinstance(layer, GraphConvolution)]
    weights = [layer.weight.detach().double().cpu().numpy() for layer in layers]
    biases = np.stack([layer.bias.detach().double().cpu().numpy() for layer in layers])
    mixed = np.empty((len(weights), size, width))
    spread = np.empty_like(mixed)
    plain = embeddings.detach().double().cpu().numpy()
    states = plain
    for layer, weight in enumerate(weights):
        mixed[layer] = states @ weight
        spread[layer] = spreading @ mixed[layer] + (scale * own * scale)[:, None] * mixed[layer]
        states = np.maximum(spread[layer] + biases[layer], 0.0)
    readout = network.classifier.weight.detach().double().cpu().numpy()
    constant = np.broadcast_to(network.classifier.bias.detach().double().cpu().numpy(), (size, len(readout)))
    if network.settings.skip == "concat":
        constant = constant + plain @ readout[:, width:].T
    return KnownPass(
        indptr=np.ascontiguousarray(graph.indptr, dtype=np.int64),
        columns=np.ascontiguousarray(graph.neighbors, dtype=np.int32),
        values=values,
        loops=scale * own * scale,
        listener_indptr=turned.indptr.astype(np.int64),
        listeners=turned.indices.astype(np.int32),
        listener_entries=turned.data.astype(np.int64) - 1,
        reverse=_reverse_entries(graph, rows),
        weights=raw,
        degrees=degrees,
        mixed=mixed,
        spread=spread,
        active=spread + biases[:, None, :] > 0,
        biases=biases,
        layer_weights=np.stack(weights[1:]) if len(weights) > 1 else np.zeros((0, width, width)),
        classifier=np.ascontiguousarray(readout[:, :width]),
        constant_logits=np.ascontiguousarray(constant),
    )


def _reverse_entries(graph: PatientGraph, rows: npt.NDArray[np.int64]) -> Integers:
    """Return for every entry (a, b) the place of (b, a), or -1."""
    keys = rows * len(graph) + graph.neighbors
    wanted = graph.neighbors.astype(np.int64) * len(graph) + rows
    if not len(keys):
        return np.empty(0, dtype=np.int64)
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, places, -1)
