r"""GLEM's graph part and the loss that both parts share: known labels mixed with the other part's soft labels.

.. math:: L = (1 - a) \frac 1 {|G|} \sum_{n \in G} \ell(y_n, p_n) + a \frac 1 {|S|} \sum_{n \in S} \ell(\hat y_n, p_n),
          \qquad \hat y_n = \sigma(z_n / T),

with G the instances whose labels are used, S those with soft labels, z the logits of the other part and :math:`\sigma`
softmax or sigmoid. Without soft labels L is the plain loss over G. The graph network is

.. math:: H^{(l+1)} = \mathrm{dropout}(\mathrm{ReLU}(\mathrm{BatchNorm}(\hat A H^{(l)} W^{(l)} + b^{(l)}))), \qquad
          \mathrm{logits} = \hat A H^{(L-1)} W^{(L-1)} + b^{(L-1)}.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from patients_like_me.errors import PlmError
from patients_like_me.model.gcn import GraphConvolution
from patients_like_me.model.propagation import Propagation
from patients_like_me.model.randomness import seeded
from patients_like_me.tasks.kinds import LabelKind


class SoftLabelGraphSettings(BaseModel):
    """The graph network and its full-batch training; the defaults are those of GLEM's GCN on ogbn-arxiv."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: int = Field(2, ge=1, description="number of graph convolutions")
    width: int = Field(256, ge=1, description="values per node and hidden layer")
    dropout: float = Field(0.5, ge=0, lt=1, description="share of hidden values dropped in training")
    rate: float = Field(0.01, gt=0, le=100, description="learning rate of Adam")
    weight_decay: float = Field(5e-4, ge=0, description="weight decay of Adam")
    steps: int = Field(500, ge=1, description="most full-batch steps")
    check: int = Field(10, ge=1, description="steps between two looks at the validation score")
    patience: int = Field(5, ge=1, description="looks without a better score before stopping")
    soft_share: float = Field(0.7, ge=0, le=1, description="share a of the language model's soft labels in the loss")


@dataclass(frozen=True)
class MixedTargets:
    """Labels of N instances [N, outputs], which of them are used [N], and soft labels with their instances."""

    labels: Tensor
    known: Tensor
    soft: Tensor | None = None
    softened: Tensor | None = None

    def of(self, places: Tensor) -> MixedTargets:
        """Return the targets of some instances."""
        return MixedTargets(
            self.labels[places],
            self.known[places],
            None if self.soft is None else self.soft[places],
            None if self.softened is None else self.softened[places],
        )


def mixed_loss(kind: LabelKind, logits: Tensor, targets: MixedTargets, share: float, smoothing: float = 0.0) -> Tensor:
    """Return the loss of a batch; a part without any instance leaves all weight to the other one.

    >>> from patients_like_me.tasks.kinds import BINARY
    >>> targets = MixedTargets(torch.ones(2, 1), torch.tensor([True, False]))
    >>> round(float(mixed_loss(BINARY, torch.zeros(2, 1), targets, share=0.5)), 4)
    0.6931
    """
    known = kind.loss(logits, smoothed(kind, targets.labels, smoothing))[targets.known]
    if targets.soft is None or targets.softened is None or not bool(targets.softened.any()):
        return known.mean() if len(known) else logits.sum() * 0.0
    soft = kind.loss(logits, targets.soft)[targets.softened].mean()
    return (1 - share) * known.mean() + share * soft if len(known) else soft


def smoothed(kind: LabelKind, labels: Tensor, smoothing: float) -> Tensor:
    """Move a share of the probability of 0/1 labels [N, outputs] evenly to the other answers.

    >>> from patients_like_me.tasks.kinds import BINARY, MULTICLASS
    >>> smoothed(BINARY, torch.ones(1, 1), 0.1).tolist(), smoothed(MULTICLASS, torch.tensor([[1.0, 0.0]]), 0.5).tolist()
    ([[0.949999988079071]], [[0.75, 0.25]])
    """
    return labels * (1 - smoothing) + smoothing / kind.answers(labels.shape[1])


def soft_labels(kind: LabelKind, logits: Tensor, temperature: float) -> Tensor:
    """Return the other part's answer as a distribution; below 1 the temperature sharpens it."""
    return kind.tensor_probabilities(logits.detach() / temperature)


def most_confident(kind: LabelKind, probabilities: Tensor, share: float) -> Tensor:
    """Mark the share of rows [N] of which the answer is the surest.

    >>> from patients_like_me.tasks.kinds import BINARY
    >>> most_confident(BINARY, torch.tensor([[0.9], [0.5], [0.2], [0.4]]), 0.5).tolist()
    [True, False, True, False]
    """
    surest = kind.confidence(probabilities).argsort(descending=True, stable=True)
    kept = torch.zeros(len(probabilities), dtype=torch.bool)
    kept[surest[: max(1, round(share * len(kept)))]] = True
    return kept


class SoftLabelGraph(nn.Module):
    """The graph network."""

    def __init__(self, inputs: int, outputs: int, settings: SoftLabelGraphSettings) -> None:
        super().__init__()
        widths = [inputs, *([settings.width] * (settings.layers - 1)), outputs]
        self.convolutions = nn.ModuleList(GraphConvolution(before, after) for before, after in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in widths[1:-1])
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, embeddings: Tensor, graph: Propagation) -> Tensor:
        """Return the logits [N, outputs] of all nodes."""
        states = embeddings
        for convolution, norm in zip(self.convolutions, self.norms, strict=False):
            states = self.dropout(torch.relu(norm(convolution(states, graph))))
        logits: Tensor = self.convolutions[-1](states, graph)
        return logits


@dataclass(frozen=True)
class GraphView:
    """What a full-batch training sees: training embeddings with their graph, and validation linked to them."""

    train: Tensor
    graph: Propagation
    validation: Tensor
    linked: Propagation

    def validation_logits(self, network: SoftLabelGraph) -> Tensor:
        """Return the logits of validation, without a gradient; it receives from training and sends nothing."""
        return logits_of_linked(network, self.train, self.validation, self.linked)


@torch.no_grad()
def logits_of_linked(network: SoftLabelGraph, train: Tensor, own: Tensor, linked: Propagation) -> Tensor:
    """Return the logits of instances that are linked to the training instances."""
    network.eval()
    logits: Tensor = network(torch.cat([train, own]), linked)[len(train) :]
    return logits


def fit_graph(
    view: GraphView,
    targets: MixedTargets,
    kind: LabelKind,
    settings: SoftLabelGraphSettings,
    judge: Callable[[Tensor], float | None],
    *,
    seed: int,
    phase: int,
) -> tuple[SoftLabelGraph, float | None, int]:
    """Train a graph network from scratch by full-batch steps; return the one that validates best, its score, its step.

    ``judge`` scores the logits of validation.
    """
    with seeded(seed, 6, phase):
        network = SoftLabelGraph(view.train.shape[1], targets.labels.shape[1], settings)
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.rate, weight_decay=settings.weight_decay)
    best, best_score, best_step, waited = copy.deepcopy(network.state_dict()), None, 0, 0
    for step in range(1, settings.steps + 1):
        network.train()
        with seeded(seed, 7, phase, step):
            loss = mixed_loss(kind, network(view.train, view.graph), targets, settings.soft_share)
            if not bool(loss.isfinite()):
                raise PlmError(
                    f"the loss of the graph network is no longer a number (step {step})", remedy="lower graph_part.rate"
                )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % settings.check == 0 or step == settings.steps:
            score = judge(view.validation_logits(network))
            if best_step == 0 or score is None or (best_score is not None and score > best_score):
                best, best_score, best_step, waited = copy.deepcopy(network.state_dict()), score, step, 0
            else:
                waited += 1
                if waited >= settings.patience:
                    break
    network.load_state_dict(best)
    return network.eval(), best_score, best_step
