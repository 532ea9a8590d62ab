r"""Known drug interactions in training: the matrix over the labels, the rate of a set, the losses, the schedules.

A is 1 where two labels interact. Of codes that the table does not cover nothing is known: a pair with such a code is
neither safe nor unsafe, and the rate of a set is over its known pairs,

.. math:: \mathrm{rate}(S) = |\{i<j \in S: A_{ij} = 1\}| \;/\; |\{i<j \in S: i, j\ \text{covered}\}|,

0 where there is none. The same rate is measured in evaluation. A schedule gives the share beta of the prediction loss
of each instance; the rest is the interaction loss: :math:`\beta L + (1 - \beta) L_{ddi}`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from patients_like_me.codes.interactions import Interactions


class KnownInteractions(nn.Module):
    """The interaction matrix A over the label vocabulary and which labels the table covers, kept with the weights.

    >>> table = Interactions(frozenset({("A01A", "B03B")}), frozenset({"A01A", "B03B"}))
    >>> known = KnownInteractions.of_labels(table, ("A01A", "B03B", "Z99Z"))
    >>> known.rates(torch.tensor([[True, True, True], [True, False, True]])).tolist()
    [1.0, 0.0]
    """

    matrix: Tensor
    covered: Tensor

    def __init__(self, matrix: npt.NDArray[np.bool_], covered: npt.NDArray[np.bool_]) -> None:
        super().__init__()
        known = np.logical_and.outer(covered, covered) & ~np.eye(len(covered), dtype=bool)
        self.register_buffer("matrix", torch.as_tensor(matrix & known, dtype=torch.float32))
        self.register_buffer("covered", torch.as_tensor(covered))

    @classmethod
    def of_labels(cls, interactions: Interactions, labels: tuple[str, ...]) -> KnownInteractions:
        """Restrict a table of interactions to the label vocabulary."""
        pairs = {code for pair in interactions.pairs for code in pair}
        covered = np.array([code in interactions.covered or code in pairs for code in labels], dtype=bool)
        return cls(interactions.matrix(labels), covered)

    def rates(self, chosen: Tensor) -> Tensor:
        """Return the rate [B] of interacting among known pairs of each set [B, M] (bool)."""
        sets = chosen.to(self.matrix.dtype)
        covered = (sets * self.covered).sum(dim=1)
        known = covered * (covered - 1) / 2
        return self.expected_pairs(sets) / 2 / known.clamp(min=1)

    def pairs(self, chosen: Tensor) -> list[tuple[int, int]]:
        """Return the columns of the interacting pairs of one set [M] (bool), to be shown next to it."""
        found = torch.triu(self.matrix * chosen * chosen[:, None]).nonzero()
        return [(int(first), int(second)) for first, second in found]

    def expected_pairs(self, probabilities: Tensor) -> Tensor:
        r"""Return :math:`\sum_{ij} A_{ij} p_i p_j` [B]; every pair counts twice, as in the papers."""
        return ((probabilities @ self.matrix) * probabilities).sum(dim=1)


def prediction_loss(logits: Tensor, targets: Tensor, *, entropy_weight: float, margin_weight: float) -> Tensor:
    """Return the weighted sum [B] of mean binary cross-entropy and multilabel margin loss, targets 0/1 [B, M]."""
    entropy = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=1)
    return entropy_weight * entropy + margin_weight * margin_loss(torch.sigmoid(logits), targets)


def margin_loss(probabilities: Tensor, targets: Tensor) -> Tensor:
    r"""Return :math:`\sum_{j \in Y, i \notin Y} \max(0, 1 - p_j + p_i) / M` [B].

    Probabilities differ by 1 at most, so the maximum never applies and the double sum falls apart into single ones.
    """
    inside, outside = targets.sum(dim=1), (1 - targets).sum(dim=1)
    hits, misses = (probabilities * targets).sum(dim=1), (probabilities * (1 - targets)).sum(dim=1)
    return (inside * outside - outside * hits + inside * misses) / targets.shape[1]


def annealed_choice(rates: Tensor, target: float, temperature: float, draws: Tensor) -> Tensor:
    """GAMENet: above the target the loss is the interaction loss alone with probability exp((target - rate) / T).

    ``draws`` [B] are uniform in [0, 1). T falls with the epochs, and the choice gets rarer.

    >>> annealed_choice(torch.tensor([0.0, 0.5]), 0.05, 0.5, torch.tensor([0.1, 0.1])).tolist()
    [1.0, 0.0]
    """
    probability = torch.exp((target - rates) / temperature)
    return ((rates <= target) | (draws >= probability)).to(rates.dtype)


def proportional_control(rates: Tensor, target: float, step: float) -> Tensor:
    """SafeDrug: beta = max(0, 1 - (rate - target) / step) above the target, 1 below.

    The paper writes min(1, ...) and its code min(0, ...), which is never positive; this is the meaning of both.

    >>> proportional_control(torch.tensor([0.0, 0.25, 0.9]), 0.125, 0.25).tolist()
    [1.0, 0.5, 0.0]
    """
    return (1 - (rates - target) / step).clamp(0, 1)


def exponential_share(rates: Tensor, target: float, steepness: float) -> Tensor:
    """MoleRec: beta = exp(steepness (1 - rate / target)) above the target, 1 below.

    >>> [round(share, 3) for share in exponential_share(torch.tensor([0.0, 0.1]), 0.05, 2.5).tolist()]
    [1.0, 0.082]
    """
    return torch.where(rates > target, torch.exp(steepness * (1 - rates / target)), torch.ones_like(rates))


def variant_name(system: str, knowledge: Sequence[str], without: Collection[str]) -> str:
    """Return a system's name, with the knowledge that it has to do without.

    >>> variant_name("SafeDrug", ("interactions", "molecules"), {"molecules"})
    'SafeDrug[no-molecules]'
    """
    missing = [f"no-{name}" for name in knowledge if name in without]
    return f"{system}[{','.join(missing)}]" if missing else system
