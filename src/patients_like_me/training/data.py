"""What a training works on: prompts at the level where training begins, labels, and one graph per split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.graph.bank import nodes_of_split
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.model.prompt_inputs import PromptInputs
from patients_like_me.model.propagation import LARGE, FixedPropagation, Propagation
from patients_like_me.tasks.instances import Rows
from patients_like_me.tasks.kinds import LabelKind, kind_named
from patients_like_me.tasks.metrics import score
from patients_like_me.tasks.task import Split


@dataclass(frozen=True)
class SplitGraph:
    """The graph on which one split is evaluated.

    Its nodes are ``nodes`` (instance rows), of which the last ``evaluated`` are the split's own: all of them in
    ``cohort`` mode; in ``bank`` mode the training instances come first and only send messages.
    """

    nodes: Rows
    evaluated: int
    propagation: Propagation
    edges: int = 0


@dataclass(frozen=True)
class TrainingData:
    """All instances of a task, ready for the loop; rows are instance numbers."""

    kind: LabelKind
    metrics: tuple[str, ...]
    labels: Tensor
    splits: Mapping[Split, Rows]
    inputs: PromptInputs
    graphs: Mapping[Split, SplitGraph]

    def __post_init__(self) -> None:
        train = self.splits["train"]
        if not len(train):
            raise PlmError("no instance is in the training split", remedy="use a larger cohort or other shares")
        if not len(self.splits["validation"]):
            raise PlmError(
                "no instance is in the validation split, which decides when to stop",
                remedy="use a larger cohort or other shares",
            )
        chosen = self.labels[torch.from_numpy(train)]
        if self.kind.lacks_an_outcome(chosen.numpy()):
            only = int(chosen[0])
            raise PlmError(
                f"all {len(chosen):,} training labels are {only}: there is nothing to learn",
                remedy="use a larger cohort, another window, or another split seed",
            )

    @property
    def train_rows(self) -> Rows:
        """The instance rows of the training split: the order of the embedding store."""
        return self.splits["train"]

    @cached_property
    def train_labels(self) -> Tensor:
        """The labels of the training split, in the order of the embedding store."""
        return self.labels_of("train")

    def labels_of(self, split: Split) -> Tensor:
        """Return the labels of one split."""
        return self.labels[torch.from_numpy(self.splits[split])]

    def scores(self, split: Split, logits: Tensor) -> dict[str, float | None]:
        """Return the task's metrics of logits for one split."""
        return score(self.metrics, self.labels_of(split).numpy(), predicted(self.kind, logits))


def predicted(kind: str, logits: Tensor) -> npt.NDArray[np.float64]:
    """Return the probabilities of logits as an array: [N] for a binary task, else [N, labels]."""
    label = kind_named(kind)
    return label.in_shape(label.tensor_probabilities(logits.detach().double()).cpu().numpy())


def graphs_of_splits(graph: PatientGraph, splits: Mapping[Split, Rows]) -> dict[Split, SplitGraph]:
    """Cut the graph of all instances into the graph of each split.

    In ``cohort`` mode a split's graph has its own instances only. In ``bank`` mode the graph of validation and test
    also has the training instances, from which the evaluated ones receive and to which they send nothing.
    """
    return {
        split: split_graph(graph, nodes_of_split(graph.settings.references, splits, split), len(rows))
        for split, rows in splits.items()
        if len(rows)
    }


def split_graph(graph: PatientGraph, nodes: Rows, evaluated: int) -> SplitGraph:
    """Return the graph of some nodes, of which the last ``evaluated`` are looked at."""
    if len(graph.neighbors) >= LARGE and graph.settings.max_neighbors is None:
        # The graph may be on disk, larger than memory: its rows are read where they are.
        received = int(graph.degrees[nodes][graph.evaluated[nodes]].sum())
        edges = received + (int(graph.degrees[nodes].sum()) - received) // 2
        return SplitGraph(nodes, evaluated, FixedPropagation.of_nodes(graph, nodes), edges=edges)
    part = graph.sub_graph(nodes)
    propagation = FixedPropagation.of_graph(part)
    return SplitGraph(nodes, evaluated, propagation, edges=part.edges)
