r"""UDC's second stage: diseases as sums of shared codes, learned from a model's vectors and from the diseases' names.

For a disease with the collaborative vector :math:`e_{co}` and the text vector :math:`e_{tx}`: z = W e of each view,
both quantised by the same :mod:`residual codebooks <patients_like_me.systems.residual_codebooks>`. The decoder is told
the condition c, an attended mean of the procedures and drugs that come with the disease in training:

.. math:: h = \mathrm{GroupNorm}(W_c c) \odot (W_s \hat z) + W_t \hat z, \qquad \hat e = W_d [h; z].

The loss is the squared error of both views, the commitment, the alignment of the code distributions, and a contrast
that draws a disease to the drugs that come with it, in its own view (0.1) and across views (0.01).

A rare disease is later read by its name: the decoder of the collaborative view then gets the codes of the text view. It
learns that from common diseases, whose collaborative vectors can be trusted; the published description leaves open how
the text branch comes back to the width of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from patients_like_me.model.randomness import mixed_seed, seeded
from patients_like_me.systems.residual_codebooks import Quantised, ResidualCodebooks, code_alignment, commitment
from patients_like_me.systems.visit_layers import contrast, masked_softmax

VIEWS: Final = ("co", "text")


class DiseaseCodesSettings(BaseModel):
    """The sizes, losses and training of the second stage; the defaults are UDC's for drugs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    width: int = Field(256, ge=4, description="values per quantised disease")
    books: int = Field(4, ge=1, description="codebooks, each for what the one before left over")
    codes: int = Field(64, ge=2, description="codes per book")
    decay: float = Field(0.99, ge=0, lt=1, description="how slowly the codes follow")
    reseed_after: int = Field(300, ge=1, description="steps without use after which a code starts again")
    groups: int = Field(4, ge=1, description="groups of the norm of the condition")
    commitment: float = Field(0.25, ge=0, description="weight of the distance to the codes")
    alignment: float = Field(0.5, ge=0, description="weight of the agreement of both views' codes")
    same_view: float = Field(0.1, ge=0, description="weight of the contrast with a disease's drugs, in one view")
    cross_view: float = Field(0.01, ge=0, description="weight of the same across views")
    off_diagonal: float = Field(0.005, ge=0, description="weight of correlations between different values")
    epochs: int = Field(100, ge=1, description="passes over all diseases")
    rate: float = Field(1e-3, gt=0, le=100, description="learning rate of Adam")
    batch_size: int = Field(64, ge=2, description="diseases per step")


@dataclass(frozen=True)
class DiseaseKnowledge:
    """What the second stage reads: vectors of D diseases, of what comes with them, and which diseases are common.

    ``companions`` [Q, co width] are the vectors of procedures and drugs, ``condition`` [D, P] rows of it (-1: none).
    ``drugs`` has the vectors of the drugs in both views, ``next_drugs`` [D, R] rows of it (-1: none).
    """

    vectors: Mapping[str, Tensor]
    companions: Tensor
    condition: Tensor
    drugs: Mapping[str, Tensor]
    next_drugs: Tensor
    common: Tensor


@dataclass(frozen=True)
class View:
    """One view of some diseases: the encoder's output and its codes."""

    encoded: Tensor
    quantised: Quantised


class DiseaseCodes(nn.Module):
    """Encoders, shared codebooks and decoders."""

    def __init__(self, settings: DiseaseCodesSettings, widths: Mapping[str, int]) -> None:
        super().__init__()
        width = settings.width
        self.settings = settings
        self.encoders = nn.ModuleDict({view: nn.Linear(widths[view], width) for view in VIEWS})
        self.codebooks = ResidualCodebooks(
            settings.books, settings.codes, width, decay=settings.decay, patience=settings.reseed_after
        )
        # Without a bias, which a softmax would not feel.
        self.attention = nn.Linear(widths["co"], 1, bias=False)
        self.condition = nn.Linear(widths["co"], width)
        self.norm = nn.GroupNorm(settings.groups, width)
        self.scale, self.shift = nn.Linear(width, width), nn.Linear(width, width)
        self.decoders = nn.ModuleDict({view: nn.Linear(2 * width, widths[view]) for view in VIEWS})

    def encode(self, view: str, vectors: Tensor) -> View:
        """Quantise vectors of one view."""
        encoded: Tensor = self.encoders[view](vectors)
        return View(encoded, self.codebooks(encoded))

    def conditions(self, companions: Tensor, places: Tensor) -> Tensor:
        """Return c [D, co width]: companions [Q, co width] at places [D, P], attended; 0 where there is none."""
        if not len(companions):
            return companions.new_zeros(len(places), companions.shape[1])
        found = companions[places.clamp(min=0)]
        weights = masked_softmax(self.attention(found).squeeze(-1), places >= 0)
        return torch.einsum("dp,dpw->dw", weights, found)

    def decode(self, view: str, read: View, condition: Tensor) -> Tensor:
        """Return vectors of one view from the codes of any view."""
        values = read.quantised.values
        normed = self.norm(self.condition(condition))
        hidden = normed * self.scale(values) + self.shift(values)
        decoded: Tensor = self.decoders[view](torch.cat([hidden, read.encoded], dim=1))
        return decoded

    def loss(self, known: DiseaseKnowledge, places: Tensor) -> tuple[Tensor, dict[str, View]]:
        """Return the loss of some diseases, and how they were read."""
        settings = self.settings
        condition = self.conditions(known.companions, known.condition[places])
        views = {view: self.encode(view, known.vectors[view][places]) for view in VIEWS}
        common = known.common[places]
        total = condition.new_zeros(())
        for view in VIEWS:
            other = "text" if view == "co" else "co"
            error = (self.decode(view, views[view], condition) - known.vectors[view][places]).square().mean(dim=1)
            held = commitment(views[view].encoded, views[view].quantised, views[other].quantised)
            total = total + (error + settings.commitment * held).mean()
        if bool(common.any()):
            by_name = (self.decode("co", views["text"], condition) - known.vectors["co"][places]).square().mean(dim=1)
            total = total + by_name[common].mean()
        total = total + settings.alignment * code_alignment(views["co"].quantised, views["text"].quantised).mean()
        return total + self._contrasts(known, places, views), views

    def _contrasts(self, known: DiseaseKnowledge, places: Tensor, views: Mapping[str, View]) -> Tensor:
        drugs = known.next_drugs[places]
        having = (drugs >= 0).any(dim=1)
        total = known.companions.new_zeros(())
        if int(having.sum()) < 2:
            return total
        chosen, mask = drugs[having].clamp(min=0), (drugs[having] >= 0).unsqueeze(-1)
        targets = {}
        for view in VIEWS:
            encoded = self.encoders[view](known.drugs[view])[chosen]
            targets[view] = (encoded * mask).sum(1) / mask.sum(1)
        for view in VIEWS:
            for target in VIEWS:
                weight = self.settings.same_view if view == target else self.settings.cross_view
                own = views[view].quantised.values[having]
                spread = correlation_loss(own, targets[target], self.settings.off_diagonal)
                total = total + weight * (contrast(own, targets[target], 1.0).mean() + spread)
        return total

    @torch.no_grad()
    def table(self, known: DiseaseKnowledge) -> Tensor:
        """Return the decoded vectors [D, co width]: common diseases by their own view, rare ones by their name."""
        condition = self.conditions(known.companions, known.condition)
        own, by_name = (self.decode("co", self.encode(view, known.vectors[view]), condition) for view in VIEWS)
        return torch.where(known.common[:, None], own, by_name)


def correlation_loss(first: Tensor, second: Tensor, off_diagonal: float) -> Tensor:
    """Return how far the correlations of the values of paired rows [N, W] are from the identity, per value.

    >>> values = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    >>> round(float(correlation_loss(values, values, 0.005)), 4)
    0.0
    """
    normed = [(each - each.mean(0)) / (each.std(0, correction=0) + 1e-6) for each in (first, second)]
    correlations = normed[0].T @ normed[1] / len(first)
    diagonal = torch.diagonal(correlations)
    on = (1 - diagonal).square().sum()
    off = correlations.square().sum() - diagonal.square().sum()
    return (on + off_diagonal * off) / len(diagonal)


def train_disease_codes(known: DiseaseKnowledge, settings: DiseaseCodesSettings, seed: int) -> DiseaseCodes:
    """Train encoders, decoders and codebooks over the diseases; no patient is needed any more."""
    widths = {view: known.vectors[view].shape[1] for view in VIEWS}
    with seeded(seed, 11):
        network = DiseaseCodes(settings, widths)
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.rate)
    network.train()
    for epoch in range(settings.epochs):
        order = np.random.default_rng(mixed_seed(seed, 12, epoch)).permutation(len(known.common))
        for first in range(0, len(order), settings.batch_size):
            places = torch.from_numpy(order[first : first + settings.batch_size])
            loss, views = network.loss(known, places)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            with seeded(seed, 13, epoch, first):
                draws = torch.rand(network.codebooks.books.shape[:2])
            network.codebooks.follow(views["co"].quantised, views["text"].quantised, draws)
    return network.eval()
