r"""What an explanation needs of a graph network: its logits, the importance of edges, and the logits without some.

.. math:: \mathrm{Imp}(i, j) = \frac{\partial\, \mathrm{target\ logit}_i}{\partial A_{ij}}

A_ij is the raw weight of the edge, before normalisation; the derivative goes through the normalisation and through all
layers, and has a sign: positive where a stronger edge would raise the logit (the reference supports it), negative
where it would lower it. An edge in both directions is one parameter. An evaluated instance in ``bank`` mode receives
messages but sends none: its edge is one entry, and only its own degree depends on it.

:class:`GeneralPass` computes all of this by the network's own forward pass, with the edge weights as inputs: one
backward pass per target, one forward pass per removal. It serves any network of the contract
(:class:`~patients_like_me.model.gcn.NodeNetwork`). For the package's own network ``known_pass`` gives the same numbers
many times faster; :func:`pass_over` chooses.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from patients_like_me.explanation.target_edges import Floats, Integers, TargetEdges
from patients_like_me.model.gcn import GraphNetwork, NodeNetwork
from patients_like_me.model.propagation import WeightedEdges
from patients_like_me.workers import Progress

if TYPE_CHECKING:
    from patients_like_me.graph.patient_graph import PatientGraph


class NetworkPass(Protocol):
    """A network on a graph, in double precision and without dropout, ready to be explained."""

    @property
    def logits(self) -> Floats:
        """The logits of all nodes [N, outputs]."""
        ...

    def importances(
        self, edges: TargetEdges, choice: Floats, *, threads: int | None = None, progress: Progress | None = None
    ) -> Floats:
        """Return Imp(i, j) of all edges of the targets; ``choice`` [targets, outputs] makes up their target logits."""
        ...

    def logits_without(
        self,
        targets: Integers,
        removed_indptr: Integers,
        removed_entries: Integers,
        *,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> Floats:
        """Return the logits [jobs, outputs] of each job's target without the job's edges.

        Job ``n`` removes the entries ``removed_entries[removed_indptr[n] : removed_indptr[n + 1]]`` of the target's own
        row of the graph, in both directions. A target may occur in many jobs.
        """
        ...


def pass_over(network: NodeNetwork, graph: PatientGraph, embeddings: Tensor) -> NetworkPass:
    """Run a network on a graph and return what explanations need: the fast form where there is one."""
    # A subclass may compute something else.
    if type(network) is GraphNetwork:
        from patients_like_me.explanation.known_pass import known_pass

        return known_pass(network, graph, embeddings)
    return GeneralPass.of(network, graph, embeddings)


@dataclass(frozen=True, eq=False)
class GeneralPass:
    """Any network of the contract on a graph; make it by :meth:`of`."""

    network: NodeNetwork
    graph: PatientGraph
    embeddings: Tensor

    @classmethod
    def of(cls, network: NodeNetwork, graph: PatientGraph, embeddings: Tensor) -> GeneralPass:
        """Take a copy of the network in double precision; it must be in eval mode."""
        return cls(in_double_precision(network), graph, checked_embeddings(graph, embeddings))

    @cached_property
    def shared(self) -> SharedWeights:
        """The edges of the graph as parameters."""
        return SharedWeights.of_graph(self.graph)

    @cached_property
    def logits(self) -> Floats:
        """The logits of all nodes [N, outputs]."""
        with torch.no_grad():
            return self._run(self.shared.edges(self.shared.first_weights)).numpy()

    def importances(
        self, edges: TargetEdges, choice: Floats, *, threads: int | None = None, progress: Progress | None = None
    ) -> Floats:
        """Return Imp(i, j) of all edges of the targets, by one backward pass per target."""
        del threads
        found = np.zeros(edges.edges)
        if not edges.edges:
            return found
        parameters = self.shared.first_weights.clone().requires_grad_()
        chosen = torch.from_numpy(choice.astype(np.float64))
        target_logits = (self._run(self.shared.edges(parameters))[torch.from_numpy(edges.targets)] * chosen).sum(dim=1)
        for number in range(len(edges)):
            (gradient,) = torch.autograd.grad(
                target_logits[number], parameters, retain_graph=True, materialize_grads=True
            )
            row = edges.row(number)
            found[row] = gradient[self.shared.parameter_of_entry[torch.from_numpy(edges.entries[row])]].numpy()
            if progress is not None:
                progress(number + 1, len(edges))
        return found

    def logits_without(
        self,
        targets: Integers,
        removed_indptr: Integers,
        removed_entries: Integers,
        *,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> Floats:
        """Return the logits [jobs, outputs] of each job's target without the job's edges, by one forward pass each."""
        del threads
        check_removals(self.graph.indptr, targets, removed_indptr, removed_entries)
        shared, found = self.shared, np.empty((len(targets), self.logits.shape[1]))
        for job, target in enumerate(targets):
            gone = removed_entries[removed_indptr[job] : removed_indptr[job + 1]]
            # An edge leaves with both of its entries: they are one parameter.
            removed = torch.zeros(len(shared.first_weights), dtype=torch.bool)
            removed[shared.parameter_of_entry[torch.from_numpy(np.asarray(gone, np.int64))]] = True
            with torch.no_grad():
                found[job] = self._run(shared.edges(shared.first_weights, kept=~removed))[int(target)].numpy()
            if progress is not None:
                progress(job + 1, len(targets))
        return found

    def _run(self, edges: WeightedEdges) -> Tensor:
        logits: Tensor = self.network(self.embeddings, self.network.propagation(edges))
        return logits


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

    def edges(self, parameters: Tensor, *, kept: Tensor | None = None) -> WeightedEdges:
        """Return the edges with these weights, differentiable in them; ``kept`` marks the parameters that stay."""
        if kept is None:
            return WeightedEdges(self.sources, self.targets, parameters[self.parameter_of_entry], self.self_loops)
        entries = kept[self.parameter_of_entry]
        weights = parameters[self.parameter_of_entry[entries]]
        return WeightedEdges(self.sources[entries], self.targets[entries], weights, self.self_loops)


def in_double_precision(network: NodeNetwork) -> NodeNetwork:
    """Return a copy of a network that computes in double precision and learns nothing."""
    if network.training:
        raise ValueError("switch the network to eval mode: dropout would blur its derivatives")
    return deepcopy(network).double().requires_grad_(False)


def checked_embeddings(graph: PatientGraph, embeddings: Tensor) -> Tensor:
    """Return the embeddings in double precision on the CPU; there must be one per node."""
    if embeddings.shape[0] != len(graph):
        raise ValueError(f"{embeddings.shape[0]} embeddings for {len(graph)} nodes")
    return embeddings.detach().double().cpu()


def check_removals(indptr: Integers, targets: Integers, removed_indptr: Integers, removed_entries: Integers) -> None:
    """Refuse to remove an edge that is not in its target's own row."""
    owners = np.repeat(np.asarray(targets, np.int64), np.diff(removed_indptr))
    if ((removed_entries < indptr[owners]) | (removed_entries >= indptr[owners + 1])).any():
        raise ValueError("an edge to be removed does not belong to its target")
