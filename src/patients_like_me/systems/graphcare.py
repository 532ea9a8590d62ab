r"""GraphCare: a knowledge graph around each patient, read with two attentions (Jiang et al. 2024, arXiv 2305.12788).

The graph (:mod:`patients_like_me.systems.knowledge_graph`) has nodes with fixed vectors, :math:`x_v = W_e e_v`. A
patient's graph are the nodes of the record's codes and those within some hops, with the edges of those hops. With
:math:`g_j` (0/1 over nodes) the codes of visit j of J, in each layer

.. math:: \alpha_j = \mathrm{softmax}_v(W_a g_j), \qquad \beta_j = \tanh(w_b \cdot g_j)\, e^{-\gamma (J - j)}, \qquad
          a_v = \textstyle\sum_j \alpha_{jv} \beta_j

.. math:: x_v' = \mathrm{ReLU}\Big(W \Big[(1 + \epsilon) x_v +
          \sum_{u \to v} \mathrm{ReLU}\big(a_u x_u + (w_r \cdot r_{uv})\, r_{uv}\big)\Big] + b\Big)

and the head reads the mean over the patient's graph beside the mean of the first vectors of the record's own nodes.

The public code has :math:`e^{+\gamma (J_{max} - j)}`, which favours old visits; here recent ones count more, as the
paper says. The softmax is over the nodes of the patient's graph. :math:`W_a` has a weight per pair of nodes:
``attention`` also offers a low rank or the diagonal.

Triples come from a user's file (``triples``), or from a language model that is asked once about every code
(``llm_triples``), which is then in the name; else the graph is made of hierarchies and of co-occurrence in training,
and the system is called ``GraphCare[ontology]``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from patients_like_me.errors import PlmError
from patients_like_me.model.llm.client import LLMClient
from patients_like_me.model.llm.settings import LLMSettings
from patients_like_me.model.settings import BackboneSettings
from patients_like_me.records.cohort import KINDS
from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.code_trees import TABLES, tree_word
from patients_like_me.systems.contract import Fitted, RunContext, System
from patients_like_me.systems.epochs import EpochSettings, OptimizerName, train_network, weights_of
from patients_like_me.systems.features import VisitFeatures, Vocabularies
from patients_like_me.systems.knowledge_graph import KnowledgeGraph, graph_of_triples
from patients_like_me.systems.known_triples import (
    concepts,
    triples_of_file,
    triples_of_language_model,
    triples_of_ontology,
    words_of_entities,
)
from patients_like_me.systems.name_embeddings import name_embeddings, names_of_codes, wordless_note
from patients_like_me.systems.problem import Problem
from patients_like_me.systems.triples import Triple
from patients_like_me.systems.visit_layers import Dropout, Head, Sizes, Visits, head_bias, masked_softmax
from patients_like_me.systems.visit_network import Facts, VisitNetwork, sizes_of, started


class GraphCareSettings(EpochSettings):
    """GraphCare's settings; the defaults are those of its paper."""

    triples: str | None = Field(None, description="TSV of triples (head, relation, tail); without it the ontology")
    llm_triples: bool = Field(False, description="ask the language model 'llm' for triples about each code, once")
    llm: LLMSettings = Field(LLMSettings(), description="the language model that writes triples")
    most_triples: int = Field(10, ge=1, description="llm_triples: facts per code")
    co_occurring: int = Field(10, ge=0, description="ontology: codes per code by co-occurrence in training")
    backbone: BackboneSettings = Field(BackboneSettings(), description="the language model that reads names")
    threshold: float = Field(0.15, gt=0, le=2, description="cosine distance below which names become one node")
    hops: int = Field(1, ge=0, description="how far around a record's codes its graph reaches")
    hidden: int = Field(128, ge=1, description="values per node and layer")
    layers: int = Field(2, ge=1, le=6, description="rounds of messages")
    attention: Literal["full", "low_rank", "diagonal"] = Field("full", description="form of the attention over nodes")
    rank: int = Field(32, ge=1, description="rank of the attention in its low-rank form")
    decay: float = Field(0.02, ge=0, description="how fast the weight of earlier visits falls")
    dropout: float = Field(0.5, ge=0, lt=1, description="share of the nodes' values dropped in training")
    without: tuple[Literal["diagnosis-hierarchy", "procedure-hierarchy"], ...] = Field(
        (), description="ontology: hierarchies to do without; the name of the run says so"
    )
    epochs: int = Field(50, ge=1, description="most epochs")
    optimizer: OptimizerName = Field("adam", description="the rule that changes the weights")
    rate: float = Field(1e-3, gt=0, le=100, description="learning rate of the optimizer")
    weight_decay: float = Field(1e-5, ge=0, le=100, description="the optimizer's weight decay")
    batch_size: int = Field(32, ge=1, description="training instances per step")


class NodeAttention(nn.Module):
    """W_a g for 0/1 rows g [..., nodes]."""

    def __init__(self, nodes: int, form: str, rank: int) -> None:
        super().__init__()
        self.form = form
        spread = 1 / nodes**0.5
        if form == "low_rank":
            self.down = nn.Parameter(spread * torch.randn(rank, nodes))
            self.up = nn.Parameter(torch.randn(nodes, rank) / rank**0.5)
        else:
            shape = (nodes, nodes) if form == "full" else (nodes,)
            self.weight = nn.Parameter(spread * torch.randn(shape))
        self.bias = nn.Parameter(torch.zeros(nodes))

    def forward(self, present: Tensor) -> Tensor:
        """Return one score per node."""
        if self.form == "low_rank":
            return present @ self.down.T @ self.up.T + self.bias
        if self.form == "diagonal":
            return present * self.weight + self.bias
        return present @ self.weight.T + self.bias


class AttentiveLayer(nn.Module):
    """One round of messages over the patients' graphs."""

    def __init__(self, settings: GraphCareSettings, nodes: int) -> None:
        super().__init__()
        self.decay = settings.decay
        self.node_scores = NodeAttention(nodes, settings.attention, settings.rank)
        self.visit_score = nn.Parameter(torch.randn(nodes) / nodes**0.5)
        self.relation_score = nn.Linear(settings.hidden, 1, bias=False)
        self.epsilon = nn.Parameter(torch.zeros(()))
        self.mix = nn.Linear(settings.hidden, settings.hidden)

    def node_weights(self, present: Tensor, visit_mask: Tensor, in_graph: Tensor) -> Tensor:
        """Return a [B, V] from the codes of the visits [B, J, V] (0/1) and the nodes of each graph [B, V]."""
        back = visit_mask.sum(1, keepdim=True) - 1 - torch.arange(visit_mask.shape[1], device=visit_mask.device)
        fading = torch.exp(-self.decay * back.clamp(min=0)) * visit_mask
        of_visits = torch.tanh(present @ self.visit_score) * fading
        of_nodes = masked_softmax(self.node_scores(present), in_graph.unsqueeze(1))
        return torch.einsum("bjv,bj->bv", of_nodes, of_visits)

    def forward(self, states: Tensor, weights: Tensor, edges: Tensor, relations: Tensor, relation: Tensor) -> Tensor:
        """Return the new states [N, hidden]; ``weights`` [N], ``edges`` [2, E] from sender to receiver.

        Edge e has the relation ``relations[relation[e]]``; what is said of a node or a relation is computed once for
        all edges that have it.
        """
        sender, receiver = edges
        of_relation = self.relation_score(relations) * relations
        said = weights.unsqueeze(1) * states
        messages = torch.relu(said.index_select(0, sender) + of_relation.index_select(0, relation))
        heard = torch.zeros_like(states).index_add(0, receiver, messages)
        mixed: Tensor = torch.relu(self.mix(heard + (1 + self.epsilon) * states))
        return mixed


class GraphCare(nn.Module):
    """The network; the knowledge graph is kept with its weights."""

    node_vectors: Tensor
    relation_vectors: Tensor
    edges: Tensor

    def __init__(self, settings: GraphCareSettings, sizes: Sizes, graph: KnowledgeGraph) -> None:
        super().__init__()
        self.hops, self.kinds = settings.hops, tuple(sizes.codes)
        self.register_buffer("node_vectors", torch.from_numpy(graph.nodes))
        self.register_buffer("relation_vectors", torch.from_numpy(graph.relations))
        self.register_buffer("edges", torch.from_numpy(graph.edges))
        for kind in self.kinds:
            # Code number 0 is padding and points behind the last node.
            rows = torch.tensor([len(graph.nodes), *graph.node_of_code[kind]])
            self.register_buffer(f"{kind}_nodes", rows, persistent=False)
        width = graph.nodes.shape[1]
        self.of_nodes = nn.Linear(width, settings.hidden)
        self.of_relations = nn.Linear(width, settings.hidden)
        self.layers = nn.ModuleList(AttentiveLayer(settings, len(graph.nodes)) for _ in range(settings.layers))
        self.dropout = Dropout(settings.dropout)
        self.head = Head(2 * settings.hidden, sizes)

    def forward(self, visits: Visits) -> Tensor:
        """Return logits [B, outputs]."""
        present = self.present(visits)
        direct = present.amax(1) > 0
        in_graph, inner = self.reached(direct)
        instance, node = in_graph.nonzero(as_tuple=True)
        place = torch.zeros_like(in_graph, dtype=torch.long)
        place[instance, node] = torch.arange(len(node), device=node.device)
        head, relation, tail = self.edges.T
        joined = in_graph[:, head] & in_graph[:, tail] & (inner[:, head] | inner[:, tail])
        of_instance, of_edge = joined.nonzero(as_tuple=True)
        edges = torch.stack([place[of_instance, head[of_edge]], place[of_instance, tail[of_edge]]])
        relations, relation_of_edge = self.of_relations(self.relation_vectors), relation[of_edge]
        first = self.of_nodes(self.node_vectors)
        states = first.index_select(0, node)
        for layer in self.layers:
            assert isinstance(layer, AttentiveLayer)
            weights = layer.node_weights(present, visits.visit_mask, in_graph)
            states = self.dropout(layer(states, weights[instance, node], edges, relations, relation_of_edge))
        of_graph = first.new_zeros(len(in_graph), first.shape[1]).index_add(0, instance, states)
        of_graph = of_graph / in_graph.sum(1, keepdim=True).clamp(min=1)
        of_record = direct.float() @ first / direct.sum(1, keepdim=True).clamp(min=1)
        logits: Tensor = self.head(torch.cat([of_graph, of_record], dim=1), visits.demographics)
        return logits

    def present(self, visits: Visits) -> Tensor:
        """Return which nodes each visit has, 0/1 [B, J, V]."""
        nodes = len(self.node_vectors)
        found = self.node_vectors.new_zeros(*visits.visit_mask.shape, nodes + 1)
        for kind in self.kinds:
            found = found.scatter(2, self.get_buffer(f"{kind}_nodes")[visits.codes[kind]], 1.0)
        return found[..., :nodes]

    def reached(self, direct: Tensor) -> tuple[Tensor, Tensor]:
        """Return the nodes [B, V] within some hops of the record's own ones, and those within one hop less.

        An edge belongs to a patient's graph where a hop used it: one between two nodes of the outermost ring does not.
        """
        found = inner = direct
        head, _, tail = self.edges.T
        for _ in range(self.hops):
            inner = found
            near = found.new_zeros(found.shape, dtype=torch.float).index_add(1, tail, found[:, head].float())
            found = found | (near > 0)
        return found, inner


def known_graph(
    problem: Problem,
    settings: GraphCareSettings,
    vocabularies: Vocabularies,
    triples: Iterable[Triple],
    names: dict[str, str],
) -> KnowledgeGraph:
    """Return the knowledge graph of triples from any source; ``names`` are words for entities that are not codes."""
    codes = {str(kind): vocabularies.codes[kind] for kind in KINDS if vocabularies.codes[kind]}
    return graph_of_triples(
        triples,
        codes,
        words_of_entities(problem, vocabularies, names),
        lambda texts: name_embeddings(texts, settings.backbone),
        threshold=settings.threshold,
        hops=max(1, settings.hops),
    )


def knowledge(
    problem: Problem, run: RunContext, vocabularies: Vocabularies, client: LLMClient | None = None
) -> tuple[KnowledgeGraph, dict[str, Any], list[str]]:
    """Return the graph, facts and notes about it: triples of the user, of a language model, or of the ontology."""
    settings: GraphCareSettings = run.settings
    if settings.triples is not None:
        known = triples_of_file(settings.triples)
    elif client is not None:
        known = triples_of_language_model(problem, run, vocabularies, client, settings.most_triples)
    else:
        known = triples_of_ontology(problem, vocabularies, settings.co_occurring, settings.without)
    notes, facts = list(known.notes), dict(known.facts)
    notes += [] if client is None else [client.usage.sentence(settings.llm.name)]
    graph = known_graph(problem, settings, vocabularies, known.triples, dict(known.names))
    facts["graph"] = {
        "nodes": list(graph.nodes.shape),
        "relations": list(graph.relations.shape),
        "edges": len(graph.edges),
        "node_of_code": dict(graph.node_of_code),
        "entities": graph.entities,
    }
    named = [name for kind in KINDS for name in names_of_codes(problem.instances, kind, vocabularies.codes[kind])]
    notes += [graph.sentence(), f"names read by {Path(settings.backbone.name).name}", *wordless_note(named)]
    return graph, facts, notes


def build(settings: GraphCareSettings, facts: Facts) -> GraphCare:
    """Build the network for the data and the size of graph that the facts describe; the graph is among the weights."""
    kept = facts["graph"]
    empty = KnowledgeGraph(
        nodes=np.zeros(kept["nodes"], dtype=np.float32),
        relations=np.zeros(kept["relations"], dtype=np.float32),
        edges=np.zeros((kept["edges"], 3), dtype=np.int64),
        node_of_code=kept["node_of_code"],
        entities=kept["entities"],
    )
    return GraphCare(settings, sizes_of(facts), empty)


def fit(problem: Problem, run: RunContext) -> Fitted:
    """Train the network; what the graph knows of records comes from training patients only."""
    settings: GraphCareSettings = run.settings
    vocabularies = Vocabularies.of_training(problem.instances, problem.train)
    if not any(vocabularies.codes.values()):
        raise PlmError("no training instance has a code to learn from", remedy="use a larger cohort")
    client = LLMClient.of(settings.llm) if settings.llm_triples and settings.triples is None else None
    graph, known, notes = knowledge(problem, run, vocabularies, client)
    facts = {"vocabularies": vocabularies.as_json(), "outputs": problem.outputs, **known}
    features = VisitFeatures.of(problem.instances, vocabularies)

    def start() -> GraphCare:
        network = GraphCare(settings, sizes_of(facts), graph)
        return started(network, head_bias(network), problem)

    network, account = train_network(
        problem,
        run,
        start,
        lambda network, rows: network(features.batch(rows)),
    )
    weights = sum(weight.numel() for weight in network.parameters())
    notes = [*account.notes, f"{weights:,} trained weights", *notes]
    asked = 0.0 if client is None else client.usage.seconds
    account = replace(account, notes=notes, seconds=(account.seconds or 0.0) + asked)
    return Fitted(settings, weights_of(network), facts, account)


def title(settings: Any) -> str:
    """Return the name with where its triples come from.

    >>> title(GraphCareSettings()), title(GraphCareSettings(triples="mine.tsv"))
    ('GraphCare[ontology]', 'GraphCare')
    """
    if settings.triples is not None:
        return "GraphCare"
    if settings.llm_triples:
        return f"GraphCare[{settings.llm.name}]"
    return f"GraphCare[{','.join(['ontology', *(f'no-{name}' for name in settings.without)])}]"


def llm_calls(problem: Problem, settings: GraphCareSettings) -> dict[str, int]:
    """Return how often a training asks the language model at most."""
    if settings.triples is not None or not settings.llm_triples:
        return {}
    vocabularies = Vocabularies.of_training(problem.instances, problem.train)
    return {"triples of codes": len(concepts(problem, vocabularies))}


NETWORK = VisitNetwork(build)
SYSTEM = System(
    name="graphcare",
    description="a knowledge graph around each patient's codes, read with attention over nodes and visits",
    settings=GraphCareSettings,
    capabilities=Capabilities(random=True, epochs=True, newcomers=True),
    knowledge=tuple(TABLES.values()),
    knowledge_under=lambda settings: () if settings.triples or settings.llm_triples else tuple(TABLES.values()),
    optional_knowledge={table: tree_word(kind) for kind, table in TABLES.items()},
    title=title,
    llm_calls=llm_calls,
    fit=fit,
    predict=NETWORK.predict,
)
