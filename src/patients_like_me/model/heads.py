"""From vectors to labels: the projection of the language model, and the loss of each kind of task.

Logits are [N, outputs]: one column for a binary task, one per class, or one per code. Targets are [N] (0 or 1, or the
class number) or [N, codes] (0 or 1). What depends on the kind of label is in :mod:`patients_like_me.tasks.kinds`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from patients_like_me.tasks.kinds import kind_named

ProjectionKind = Literal["linear", "mlp"]


def projection(kind: ProjectionKind, inputs: int, outputs: int) -> nn.Module:
    """Return the map from the language model's width to that of the graph; it belongs to theta.

    The paper calls it a linear projection in one place and an MLP in another; both are here.
    """
    if kind == "linear":
        return nn.Linear(inputs, outputs)
    return nn.Sequential(nn.Linear(inputs, inputs), nn.GELU(), nn.Linear(inputs, outputs))


def number_of_outputs(kind: str, labels: int) -> int:
    """Return the number of logits per instance; ``labels`` counts classes or codes.

    >>> number_of_outputs("binary", 2), number_of_outputs("multiclass", 10)
    (1, 10)
    """
    return kind_named(kind).outputs(labels)


def loss_per_instance(kind: str, logits: Tensor, targets: Tensor) -> Tensor:
    """Return the negative log-likelihood of each instance, [N]: BCE, CE, or BCE averaged over the codes.

    >>> loss_per_instance("binary", torch.zeros(1, 1), torch.ones(1)).round(decimals=3)
    tensor([0.6930])
    """
    return kind_named(kind).loss(logits, targets)


def base_rate_logits(kind: str, labels: Tensor, outputs: int) -> Tensor:
    """Return the logits of the label rates, [outputs]: the answer of a classifier that has seen no patient.

    >>> base_rate_logits("binary", torch.tensor([1, 0, 0, 0]), 1).round(decimals=3)
    tensor([-0.8470])
    """
    return kind_named(kind).base_rate_logits(labels, outputs)


def probabilities(kind: str, logits: Tensor) -> Tensor:
    """Return the probability of each label, [N, outputs].

    >>> probabilities("multilabel", torch.zeros(1, 2))
    tensor([[0.5000, 0.5000]])
    """
    return kind_named(kind).tensor_probabilities(logits)


def sampled_labels(kind: str, logits: Tensor, *, generator: torch.Generator) -> Tensor:
    """Draw one label per instance from the distribution of its logits, in the form of targets."""
    return kind_named(kind).sampled(logits, generator=generator)
