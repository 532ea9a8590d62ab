"""The target logit: the one number per instance that an explanation takes apart.

A target is a 0/1 choice among the outputs of an instance; its logit is the sum of the chosen ones.

=====================  ===============================================================
task                   what is chosen
=====================  ===============================================================
binary                 the one logit (readmission)
multiclass             the predicted class, or a class that is named
multilabel             a code that is named, or all that are likely (0.2 and more)
=====================  ===============================================================

Where nothing is likely the most probable code is chosen, so that every instance has a target.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.tasks.kinds import PAPER_THRESHOLD, kind_named


def chosen_outputs(
    kind: str, logits: Tensor, *, output: int | None = None, threshold: float = PAPER_THRESHOLD
) -> Tensor:
    """Return the choice [N, outputs] as zeros and ones; ``output`` is a named class or code for all instances.

    >>> chosen_outputs("multiclass", torch.tensor([[0.1, 2.0, 0.3]])).tolist()
    [[0.0, 1.0, 0.0]]
    >>> chosen_outputs("multilabel", torch.tensor([[3.0, -9.0, 2.0], [-5.0, -4.0, -6.0]])).tolist()
    [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """
    if output is None:
        return kind_named(kind).chosen(logits, threshold)
    if not 0 <= output < logits.shape[1]:
        raise PlmError(f"there is no output {output}: the task has {logits.shape[1]}")
    choice = torch.zeros_like(logits)
    choice[:, output] = 1
    return choice


def target_logits(logits: Tensor, choice: Tensor) -> Tensor:
    """Return the target logit of every instance, [N]."""
    return (logits * choice).sum(dim=1)


def output_of_label(label: str, vocabulary: Sequence[str]) -> int:
    """Return the output of a class or code.

    >>> output_of_label("A10A", ["A02B", "A10A"])
    1
    """
    if label not in vocabulary:
        shown = ", ".join(vocabulary[:8]) + (", ..." if len(vocabulary) > 8 else "")
        raise PlmError(f"the run does not predict '{label}'", remedy=f"choose one of its labels: {shown}")
    return list(vocabulary).index(label)
