"""Deepr: a record as one sentence, read by a convolution (Nguyen et al. 2016, arXiv 1607.07519).

A sentence holds the codes of all visits, and before each visit but the first a word for the time since the visit
before. With word embeddings e_1..e_n (zero outside 1..n) and kernel 2d + 1:

    m_i = relu(W [e_{i-d}; ...; e_{i+d}] + b),   z = max_{i = 1..n} m_i,   logits = head(z)

Readings. The maximum runs over the positions that hold a word, so the padding of a batch changes nothing. One
sentence holds all kinds of codes. The word for a transfer between wards is left out, because visits carry none. A
visit without dates is preceded by a word of its own instead of a pretended gap. The order of codes inside a visit is
drawn again in every training pass and fixed (by number) otherwise. Embeddings start at random, not from word2vec.
"""

from __future__ import annotations

from itertools import accumulate

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.contract import System
from patients_like_me.systems.epochs import EpochSettings, OptimizerName
from patients_like_me.systems.visit_layers import (
    Head,
    Sizes,
    Visits,
    first_embeddings,
    masked_max,
)
from patients_like_me.systems.visit_network import Facts, VisitNetwork, sizes_of

#: Upper ends of the gap words 0-1, 1-3, 3-6 and 6-12 months, in days; longer gaps are the fifth word.
GAP_ENDS = tuple(months * 365.25 / 12 for months in (1, 3, 6, 12))
#: Five lengths of time, and one word where dates are missing.
GAP_WORDS = len(GAP_ENDS) + 2


class DeeprSettings(EpochSettings):
    """Deepr's sizes and training, as in its paper."""

    embedding: int = Field(128, ge=1, description="width of a word's vector")
    motifs: int = Field(128, ge=1, description="number of filters of the convolution")
    reach: int = Field(1, ge=0, description="words seen to each side: the kernel is 2 * reach + 1 wide")
    dropout: float = Field(0.5, ge=0, lt=1, description="share of the pooled motifs dropped in training")
    longest: int = Field(512, ge=1, description="most words of a sentence; the newest are kept")
    batch_size: int = Field(100, ge=1, description="instances per step")
    epochs: int = Field(100, ge=1, description="most epochs")
    patience: int = Field(10, ge=1, description="epochs without a better validation score before stopping")
    optimizer: OptimizerName = Field("adam", description="the rule that changes the weights")
    rate: float = Field(1e-3, gt=0, le=100, description="learning rate of the optimizer")
    weight_decay: float = Field(0.0, ge=0, le=100, description="the optimizer's weight decay")


class Deepr(nn.Module):
    """Embedded sentence, convolution, maximum over its words, linear head."""

    def __init__(self, settings: DeeprSettings, sizes: Sizes) -> None:
        super().__init__()
        self.settings = settings
        self.kinds = tuple(sizes.codes)
        first_numbers = accumulate(sizes.codes.values(), initial=GAP_WORDS)
        self.first_number = dict(zip(self.kinds, first_numbers, strict=False))
        self.words = nn.Parameter(first_embeddings(1 + GAP_WORDS + sizes.all_codes, settings.embedding))
        self.motifs = nn.Conv1d(
            settings.embedding, settings.motifs, kernel_size=2 * settings.reach + 1, padding=settings.reach
        )
        self.dropout = nn.Dropout(settings.dropout)
        self.head = Head(settings.motifs, sizes)

    def forward(self, visits: Visits) -> Tensor:
        """Return logits [B, outputs]."""
        pooled = self.dropout(self.pooled_motifs(self.sentences(visits)))
        logits: Tensor = self.head(pooled, visits.demographics)
        return logits

    def sentences(self, visits: Visits) -> Tensor:
        """Return word numbers [B, n], oldest word first, 0 at the end.

        Word 0 is padding, 1 to 6 are gaps, then the codes follow kind by kind.
        """
        mask = visits.visit_mask
        numbers = [
            torch.where(visits.codes[kind] > 0, visits.codes[kind] + self.first_number[kind], 0) for kind in self.kinds
        ]
        codes = self._ordered(torch.cat(numbers, dim=2))
        words = torch.cat([self._gap_words(visits).unsqueeze(2), codes], dim=2) * mask.unsqueeze(2)
        return _without_holes(words.flatten(1), self.settings.longest)

    def pooled_motifs(self, sentences: Tensor) -> Tensor:
        """Return the strongest answer of each motif, [B, motifs].

        A word adds the same to an answer wherever it is, but for its place in the kernel: so the kernel is applied to
        the vocabulary, once for all sentences, and the answers are sums of its rows.
        """
        is_word, reach, count = sentences > 0, self.settings.reach, len(self.words)
        added = torch.einsum("wd,mdk->kwm", self.words[1:], self.motifs.weight)
        table = functional.pad(added, (0, 0, 1, 0)).flatten(0, 1)
        around = functional.pad(sentences, (reach, reach)).unfold(1, 2 * reach + 1, 1)
        rows = around + count * torch.arange(2 * reach + 1, device=sentences.device)
        assert self.motifs.bias is not None
        answers = functional.embedding_bag(rows.reshape(-1, rows.shape[2]), table, mode="sum") + self.motifs.bias
        return masked_max(torch.relu(answers).view(*sentences.shape, -1), is_word.unsqueeze(2), dim=1)

    def _gap_words(self, visits: Visits) -> Tensor:
        ends = torch.tensor(GAP_ENDS, device=visits.gaps.device, dtype=visits.gaps.dtype)
        by_length = 1 + torch.bucketize(visits.gaps, ends)
        words = torch.where(visits.dated.unsqueeze(1), by_length, GAP_WORDS)
        is_first = torch.arange(words.shape[1], device=words.device) == 0
        return words.masked_fill(is_first, 0)

    def _ordered(self, codes: Tensor) -> Tensor:
        if not self.training:
            return codes.sort(dim=2).values
        keys = torch.rand(codes.shape, device=codes.device)
        return codes.gather(2, keys.argsort(dim=2))


def _without_holes(words: Tensor, longest: int) -> Tensor:
    """Move the words together to the front, and keep the last ``longest`` of them.

    >>> _without_holes(torch.tensor([[0, 3, 0, 5, 6], [7, 0, 0, 0, 0]]), longest=2)
    tensor([[5, 6],
            [7, 0]])
    """
    is_word = words > 0
    newer_words = is_word.flip(1).cumsum(1).flip(1) - is_word.long()
    kept = words * (newer_words < longest)
    order = (kept == 0).long().argsort(dim=1, stable=True)
    lengths = (kept > 0).sum(1)
    # One place is left for an instance without any word: the convolution needs a length.
    return kept.gather(1, order)[:, : max(int(lengths.max()), 1)]


def build(settings: DeeprSettings, facts: Facts) -> Deepr:
    """Build the network for the data that the facts describe."""
    return Deepr(settings, sizes_of(facts))


NETWORK = VisitNetwork(build)
SYSTEM = System(
    name="deepr",
    description="a convolution over the record as one sentence of codes and time gaps",
    settings=DeeprSettings,
    capabilities=Capabilities(random=True, epochs=True, newcomers=True),
    title=lambda _: "Deepr",
    fit=NETWORK.fit,
    predict=NETWORK.predict,
)
