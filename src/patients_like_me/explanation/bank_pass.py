r"""The graph network over a bank, run once, so that a newcomer costs its own row alone.

In a bank, newcomers receive messages and send none: the states of the bank's nodes do not depend on who is predicted.
With M^(l) = H^(l) W^(l) of the bank kept, a newcomer i with neighbours j needs

.. math:: Z^{(l)}_i = \sum_j \hat A_{ij} M^{(l)}_j + \hat A_{ii} M^{(l)}_i, \qquad \hat A_{ij} = s_i A_{ij} s_j

:meth:`BankPass.logits_of` computes that; :meth:`BankPass.known` gives the same as a small :class:`KnownPass` of the
newcomer and its neighbours, on which importances and removals are exact: nothing else depends on the newcomer's edges.
The bank's states come from the network itself; the newcomer's row, for which a server has a millisecond, is held to it
by a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from patients_like_me.explanation.known_pass import KnownPass, LayerStates, NormalisedGraph
from patients_like_me.explanation.network_pass import checked_embeddings, in_double_precision
from patients_like_me.explanation.target_edges import Floats, Integers
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.model.bank_states import degrees_of, inverse_roots, mixed_states
from patients_like_me.model.gcn import GraphConvolution, GraphNetwork


@dataclass(frozen=True, eq=False)
class BankPass:
    """The states of a bank in double precision: ``mixed`` is M [N, F] by layer, ``scale`` s [N], ``degrees`` d [N]."""

    graph: PatientGraph
    mixed: tuple[Floats, ...]
    scale: Floats
    degrees: Floats
    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]
    classifier: Floats
    classifier_bias: Floats

    @classmethod
    @torch.no_grad()
    def of(cls, network: GraphNetwork, graph: PatientGraph, embeddings: Tensor) -> BankPass:
        """Run a network over the graph of a bank."""
        plain = checked_embeddings(graph, embeddings)
        double = cast(GraphNetwork, in_double_precision(network))
        layers = [layer for layer in double.convolutions if isinstance(layer, GraphConvolution)]
        degrees = degrees_of(graph)
        return cls(
            graph,
            tuple(each.numpy() for each in mixed_states(double, graph, plain)),
            inverse_roots(degrees),
            degrees,
            tuple(layer.weight.numpy() for layer in layers),
            tuple(layer.bias.numpy() for layer in layers),
            double.classifier.weight.numpy(),
            double.classifier.bias.numpy(),
        )

    @property
    def width(self) -> int:
        """The number of values per node and layer."""
        return int(self.mixed[0].shape[1])

    def loop_weight(self, own_codes: int) -> float:
        """Return the weight of a newcomer's edge to itself, by the settings of the graph."""
        return 1.0 if self.graph.settings.self_loop == "one" else float(max(own_codes, 1))

    def own_states(
        self, embedding: Floats, neighbors: Integers, weights: Floats, own_codes: int
    ) -> tuple[list[Floats], list[Floats], Floats, float, float]:
        """Return M and Z - b of a newcomer by layer, its entries of Â, its own entry, and its degree."""
        loop = self.loop_weight(own_codes)
        degree = float(weights.sum()) + loop
        own_scale = degree**-0.5 if degree > 0 else 0.0
        values = own_scale * weights * self.scale[neighbors]
        own_value = own_scale * loop * own_scale
        state, mixed, spread = embedding, [], []
        for place, (matrix, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            mixed.append(state @ matrix)
            spread.append(values @ self.mixed[place][neighbors] + own_value * mixed[-1])
            state = np.maximum(spread[-1] + bias, 0.0)
        return mixed, spread, values, own_value, degree

    def logits_of(self, embedding: Floats, neighbors: Integers, weights: Floats, own_codes: int) -> Floats:
        """Return the logits [outputs] of a newcomer from its embedding and its edges to the bank."""
        _, spread, _, _, _ = self.own_states(embedding, neighbors, weights, own_codes)
        return self._classified(np.maximum(spread[-1] + self.biases[-1], 0.0), embedding)

    def _classified(self, state: Floats, embedding: Floats) -> Floats:
        wide = self.classifier.shape[1] > self.width
        seen = np.concatenate([state, embedding]) if wide else state
        found: Floats = self.classifier @ seen + self.classifier_bias
        return found

    def known(
        self,
        embedding: Floats,
        nodes: Integers,
        places: Integers,
        edge_weights: npt.NDArray[Any],
        own_codes: int,
    ) -> KnownPass:
        """Return the pass over some nodes of the bank and the newcomer, the last node.

        ``places`` are where its neighbours are among ``nodes``, in rising order, ``edge_weights`` those of its edges.
        """
        size, layers, edges = len(nodes) + 1, len(self.weights), len(places)
        weights: Floats = edge_weights.astype(np.float64)
        own_mixed, own_spread, values, own_value, degree = self.own_states(embedding, nodes[places], weights, own_codes)
        mixed, spread = np.zeros((layers, size, self.width)), np.zeros((layers, size, self.width))
        for layer, of_bank in enumerate(self.mixed):
            mixed[layer, :-1] = of_bank[nodes]
        mixed[:, -1], spread[:, -1] = own_mixed, own_spread
        biases = np.stack(self.biases)
        active = np.zeros(spread.shape, dtype=bool)
        active[:, -1] = spread[:, -1] + biases > 0
        receivers = np.zeros(size + 1, dtype=np.int64)
        receivers[1 + places] = 1
        loops = np.zeros(size)
        loops[-1] = own_value
        logits = np.zeros((size, len(self.classifier)))
        logits[-1] = self._classified(np.maximum(spread[-1, -1] + biases[-1], 0.0), embedding)
        constant = np.zeros_like(logits)
        constant[-1] = self._classified(np.zeros(self.width), embedding)
        graph = NormalisedGraph(
            indptr=np.concatenate([np.zeros(size, dtype=np.int64), [edges]]),
            columns=places.astype(np.int32),
            values=values,
            loops=loops,
            receiver_indptr=np.cumsum(receivers),
            receivers=np.full(edges, size - 1, dtype=np.int32),
            receiver_entries=np.arange(edges),
            reverse=np.full(edges, -1, dtype=np.int64),
            weights=weights,
            degrees=np.concatenate([self.degrees[nodes], [degree]]),
        )
        states = LayerStates(
            mixed=mixed,
            spread=spread,
            active=active,
            biases=biases,
            layer_weights=np.stack(self.weights[1:]) if layers > 1 else np.zeros((0, self.width, self.width)),
        )
        return KnownPass(graph, states, np.ascontiguousarray(self.classifier[:, : self.width]), constant, logits)
