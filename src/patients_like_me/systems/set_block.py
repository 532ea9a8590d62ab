"""One block of a transformer over a set, without positions: for the codes of a visit, and for visits."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn
from torch.nn import functional


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


class SetBlock(nn.Module):
    """A transformer block with the norms first: x + attention(norm x), then x + feed-forward(norm x)."""

    def __init__(self, settings: BlockSettings) -> None:
        super().__init__()
        width = settings.width
        self.heads, self.attention_dropout = settings.heads, settings.attention_dropout
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections = nn.Linear(width, 3 * width, bias=False)
        self.joined = nn.Linear(width, width)
        self.dropout = nn.Dropout(settings.dropout)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, settings.feed_forward),
            nn.GELU(approximate="tanh"),
            nn.Dropout(settings.dropout),
            nn.Linear(settings.feed_forward, width),
        )

    def forward(self, states: Tensor, seen: Tensor) -> Tensor:
        """Return the new states [N, T, width]; ``seen`` [N, T] are the tokens that are not padding."""
        split = self.projections(self.first_norm(states)).unflatten(2, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=seen[:, None, None],
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        states = states + self.dropout(self.joined(attended.transpose(1, 2).flatten(2)))
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
