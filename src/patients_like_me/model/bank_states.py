r"""Newcomers against a bank whose states are known: what the bank computes does not depend on who is predicted.

A newcomer receives from the bank and sends nothing, so M^(l) = H^(l) W^(l) of the bank is the same for everybody. It is
computed once; each newcomer then costs its own neighbours alone:

.. math:: Z^{(l)}_i = s_i \sum_j A_{ij} s_j M^{(l)}_j + s_i^2 \ell_i M^{(l)}_i + b^{(l)}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from patients_like_me.graph.sub_rows import roomy_array, row_sums
from patients_like_me.model.gcn import GraphNetwork
from patients_like_me.model.propagation import FixedPropagation
from patients_like_me.model.sparse_product import CsrMatrix

if TYPE_CHECKING:
    from patients_like_me.graph.patient_graph import PatientGraph


@dataclass(frozen=True, eq=False)
class BankStates:
    """M of every layer over the bank [N, F] each, and the inverse roots of its degrees."""

    network: GraphNetwork
    mixed: tuple[Tensor, ...]
    scale: npt.NDArray[np.float64]

    @classmethod
    @torch.no_grad()
    def of(cls, network: GraphNetwork, graph: PatientGraph, embeddings: Tensor) -> BankStates:
        """Run the network once over a bank, whose graph has no evaluated instances; it must be in eval mode."""
        if network.training:
            raise ValueError("switch the network to eval mode: dropout would blur its states")
        return cls(network, mixed_states(network, graph, embeddings), inverse_roots(degrees_of(graph)))

    @torch.no_grad()
    def logits(self, graph: PatientGraph, embeddings: Tensor) -> Tensor:
        """Return the logits of newcomers; ``graph`` is the bank's, extended by them, ``embeddings`` are theirs."""
        logits: Tensor = self.network(embeddings, _Receiving(self, graph))
        return logits


@torch.no_grad()
def mixed_states(network: GraphNetwork, graph: PatientGraph, embeddings: Tensor) -> tuple[Tensor, ...]:
    """Return M of every layer over the graph of a bank [N, F], by the network's own pass; it must be in eval mode."""
    recorder = _Recorder(FixedPropagation.of_graph(graph), network.settings.layers)
    network.hidden_states(embeddings, recorder)
    return tuple(recorder.mixed)


class _Recorder:
    """A propagation that keeps what goes in, layer by layer."""

    def __init__(self, graph: FixedPropagation, layers: int) -> None:
        self.graph = graph
        self.layers = layers
        self.mixed: list[Tensor] = []

    def propagate(self, states: Tensor) -> Tensor:
        # The states of a large bank are kept on disk: a newcomer reads a few rows of them.
        kept = roomy_array(states.numel(), states.numpy().dtype).reshape(states.shape)
        kept[:] = states.numpy()
        self.mixed.append(torch.from_numpy(kept))
        # What the last layer receives leads to the bank's own predictions, which nobody asks for here.
        return states if len(self.mixed) == self.layers else self.graph.propagate(states)


class _Receiving:
    """The rows of Â of newcomers: the bank's states of each layer come in turn."""

    def __init__(self, bank: BankStates, graph: PatientGraph) -> None:
        first, start = len(bank.scale), int(graph.indptr[len(bank.scale)])
        degrees = degrees_of(graph, first)
        scale = inverse_roots(degrees)
        columns = graph.neighbors[start:]
        rows = np.repeat(np.arange(len(degrees)), graph.degrees[first:])
        values = scale[rows] * graph.weights[start:] * bank.scale[columns]
        self.matrix = CsrMatrix(graph.indptr[first:] - start, columns, values, symmetric=False)
        self.loops = torch.from_numpy(scale**2 * graph.self_loop_weights()[first:])
        self.waiting = list(bank.mixed)

    def propagate(self, states: Tensor) -> Tensor:
        received = self.matrix.product(self.waiting.pop(0))
        return received + self.loops[:, None].to(states.dtype) * states


def degrees_of(graph: PatientGraph, first: int = 0) -> npt.NDArray[np.float64]:
    """Return the sum of every row from ``first`` on, the self-loop included."""
    return np.asarray(row_sums(graph.indptr[first:], graph.weights) + graph.self_loop_weights()[first:])


def inverse_roots(degrees: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return s = d^(-1/2), and 0 for a node of degree 0, which receives nothing."""
    return np.where(degrees > 0, 1.0 / np.sqrt(np.where(degrees > 0, degrees, 1.0)), 0.0)
