"""From vectors to labels: the projection of the language model, and the loss of each kind of task.

Logits are [N, outputs]: one column for a binary task, one per class, or one per code. Targets are [N] (0 or 1, or the
class number) or [N, codes] (0 or 1); a distribution over the labels is a target too: its loss is the expectation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from patients_like_me.tasks.task import LabelKind

ProjectionKind = Literal["linear", "mlp"]


def projection(kind: ProjectionKind, inputs: int, outputs: int) -> nn.Module:
    """Return the map from the language model's width to that of the graph; it belongs to theta.

    The paper calls it a linear projection in one place and an MLP in another; both are here.
    """
    if kind == "linear":
        return nn.Linear(inputs, outputs)
    return nn.Sequential(nn.Linear(inputs, inputs), nn.GELU(), nn.Linear(inputs, outputs))


def number_of_outputs(kind: LabelKind, labels: int) -> int:
    """Return the number of logits per instance; ``labels`` counts classes or codes.

    >>> number_of_outputs("binary", 2), number_of_outputs("multiclass", 10)
    (1, 10)
    """
    return 1 if kind == "binary" else labels


def loss_per_instance(kind: LabelKind, logits: Tensor, targets: Tensor) -> Tensor:
    """Return the negative log-likelihood of each instance, [N]: BCE, CE, or BCE averaged over the codes.

    >>> loss_per_instance("binary", torch.zeros(1, 1), torch.ones(1)).round(decimals=3)
    tensor([0.6930])
    """
    if kind == "multiclass":
        # Class numbers are whole numbers; a distribution over classes is a row of shares.
        targets = targets.to(logits.dtype) if targets.dim() == 2 else targets.long()
        return functional.cross_entropy(logits, targets, reduction="none")
    targets = targets.to(logits.dtype).reshape(logits.shape)
    return functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=1)


def base_rate_logits(kind: LabelKind, labels: Tensor, outputs: int) -> Tensor:
    """Return the logits of the label rates, [outputs]: what a classifier says that has seen no patient.

    Half a label is added to both sides, so that a code that all or none have stays finite.

    >>> base_rate_logits("binary", torch.tensor([1, 0, 0, 0]), 1).round(decimals=3)
    tensor([-0.8470])
    """
    if kind == "multiclass":
        counts = torch.bincount(labels.long(), minlength=outputs) + 0.5
        return (counts / counts.sum()).log()
    rates = (labels.reshape(len(labels), outputs).sum(dim=0) + 0.5) / (len(labels) + 1)
    return rates.logit()


def probabilities(kind: LabelKind, logits: Tensor) -> Tensor:
    """Return the probability of each label, [N, outputs].

    >>> probabilities("multilabel", torch.zeros(1, 2))
    tensor([[0.5000, 0.5000]])
    """
    return logits.softmax(dim=1) if kind == "multiclass" else logits.sigmoid()


def sampled_labels(kind: LabelKind, logits: Tensor, *, generator: torch.Generator) -> Tensor:
    """Draw one label per instance from the distribution of its logits, in the form of targets."""
    chances = probabilities(kind, logits.detach())
    if kind == "multiclass":
        return torch.multinomial(chances, 1, generator=generator).squeeze(1)
    drawn = torch.bernoulli(chances, generator=generator)
    return drawn.squeeze(1) if kind == "binary" else drawn
