"""AdaCare: causal convolutions over visits and recalibrated features (Ma et al. 2020, arXiv 1911.12205).

With x_t the 0/1 vector of a visit's codes:

    z_t = relu([conv_1; conv_3; conv_5](x))_t                causal, kernel 2, dilations 1, 3 and 5
    z'_t = sigmoid(W2 relu(W1 z_t)) * z_t                    the same with weights of its own: x'_t
    h = GRU over visits of [z'_t; x'_t],   logits = head(h_T)

The features stay codes and are not embedded, as the authors advise: ``importance`` says how much of each code is let
through.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.contract import ExplanationTable, Fitted, SelfExplanation, System
from patients_like_me.systems.epochs import EpochSettings, OptimizerName
from patients_like_me.systems.self_explaining import Reading, strongest
from patients_like_me.systems.visit_layers import (
    Head,
    Sizes,
    VisitGru,
    Visits,
    at_last_visit,
    multi_hot,
)
from patients_like_me.systems.visit_network import Facts, VisitNetwork, sizes_of
from patients_like_me.tasks.instances import Instances

Activation = Literal["sigmoid", "sparsemax"]


class AdaCareSettings(EpochSettings):
    """AdaCare's sizes and training, as in its public code."""

    filters: int = Field(64, ge=1, description="filters of each convolution")
    kernel: int = Field(2, ge=1, description="visits that a filter reads")
    dilations: tuple[int, ...] = Field((1, 3, 5), min_length=1, description="visits between those that a filter reads")
    reduction: int = Field(4, ge=1, description="factor by which a recalibration narrows its input")
    activation: Activation = Field("sigmoid", description="what recalibrates codes: each on its own, or in competition")
    hidden: int = Field(128, ge=1, description="width of the GRU over visits")
    dropout: float = Field(0.5, ge=0, lt=1, description="share of the last state dropped in training")
    epochs: int = Field(100, ge=1, description="most epochs")
    patience: int = Field(10, ge=1, description="epochs without a better validation score before stopping")
    optimizer: OptimizerName = Field("adam", description="the rule that changes the weights")
    rate: float = Field(1e-3, gt=0, le=100, description="learning rate of the optimizer")
    weight_decay: float = Field(0.0, ge=0, le=100, description="the optimizer's weight decay")
    batch_size: int = Field(128, ge=1, description="instances per step")


class Recalibration(nn.Module):
    """Weights for the channels of each visit, from that visit alone: s = act(W2 relu(W1 x))."""

    def __init__(self, channels: int, reduction: int, activation: Activation) -> None:
        super().__init__()
        narrow = max(channels // reduction, 1)
        self.squeeze = nn.Linear(channels, narrow, bias=False)
        self.stretch = nn.Linear(narrow, channels, bias=False)
        self.activation = activation

    def forward(self, values: Tensor) -> Tensor:
        """Return the weights, of the shape of ``values``."""
        scores = self.stretch(torch.relu(self.squeeze(values)))
        return torch.sigmoid(scores) if self.activation == "sigmoid" else sparsemax(scores)


class AdaCare(nn.Module):
    """Dilated causal convolutions and codes, both recalibrated, read by a GRU."""

    def __init__(self, settings: AdaCareSettings, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        channels = settings.filters * len(settings.dilations)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(sizes.all_codes, settings.filters, settings.kernel, dilation=dilation)
            for dilation in settings.dilations
        )
        self.recalibrate_patterns = Recalibration(channels, settings.reduction, "sigmoid")
        self.recalibrate_codes = Recalibration(sizes.all_codes, settings.reduction, settings.activation)
        self.gru = VisitGru(channels + sizes.all_codes, settings.hidden)
        self.dropout = nn.Dropout(settings.dropout)
        self.head = Head(settings.hidden, sizes)

    def forward(self, visits: Visits) -> Tensor:
        """Return logits [B, outputs]."""
        codes = multi_hot(visits.codes, self.sizes)
        patterns = self.patterns(codes)
        read = torch.cat([patterns * self.recalibrate_patterns(patterns), codes * self.recalibrate_codes(codes)], dim=2)
        states = self.gru(read, visits.visit_mask)
        logits: Tensor = self.head(self.dropout(at_last_visit(states, visits.visit_mask)), visits.demographics)
        return logits

    def patterns(self, codes: Tensor) -> Tensor:
        """Return the answers of all convolutions at each visit, [B, V, channels]; none looks at later visits."""
        series = codes.transpose(1, 2)
        answers = []
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d)
            reach = (convolution.kernel_size[0] - 1) * convolution.dilation[0]
            answers.append(convolution(nn.functional.pad(series, (reach, 0))))
        return torch.relu(torch.cat(answers, dim=1)).transpose(1, 2)

    @torch.no_grad()
    def importance(self, visits: Visits) -> Tensor:
        """Return how much of each code is let through, [B, V, all codes]; 0 for codes a visit does not have."""
        codes = multi_hot(visits.codes, self.sizes)
        weights: Tensor = codes * self.recalibrate_codes(codes)
        return weights * visits.visit_mask.unsqueeze(2)


def sparsemax(scores: Tensor) -> Tensor:
    """Project scores onto the probability simplex: like softmax, but small scores get exactly 0.

    >>> sparsemax(torch.tensor([2.0, 1.5, -1.0]))
    tensor([0.7500, 0.2500, 0.0000])
    """
    ordered = scores.sort(dim=-1, descending=True).values
    ranks = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    sums = ordered.cumsum(-1)
    support = (1 + ranks * ordered > sums).sum(-1, keepdim=True)
    threshold = (sums.gather(-1, support - 1) - 1) / support
    return (scores - threshold).clamp(min=0)


def build(settings: AdaCareSettings, facts: Facts) -> AdaCare:
    """Build the network for the data that the facts describe."""
    return AdaCare(settings, sizes_of(facts))


def explain(fitted: Fitted, instances: Instances, row: int, output: int | None) -> SelfExplanation:
    """Return how much of each code is let through."""
    del output
    reading = Reading.of(NETWORK, fitted, instances, row)
    importance = reading.network.importance(reading.batch)[0]
    first_column = dict(zip(sizes_of(fitted.facts).codes, _first_columns(fitted.facts), strict=True))
    rows: list[tuple[str | float, ...]] = [
        (
            reading.visit(visit),
            kind,
            label,
            float(importance[visit, first_column[kind] + int(reading.batch.codes[kind][0, visit, place]) - 1]),
        )
        for visit, kind, place, label in reading.codes()
    ]
    return SelfExplanation(
        title="Which codes are let through",
        sentence="AdaCare weighs every code of a visit between 0 and 1 before it reads the visit.",
        tables=(
            reading.prediction(),
            ExplanationTable("Codes", ("visit", "kind", "code", "weight"), strongest(rows, 3)),
        ),
    )


def _first_columns(facts: Facts) -> list[int]:
    counts = list(sizes_of(facts).codes.values())
    return [sum(counts[:at]) for at in range(len(counts))]


NETWORK = VisitNetwork(build)
SYSTEM = System(
    name="adacare",
    description="causal convolutions over visits with recalibrated codes",
    settings=AdaCareSettings,
    capabilities=Capabilities(random=True, epochs=True, newcomers=True),
    title=lambda _: "AdaCare",
    tasks=("readmission",),
    fit=NETWORK.fit,
    predict=NETWORK.predict,
    explain=explain,
)
