"""MC-GRU: one small GRU per kind of code over all visits, joined before the last layer. An expert of ColaCare.

    h^k = GRU_k(sum of the embeddings of the codes of kind k, visit by visit),   z = relu(W [h^1_T; h^2_T; h^3_T])

The public code reads the last time step alone; here every visit is read.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from patients_like_me.systems.epochs import EpochSettings, OptimizerName
from patients_like_me.systems.visit_layers import (
    Head,
    Sizes,
    VisitGru,
    Visits,
    at_last_visit,
    first_embeddings,
    sum_of_codes,
)
from patients_like_me.systems.visit_network import Facts, VisitNetwork, sizes_of


class McGruSettings(EpochSettings):
    """Sizes and training of MC-GRU."""

    group: int = Field(32, ge=1, description="width of the GRU of one kind of code")
    hidden: int = Field(128, ge=1, description="width of the patient's vector")
    dropout: float = Field(0.3, ge=0, lt=1, description="share of the patient's vector dropped in training")
    optimizer: OptimizerName = Field("adam", description="the rule that changes the weights")
    batch_size: int = Field(128, ge=1, description="instances per step")
    weight_decay: float = Field(0.0, ge=0, le=100, description="the optimizer's weight decay")


class McGru(nn.Module):
    """The network."""

    def __init__(self, settings: McGruSettings, sizes: Sizes) -> None:
        super().__init__()
        self.kinds = tuple(sizes.codes)
        self.tables = nn.ParameterDict(
            {kind: nn.Parameter(first_embeddings(count + 1, settings.group)) for kind, count in sizes.codes.items()}
        )
        self.grus = nn.ModuleDict({kind: VisitGru(settings.group, settings.group) for kind in self.kinds})
        self.join = nn.Linear(settings.group * len(self.kinds), settings.hidden)
        self.dropout = nn.Dropout(settings.dropout)
        self.head = Head(settings.hidden, sizes)

    def forward(self, visits: Visits) -> Tensor:
        """Return logits [B, outputs]."""
        logits: Tensor = self.head(self.dropout(self.vector(visits)), visits.demographics)
        return logits

    def vector(self, visits: Visits) -> Tensor:
        """Return the patient's vector, [B, hidden]."""
        return self._joined(self._sums(visits), visits)

    def _sums(self, visits: Visits) -> dict[str, Tensor]:
        return {kind: sum_of_codes(visits.codes[kind], self.tables[kind]) for kind in self.kinds}

    def _joined(self, sums: dict[str, Tensor], visits: Visits) -> Tensor:
        mask = visits.visit_mask
        states = [at_last_visit(self.grus[kind](sums[kind], mask), mask) for kind in self.kinds]
        return torch.relu(self.join(torch.cat(states, dim=1)))

    def importance(self, visits: Visits, output: int) -> dict[str, Tensor]:
        """Return for every code, [B, V, C] by kind, its vector times the gradient of a logit; 0 for padding."""
        with torch.enable_grad():
            sums = {kind: value.detach().requires_grad_() for kind, value in self._sums(visits).items()}
            logits = self.head(self._joined(sums, visits), visits.demographics)
            gradients = torch.autograd.grad(logits[:, output].sum(), list(sums.values()))
        found = {}
        for kind, gradient in zip(sums, gradients, strict=True):
            codes = visits.codes[kind]
            vectors = functional.embedding(codes, self.tables[kind].detach()) * (codes > 0).unsqueeze(-1)
            found[kind] = torch.einsum("bvd,bvcd->bvc", gradient, vectors)
        return found


def build(settings: McGruSettings, facts: Facts) -> McGru:
    """Build the network for the data that the facts describe."""
    return McGru(settings, sizes_of(facts))


NETWORK = VisitNetwork(build)
