"""Visits as the drug systems read them: sums of code embeddings, a recurrent state per stream, earlier medications."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from patients_like_me.errors import PlmError
from patients_like_me.systems.visit_layers import FIRST_WEIGHTS, Dropout, Sizes, Visits

#: What a query is made of; medications are not part of it.
STREAMS: Final = ("diagnosis", "procedure")


class OfDemographics(nn.Module):
    """What demographics add to the logits: W_d x [B, outputs].

    The papers read codes alone. Every system gets the same inputs, so demographics join in the last layer.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.person = nn.Linear(sizes.demographics, sizes.outputs, bias=False) if sizes.demographics else None

    def forward(self, logits: Tensor, visits: Visits) -> Tensor:
        """Add the share of the demographics."""
        return logits if self.person is None else logits + self.person(visits.demographics)


class CodeSums(nn.Module):
    """Codes [B, V, C] -> the sum or mean [B, V, width] of their embeddings, after dropout; 0 for a visit without."""

    def __init__(self, codes: int, width: int, dropout: float, *, mean: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(codes + 1, width, padding_idx=0)
        self.dropout = Dropout(dropout)
        self.mean = mean
        with torch.no_grad():
            self.embedding.weight[1:].uniform_(-FIRST_WEIGHTS, FIRST_WEIGHTS)

    def forward(self, codes: Tensor) -> Tensor:
        """Add up the embeddings of each visit; only real codes are looked up, and lose values to the dropout."""
        instances, visits, _ = codes.shape
        real = codes > 0
        vectors = self.dropout(functional.embedding(codes[real], self.embedding.weight))
        visit = torch.arange(instances * visits, device=codes.device).view(instances, visits, 1).expand_as(codes)[real]
        sums = vectors.new_zeros(instances * visits, vectors.shape[1]).index_add(0, visit, vectors)
        sums = sums.view(instances, visits, -1)
        found: Tensor = sums / real.sum(dim=2, keepdim=True).clamp(min=1) if self.mean else sums
        return found


class StreamStates(nn.Module):
    """Codes of the streams -> the states [B, V, streams * hidden] of one GRU per stream at every visit.

    Padding is behind the real visits, so that it never reaches their states.
    """

    def __init__(self, sizes: Sizes, width: int, hidden: int, dropout: float, *, mean: bool = False) -> None:
        super().__init__()
        self.streams = streams_of(sizes)
        self.sums = nn.ModuleDict(
            {kind: CodeSums(sizes.codes[kind], width, dropout, mean=mean) for kind in self.streams}
        )
        self.recurrent = nn.ModuleDict({kind: nn.GRU(width, hidden, batch_first=True) for kind in self.streams})
        self.width = hidden * len(self.streams)

    def forward(self, codes: Mapping[str, Tensor]) -> Tensor:
        """Run every stream's GRU over the visits."""
        return torch.cat([self.recurrent[kind](self.sums[kind](codes[kind]))[0] for kind in self.streams], dim=2)


def streams_of(sizes: Sizes) -> tuple[str, ...]:
    """Return which of diagnoses and procedures the data have at all."""
    found = tuple(kind for kind in STREAMS if sizes.codes.get(kind, 0))
    if not found:
        raise PlmError("there are no diagnoses and no procedures to read", remedy="give visits with codes")
    return found


def medication_columns(medications: tuple[str, ...], labels: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """Return the output column of every medication number (0: padding); -1 for one that is not a label.

    >>> medication_columns(("B03B", "A01A"), ("A01A",)).tolist()
    [-1, -1, 0]
    """
    place = {code: at for at, code in enumerate(labels)}
    return np.array([-1, *(place.get(code, -1) for code in medications)], dtype=np.int64)


def medication_sets(medications: Tensor, columns: Tensor, outputs: int) -> Tensor:
    """Return 0/1 [B, V, outputs] from medication numbers [B, V, C]; what is not a label is left out."""
    places = columns[medications]
    sets = torch.zeros(*places.shape[:2], outputs + 1, device=places.device)
    sets.scatter_(2, torch.where(places < 0, outputs, places), 1.0)
    return sets[:, :, :outputs]
