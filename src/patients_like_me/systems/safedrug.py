r"""SafeDrug (Yang et al., IJCAI 2021): the match with whole molecules times the match with their pieces.

.. math:: q = W\,\mathrm{ReLU}([h^d; h^p]), \qquad m = \sigma(q E^T), \qquad g = \mathrm{LayerNorm}(m + W_g m + c)

.. math:: l = \sigma(W_l q)\,(H \odot W_h)^T, \qquad \mathrm{logits} = g \odot l

E has a vector per drug: message passing over the atoms of its molecules, two layers :math:`v \leftarrow u + A u` with
:math:`u = \mathrm{ReLU}(W v)`, summed over atoms, averaged over the molecules of a code. H tells which BRICS pieces a
drug has.

The public code computes E once before training and never trains it; here it is trained. It adds the hydrogens and tells
atoms apart by what is within two bonds of them; here hydrogens are left out and one bond is enough (``radius``). A code
without a molecule has a learned vector and a piece of its own instead. Earlier medications are not an input, as in the
paper.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor, nn

from patients_like_me.codes.molecules import (
    DrugStructures,
    MoleculeGraphs,
    Whole,
    fingerprints,
    molecule_graphs,
    refined,
)
from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.contract import Fitted, SelfExplanation, System
from patients_like_me.systems.drug_knowledge import TABLES, interactions_of, known_drugs, structures_of
from patients_like_me.systems.drug_safety import KnownInteractions, prediction_loss, proportional_control, variant_name
from patients_like_me.systems.drug_visits import OfDemographics, StreamStates
from patients_like_me.systems.epochs import EpochSettings, OptimizerName
from patients_like_me.systems.features import Vocabularies
from patients_like_me.systems.problem import Problem
from patients_like_me.systems.self_explaining import Reading, interaction_tables
from patients_like_me.systems.visit_layers import Sizes, Visits, at_last_visit
from patients_like_me.systems.visit_network import Facts, Knowledge, VisitNetwork, own_loss, sizes_of
from patients_like_me.tasks.instances import Instances

KNOWLEDGE: Final = ("interactions", "molecules")


class SafeDrugSettings(EpochSettings):
    """SafeDrug's settings; the defaults are the paper's."""

    width: int = Field(64, ge=1, description="values per code, query, atom and drug")
    dropout: float = Field(0.5, ge=0, lt=1, description="share of the code embeddings' values dropped in training")
    radius: int = Field(1, ge=0, description="bonds around an atom that make up its fingerprint")
    molecule_layers: int = Field(2, ge=1, description="steps of message passing over the atoms")
    entropy_weight: float = Field(0.95, ge=0, description="weight of the binary cross-entropy")
    margin_weight: float = Field(0.05, ge=0, description="weight of the multilabel margin loss")
    interaction_weight: float = Field(0.0005, ge=0, description="weight of the sum over interacting pairs")
    target_rate: float = Field(0.06, ge=0, le=1, description="interaction rate above which a set is corrected")
    control_step: float = Field(0.05, gt=0, description="excess of the rate at which only interactions count")
    without: tuple[Literal["interactions", "molecules"], ...] = Field(
        (), description="knowledge to do without; the name of the run says so"
    )
    optimizer: OptimizerName = Field("adam", description="the rule that changes the weights")
    rate: float = Field(2.5e-3, gt=0, le=100, description="learning rate; the paper: 5e-4 for steps of one visit")
    epochs: int = Field(100, ge=1, description="most epochs")
    patience: int = Field(10, ge=1, description="epochs without a better validation score before stopping")
    weight_decay: float = Field(0.0, ge=0, le=100, description="the optimizer's weight decay")
    batch_size: int = Field(32, ge=1, description="training instances per step")


class MoleculeVectors(nn.Module):
    r"""E [drugs, width] by message passing over the fingerprints of the atoms.

    Atoms that look alike have equal vectors, so each layer is computed for the different ones alone:
    :math:`v \leftarrow u + A u` is a product with a constant matrix, in which row i counts the different atoms among
    atom i and its neighbours, and so is the last layer with the sum over atoms and the mean over molecules.
    """

    fingerprints: Tensor
    edges: Tensor
    molecule: Tensor
    averages: Tensor
    without: Tensor

    def __init__(self, structures: DrugStructures, width: int, layers: int, radius: int) -> None:
        super().__init__()
        graphs = molecule_graphs(structures.molecules)
        numbers, count = fingerprints(graphs, radius)
        self.register_buffer("fingerprints", torch.as_tensor(numbers))
        self.register_buffer("edges", torch.as_tensor(graphs.edges))
        self.register_buffer("molecule", torch.as_tensor(graphs.molecule))
        self.register_buffer("averages", torch.as_tensor(structures.averages()))
        self.register_buffer("without", torch.as_tensor(structures.without_molecule))
        self.molecules = graphs.count
        if graphs.count:
            for at, matrix in enumerate(_spreading(graphs, numbers, structures.averages(), layers)):
                self.register_buffer(f"spread_{at}", torch.as_tensor(matrix), persistent=False)
            self.embedding = nn.Embedding(count, width)
            self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        if len(structures.without_molecule):
            self.own = nn.Parameter(torch.randn(len(structures.without_molecule), width))
        self.width = width

    def forward(self) -> Tensor:
        """Return one vector per drug."""
        drugs = torch.zeros(len(self.averages), self.width, device=self.averages.device)
        if self.molecules:
            drugs = self.embedding.weight
            for at, layer in enumerate(self.layers):
                drugs = self.get_buffer(f"spread_{at}") @ torch.relu(layer(drugs))
        return drugs.index_add(0, self.without, self.own) if len(self.without) else drugs


def _spreading(
    graphs: MoleculeGraphs, numbers: Whole, averages: npt.NDArray[np.float32], layers: int
) -> list[npt.NDArray[np.float32]]:
    """Return the constant matrix of each layer; the rows of the last one are drugs."""
    matrices = []
    no_bonds = np.zeros(graphs.edges.shape[1], dtype=np.int64)
    for layer in range(1, layers + 1):
        heard = np.zeros((len(numbers), int(numbers.max()) + 1), dtype=np.float32)
        heard[np.arange(len(numbers)), numbers] = 1.0
        np.add.at(heard, (graphs.edges[1], numbers[graphs.edges[0]]), 1.0)
        if layer == layers:
            per_molecule = np.zeros((graphs.count, heard.shape[1]), dtype=np.float32)
            np.add.at(per_molecule, graphs.molecule, heard)
            matrices.append(averages @ per_molecule)
        else:
            numbers = refined(numbers, graphs.edges, no_bonds)
            matrices.append(heard[np.unique(numbers, return_index=True)[1]])
    return matrices


class SafeDrug(nn.Module):
    """The network. ``structures`` are over the labels in the order of the outputs.

    Without molecules give ``DrugStructures.none``; without ``interactions`` the loss is the prediction loss.
    """

    mask: Tensor

    def __init__(
        self,
        sizes: Sizes,
        settings: SafeDrugSettings,
        *,
        structures: DrugStructures,
        interactions: KnownInteractions | None,
    ) -> None:
        super().__init__()
        assert len(structures.codes) == sizes.outputs, "the structures are those of the outputs"
        self.settings, self.interactions, width = settings, interactions, settings.width
        mask = torch.as_tensor(structures.piece_mask(), dtype=torch.float32)
        self.register_buffer("mask", mask)
        self.states = StreamStates(sizes, width, width, settings.dropout)
        self.query = nn.Linear(self.states.width, width)
        self.molecules = MoleculeVectors(structures, width, settings.molecule_layers, settings.radius)
        self.match = nn.Linear(sizes.outputs, sizes.outputs)
        self.match_norm = nn.LayerNorm(sizes.outputs)
        self.person = OfDemographics(sizes)
        self.pieces = nn.Linear(width, mask.shape[1])
        self.of_pieces = nn.Linear(mask.shape[1], sizes.outputs, bias=False)

    def forward(self, visits: Visits) -> Tensor:
        """Return logits [B, outputs] of the current visit."""
        query = self.query(torch.relu(at_last_visit(self.states(visits.codes), visits.visit_mask)))
        match = torch.sigmoid(query @ self.molecules().T)
        whole: Tensor = self.match_norm(match + self.match(match))
        of_pieces = torch.sigmoid(self.pieces(query)) @ (self.mask * self.of_pieces.weight).T
        logits: Tensor = self.person(whole * of_pieces, visits)
        return logits

    def loss(self, visits: Visits, targets: Tensor, epoch: int = 0) -> Tensor:
        """Return the loss [B], controlled by each instance's interaction rate."""
        del epoch
        settings, logits = self.settings, self(visits)
        predicted = prediction_loss(
            logits, targets, entropy_weight=settings.entropy_weight, margin_weight=settings.margin_weight
        )
        if self.interactions is None:
            return predicted
        probabilities = torch.sigmoid(logits)
        rates = self.interactions.rates(probabilities >= 0.5)
        share = proportional_control(rates, settings.target_rate, settings.control_step)
        pairs = self.interactions.expected_pairs(probabilities)
        return share * predicted + (1 - share) * settings.interaction_weight * pairs


def build(settings: SafeDrugSettings, facts: Facts) -> SafeDrug:
    """Build the network for the data and the knowledge that the facts describe."""
    return SafeDrug(
        sizes_of(facts),
        settings,
        structures=structures_of(facts),
        interactions=interactions_of(facts),
    )


def knowledge(problem: Problem, settings: SafeDrugSettings, vocabularies: Vocabularies) -> Knowledge:
    """Return what is known about the drugs and their molecules."""
    return known_drugs(problem, settings, vocabularies, molecules=True)


def explain(fitted: Fitted, instances: Instances, row: int, output: int | None) -> SelfExplanation:
    """Return the recommended set and the interactions within it."""
    del output
    reading = Reading.of(NETWORK, fitted, instances, row)
    return SelfExplanation(
        title="The recommended drugs and their interactions",
        sentence="SafeDrug matches the record with molecules and their pieces.",
        tables=(reading.prediction(), *interaction_tables(reading)),
    )


NETWORK = VisitNetwork(build, loss=own_loss, knowledge=knowledge)
SYSTEM = System(
    name="safedrug",
    description="the match of a record with molecules and their pieces, under a target for interactions",
    settings=SafeDrugSettings,
    capabilities=Capabilities(random=True, epochs=True, newcomers=True),
    knowledge=tuple(TABLES),
    optional_knowledge=TABLES,
    tasks=("drug_recommendation",),
    title=lambda settings: variant_name("SafeDrug", KNOWLEDGE, settings.without),
    fit=NETWORK.fit,
    predict=NETWORK.predict,
    explain=explain,
)
