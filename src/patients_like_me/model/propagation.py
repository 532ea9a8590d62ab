r"""How patients inform each other: the normalised adjacency of the graph, in a fast and in a differentiable form.

.. math:: \hat A = \tilde D^{-1/2} \tilde A \tilde D^{-1/2}, \qquad \tilde A = A + S, \qquad
          \tilde d_i = \sum_j \tilde A_{ij}

A is the weighted graph, S the diagonal of self-loop weights, and row i holds what node i *receives*. In a symmetric
graph this is the usual normalisation. A node that only receives (an evaluated instance linked to the bank) is divided
by its own degree and does not change the degree of the nodes it receives from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from patients_like_me.model.count_product import CountMatrix
from patients_like_me.model.sparse_product import CsrMatrix

if TYPE_CHECKING:
    from patients_like_me.graph.patient_graph import PatientGraph


#: Entries from which on Â is kept as counts, five bytes each, and not as numbers.
LARGE = 1 << 25


class Propagation(Protocol):
    """Anything that can spread node states over the graph: Â H."""

    def propagate(self, states: Tensor) -> Tensor:
        """Return Â H for node states H [N, F]."""
        ...


class NoEdges:
    """The graph without any edge: every node keeps its own states, as an instance without a reference does."""

    def propagate(self, states: Tensor) -> Tensor:
        """Return H."""
        return states


class FixedPropagation:
    """Â with fixed weights, normalised once: the fast path of training and prediction.

    ``row_pointers``, ``columns`` and ``weights`` are the graph A in compressed rows, without self-loops. Whether it is
    symmetric is checked unless ``symmetric`` is given.

    >>> pair = FixedPropagation(np.array([0, 1, 2]), np.array([1, 0]), np.array([3, 3]), np.array([1.0, 1.0]))
    >>> pair.propagate(torch.tensor([[4.0], [8.0]], dtype=torch.float64)).tolist()
    [[7.0], [5.0]]
    """

    def __init__(
        self,
        row_pointers: npt.NDArray[np.integer],
        columns: npt.NDArray[np.integer],
        weights: npt.NDArray[np.number],
        self_loops: npt.NDArray[np.number],
        *,
        symmetric: bool | None = None,
    ) -> None:
        size = len(row_pointers) - 1
        if len(self_loops) != size:
            raise ValueError(f"{len(self_loops)} self-loop weights for {size} nodes")
        if len(columns) != len(weights) or len(columns) != row_pointers[-1]:
            raise ValueError(f"{len(columns)} columns, {len(weights)} weights, {row_pointers[-1]} entries in the rows")
        self.matrix: CsrMatrix | CountMatrix
        if symmetric is not None and len(columns) >= LARGE and weights.dtype in (np.uint8, np.uint16):
            counts = cast("npt.NDArray[np.integer]", weights)
            self.matrix = CountMatrix(row_pointers, columns, counts, self_loops, symmetric=symmetric)
            return
        from scipy.sparse import csr_matrix, diags_array

        graph = csr_matrix((weights.astype(np.float64), columns, row_pointers), shape=(size, size))
        looped = (graph + diags_array(self_loops.astype(np.float64))).tocsr()
        looped.sort_indices()
        degrees = np.asarray(looped.sum(axis=1)).ravel()
        scale = np.zeros(size)
        np.divide(1.0, np.sqrt(degrees, where=degrees > 0, out=np.ones(size)), where=degrees > 0, out=scale)
        rows = np.repeat(np.arange(size), np.diff(looped.indptr))
        normalised = scale[rows] * looped.data * scale[looped.indices]
        if symmetric is None:
            symmetric = bool(abs(looped - looped.T).max() == 0)
        self.matrix = CsrMatrix(looped.indptr, looped.indices, normalised, symmetric=symmetric)

    @classmethod
    def of_graph(cls, graph: PatientGraph) -> FixedPropagation:
        """Return the propagation over a patient graph, with the self-loops that its settings name."""
        symmetric = None
        if len(graph.neighbors) >= LARGE:
            # Both ends of an edge receive, unless some are evaluated against a bank or each names its own strongest.
            symmetric = not (graph.settings.is_directed or bool(graph.evaluated.any()))
        return cls(graph.indptr, graph.neighbors, graph.weights, graph.self_loop_weights(), symmetric=symmetric)

    @classmethod
    def of_nodes(cls, graph: PatientGraph, nodes: npt.NDArray[np.int64]) -> FixedPropagation:
        """Return the propagation among some nodes of a graph of all pairs, without a copy of its entries.

        What the nodes receive must come from among them.
        """
        found = cls.__new__(cls)
        loops, receiving = graph.self_loop_weights()[nodes], bool(graph.evaluated[nodes].any())
        found.matrix = CountMatrix(
            graph.indptr, graph.neighbors, graph.weights, loops, symmetric=not receiving, nodes=nodes
        )
        return found

    def __len__(self) -> int:
        return self.matrix.size

    def propagate(self, states: Tensor) -> Tensor:
        """Return Â H, differentiable in H."""
        return self.matrix.multiply(states)


@dataclass(frozen=True, eq=False)
class WeightedEdges:
    """A graph as a list of entries, whose raw weights may carry a gradient.

    Entry e lets ``targets[e]`` receive from ``sources[e]`` with ``weights[e]``; an undirected edge is two of them. To
    treat both directions as one parameter, expand one weight per pair into two entries: gradients then add up.
    ``self_loops`` [N] are the weights of the nodes' edges to themselves.
    """

    sources: Tensor
    targets: Tensor
    weights: Tensor
    self_loops: Tensor


class EdgePropagation:
    """Â computed from edge weights that may carry a gradient: what explanations differentiate."""

    def __init__(self, edges: WeightedEdges) -> None:
        self.sources, self.targets = edges.sources, edges.targets
        self.degrees = edges.self_loops.index_add(0, edges.targets, edges.weights)
        # A node of degree 0 receives nothing; the inner guard keeps its gradient finite.
        positive = self.degrees > 0
        scale = torch.where(positive, torch.where(positive, self.degrees, 1.0).rsqrt(), 0.0)
        self.edge_values = scale[edges.targets] * edges.weights * scale[edges.sources]
        self.loop_values = scale * edges.self_loops * scale

    def __len__(self) -> int:
        return len(self.loop_values)

    def propagate(self, states: Tensor) -> Tensor:
        """Return Â H, differentiable in H and in the edge weights."""
        own = states * self.loop_values[:, None].to(states.dtype)
        messages = states[self.sources] * self.edge_values[:, None].to(states.dtype)
        return own.index_add(0, self.targets, messages)
