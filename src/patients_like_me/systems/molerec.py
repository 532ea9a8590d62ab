r"""MoleRec (Yang et al., WWW 2023): a drug is its pieces, weighted by how relevant each piece is for the patient.

.. math:: q = W\,\mathrm{ReLU}([h; h]), \quad w = \sigma(W_w q + c), \quad S = \mathrm{SAB}(\mathrm{GIN}_s(pieces)),
          \quad E = \mathrm{mean}\,\mathrm{GIN}_m(molecules)

.. math:: a_{ds} = \mathrm{softmax}_{s: H_{ds} = 1}\big(Q e_d \cdot K s_s / \sqrt{D}\big), \qquad
          \mathrm{logit}_d = \mathrm{MLP}\Big(\sum_s a_{ds} w_s s_s\Big)

h has the last states of both streams; the paper's code joins the last hidden state and the last output of each GRU,
which are equal, and so does this. A code without a molecule has one learned piece of its own.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from patients_like_me.codes.molecules import DrugStructures, molecule_graphs
from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.contract import Fitted, SelfExplanation, System
from patients_like_me.systems.drug_knowledge import TABLES, interactions_of, known_drugs, structures_of
from patients_like_me.systems.drug_safety import KnownInteractions, exponential_share, prediction_loss, variant_name
from patients_like_me.systems.drug_visits import OfDemographics, StreamStates
from patients_like_me.systems.epochs import EpochSettings, OptimizerName
from patients_like_me.systems.features import Vocabularies
from patients_like_me.systems.graph_isomorphism import GraphVectors
from patients_like_me.systems.problem import Problem
from patients_like_me.systems.self_explaining import Reading, interaction_tables
from patients_like_me.systems.visit_layers import Sizes, Visits, at_last_visit
from patients_like_me.systems.visit_network import Facts, Knowledge, VisitNetwork, own_loss, sizes_of
from patients_like_me.tasks.instances import Instances

KNOWLEDGE: Final = ("interactions", "molecules")


class MoleRecSettings(EpochSettings):
    """MoleRec's settings; the defaults are the paper's."""

    width: int = Field(64, ge=2, description="values per code, query, atom, molecule and piece")
    dropout: float = Field(0.7, ge=0, lt=1, description="share of the code embeddings' values dropped in training")
    graph_layers: int = Field(4, ge=1, description="steps of the graph networks over the atoms")
    graph_dropout: float = Field(0.7, ge=0, lt=1, description="share of values dropped in the graph networks")
    pieces: Literal["graph", "embedding"] = Field("graph", description="how a piece gets its vector")
    attention_heads: int = Field(2, ge=1, description="heads of the attention among the pieces")
    entropy_weight: float = Field(0.95, ge=0, description="weight of the binary cross-entropy")
    margin_weight: float = Field(0.05, ge=0, description="weight of the multilabel margin loss")
    interaction_weight: float = Field(0.0005, ge=0, description="weight of the sum over interacting pairs")
    target_rate: float = Field(0.06, gt=0, le=1, description="interaction rate above which a set is corrected")
    steepness: float = Field(2.5, gt=0, description="how fast the prediction loss gives way above the target")
    without: tuple[Literal["interactions", "molecules"], ...] = Field(
        (), description="knowledge to do without; the name of the run says so"
    )
    optimizer: OptimizerName = Field("adam", description="the rule that changes the weights")
    rate: float = Field(2.5e-3, gt=0, le=100, description="learning rate; the paper: 5e-4 for steps of one visit")
    epochs: int = Field(100, ge=1, description="most epochs")
    patience: int = Field(10, ge=1, description="epochs without a better validation score before stopping")
    weight_decay: float = Field(0.0, ge=0, le=100, description="the optimizer's weight decay")
    batch_size: int = Field(32, ge=1, description="training instances per step")

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> MoleRecSettings:
        if self.width % self.attention_heads:
            raise ValueError(f"width {self.width} is not a multiple of attention_heads {self.attention_heads}")
        return self


class SetAttention(nn.Module):
    """A set attention block: O = LN(Q + softmax(Q K^T / sqrt(width)) V), then LN(O + ReLU(W O))."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, math.sqrt(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Linear(width, width)

    def forward(self, items: Tensor) -> Tensor:
        """Let the items [S, width] attend to each other."""
        query, key, value = (
            layer(items).view(len(items), self.heads, -1).transpose(0, 1)
            for layer in (self.query, self.key, self.value)
        )
        weights = torch.softmax(query @ key.transpose(1, 2) / self.scale, dim=2)
        mixed = self.first_norm((query + weights @ value).transpose(0, 1).reshape(items.shape))
        result: Tensor = self.second_norm(mixed + torch.relu(self.mix(mixed)))
        return result


class MoleRec(nn.Module):
    """The network. ``structures`` are over the labels in the order of the outputs.

    Without molecules give ``DrugStructures.none``; without ``interactions`` the loss is the prediction loss.
    """

    averages: Tensor
    mask: Tensor
    own: Tensor
    is_own: Tensor

    def __init__(
        self,
        sizes: Sizes,
        settings: MoleRecSettings,
        *,
        structures: DrugStructures,
        interactions: KnownInteractions | None,
    ) -> None:
        super().__init__()
        assert len(structures.codes) == sizes.outputs, "the structures are those of the outputs"
        self.settings, self.interactions, width = settings, interactions, settings.width
        self.register_buffer("averages", torch.as_tensor(structures.averages()))
        self.register_buffer("mask", torch.as_tensor(structures.piece_mask()))
        # The pieces [drugs, K] that each drug has, and which places of that list are taken.
        is_own, own = self.mask.sort(dim=1, descending=True, stable=True)
        most = int(self.mask.sum(dim=1).max())
        self.register_buffer("own", own[:, :most].contiguous(), persistent=False)
        self.register_buffer("is_own", is_own[:, :most].contiguous(), persistent=False)
        shape = (width, settings.graph_layers, settings.graph_dropout)
        if structures.molecules:
            self.molecules = GraphVectors(molecule_graphs(structures.molecules), *shape)
            self.molecule_query, self.piece_key = nn.Linear(width, width), nn.Linear(width, width)
            if settings.pieces == "graph":
                self.pieces = GraphVectors(molecule_graphs(structures.pieces), *shape)
            else:
                self.piece_table = nn.Parameter(nn.init.xavier_uniform_(torch.empty(len(structures.pieces), width)))
        alone = len(structures.without_molecule)
        self.own_pieces = nn.Parameter(torch.randn(alone, width)) if alone else None
        self.states = StreamStates(sizes, width, width, settings.dropout)
        self.query = nn.Linear(2 * self.states.width, width)
        self.relevance = nn.Linear(width, self.mask.shape[1])
        self.among_pieces = SetAttention(width, settings.attention_heads)
        self.person = OfDemographics(sizes)
        self.score = nn.Sequential(nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, 1))

    def piece_vectors(self) -> Tensor:
        """Return S [pieces, width] after the attention among the pieces."""
        found = []
        if self.averages.shape[1]:
            found.append(self.pieces() if self.settings.pieces == "graph" else self.piece_table)
        if self.own_pieces is not None:
            found.append(self.own_pieces)
        vectors: Tensor = self.among_pieces(torch.cat(found))
        return vectors

    def attention(self, pieces: Tensor) -> Tensor:
        """Return a [drugs, pieces]; it is 0 for a piece that a drug does not have, and 1 for an only piece."""
        if not self.averages.shape[1]:
            return self.mask.to(pieces.dtype)
        molecules = self.averages @ self.molecules()
        scores = self.molecule_query(molecules) @ self.piece_key(pieces).T / math.sqrt(self.settings.width)
        return torch.softmax(scores.masked_fill(~self.mask, -torch.inf), dim=1)

    def forward(self, visits: Visits) -> Tensor:
        """Return logits [B, outputs] of the current visit."""
        state = at_last_visit(self.states(visits.codes), visits.visit_mask)
        query = self.query(torch.relu(torch.cat([state, state], dim=1)))
        relevance = torch.sigmoid(self.relevance(query))
        logits: Tensor = self.person(self.scores(relevance), visits)
        return logits

    def scores(self, relevance: Tensor) -> Tensor:
        r"""Return MLP(sum_s a_ds w_s s_s) [B, drugs] from the relevance w [B, pieces].

        A drug has few of all pieces, so the sum is over these; and the first layer of the MLP is linear, so it is
        applied to the pieces, once for all instances: :math:`W \sum_s a_{ds} w_s s_s = \sum_s w_s (a_{ds} W s_s)`.
        """
        pieces = self.piece_vectors()
        first, last = self.score[0], self.score[2]
        assert isinstance(first, nn.Linear)
        assert isinstance(last, nn.Linear)
        shares = self.attention(pieces).gather(1, self.own) * self.is_own
        vectors = shares[:, :, None] * functional.embedding(self.own, pieces @ first.weight.T)
        of_drugs = functional.embedding(self.own, relevance.T).transpose(1, 2) @ vectors
        hidden = torch.relu(of_drugs + first.bias)
        return (hidden @ last.weight[0] + last.bias).T

    def loss(self, visits: Visits, targets: Tensor, epoch: int = 0) -> Tensor:
        """Return the loss [B], shifted towards interactions by each instance's rate."""
        del epoch
        settings, logits = self.settings, self(visits)
        predicted = prediction_loss(
            logits, targets, entropy_weight=settings.entropy_weight, margin_weight=settings.margin_weight
        )
        if self.interactions is None:
            return predicted
        probabilities = torch.sigmoid(logits)
        rates = self.interactions.rates(probabilities >= 0.5)
        share = exponential_share(rates, settings.target_rate, settings.steepness)
        pairs = self.interactions.expected_pairs(probabilities)
        return share * predicted + (1 - share) * settings.interaction_weight * pairs


def build(settings: MoleRecSettings, facts: Facts) -> MoleRec:
    """Build the network for the data and the knowledge that the facts describe."""
    return MoleRec(
        sizes_of(facts),
        settings,
        structures=structures_of(facts),
        interactions=interactions_of(facts),
    )


def knowledge(problem: Problem, settings: MoleRecSettings, vocabularies: Vocabularies) -> Knowledge:
    """Return what is known about the drugs and their molecules."""
    return known_drugs(problem, settings, vocabularies, molecules=True)


def explain(fitted: Fitted, instances: Instances, row: int, output: int | None) -> SelfExplanation:
    """Return the recommended set and the interactions within it."""
    del output
    reading = Reading.of(NETWORK, fitted, instances, row)
    return SelfExplanation(
        title="The recommended drugs and their interactions",
        sentence="MoleRec scores each drug by the pieces of its molecules that are relevant for the record.",
        tables=(reading.prediction(), *interaction_tables(reading)),
    )


NETWORK = VisitNetwork(build, loss=own_loss, knowledge=knowledge)
SYSTEM = System(
    name="molerec",
    description="drugs as attended pieces of molecules, weighted by their relevance for the record",
    settings=MoleRecSettings,
    capabilities=Capabilities(random=True, epochs=True, newcomers=True),
    knowledge=tuple(TABLES),
    optional_knowledge=TABLES,
    tasks=("drug_recommendation",),
    title=lambda settings: variant_name("MoleRec", KNOWLEDGE, settings.without),
    fit=NETWORK.fit,
    predict=NETWORK.predict,
    explain=explain,
)
