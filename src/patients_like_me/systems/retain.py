"""RETAIN: two attentions over visits read in reverse (Choi et al. 2016, arXiv 1608.05745).

    v_t = sum of the embeddings of the codes of visit t
    g, h = two GRUs over v_T, ..., v_1                       newest visit first, outputs put back in order
    alpha = softmax_t(w . g_t + b)                           one weight per visit
    beta_t = tanh(W h_t + b)                                 one weight per dimension of v_t
    logits = W_o sum_t alpha_t (beta_t * v_t) + b_o + W_d demographics

So code k of visit t adds exactly alpha_t W_o (beta_t * W_emb[k]) to the logits: see ``contributions``.

The public code multiplies both GRUs' outputs by 0.5, a left-over of its dropout; it is left out here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor, nn

from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.contract import ExplanationTable, Fitted, SelfExplanation, System
from patients_like_me.systems.epochs import EpochSettings, OptimizerName
from patients_like_me.systems.self_explaining import Reading, strongest
from patients_like_me.systems.visit_layers import (
    CodeSetEmbedding,
    Dropout,
    Head,
    Sizes,
    VisitGru,
    Visits,
    log_gaps,
    masked_softmax,
    newest_first,
    squared_weights,
)
from patients_like_me.systems.visit_network import Facts, VisitNetwork, penalised, sizes_of
from patients_like_me.tasks.instances import Instances


class RetainSettings(EpochSettings):
    """RETAIN's sizes and training, as in its public code."""

    embedding: int = Field(128, ge=1, description="width of a code's vector")
    visit_hidden: int = Field(128, ge=1, description="width of the GRU that weighs visits (alpha)")
    code_hidden: int = Field(128, ge=1, description="width of the GRU that weighs dimensions of a visit (beta)")
    embedding_dropout: float = Field(0.5, ge=0, lt=1, description="share of a visit's vector dropped in training")
    context_dropout: float = Field(0.5, ge=0, lt=1, description="share of the weighted sum dropped in training")
    time_gaps: bool = Field(False, description="append log(1 + days since the visit before) to the GRUs' input")
    penalty: float = Field(
        0.001, ge=0, description="weight of the squared output, attention and embedding weights in the loss"
    )
    epochs: int = Field(100, ge=1, description="most epochs")
    patience: int = Field(10, ge=1, description="epochs without a better validation score before stopping")
    optimizer: OptimizerName = Field("adadelta", description="the rule that changes the weights")
    rate: float = Field(1.0, gt=0, le=100, description="learning rate of the optimizer")
    batch_size: int = Field(100, ge=1, description="instances per step")
    weight_decay: float = Field(0.0, ge=0, le=100, description="the optimizer's weight decay")


@dataclass(frozen=True)
class Contributions:
    """What each part adds to one logit; all of them together are the logit."""

    codes: Mapping[str, Tensor]  #: by kind, [B, V, C]; 0 for padding
    demographics: Tensor  #: [B]
    constant: Tensor  #: the same for everybody, []

    @property
    def visits(self) -> Tensor:
        """Return what each visit adds, [B, V]."""
        return torch.stack([added.sum(2) for added in self.codes.values()]).sum(0)

    @property
    def logit(self) -> Tensor:
        """Return the sum of all parts, [B]."""
        return self.visits.sum(1) + self.demographics + self.constant


class Retain(nn.Module):
    """Visit vectors weighted by two attentions that read the record backwards."""

    def __init__(self, settings: RetainSettings, sizes: Sizes) -> None:
        super().__init__()
        self.settings = settings
        self.embedding = CodeSetEmbedding(sizes, settings.embedding)
        width = settings.embedding + int(settings.time_gaps)
        self.visit_gru = VisitGru(width, settings.visit_hidden)
        self.code_gru = VisitGru(width, settings.code_hidden)
        self.visit_score = nn.Linear(settings.visit_hidden, 1)
        self.code_weight = nn.Linear(settings.code_hidden, settings.embedding)
        self.embedding_dropout = Dropout(settings.embedding_dropout)
        self.context_dropout = Dropout(settings.context_dropout)
        self.head = Head(settings.embedding, sizes)

    def forward(self, visits: Visits) -> Tensor:
        """Return logits [B, outputs]."""
        vectors = self.embedding_dropout(self.embedding(visits.codes))
        alpha, beta = self.attention(vectors, visits)
        context = self.context_dropout((alpha.unsqueeze(-1) * beta * vectors).sum(1))
        logits: Tensor = self.head(context, visits.demographics)
        return logits

    def attention(self, vectors: Tensor, visits: Visits) -> tuple[Tensor, Tensor]:
        """Return alpha [B, V], which sums to 1 over real visits, and beta [B, V, embedding]."""
        mask = visits.visit_mask
        read = torch.cat([vectors, log_gaps(visits.gaps)], dim=2) if self.settings.time_gaps else vectors
        backwards = newest_first(read, mask)
        visit_states = newest_first(self.visit_gru(backwards, mask), mask)
        code_states = newest_first(self.code_gru(backwards, mask), mask)
        alpha = masked_softmax(self.visit_score(visit_states).squeeze(-1), mask)
        return alpha, torch.tanh(self.code_weight(code_states))

    def penalty(self) -> Tensor:
        """Return the L2 term of the loss, which is added to the mean loss of a batch."""
        return self.settings.penalty * squared_weights(
            self.head.output.weight, self.visit_score.weight, self.code_weight.weight, *self.embedding.weights.values()
        )

    @torch.no_grad()
    def contributions(self, visits: Visits, output: int = 0) -> Contributions:
        """Return what each code adds to the logit of one output; in evaluation mode they sum to that logit."""
        alpha, beta = self.attention(self.embedding(visits.codes), visits)
        toward_output = alpha.unsqueeze(-1) * beta * self.head.output.weight[output]
        added = {
            kind: torch.einsum("bvd,bvcd->bvc", toward_output, self.embedding.of_each_code(kind, codes))
            for kind, codes in visits.codes.items()
            if kind in self.embedding.weights
        }
        of_person = self.head.of_demographics(visits.demographics)[:, output]
        return Contributions(added, of_person, self.head.output.bias[output].detach())


def build(settings: RetainSettings, facts: Facts) -> Retain:
    """Build the network for the data that the facts describe."""
    return Retain(settings, sizes_of(facts))


def explain(fitted: Fitted, instances: Instances, row: int, output: int | None) -> SelfExplanation:
    """Return what every code and every visit adds to the logit."""
    reading = Reading.of(NETWORK, fitted, instances, row)
    chosen = reading.output(output)
    added = reading.network.contributions(reading.batch, chosen)
    vectors = reading.network.embedding(reading.batch.codes)
    weights = reading.network.attention(vectors, reading.batch)[0][0].tolist()
    codes: list[tuple[str | float, ...]] = [
        (reading.visit(visit), kind, label, float(added.codes[kind][0, visit, place]))
        for visit, kind, place, label in reading.codes()
    ]
    visits = tuple(
        (reading.visit(place), float(weights[place]), float(added.visits[0, place])) for place in range(reading.visits)
    )
    person, constant, logit = float(added.demographics[0]), float(added.constant), float(added.logit[0])
    parts = (
        ("codes of all visits", sum(float(visit[2]) for visit in visits)),
        ("demographics", person),
        ("constant", constant),
        ("logit", logit),
    )
    return SelfExplanation(
        title=f"What adds to the logit of “{reading.output_label(chosen)}”",
        sentence="RETAIN's prediction is a sum: every code of every visit adds its part to the logit, and nothing else "
        "does but demographics and a constant.",
        tables=(
            reading.prediction(),
            ExplanationTable("The sum", ("part", "added to the logit"), parts),
            ExplanationTable("Visits", ("visit", "attention", "added to the logit"), visits),
            ExplanationTable("Codes", ("visit", "kind", "code", "added to the logit"), strongest(codes, 3)),
        ),
    )


NETWORK = VisitNetwork(build, loss=penalised)
SYSTEM = System(
    name="retain",
    description="two attentions over visits read in reverse; contributions of codes sum to the logit",
    settings=RetainSettings,
    capabilities=Capabilities(random=True, epochs=True, newcomers=True),
    title=lambda _: "RETAIN",
    fit=NETWORK.fit,
    predict=NETWORK.predict,
    explain=explain,
)
