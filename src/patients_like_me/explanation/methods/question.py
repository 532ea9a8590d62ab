"""What every method is asked: which references matter for these targets, for these logits, in this network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from patients_like_me.explanation.batch_attribution import TargetEdges
from patients_like_me.explanation.known_pass import Floats, Integers, KnownPass, known_pass
from patients_like_me.explanation.targets import chosen_outputs

if TYPE_CHECKING:
    from patients_like_me.graph.patient_graph import PatientGraph
    from patients_like_me.model.gcn import GraphNetwork
    from patients_like_me.tasks.kinds import LabelKind

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Question:
    """A network on a graph, some target nodes, and which of their logits are to be explained.

    ``choice`` [targets, outputs] is made by ``targets.chosen_outputs``; ``seed`` decides all that is random.
    """

    network: GraphNetwork
    graph: PatientGraph
    embeddings: Tensor
    kind: LabelKind
    known: KnownPass
    edges: TargetEdges
    choice: Floats
    seed: int = 0
    threads: int | None = None
    progress: Progress | None = field(default=None, repr=False)

    @classmethod
    def ask(
        cls,
        network: GraphNetwork,
        graph: PatientGraph,
        embeddings: Tensor,
        kind: LabelKind,
        targets: Integers,
        *,
        output: int | None = None,
        seed: int = 0,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> Question:
        """Run the network once and choose the target logits; ``output`` names one class or code for all targets."""
        known = known_pass(network, graph, embeddings)
        edges = TargetEdges.of(known.indptr, known.columns, targets)
        choice = chosen_outputs(kind, torch.from_numpy(known.logits[edges.targets]), output=output).numpy()
        return cls(network, graph, embeddings, kind, known, edges, choice, seed, threads, progress)

    @cached_property
    def logits(self) -> Floats:
        """The logits of the targets [targets, outputs]."""
        return self.known.logits[self.edges.targets]

    @property
    def target_logits(self) -> Floats:
        """The target logit of every target."""
        return np.asarray((self.logits * self.choice).sum(axis=1), dtype=np.float64)

    def with_network(self, network: GraphNetwork) -> Question:
        """Return the same question about another network; targets keep their chosen outputs."""
        return replace(self, network=network, known=known_pass(network, self.graph, self.embeddings))

    def of_targets(self, numbers: Integers) -> Question:
        """Return the question about some of the targets, named by their place."""
        edges = TargetEdges.of(self.known.indptr, self.known.columns, self.edges.targets[numbers])
        return replace(self, edges=edges, choice=self.choice[numbers])

    def report(self, done: int, total: int) -> None:
        """Tell how far a method has come."""
        if self.progress is not None:
            self.progress(done, total)
