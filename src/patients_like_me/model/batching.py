"""Prompts as token ids, and batches of prompts of similar length, so that little is spent on padding.

Nothing here decides a result: padding is invisible to the model, so the batches only change the speed. The order of
training batches comes from a generator that the caller gives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from patients_like_me.errors import PlmError

Integers = npt.NDArray[np.int64]
#: Texts of new patients are padded to a multiple of so many tokens. Torch compiles a form of every layer for each
#: length and keeps it: a server that reads texts of all lengths would grow by some 300 MiB.
TOKENS_AT_ONCE = 16


@dataclass(frozen=True)
class TokenizedPrompts:
    """The token ids of all prompts, one after another, and where each begins.

    >>> prompts = TokenizedPrompts.from_lists([[101, 7, 102], [101, 102]])
    >>> len(prompts), prompts.lengths.tolist(), prompts.tokens_of(1).tolist()
    (2, [3, 2], [101, 102])
    """

    ids: npt.NDArray[np.int32]
    offsets: Integers
    #: Batches are padded to a multiple of this length, but not beyond ``longest``.
    multiple: int = 1
    longest: int = 0

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[int]], *, multiple: int = 1, longest: int = 0) -> TokenizedPrompts:
        """Join lists of token ids; an empty prompt is refused, since there is nothing to average over."""
        lengths = np.array([len(ids) for ids in lists], dtype=np.int64)
        if len(lengths) and lengths.min() == 0:
            raise PlmError(f"prompt {int(lengths.argmin())} has no token", remedy="give every instance a text")
        offsets = np.zeros(len(lists) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        joined = np.concatenate([np.asarray(ids, dtype=np.int32) for ids in lists]) if lists else np.zeros(0, np.int32)
        return cls(joined, offsets, multiple, longest)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Integers:
        """Return the number of tokens of each prompt."""
        return np.diff(self.offsets)

    def tokens_of(self, row: int) -> npt.NDArray[np.int32]:
        """Return the token ids of one prompt."""
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    def keys(self) -> list[bytes]:
        """Return the SHA-256 of each prompt's token ids: equal prompts have equal keys."""
        return [hashlib.sha256(self.tokens_of(row).astype("<i4").tobytes()).digest() for row in range(len(self))]

    def padded(self, rows: Integers) -> tuple[Tensor, Tensor]:
        """Return the token ids [B, L] of some prompts, padded on the right, and the mask [B, L] of real tokens.

        >>> TokenizedPrompts.from_lists([[101, 102]], multiple=4, longest=512).padded(np.array([0]))[0].tolist()
        [[101, 102, 0, 0]]
        """
        mask = mask_of(self.lengths[rows])
        wanted = min(-(-mask.shape[1] // self.multiple) * self.multiple, max(self.longest, mask.shape[1]))
        if wanted > mask.shape[1]:
            mask = torch.nn.functional.pad(mask, (0, wanted - mask.shape[1]))
        ids = torch.zeros(mask.shape, dtype=torch.int64)
        ids[mask] = torch.from_numpy(np.concatenate([self.tokens_of(int(row)) for row in rows])).long()
        return ids, mask


def mask_of(lengths: Integers) -> Tensor:
    """Mark the real tokens of prompts of these lengths.

    >>> mask_of(np.array([2, 1])).tolist()
    [[True, True], [True, False]]
    """
    longest = int(lengths.max()) if len(lengths) else 0
    return torch.arange(longest)[None, :] < torch.from_numpy(np.ascontiguousarray(lengths))[:, None]


def shuffled_batches(
    lengths: Integers, batch_size: int, generator: np.random.Generator, *, batches_per_bucket: int = 16
) -> list[Integers]:
    """Cut all rows into training batches: random, but prompts of similar length together.

    Rows are shuffled, taken in buckets of several batches, sorted by length inside a bucket, cut, and the batches are
    shuffled again. Every row comes exactly once.

    >>> batches = shuffled_batches(np.array([5, 50, 6, 51]), 2, np.random.default_rng(0))
    >>> sorted(sorted(batch.tolist()) for batch in batches)
    [[0, 2], [1, 3]]
    """
    if batch_size < 1:
        raise PlmError(f"the batch size is {batch_size}", remedy="give a number of at least 1")
    order = generator.permutation(len(lengths))
    batches: list[Integers] = []
    for start in range(0, len(order), batch_size * batches_per_bucket):
        bucket = order[start : start + batch_size * batches_per_bucket]
        bucket = bucket[np.argsort(lengths[bucket], kind="stable")]
        batches.extend(bucket[first : first + batch_size] for first in range(0, len(bucket), batch_size))
    return [batches[place] for place in generator.permutation(len(batches))]


def reading_batches(
    lengths: Integers, *, tokens_per_batch: int | None = None, device: torch.device | str = "cpu"
) -> list[Integers]:
    """Cut all rows into batches for reading only: the longest first, each of at most about ``tokens_per_batch`` tokens.

    Not given, a batch is small on a processor, where it should stay in its cache, and large on a graphics card.

    >>> [batch.tolist() for batch in reading_batches(np.array([2, 9, 3, 9]), tokens_per_batch=18)]
    [[1, 3], [2, 0]]
    >>> [len(reading_batches(np.full(64, 512), device=device)) for device in ("cpu", "cuda")]
    [16, 1]
    """
    if tokens_per_batch is None:
        tokens_per_batch = 2048 if torch.device(device).type == "cpu" else 32_768
    order = np.argsort(-lengths, kind="stable")
    batches: list[Integers] = []
    start = 0
    while start < len(order):
        size = max(1, tokens_per_batch // max(1, int(lengths[order[start]])))
        batches.append(order[start : start + size])
        start += size
    return batches
