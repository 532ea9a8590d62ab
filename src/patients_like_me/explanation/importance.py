r"""The importance of a reference, by its definition.

.. math:: \mathrm{Imp}(i, j) = \frac{\partial\, \mathrm{target\ logit}_i}{\partial A_{ij}}

A_ij is the raw weight of the edge, before normalisation; the derivative goes through the normalisation and through all
layers, and has a sign: positive where a stronger edge would raise the logit (the reference supports it), negative
where it would lower it. An edge in both directions is one parameter. An evaluated instance in ``bank`` mode only
receives: its edge is one entry, and only its own degree depends on it.

This is the plain form, one backward pass over the whole graph per target. ``batch_attribution`` gives the same numbers
for many targets at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from patients_like_me.model.propagation import EdgePropagation

if TYPE_CHECKING:
    from patients_like_me.graph.patient_graph import PatientGraph
    from patients_like_me.model.gcn import GraphNetwork


@dataclass(frozen=True, eq=False)
class SharedWeights:
    """One parameter per edge of a graph, spread over the entries of its matrix.

    ``parameter_of_entry`` names the parameter of each entry: both directions of an edge have the same one.
    """

    sources: Tensor
    targets: Tensor
    parameter_of_entry: Tensor
    first_weights: Tensor
    self_loops: Tensor

    @classmethod
    def of_graph(cls, graph: PatientGraph, dtype: torch.dtype = torch.float64) -> SharedWeights:
        """Find the edges of a graph; the parameters start at its weights."""
        rows = np.repeat(np.arange(len(graph)), graph.degrees)
        columns = graph.neighbors.astype(np.int64)
        keys = np.minimum(rows, columns) * len(graph) + np.maximum(rows, columns)
        _, first, parameter = np.unique(keys, return_index=True, return_inverse=True)
        return cls(
            sources=torch.from_numpy(columns),
            targets=torch.from_numpy(rows),
            parameter_of_entry=torch.from_numpy(parameter.reshape(-1)),
            first_weights=torch.from_numpy(graph.weights[first].astype(np.float64)).to(dtype),
            self_loops=torch.from_numpy(graph.self_loop_weights()).to(dtype),
        )

    def propagation(self, parameters: Tensor) -> EdgePropagation:
        """Return Â of these parameters, differentiable in them."""
        return EdgePropagation(self.sources, self.targets, parameters[self.parameter_of_entry], self.self_loops)


def importance_of_references(
    network: GraphNetwork, graph: PatientGraph, embeddings: Tensor, node: int, choice: Tensor
) -> npt.NDArray[np.float64]:
    """Return Imp(node, j) for all neighbours j of a node, in the order of ``graph.neighbors_of(node)``.

    ``choice`` [outputs] says which logits make up the target; the network is used as it is, in the type of
    ``embeddings``.
    """
    if network.training:
        raise ValueError("switch the network to eval mode: dropout would blur its derivatives")
    shared = SharedWeights.of_graph(graph, embeddings.dtype)
    parameters = shared.first_weights.clone().requires_grad_()
    logits = network(embeddings, shared.propagation(parameters))
    (gradient,) = torch.autograd.grad((logits[node] * choice).sum(), parameters)
    row = slice(int(graph.indptr[node]), int(graph.indptr[node + 1]))
    found: npt.NDArray[np.float64] = gradient[shared.parameter_of_entry[row]].double().numpy()
    return found
