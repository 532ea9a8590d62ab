r"""KEHGCN: a hypergraph of visits and metapaths between diseases and drugs (Zhang et al., AAAI 2026).

Every code has a vector. The hypergraph of training visits gives :math:`h` (:mod:`patients_like_me.systems.hypergraph`),
the metapaths :math:`z` (:mod:`patients_like_me.systems.metapaths`), and :math:`x = e + \mathrm{MLP}[h; z]`, with z = 0
for a code without a path. The query hyperedge q joins the current diagnoses and procedures with the medications of
the visit before; the patient hyperedge u the earlier visits and q. Both are attended sums. With m a drug and
:math:`s_j \ge 0` the cosine of u with the training patient j,

.. math:: P_m = \sigma(c \cos(q, x_m) + b_m), \qquad
          p_m = P_m \, \tfrac12 \Big(1 + \frac{\sum_j s_j [m\ \text{prescribed to}\ j]}{\sum_j s_j}\Big)

over the most similar training patients j, never the patient's own records.

No public code was found. The paper scores by a softmax over drugs under a binary cross-entropy, which cannot reach 1
for two drugs at once: here a sigmoid of the scaled cosine, with a bias that starts at the drug's rate in training. It
leaves open how the similar patients' drugs enter; the second factor, in which the query counts as one patient, is our
reading. The code's own vector e is added too (``own_vectors``): a mean over all codes of all its visits leaves a code
hardly any trace of its own, and all codes become alike. Metapaths that start at a visit reach the query through the
vectors of its diseases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from patients_like_me.records.ids import KnownPeople
from patients_like_me.runs.predictions import ids_of
from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.code_trees import TABLES as TREES
from patients_like_me.systems.code_trees import tree_word
from patients_like_me.systems.contract import Fitted, RunContext, System
from patients_like_me.systems.drug_knowledge import INTERACTIONS, interactions_of
from patients_like_me.systems.drug_paths import known_paths
from patients_like_me.systems.drug_safety import KnownInteractions, prediction_loss, proportional_control
from patients_like_me.systems.drug_visits import OfDemographics
from patients_like_me.systems.epochs import EpochSettings, OptimizerName, logits_in_batches, train_network, weights_of
from patients_like_me.systems.features import VisitFeatures, Vocabularies
from patients_like_me.systems.hypergraph import (
    AttendedSum,
    HypergraphConvolution,
    hypergraph_operator,
    joined_incidence,
)
from patients_like_me.systems.metapaths import (
    Metapaths,
)
from patients_like_me.systems.problem import Logits, Problem
from patients_like_me.systems.training_visits import TrainingVisits
from patients_like_me.systems.visit_layers import Sizes, Visits, at_last_visit, earlier_visits
from patients_like_me.systems.visit_network import Facts, VisitNetwork, features_of, sizes_of
from patients_like_me.tasks.instances import Instances, Rows

#: First vectors as large as what the fusion adds to them.
_SPREAD: Final = 0.3
_TREE: Final = tree_word("diagnosis")


class KehgcnSettings(EpochSettings):
    """KEHGCN's settings; the width is that of the authors' other systems, the rest the paper's."""

    triples: str | None = Field(
        None, description="TSV of typed triples (treated_by, abnormality, ingredient_of, class, classifies, "
        "contraindicated); without it no-UMLS"
    )  # fmt: skip
    indications: str | None = Field(None, description="without triples: a table of indications for the path 'treat'")
    co_occurring: int = Field(10, ge=1, description="without both: drugs per disease by co-occurrence in training")
    width: int = Field(64, ge=1, description="values per code and hyperedge")
    layers: int = Field(1, ge=1, description="hypergraph convolutions, with one weight matrix")
    own_vectors: bool = Field(True, description="add a code's own vector to what hypergraph and paths say of it")
    slope: float = Field(0.2, ge=0, description="slope of the leaky ReLU in the attention along paths")
    dropout: float = Field(0.3, ge=0, lt=1, description="share of the codes' values dropped in training")
    similar: int = Field(20, ge=1, description="most similar training patients whose drugs count")
    entropy_weight: float = Field(0.95, ge=0, description="weight of the binary cross-entropy")
    margin_weight: float = Field(0.05, ge=0, description="weight of the multilabel margin loss")
    interaction_weight: float = Field(0.0005, ge=0, description="weight of the sum over harmful pairs")
    target_rate: float = Field(0.06, ge=0, le=1, description="interaction rate above which a set is corrected")
    control_step: float = Field(0.05, gt=0, description="excess of the rate at which only harm counts")
    without: tuple[Literal["interactions", "diagnosis-hierarchy"], ...] = Field(
        (), description="knowledge to do without; the name of the run says so"
    )
    optimizer: OptimizerName = Field("adam", description="the rule that changes the weights")
    rate: float = Field(1e-4, gt=0, le=100, description="learning rate of the optimizer")
    epochs: int = Field(50, ge=1, description="most epochs")
    weight_decay: float = Field(0.0, ge=0, le=100, description="the optimizer's weight decay")
    batch_size: int = Field(32, ge=1, description="training instances per step")


class Kehgcn(nn.Module):
    """The network. ``counts`` are the nodes per kind, of which the first are the codes of the inputs.

    ``drugs`` [M] are the nodes of the outputs, ``patients`` how many training patients are remembered: their vectors
    and drugs, see :meth:`remember`. ``harmful`` [diagnoses, M] marks contraindications.
    """

    drugs: Tensor
    memory: Tensor
    memory_drugs: Tensor
    harmful: Tensor | None

    def __init__(
        self,
        settings: KehgcnSettings,
        sizes: Sizes,
        *,
        counts: Mapping[str, int],
        operator: npt.NDArray[np.float32],
        edges: Mapping[str, Sequence[tuple[int, int]]],
        drugs: Sequence[int],
        rates: Sequence[float],
        patients: int,
        interactions: KnownInteractions | None = None,
        harmful: Sequence[tuple[int, int]] = (),
    ) -> None:
        super().__init__()
        self.settings, self.interactions, width = settings, interactions, settings.width
        starts = np.cumsum([0, *counts.values()])
        self.first_node = dict(zip(counts, starts[:-1].tolist(), strict=True))
        self.kinds = tuple(kind for kind in sizes.codes if kind in counts)
        nodes = int(starts[-1])
        self.codes = nn.Parameter(_SPREAD * torch.randn(nodes, width))
        self.convolution = HypergraphConvolution(operator, width, settings.layers)
        self.metapaths = Metapaths(edges, nodes, width, settings.slope)
        self.fusion = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))
        self.dropout = nn.Dropout(settings.dropout)
        self.of_codes, self.of_visits = AttendedSum(width), AttendedSum(width)
        self.scale = nn.Parameter(torch.tensor(5.0))
        rate = torch.tensor(rates, dtype=torch.float32).clamp(1e-3, 1 - 1e-3)
        self.bias = nn.Parameter(rate.logit())
        self.person = OfDemographics(sizes)
        self.register_buffer("drugs", torch.tensor(drugs))
        self.register_buffer("memory", torch.zeros(patients, width))
        self.register_buffer("memory_drugs", torch.zeros(patients, sizes.outputs))
        table = None
        if harmful:
            table = torch.zeros(sizes.codes["diagnosis"] + 1, sizes.outputs)
            for diagnosis, drug in harmful:
                table[diagnosis + 1, drug] = 1.0
        self.register_buffer("harmful", table, persistent=False)

    def nodes(self) -> Tensor:
        """Return x, one vector per code, [nodes, width]."""
        fused: Tensor = self.fusion(torch.cat([self.convolution(self.codes), self.metapaths(self.codes)], dim=1))
        return fused + self.codes if self.settings.own_vectors else fused

    def forward(self, visits: Visits, own: Tensor | None = None) -> Tensor:
        """Return logits [B, outputs]; ``own`` [B] are the patients themselves in the memory, -1 for none."""
        nodes = self.nodes()
        query, patient = self.hyperedges(self.dropout(nodes), visits)
        cosines = functional.normalize(query, dim=1) @ functional.normalize(nodes[self.drugs], dim=1).T
        logits = self.person(self.scale * cosines + self.bias, visits)
        share = (1 + self.similar_drugs(patient, own)) / 2
        return scaled_probability(logits, share)

    def hyperedges(self, nodes: Tensor, visits: Visits) -> tuple[Tensor, Tensor]:
        """Return the query hyperedge q and the patient hyperedge u, [B, width] each."""
        mask, earlier = visits.visit_mask, earlier_visits(visits.visit_mask)
        table = torch.cat([nodes.new_zeros(1, nodes.shape[1]), nodes])
        rows = {
            kind: torch.where(codes > 0, codes + self.first_node[kind], 0)
            for kind, codes in visits.codes.items()
            if kind in self.kinds
        }
        if "medication" in rows:
            # The medications of the current visit are the answer, no matter who passes them.
            rows["medication"] = rows["medication"] * earlier.unsqueeze(-1)
        everything = torch.cat(list(rows.values()), dim=2)
        edges = self.of_codes.of_rows(table, everything)
        now = [at_last_visit(rows[kind], mask) for kind in ("diagnosis", "procedure") if kind in rows]
        if "medication" in rows:
            before = torch.where(earlier.any(1), earlier.sum(1) - 1, 0)
            last = rows["medication"][torch.arange(len(mask), device=mask.device), before]
            now.append(last * earlier.any(1, keepdim=True))
        members = torch.cat(now, dim=1)
        query = self.of_codes.of_rows(table, members)
        visited = torch.cat([edges, query.unsqueeze(1)], dim=1)
        seen = torch.cat([earlier, torch.ones_like(earlier[:, :1])], dim=1)
        return query, self.of_visits(visited, seen)

    def similar_drugs(self, patient: Tensor, own: Tensor | None) -> Tensor:
        """Return the weighted share of similar training patients with each drug, [B, outputs]; 0 without any."""
        if not len(self.memory):
            return self.memory_drugs.new_zeros(len(patient), self.memory_drugs.shape[1])
        scores = functional.normalize(patient, dim=1) @ functional.normalize(self.memory, dim=1).T
        scores = scores.clamp(min=0)
        if own is not None:
            places = torch.arange(len(self.memory), device=scores.device)
            scores = scores.masked_fill(places == own.unsqueeze(1), 0.0)
        weights, nearest = scores.topk(min(self.settings.similar, scores.shape[1]), dim=1)
        weights = weights / weights.sum(1, keepdim=True).clamp(min=1e-6)
        return torch.einsum("bk,bkm->bm", weights, self.memory_drugs[nearest])

    @torch.no_grad()
    def remember(self, vectors: Tensor, drugs: Tensor) -> None:
        """Keep the hyperedges [patients, width] and the drugs [patients, outputs] of the training patients."""
        self.memory.copy_(vectors)
        self.memory_drugs.copy_(drugs)

    def loss(self, visits: Visits, targets: Tensor, own: Tensor | None = None) -> Tensor:
        """Return the loss [B], controlled by each instance's interaction rate."""
        settings, logits = self.settings, self(visits, own)
        predicted = prediction_loss(
            logits, targets, entropy_weight=settings.entropy_weight, margin_weight=settings.margin_weight
        )
        if self.interactions is None:
            return predicted
        probabilities = torch.sigmoid(logits)
        share = proportional_control(
            self.interactions.rates(probabilities >= 0.5), settings.target_rate, settings.control_step
        )
        harm = self.interactions.expected_pairs(probabilities)
        if self.harmful is not None:
            current = at_last_visit(visits.codes["diagnosis"], visits.visit_mask)
            harm = harm + (self.harmful[current].sum(1) * probabilities).sum(1)
        return share * predicted + (1 - share) * settings.interaction_weight * harm


def scaled_probability(logits: Tensor, share: Tensor) -> Tensor:
    """Return the logit of sigmoid(logits) * share.

    >>> torch.sigmoid(scaled_probability(torch.tensor(0.0), torch.tensor(0.5))).item()
    0.25
    """
    log_probability = (functional.logsigmoid(logits) + torch.log(share)).clamp(max=-1e-7)
    return log_probability - torch.log(-torch.expm1(log_probability))


def build(settings: KehgcnSettings, facts: Facts) -> Kehgcn:
    """Build the network; what training visits told is empty until the weights are put in."""
    counts = {kind: len(codes) for kind, codes in facts["nodes"].items()}
    nodes = sum(counts.values())
    return Kehgcn(
        settings,
        sizes_of(facts),
        counts=counts,
        operator=np.zeros((nodes, nodes), dtype=np.float32),
        edges={name: [(int(a), int(b)) for a, b in pairs] for name, pairs in facts["edges"].items()},
        drugs=facts["drugs"],
        rates=facts["rates"],
        patients=len(facts["patients"]),
        interactions=interactions_of(facts),
        harmful=[(int(a), int(b)) for a, b in facts["harmful"]],
    )


def fit(problem: Problem, run: RunContext) -> Fitted:
    """Train the network; hypergraph, paths and memory come from training patients only."""
    settings: KehgcnSettings = run.settings
    vocabularies = Vocabularies.of_training(problem.instances, problem.train)
    training = TrainingVisits.of(problem, vocabularies)
    known, notes = known_paths(problem, settings, vocabularies, training)
    features = VisitFeatures.of(problem.instances, vocabularies)
    patient_of_row, last_rows, drugs = patients_of(problem)
    facts = {
        "vocabularies": vocabularies.as_json(),
        "outputs": problem.outputs,
        "patients": ids_of(problem.instances, last_rows)["subject_id"].to_list(),
        **known,
    }
    operator = hypergraph_operator(joined_incidence([training.incidence[kind] for kind in facts["nodes"]]))

    def start() -> Kehgcn:
        network = build(settings, facts)
        network.convolution.operator.copy_(torch.from_numpy(operator))
        return network

    def refresh(network: Kehgcn) -> None:
        network.eval()
        with torch.no_grad():
            nodes = network.nodes()
            parts = [
                network.hyperedges(nodes, features.batch(last_rows[at : at + 256]))[1]
                for at in range(0, len(last_rows), 256)
            ]
        network.remember(torch.cat(parts), drugs)

    def loss(network: Kehgcn, rows: Rows, targets: Tensor, _epoch: int) -> Tensor:
        own = torch.from_numpy(patient_of_row[rows])
        return network.loss(features.batch(rows), targets, own).mean()

    network, account = train_network(
        problem, run, start, lambda network, rows: network(features.batch(rows)), loss, refresh=refresh
    )
    weights = sum(weight.numel() for weight in network.parameters())
    notes = [*account.notes, f"{weights:,} trained weights", f"{len(last_rows):,} training patients remembered", *notes]
    return Fitted(settings, weights_of(network), facts, replace(account, notes=notes))


def predict(fitted: Fitted, instances: Instances) -> Logits:
    """Predict with what was kept; a training patient who comes again is not similar to their own records."""
    features = features_of(fitted, instances)
    known = KnownPeople({subject: at for at, subject in enumerate(fitted.facts["patients"])})
    places = [known.number_of(subject) for subject in ids_of(instances)["subject_id"].to_list()]
    own = torch.tensor([-1 if place is None else place for place in places])
    return logits_in_batches(
        NETWORK.opened(fitted),
        lambda network, rows: network(features.batch(rows), own[torch.from_numpy(rows)]),
        np.arange(len(instances)),
    )


def patients_of(problem: Problem) -> tuple[npt.NDArray[np.int64], Rows, Tensor]:
    """Return for each row its place among the training patients (-1: none), their last rows, and all their drugs."""
    frame = problem.instances.frame
    subjects = frame["subject"].to_numpy()[problem.train]
    everyone, places = np.unique(subjects, return_inverse=True)
    patient_of_row = np.full(len(problem.instances), -1, dtype=np.int64)
    patient_of_row[problem.train] = places
    last = np.zeros(len(everyone), dtype=np.int64)
    np.maximum.at(last, places, problem.train)
    drugs = np.zeros((len(everyone), problem.outputs), dtype=np.float32)
    np.maximum.at(drugs, places, problem.targets.astype(np.float32))
    return patient_of_row, last, torch.from_numpy(drugs)


def title(settings: Any) -> str:
    """Return the name with what it has to do without.

    >>> title(KehgcnSettings()), title(KehgcnSettings(triples="umls.tsv"))
    ('KEHGCN[no-UMLS]', 'KEHGCN')
    """
    words = [] if settings.triples else ["no-UMLS", *(["indications"] if settings.indications else [])]
    words += [f"no-{name}" for name in (INTERACTIONS, _TREE) if name in settings.without]
    return f"KEHGCN[{','.join(words)}]" if words else "KEHGCN"


NETWORK = VisitNetwork(build)
SYSTEM = System(
    name="kehgcn",
    description="a hypergraph of training visits, paths between diseases and drugs, and the drugs of similar patients",
    settings=KehgcnSettings,
    capabilities=Capabilities(random=True, epochs=True, newcomers=True),
    knowledge=("atc3_interactions", TREES["diagnosis"]),
    # Typed triples bring the classes of diseases with them.
    knowledge_under=lambda settings: ("atc3_interactions", *(() if settings.triples else (TREES["diagnosis"],))),
    optional_knowledge={"atc3_interactions": INTERACTIONS, TREES["diagnosis"]: _TREE},
    tasks=("drug_recommendation",),
    title=title,
    fit=fit,
    predict=predict,
)
