"""One block of a transformer over a set, without positions: for the codes of a visit, and for visits.

Sets are padded to the largest of a batch. Where they differ much in size, most places are padding: ``Packing`` leaves
it out, and ``SetBlock.packed`` computes the same from the real tokens alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from patients_like_me.systems.visit_layers import Dropout


class BlockSettings(Protocol):
    """The sizes of a block, as the settings of a system name them."""

    @property
    def width(self) -> int:
        """Values per token."""

    @property
    def heads(self) -> int:
        """Heads of the attention."""

    @property
    def feed_forward(self) -> int:
        """Values inside the feed-forward network."""

    @property
    def dropout(self) -> float:
        """Share of hidden values dropped in training."""

    @property
    def attention_dropout(self) -> float:
        """Share of attention weights dropped in training."""


@dataclass(frozen=True)
class Packing:
    """Where the real tokens of padded sets are: ``seen`` [N, T], and the places [P] of real ones in [N * T].

    >>> import torch
    >>> packing = Packing.of(torch.tensor([[True, True], [True, False]]))
    >>> packing.padded(packing.packed(torch.tensor([[[1.0], [2.0]], [[3.0], [9.0]]]))).flatten().tolist()
    [1.0, 2.0, 3.0, 0.0]
    """

    seen: Tensor
    places: Tensor

    @classmethod
    def of(cls, seen: Tensor) -> Packing:
        """Find the real tokens."""
        return cls(seen, seen.flatten().nonzero().squeeze(1))

    @property
    def firsts(self) -> Tensor:
        """The places [N] of the first tokens of the sets among the real ones; every first token has to be real."""
        sizes = self.seen.sum(dim=1)
        return sizes.cumsum(0) - sizes

    def packed(self, values: Tensor) -> Tensor:
        """Return the real ones [P, ...] of padded values [N, T, ...]."""
        return values.flatten(0, 1).index_select(0, self.places)

    def padded(self, values: Tensor) -> Tensor:
        """Undo :meth:`packed`; padding is 0."""
        empty = values.new_zeros(self.seen.numel(), *values.shape[1:])
        return empty.index_copy(0, self.places, values).view(*self.seen.shape, *values.shape[1:])


class SetBlock(nn.Module):
    """A transformer block with the norms first: x + attention(norm x), then x + feed-forward(norm x)."""

    def __init__(self, settings: BlockSettings) -> None:
        super().__init__()
        width = settings.width
        self.heads, self.attention_dropout = settings.heads, settings.attention_dropout
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections = nn.Linear(width, 3 * width, bias=False)
        self.joined = nn.Linear(width, width)
        self.dropout = Dropout(settings.dropout)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, settings.feed_forward),
            nn.GELU(approximate="tanh"),
            Dropout(settings.dropout),
            nn.Linear(settings.feed_forward, width),
        )

    def forward(self, states: Tensor, seen: Tensor) -> Tensor:
        """Return the new states [N, T, width]; ``seen`` [N, T] are the tokens that are not padding."""
        split = self.projections(self.first_norm(states)).unflatten(2, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)
        return self._changed(states, self._attended(query, key, value, seen).flatten(2))

    def packed(self, states: Tensor, packing: Packing, *, first_only: bool = False) -> Tensor:
        """Return the new states [P, width] of the real tokens, or [N, width] of the first ones of the sets alone.

        The others are what a first token attends to: as the last block of a transformer that is read at its first
        tokens, nothing else of them is needed.
        """
        normed = self.first_norm(states)
        if not first_only:
            split = torch.unflatten(packing.padded(self.projections(normed)), 2, (3, self.heads, -1))
            query, key, value = split.permute(2, 0, 3, 1, 4)
            return self._changed(states, packing.packed(self._attended(query, key, value, packing.seen).flatten(2)))
        firsts, width = packing.firsts, states.shape[1]
        of_query, of_both = torch.split(self.projections.weight, [width, 2 * width])
        query = torch.unflatten(functional.linear(normed.index_select(0, firsts), of_query), 1, (self.heads, 1, -1))
        both = torch.unflatten(packing.padded(functional.linear(normed, of_both)), 2, (2, self.heads, -1))
        key, value = both.permute(2, 0, 3, 1, 4)
        attended = self._attended(query, key, value, packing.seen)
        return self._changed(states.index_select(0, firsts), attended.flatten(1))

    def _attended(self, query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
        """Return [N, queries, heads, width / heads]."""
        attended = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=seen[:, None, None],
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        return attended.transpose(1, 2)

    def _changed(self, states: Tensor, attended: Tensor) -> Tensor:
        states = states + self.dropout(self.joined(attended))
        states = states + self.dropout(self.feed_forward(self.second_norm(states)))
        result: Tensor = self.dropout(states)
        return result


def mean_of_seen(states: Tensor, seen: Tensor) -> Tensor:
    """Return the mean [N, width] over the tokens [N, T, width] that are not padding; 0 where there is none.

    >>> import torch
    >>> mean_of_seen(torch.tensor([[[2.0], [4.0], [9.0]]]), torch.tensor([[True, True, False]])).tolist()
    [[3.0]]
    """
    return (states * seen.unsqueeze(-1)).sum(1) / seen.sum(1, keepdim=True).clamp(min=1)
