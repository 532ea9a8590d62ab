"""GRAM: codes represented by themselves and their ancestors (Choi et al. 2017, arXiv 1611.07012).

Every code and every ancestor j has a basic embedding e_j. For a code i with ancestors A(i), the root included:

    f(i, j) = u . tanh(W [e_i; e_j] + b),   a_ij = softmax over j in {i} + A(i),   g_i = sum_j a_ij e_j

    v_t = tanh(sum of g over the codes of visit t),   h = GRU(v_1, ..., v_T),   logits = head(h_T)

A rare code leans on its ancestors, which other codes train too. The original predicts the next visit's codes at every
step; here the head reads the state of the current visit. Each kind of code has its own hierarchy and root, and all
share one attention. Basic embeddings start at random, not from GloVe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor, nn

from patients_like_me.errors import PlmError
from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.code_trees import TABLES, known_trees
from patients_like_me.systems.contract import ExplanationTable, Fitted, SelfExplanation, System
from patients_like_me.systems.epochs import EpochSettings, OptimizerName
from patients_like_me.systems.features import Vocabularies
from patients_like_me.systems.problem import Problem
from patients_like_me.systems.self_explaining import Reading
from patients_like_me.systems.visit_layers import (
    Head,
    Sizes,
    VisitGru,
    Visits,
    at_last_visit,
    first_embeddings,
    masked_softmax,
    squared_weights,
    sum_of_codes,
)
from patients_like_me.systems.visit_network import Facts, Knowledge, VisitNetwork, penalised, sizes_of, vocabularies_of
from patients_like_me.tasks.instances import Instances


class GramSettings(EpochSettings):
    """GRAM's sizes and training, as in its public code."""

    embedding: int = Field(128, ge=1, description="width of a basic embedding")
    attention: int = Field(128, ge=1, description="hidden width of the attention over ancestors")
    hidden: int = Field(128, ge=1, description="width of the GRU over visits")
    dropout: float = Field(0.5, ge=0, lt=1, description="share of the last state dropped in training")
    penalty: float = Field(0.001, ge=0, description="weight of the squared output and attention weights in the loss")
    epochs: int = Field(100, ge=1, description="most epochs")
    patience: int = Field(10, ge=1, description="epochs without a better validation score before stopping")
    optimizer: OptimizerName = Field("adadelta", description="the rule that changes the weights")
    rate: float = Field(1.0, gt=0, le=100, description="learning rate of the optimizer")
    batch_size: int = Field(100, ge=1, description="instances per step")
    weight_decay: float = Field(0.0, ge=0, le=100, description="the optimizer's weight decay")


@dataclass(frozen=True)
class Ontology:
    """Codes and ancestors as rows of one table of basic embeddings; row 0 is padding."""

    nodes: tuple[str, ...]  #: name of each row, such as "diagnosis 108" or "diagnosis group 7.2"; row 0 is ""
    paths: Mapping[str, Tensor]  #: by kind, [codes + 1, depth]: the code's own row, its ancestors' rows, then 0
    without: Mapping[str, tuple[str, ...]]  #: by kind, codes for which the hierarchy knows only the root


def ontology_of(
    vocabulary: Mapping[str, Sequence[str]], ancestors: Mapping[str, Mapping[str, Sequence[str]]]
) -> Ontology:
    """Number the codes of each kind (code number 1 is the first of the vocabulary) and all their ancestors.

    ``ancestors`` gives for each kind and code its ancestors without the root, which is added here. A kind without a
    hierarchy is a ``PlmError``; a code that its hierarchy does not know keeps the root alone and is listed. Codes and
    ancestors are named apart, because CCS has a category 7 and a chapter 7.

    >>> found = ontology_of({"medication": ["A02B", "X"]}, {"medication": {"A02B": ["A02", "A"]}})
    >>> found.nodes[3:], found.without
    (('medication root', 'medication group A02', 'medication group A'), {'medication': ('X',)})
    >>> found.paths["medication"].tolist()
    [[0, 0, 0, 0], [1, 4, 5, 3], [2, 3, 0, 0]]
    """
    for kind in vocabulary:
        if kind not in ancestors:
            raise PlmError(f"GRAM has no hierarchy of {kind} codes", remedy="give the file that holds it")
    rows: dict[str, int] = {"": 0}
    for kind, codes in vocabulary.items():
        rows.update({f"{kind} {code}": len(rows) + at for at, code in enumerate(codes)})
    paths, without = {}, {}
    for kind, codes in vocabulary.items():
        root = rows.setdefault(f"{kind} root", len(rows))
        found: list[list[int]] = [[]] + [
            [
                rows[f"{kind} {code}"],
                *(rows.setdefault(f"{kind} group {above}", len(rows)) for above in ancestors[kind].get(code, ())),
                root,
            ]
            for code in codes
        ]
        depth = max(map(len, found))
        paths[kind] = torch.tensor([path + [0] * (depth - len(path)) for path in found], dtype=torch.long)
        without[kind] = tuple(code for code in codes if not ancestors[kind].get(code))
    return Ontology(tuple(rows), paths, without)


class Gram(nn.Module):
    """Codes mixed with their ancestors, summed per visit, read by a GRU."""

    def __init__(self, settings: GramSettings, sizes: Sizes, ontology: Ontology) -> None:
        super().__init__()
        self.settings = settings
        self.nodes = ontology.nodes
        self.kinds = tuple(sizes.codes)
        for kind, count in sizes.codes.items():
            if len(ontology.paths[kind]) != count + 1:
                known = len(ontology.paths[kind]) - 1
                raise PlmError(f"the ontology numbers {known} {kind} codes, the vocabulary has {count}")
            self.register_buffer(f"{kind}_paths", ontology.paths[kind])
        self.basic = nn.Parameter(first_embeddings(len(ontology.nodes), settings.embedding))
        self.pair = nn.Linear(2 * settings.embedding, settings.attention)
        self.score = nn.Linear(settings.attention, 1, bias=False)
        self.gru = VisitGru(settings.embedding, settings.hidden)
        self.dropout = nn.Dropout(settings.dropout)
        self.head = Head(settings.hidden, sizes)

    def forward(self, visits: Visits) -> Tensor:
        """Return logits [B, outputs]."""
        summed = torch.stack([sum_of_codes(visits.codes[kind], self.mixed(kind)) for kind in self.kinds]).sum(0)
        states = self.gru(torch.tanh(summed), visits.visit_mask)
        logits: Tensor = self.head(self.dropout(at_last_visit(states, visits.visit_mask)), visits.demographics)
        return logits

    def attention(self, kind: str, numbers: slice = slice(None)) -> Tensor:
        """Return a_ij, [codes + 1, depth], or the rows of some codes, in the order of the paths; padding has 0."""
        paths = self._paths(kind)[numbers]
        above = self.basic[paths]
        own = above[:, :1].expand_as(above)
        scores = self.score(torch.tanh(self.pair(torch.cat([own, above], dim=2)))).squeeze(-1)
        return masked_softmax(scores, paths > 0)

    def mixed(self, kind: str) -> Tensor:
        """Return g, one row per code number, [codes + 1, embedding]; row 0 is zero."""
        return torch.einsum("ij,ijd->id", self.attention(kind), self.basic[self._paths(kind)])

    def penalty(self) -> Tensor:
        """Return the L2 term of the loss, which is added to the mean loss of a batch."""
        return self.settings.penalty * squared_weights(self.head.output.weight, self.pair.weight, self.score.weight)

    @torch.no_grad()
    def ancestor_attention(self, kind: str, number: int) -> list[tuple[str, float]]:
        """Return how much a code's embedding takes from itself and from each ancestor; the weights sum to 1."""
        own = slice(number, number + 1)
        path, weights = self._paths(kind)[number].tolist(), self.attention(kind, own)[0].tolist()
        return [(self.nodes[row], weight) for row, weight in zip(path, weights, strict=True) if row]

    def _paths(self, kind: str) -> Tensor:
        return self.get_buffer(f"{kind}_paths")


def build(settings: GramSettings, facts: Facts) -> Gram:
    """Build the network for the data and the hierarchies that the facts describe."""
    sizes, codes = sizes_of(facts), vocabularies_of(facts).codes
    vocabulary = {str(kind): found for kind, found in codes.items() if found}
    return Gram(settings, sizes, ontology_of(vocabulary, facts["ancestors"]))


def knowledge(problem: Problem, settings: GramSettings, vocabularies: Vocabularies) -> Knowledge:
    """Return the ancestors of all codes; without them there is no GRAM."""
    del problem, settings
    return known_trees(vocabularies)


def explain(fitted: Fitted, instances: Instances, row: int, output: int | None) -> SelfExplanation:
    """Return how much the embedding of each code of the record takes from its ancestors."""
    del output
    reading = Reading.of(NETWORK, fitted, instances, row)
    groups, rows, seen = fitted.facts["groups"], [], set()
    for visit, kind, place, label in reversed(reading.codes()):
        number = int(reading.batch.codes[kind][0, visit, place])
        if (kind, number) in seen:
            continue
        seen.add((kind, number))
        for node, weight in reading.network.ancestor_attention(kind, number):
            above = node.removeprefix(f"{kind} ")
            group = above.removeprefix("group ")
            if above.startswith("group "):
                above = f"{group}: {groups[kind][group]}" if groups[kind].get(group, group) != group else group
            elif above != "root":
                above = "the code itself"
            rows.append((kind, label, above, weight))
    return SelfExplanation(
        title="What each code of the record stands for",
        sentence="GRAM reads a code as a mixture of itself and its ancestors. The weights of a code sum to 1; a rare "
        "code leans on its ancestors.",
        tables=(
            reading.prediction(),
            ExplanationTable("Attention over ancestors", ("kind", "code", "takes from", "weight"), tuple(rows)),
        ),
    )


NETWORK = VisitNetwork(build, loss=penalised, knowledge=knowledge)
SYSTEM = System(
    name="gram",
    description="codes embedded through their ancestors in CCS and ATC, read by a GRU over visits",
    settings=GramSettings,
    capabilities=Capabilities(random=True, epochs=True, newcomers=True),
    knowledge=tuple(TABLES.values()),
    title=lambda _: "GRAM",
    fit=NETWORK.fit,
    predict=NETWORK.predict,
    explain=explain,
)
