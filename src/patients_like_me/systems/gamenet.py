r"""GAMENet (Shang et al., AAAI 2019): a memory of drugs from two graphs, read by the patient's state and history.

.. math:: q_t = W\,\mathrm{ReLU}([h^d_t; h^p_t]), \qquad M = \mathrm{GCN}_{ehr}(I) - b\,\mathrm{GCN}_{ddi}(I)

.. math:: r_1 = \mathrm{softmax}(q_t M^T) M, \qquad
          r_2 = \Big(\sum_{s<t} \mathrm{softmax}_s(q_t \cdot q_s)\, m_s\Big) M

with the medications m_s of earlier visits; without an earlier visit r_2 = r_1. The logits are an MLP
of [q_t; r_1; r_2].

The public code leaves b uninitialised; here it starts at 1, the paper's formula. It takes one visit per step; here the
choice between the losses is made per instance of a batch.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor, nn

from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.contract import Fitted, SelfExplanation, System
from patients_like_me.systems.drug_knowledge import INTERACTIONS, interactions_of, known_drugs, label_columns
from patients_like_me.systems.drug_safety import KnownInteractions, annealed_choice, prediction_loss, variant_name
from patients_like_me.systems.drug_visits import OfDemographics, StreamStates, medication_sets
from patients_like_me.systems.epochs import EpochSettings, OptimizerName
from patients_like_me.systems.features import Vocabularies
from patients_like_me.systems.problem import Problem
from patients_like_me.systems.self_explaining import Reading, interaction_tables
from patients_like_me.systems.visit_layers import Sizes, Visits, at_last_visit, earlier_visits
from patients_like_me.systems.visit_network import Facts, Knowledge, VisitNetwork, own_loss, sizes_of
from patients_like_me.tasks.instances import Instances

KNOWLEDGE: Final = ("interactions",)


class GAMENetSettings(EpochSettings):
    """GAMENet's settings; the defaults are the paper's."""

    width: int = Field(64, ge=1, description="values per code, query and drug in the memory")
    hidden: int = Field(128, ge=1, description="values of the recurrent state of each stream")
    dropout: float = Field(0.4, ge=0, lt=1, description="share of the code embeddings' values dropped in training")
    graph_dropout: float = Field(0.3, ge=0, lt=1, description="share of values dropped inside the two graph networks")
    entropy_weight: float = Field(0.9, ge=0, description="weight of the binary cross-entropy")
    margin_weight: float = Field(0.01, ge=0, description="weight of the multilabel margin loss")
    target_rate: float = Field(0.05, ge=0, le=1, description="interaction rate above which a set is corrected")
    temperature: float = Field(0.5, gt=0, description="first temperature of the choice of the interaction loss")
    temperature_decay: float = Field(0.85, gt=0, le=1, description="factor of the temperature per epoch")
    without: tuple[Literal["interactions"], ...] = Field(
        (), description="knowledge to do without; the name of the run says so"
    )
    optimizer: OptimizerName = Field("adam", description="the rule that changes the weights")
    rate: float = Field(1e-3, gt=0, le=100, description="learning rate; the paper: 2e-4 for steps of one visit")
    epochs: int = Field(100, ge=1, description="most epochs")
    patience: int = Field(10, ge=1, description="epochs without a better validation score before stopping")
    weight_decay: float = Field(0.0, ge=0, le=100, description="the optimizer's weight decay")
    batch_size: int = Field(32, ge=1, description="training instances per step")


def prescribed_together(targets: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return which labels [M, M] some training visit has together, from the 0/1 labels [N, M] of training instances.

    >>> prescribed_together(np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])).astype(int).tolist()
    [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    """
    columns = targets.astype(np.float32)
    together: npt.NDArray[np.bool_] = (columns.T @ columns) > 0
    np.fill_diagonal(together, False)
    return together


def row_normalised(adjacency: npt.NDArray[np.bool_]) -> Tensor:
    """Return A + I with rows that sum to 1."""
    with_loops = adjacency | np.eye(len(adjacency), dtype=bool)
    return torch.as_tensor(with_loops / with_loops.sum(axis=1, keepdims=True), dtype=torch.float32)


class DrugGraph(nn.Module):
    """Two graph convolutions over the drugs with one-hot input: A ReLU(A W1 + b1) W2 + b2, [M, width]."""

    adjacency: Tensor

    def __init__(self, adjacency: npt.NDArray[np.bool_], width: int, dropout: float) -> None:
        super().__init__()
        self.register_buffer("adjacency", row_normalised(adjacency))
        self.first = nn.Linear(len(adjacency), width)
        self.second = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self) -> Tensor:
        """Return one vector per drug."""
        states = self.dropout(torch.relu(self.adjacency @ self.first.weight.T + self.first.bias))
        # A (H W) + b: the bias is added after spreading.
        drugs: Tensor = self.adjacency @ (states @ self.second.weight.T) + self.second.bias
        return drugs


class GAMENet(nn.Module):
    """The network. ``together`` is ``prescribed_together``; ``columns`` is ``drug_visits.medication_columns``.

    Without ``interactions`` the memory is the first graph alone and the loss is the prediction loss.
    """

    columns: Tensor

    def __init__(
        self,
        sizes: Sizes,
        settings: GAMENetSettings,
        *,
        together: npt.NDArray[np.bool_],
        columns: npt.NDArray[np.int64],
        interactions: KnownInteractions | None,
    ) -> None:
        super().__init__()
        self.settings, self.outputs, width = settings, sizes.outputs, settings.width
        self.register_buffer("columns", torch.as_tensor(columns))
        self.states = StreamStates(sizes, width, settings.hidden, settings.dropout, mean=True)
        self.query = nn.Linear(self.states.width, width)
        self.together = DrugGraph(together, width, settings.graph_dropout)
        self.interactions = interactions
        if interactions is not None:
            matrix = interactions.matrix.bool().numpy(force=True)
            self.interacting = DrugGraph(matrix, width, settings.graph_dropout)
            self.balance = nn.Parameter(torch.ones(()))
        self.person = OfDemographics(sizes)
        self.output = nn.Sequential(
            nn.ReLU(), nn.Linear(3 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, sizes.outputs)
        )

    def memory(self) -> Tensor:
        """Return M [drugs, width]."""
        memory: Tensor = self.together()
        return memory if self.interactions is None else memory - self.balance * self.interacting()

    def forward(self, visits: Visits) -> Tensor:
        """Return logits [B, outputs] of the current visit."""
        codes, visit_mask = visits.codes, visits.visit_mask
        queries = self.query(torch.relu(self.states(codes)))
        query, memory = at_last_visit(queries, visit_mask), self.memory()
        of_memory = torch.softmax(query @ memory.T, dim=1) @ memory
        of_history = of_memory
        if "medication" in codes:
            read = self._read_history(query, queries, codes["medication"], visit_mask) @ memory
            of_history = torch.where(earlier_visits(visit_mask).any(dim=1, keepdim=True), read, of_memory)
        logits: Tensor = self.person(self.output(torch.cat([query, of_memory, of_history], dim=1)), visits)
        return logits

    def loss(self, visits: Visits, targets: Tensor, epoch: int = 0) -> Tensor:
        """Return the loss [B]; which instances are corrected is drawn from torch's global generator."""
        settings, logits = self.settings, self(visits)
        predicted = prediction_loss(
            logits, targets, entropy_weight=settings.entropy_weight, margin_weight=settings.margin_weight
        )
        if self.interactions is None:
            return predicted
        probabilities = torch.sigmoid(logits)
        rates = self.interactions.rates(probabilities >= 0.5)
        temperature = settings.temperature * settings.temperature_decay**epoch
        share = annealed_choice(rates, settings.target_rate, temperature, torch.rand_like(rates))
        return share * predicted + (1 - share) * self.interactions.expected_pairs(probabilities) / self.outputs**2

    def _read_history(self, query: Tensor, queries: Tensor, medications: Tensor, visit_mask: Tensor) -> Tensor:
        """Return the earlier medications [B, outputs], weighted by how similar the visits' queries are."""
        similarity = torch.einsum("bd,bvd->bv", query, queries)
        # A finite fill: an instance without earlier visits gets even weights here, which are not used.
        similarity = similarity.masked_fill(~earlier_visits(visit_mask), torch.finfo(similarity.dtype).min)
        sets = medication_sets(medications, self.columns, self.outputs)
        return torch.einsum("bv,bvm->bm", torch.softmax(similarity, dim=1), sets)


def build(settings: GAMENetSettings, facts: Facts) -> GAMENet:
    """Build the network for the data and the knowledge that the facts describe."""
    return GAMENet(
        sizes_of(facts),
        settings,
        together=_flags(facts["together"]),
        columns=label_columns(facts),
        interactions=interactions_of(facts),
    )


def knowledge(problem: Problem, settings: GAMENetSettings, vocabularies: Vocabularies) -> Knowledge:
    """Return what is known about the drugs, and which of them training visits have together."""
    known = known_drugs(problem, settings, vocabularies)
    together = [np.flatnonzero(row).tolist() for row in prescribed_together(problem.targets)]
    return Knowledge({**known.facts, "together": together}, known.notes)


def _flags(columns: list[list[int]]) -> npt.NDArray[np.bool_]:
    flags = np.zeros((len(columns), len(columns)), dtype=bool)
    for row, found in enumerate(columns):
        flags[row, found] = True
    return flags


def explain(fitted: Fitted, instances: Instances, row: int, output: int | None) -> SelfExplanation:
    """Return the recommended set and the interactions within it."""
    del output
    reading = Reading.of(NETWORK, fitted, instances, row)
    return SelfExplanation(
        title="The recommended drugs and their interactions",
        sentence="GAMENet recommends from a memory of drugs that are given together, less what interacts.",
        tables=(reading.prediction(), *interaction_tables(reading)),
    )


NEEDS = {"atc3_interactions": INTERACTIONS}
NETWORK = VisitNetwork(build, bias=lambda network: network.output[-1].bias, loss=own_loss, knowledge=knowledge)
SYSTEM = System(
    name="gamenet",
    description="a memory of drugs from prescriptions and interactions, read by the state and the history",
    settings=GAMENetSettings,
    capabilities=Capabilities(random=True, epochs=True, newcomers=True),
    knowledge=tuple(NEEDS),
    optional_knowledge=NEEDS,
    tasks=("drug_recommendation",),
    title=lambda settings: variant_name("GAMENet", KNOWLEDGE, settings.without),
    fit=NETWORK.fit,
    predict=NETWORK.predict,
    explain=explain,
)
