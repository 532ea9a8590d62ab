"""What every method is asked: which references matter for these targets, for these logits, in this network."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from patients_like_me.errors import PlmError
from patients_like_me.explanation.target_edges import Floats, Integers, TargetEdges
from patients_like_me.workers import Progress

if TYPE_CHECKING:
    from torch import Tensor

    from patients_like_me.explanation.known_pass import KnownPass
    from patients_like_me.explanation.network_pass import NetworkPass
    from patients_like_me.graph.patient_graph import PatientGraph
    from patients_like_me.model.gcn import GraphNetwork, NodeNetwork
    from patients_like_me.tasks.kinds import LabelKind


@dataclass(frozen=True, eq=False)
class Question:
    """A network on a graph, some target nodes, and which of their logits are to be explained.

    ``known`` is the network's pass over the graph; ``choice`` [targets, outputs] is made by
    ``targets.chosen_outputs``; ``seed`` decides everything random.
    """

    network: NodeNetwork
    graph: PatientGraph
    embeddings: Tensor
    kind: LabelKind
    known: NetworkPass
    edges: TargetEdges
    choice: Floats
    seed: int = 0
    threads: int | None = None
    progress: Progress | None = field(default=None, repr=False)

    @classmethod
    def ask(
        cls,
        network: NodeNetwork,
        graph: PatientGraph,
        embeddings: Tensor,
        kind: LabelKind,
        targets: Integers,
        *,
        output: int | None = None,
        **more: Any,
    ) -> Question:
        """Run the network once and choose the target logits; ``output`` names one class or code for all targets.

        ``more`` are ``seed``, ``threads`` and ``progress``.
        """
        import torch

        from patients_like_me.explanation.network_pass import pass_over
        from patients_like_me.explanation.targets import chosen_outputs

        known = pass_over(network, graph, embeddings)
        edges = TargetEdges.of(graph.indptr, graph.neighbors, targets)
        choice = chosen_outputs(kind, torch.from_numpy(known.logits[edges.targets]), output=output).numpy()
        return cls(network, graph, embeddings, kind, known, edges, choice, **more)

    @cached_property
    def logits(self) -> Floats:
        """The logits of the targets [targets, outputs]."""
        return self.known.logits[self.edges.targets]

    @property
    def target_logits(self) -> Floats:
        """The target logit of every target."""
        return np.asarray((self.logits * self.choice).sum(axis=1), dtype=np.float64)

    @property
    def weights(self) -> Floats:
        """The raw weight of every edge: the number of shared diagnoses."""
        return self.graph.weights[self.edges.entries].astype(np.float64)

    def own_network(self, method: str) -> tuple[GraphNetwork, KnownPass]:
        """Return network and pass for a method that knows the package's own network only; refuse any other."""
        from patients_like_me.explanation.known_pass import KnownPass
        from patients_like_me.model.gcn import GraphNetwork

        if not isinstance(self.network, GraphNetwork) or not isinstance(self.known, KnownPass):
            raise PlmError(
                f"the method '{method}' does not support the network {type(self.network).__name__}",
                remedy="choose gradient or leave_one_out, which work with every network",
            )
        return self.network, self.known

    def with_network(self, network: NodeNetwork) -> Question:
        """Return the same question about another network; targets keep their chosen outputs."""
        from patients_like_me.explanation.network_pass import pass_over

        return replace(self, network=network, known=pass_over(network, self.graph, self.embeddings))

    def of_targets(self, numbers: Integers) -> Question:
        """Return the question about some of the targets, named by their place."""
        edges = TargetEdges.of(self.graph.indptr, self.graph.neighbors, self.edges.targets[numbers])
        return replace(self, edges=edges, choice=self.choice[numbers])

    def report(self, done: int, total: int) -> None:
        """Report how far a method has come."""
        if self.progress is not None:
            self.progress(done, total)
