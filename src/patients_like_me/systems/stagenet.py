"""StageNet: an LSTM whose memory has levels of disease stage (Gao et al. 2020, arXiv 2001.10054).

The memory c has L levels of ``chunk`` units. With the visit vector x_t and the gap D_t appended to both inputs:

    f~ = cumsum(softmax(.)) over levels,  i~ = the same from the last level to the first,  w = f~ i~
    c_t = w (f c_{t-1} + i c^) + (f~ - w) c_{t-1} + (i~ - w) c^,      h_t = o tanh(c_t)
    d_t = 1 - mean of f~ over levels                                  how far the stage moves at visit t
    s = softmax(cumsum(d)) over the last K visits,  H = s h           the window
    theme = sigmoid(W2 relu(W1 mean(H)))
    logits = head(theme * conv_K(H) + h_T)

Readings. The window is read at the current visit alone, because that is what is predicted. Where a record is shorter
than K, the public code lets empty places share the softmax; here only real visits do. Dropconnect drops, as there,
pre-activations and not weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.contract import ExplanationTable, Fitted, SelfExplanation, System
from patients_like_me.systems.epochs import EpochSettings, OptimizerName
from patients_like_me.systems.self_explaining import Reading
from patients_like_me.systems.visit_layers import (
    CodeSetEmbedding,
    Dropout,
    Head,
    Sizes,
    Visits,
    at_last_visit,
    last_visits,
    log_gaps,
    masked_softmax,
)
from patients_like_me.systems.visit_network import Facts, VisitNetwork, sizes_of
from patients_like_me.tasks.instances import Instances


class StageNetSettings(EpochSettings):
    """StageNet's sizes and training, as in its public code."""

    embedding: int = Field(128, ge=1, description="width of a code's vector")
    levels: int = Field(3, ge=1, description="levels of the memory")
    chunk: int = Field(128, ge=1, description="units of each level")
    window: int = Field(10, ge=1, description="visits, the current one included, that the convolution reads")
    dropout: float = Field(0.5, ge=0, lt=1, description="share of the last vector dropped in training")
    connection_dropout: float = Field(0.5, ge=0, lt=1, description="share of pre-activations dropped in training")
    residual_dropout: float = Field(0.3, ge=0, lt=1, description="share of the state h_T dropped in training")
    epochs: int = Field(100, ge=1, description="most epochs")
    patience: int = Field(10, ge=1, description="epochs without a better validation score before stopping")
    optimizer: OptimizerName = Field("adam", description="the rule that changes the weights")
    rate: float = Field(1e-3, gt=0, le=100, description="learning rate of the optimizer")
    weight_decay: float = Field(0.0, ge=0, le=100, description="the optimizer's weight decay")
    batch_size: int = Field(128, ge=1, description="instances per step")


@dataclass(frozen=True)
class Stages:
    """How the stage of disease moved over the visits."""

    kept: Tensor  #: master forget gate f~ of each level, [B, V, levels]; 0 at padding
    movement: Tensor  #: stage distance d_t, [B, V]; 0 at padding
    window: Tensor  #: weight of each of the last K visits in the prediction, [B, K], the current one last


class StageCell(nn.Module):
    """One step of the stage-aware LSTM."""

    def __init__(self, width: int, levels: int, chunk: int, dropout: float) -> None:
        super().__init__()
        self.levels, self.chunk = levels, chunk
        pre_activations = 4 * levels * chunk + 2 * levels
        self.of_input = nn.Linear(width + 1, pre_activations)
        self.of_state = nn.Linear(levels * chunk + 1, pre_activations)
        self.dropout = Dropout(dropout)
        for layer, start in ((self.of_input, nn.init.xavier_uniform_), (self.of_state, nn.init.orthogonal_)):
            start(layer.weight)
            nn.init.zeros_(layer.bias)

    def from_input(self, vectors: Tensor, gaps: Tensor) -> Tensor:
        """Return what the visits [..., width] add to the pre-activations; it needs no state, so all at once will do."""
        added: Tensor = self.dropout(self.of_input(torch.cat([vectors, gaps], dim=-1)))
        return added

    def forward(
        self, from_input: Tensor, gap: Tensor, memory: Tensor | None, state: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the new memory [B, levels, chunk], the new state [B, levels * chunk] and f~ [B, levels].

        At a first visit there is no memory and no state, which are 0.
        """
        if memory is None or state is None:
            memory = gap.new_zeros(len(gap), self.levels, self.chunk)
            from_state = functional.linear(gap, self.of_state.weight[:, -1:], self.of_state.bias)
        else:
            from_state = self.of_state(torch.cat([state, gap], dim=1))
        mixed = from_input + self.dropout(from_state)
        master, gates = mixed.split([2 * self.levels, 4 * self.levels * self.chunk], dim=1)
        kept = master[:, : self.levels].softmax(1).cumsum(1)
        taken = master[:, self.levels :].softmax(1).flip(1).cumsum(1).flip(1)
        forget, take, show, candidate = gates.view(-1, 4, self.levels, self.chunk).unbind(1)
        candidate = torch.tanh(candidate)
        f, i = kept.unsqueeze(2), taken.unsqueeze(2)
        both = f * i
        memory = (
            both * (torch.sigmoid(forget) * memory + torch.sigmoid(take) * candidate)
            + (f - both) * memory
            + (i - both) * candidate
        )
        state = (torch.sigmoid(show) * torch.tanh(memory)).flatten(1)
        return memory, state, kept


class StageNet(nn.Module):
    """Stage-aware LSTM, then a convolution over the window that is weighted by the stage's movement."""

    def __init__(self, settings: StageNetSettings, sizes: Sizes) -> None:
        super().__init__()
        self.settings = settings
        hidden = settings.levels * settings.chunk
        self.embedding = CodeSetEmbedding(sizes, settings.embedding)
        self.cell = StageCell(settings.embedding, settings.levels, settings.chunk, settings.connection_dropout)
        # The public code squeezes 384 units to 64.
        self.squeeze = nn.Linear(hidden, max(hidden // 6, 1))
        self.stretch = nn.Linear(max(hidden // 6, 1), hidden)
        self.convolution = nn.Conv1d(hidden, hidden, kernel_size=settings.window)
        self.residual_dropout = Dropout(settings.residual_dropout)
        self.dropout = Dropout(settings.dropout)
        self.head = Head(hidden, sizes)

    def forward(self, visits: Visits) -> Tensor:
        """Return logits [B, outputs]."""
        states, kept = self.states(visits)
        window, weights = self.window(states, 1 - kept.mean(2), visits.visit_mask)
        weighted = window * weights.unsqueeze(2)
        theme = torch.sigmoid(self.stretch(torch.relu(self.squeeze(weighted.sum(1) / self.settings.window))))
        pattern = theme * self.convolved(weighted)
        now = self.residual_dropout(at_last_visit(states, visits.visit_mask))
        logits: Tensor = self.head(self.dropout(pattern + now), visits.demographics)
        return logits

    def states(self, visits: Visits) -> tuple[Tensor, Tensor]:
        """Return h [B, V, hidden] and f~ [B, V, levels]; both are 0 at padding.

        Records are taken from the longest to the shortest, so that a step has those alone that have such a visit.
        """
        lengths = last_visits(visits.visit_mask) + 1
        order = lengths.argsort(descending=True, stable=True)
        vectors, gaps = (each.index_select(0, order) for each in (self.embedding(visits.codes), log_gaps(visits.gaps)))
        added = self.cell.from_input(vectors, gaps)
        memory: Tensor | None = None
        state: Tensor | None = None
        states, kept = [], []
        for place in range(vectors.shape[1]):
            count = int((lengths > place).sum())
            before = (None, None) if memory is None or state is None else (memory[:count], state[:count])
            memory, state, gate = self.cell(added[:count, place], gaps[:count, place], *before)
            padding = (0, 0, 0, len(vectors) - count)
            states.append(functional.pad(state, padding))
            kept.append(functional.pad(gate, padding))
        back = order.argsort()
        return torch.stack(states, dim=1).index_select(0, back), torch.stack(kept, dim=1).index_select(0, back)

    def window(self, states: Tensor, movement: Tensor, visit_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last K states [B, K, hidden], the current one last, and their weights [B, K].

        Where no record has K visits, K is the number of visits of the longest: the places before would be empty.
        """
        back = torch.arange(1 - min(self.settings.window, states.shape[1]), 1, device=states.device)
        places = last_visits(visit_mask).unsqueeze(1) + back
        is_visit = places >= 0
        places = places.clamp(min=0)
        moved = movement.gather(1, places) * is_visit
        window = states.gather(1, places.unsqueeze(2).expand(-1, -1, states.shape[2])) * is_visit.unsqueeze(2)
        return window, masked_softmax(moved.cumsum(1), is_visit)

    def convolved(self, window: Tensor) -> Tensor:
        """Return conv_K(H) [B, hidden] of the last places [B, <= K, hidden] of the window; those before are empty.

        The kernel is as long as the window, so there is one position, and the convolution is a product.
        """
        kernel = self.convolution.weight[:, :, -window.shape[1] :].transpose(1, 2)
        return functional.linear(window.flatten(1), kernel.flatten(1), self.convolution.bias)

    @torch.no_grad()
    def stages(self, visits: Visits) -> Stages:
        """Return how the stage moved at each visit, and what each visit weighs in the prediction."""
        states, kept = self.states(visits)
        movement = 1 - kept.mean(2)
        _, weights = self.window(states, movement, visits.visit_mask)
        mask = visits.visit_mask
        return Stages(kept * mask.unsqueeze(2), movement * mask, weights)


def build(settings: StageNetSettings, facts: Facts) -> StageNet:
    """Build the network for the data that the facts describe."""
    return StageNet(settings, sizes_of(facts))


def explain(fitted: Fitted, instances: Instances, row: int, output: int | None) -> SelfExplanation:
    """Return how the stage of disease moved over the visits, and what each visit weighs."""
    del output
    reading = Reading.of(NETWORK, fitted, instances, row)
    found = reading.network.stages(reading.batch)
    window, first = found.window[0].tolist(), reading.visits - found.window.shape[1]
    rows: tuple[tuple[str | float, ...], ...] = tuple(
        (
            reading.visit(place),
            float(reading.batch.gaps[0, place]),
            float(found.movement[0, place]),
            float(window[place - first]) if place >= first else 0.0,
            *(float(value) for value in found.kept[0, place]),
        )
        for place in range(reading.visits)
    )
    levels = tuple(f"kept of level {level}" for level in range(1, found.kept.shape[2] + 1))
    return SelfExplanation(
        title="How the stage of the disease moved",
        sentence="StageNet keeps its memory in levels. Where the stage moves, much of the memory is replaced. "
        "The weights say how much each of the last visits counts in the prediction.",
        tables=(
            reading.prediction(),
            ExplanationTable("Stages", ("visit", "days since the one before", "movement", "weight", *levels), rows),
        ),
    )


NETWORK = VisitNetwork(build)
SYSTEM = System(
    name="stagenet",
    description="an LSTM whose memory follows the stages of the disease",
    settings=StageNetSettings,
    capabilities=Capabilities(random=True, epochs=True, newcomers=True),
    title=lambda _: "StageNet",
    fit=NETWORK.fit,
    predict=NETWORK.predict,
    explain=explain,
)
