r"""Residual codebooks that two views of the same things share, moved by averages instead of gradients (UDC's DRL).

A vector z is written as a sum of codes, one per book: with :math:`r_1 = z`,

.. math:: k_l = \arg\min_k \Vert r_l - e^l_k \Vert, \qquad r_{l+1} = r_l - e^l_{k_l}, \qquad
          \hat z = \textstyle\sum_l e^l_{k_l}.

In training each book follows the residuals that chose its codes. With A the choices (0/1 [N, codes]) of one view, r its
residuals and s those of the other view of the same things, the co-teacher, first one view and then the other moves

.. math:: n \leftarrow \gamma n + (1 - \gamma) A^T 1, \qquad
          m \leftarrow \gamma m + (1 - \gamma) A^T (\tfrac12 r + \tfrac12 s), \qquad
          e_k = m_k / n_k .

A code that neither view has chosen for ``patience`` steps starts again at a residual of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

_SMALLEST_COUNT = 1e-5


@dataclass(frozen=True)
class Quantised:
    """Vectors [N, width] as sums of codes: their choices, the residuals before each book, and the distances."""

    values: Tensor  #: the sum of the chosen codes, with the gradient of the input
    plain: Tensor  #: the same without a gradient
    choices: Tensor  #: [N, books]
    residuals: tuple[Tensor, ...]  #: per book, [N, width], without a gradient
    distributions: tuple[Tensor, ...]  #: per book, log softmax of minus the squared distance, [N, codes]


class ResidualCodebooks(nn.Module):
    """``books`` [L, K, width], their running counts and sums, and how long each code has not been chosen."""

    books: Tensor
    counts: Tensor
    sums: Tensor
    unused: Tensor

    def __init__(self, books: int, codes: int, width: int, *, decay: float, patience: int) -> None:
        super().__init__()
        self.decay, self.patience = decay, patience
        self.register_buffer("books", torch.randn(books, codes, width) / width**0.5)
        self.register_buffer("counts", torch.ones(books, codes))
        self.register_buffer("sums", self.books.clone())
        self.register_buffer("unused", torch.zeros(books, codes, dtype=torch.long))

    def forward(self, vectors: Tensor) -> Quantised:
        """Quantise vectors [N, width]; the gradient passes straight through."""
        residual, total = vectors, torch.zeros_like(vectors)
        choices, residuals, distributions = [], [], []
        for book in self.books:
            distances = torch.cdist(residual, book).square()
            chosen = distances.argmin(dim=1)
            residuals.append(residual.detach())
            choices.append(chosen)
            distributions.append(torch.log_softmax(-distances, dim=1))
            total = total + book[chosen]
            residual = residual - book[chosen]
        values = vectors + (total - vectors).detach()
        return Quantised(values, total, torch.stack(choices, dim=1), tuple(residuals), tuple(distributions))

    @torch.no_grad()
    def follow(self, one: Quantised, other: Quantised, draws: Tensor) -> None:
        """Move all books after a batch; ``draws`` [L, K] in [0, 1) choose where unused codes start again."""
        for level in range(len(self.books)):
            chosen = torch.zeros(self.books.shape[1], dtype=torch.bool, device=self.books.device)
            for own, teacher in ((one, other), (other, one)):
                hot = functional.one_hot(own.choices[:, level], self.books.shape[1]).to(self.books.dtype)
                taught = 0.5 * own.residuals[level] + 0.5 * teacher.residuals[level]
                self.counts[level].mul_(self.decay).add_(hot.sum(0), alpha=1 - self.decay)
                self.sums[level].mul_(self.decay).add_(hot.T @ taught, alpha=1 - self.decay)
                chosen |= hot.any(0)
            self.unused[level] = torch.where(chosen, 0, self.unused[level] + 1)
            stale = self.unused[level] >= self.patience
            if bool(stale.any()):
                candidates = torch.cat([one.residuals[level], other.residuals[level]])
                places = (draws[level][stale] * len(candidates)).long()
                self.sums[level][stale], self.counts[level][stale] = candidates[places], 1.0
                self.unused[level][stale] = 0
            self.books[level] = self.sums[level] / self.counts[level].clamp(min=_SMALLEST_COUNT)[:, None]


def code_alignment(one: Quantised, other: Quantised) -> Tensor:
    r"""Return the cross-modal code alignment [N]: both views of a thing should choose alike, compared with the batch.

    With P and Q the code distributions of both views, :math:`S_{ij} = \sum_k P_{ik} \log Q_{jk} + Q_{jk} \log P_{ik}`
    and the loss of i is :math:`-\log \exp S_{ii} / \sum_j \exp S_{ij}`, averaged over the books.
    """
    losses = []
    for first, second in zip(one.distributions, other.distributions, strict=True):
        scores = first.exp() @ second.T + first @ second.exp().T
        places = torch.arange(len(scores), device=scores.device)
        losses.append(functional.cross_entropy(scores, places, reduction="none"))
    return torch.stack(losses).mean(0)


def commitment(vectors: Tensor, own: Quantised, other: Quantised) -> Tensor:
    """Return how far vectors are from their codes (twice) and from the other view's codes (once), [N]."""
    to_own = (vectors - own.plain).square().mean(dim=1)
    to_other = (vectors - other.plain).square().mean(dim=1)
    return 2 * to_own + to_other
