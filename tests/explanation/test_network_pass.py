"""The network's forward pass is written once: fast kernels are held to it, and any network is explained through it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from explanation.small_graphs import INPUTS, OUTPUTS, embeddings_for, small_graph, small_network
from torch import Tensor, nn

from patients_like_me.errors import PlmError
from patients_like_me.explanation import coalitions, pyg_masks
from patients_like_me.explanation.bank_pass import BankPass
from patients_like_me.explanation.explain import explain
from patients_like_me.explanation.known_pass import KnownPass
from patients_like_me.explanation.masking import leave_one_out
from patients_like_me.explanation.masking_experiment import Masking, masked_logits, masking_experiment
from patients_like_me.explanation.methods import Question, all_methods
from patients_like_me.explanation.network_pass import GeneralPass, pass_over
from patients_like_me.explanation.robustness import randomisation_check
from patients_like_me.explanation.scene import set_scene
from patients_like_me.explanation.target_edges import TargetEdges
from patients_like_me.explanation.what_if import Change, without_edges
from patients_like_me.model.bank_states import BankStates
from patients_like_me.model.gcn import GraphNetwork
from patients_like_me.model.propagation import FixedPropagation, WeightedEdges
from patients_like_me.runs.run import load_run
from patients_like_me.tasks.kinds import BINARY, MULTICLASS, MULTILABEL

EVERY_NETWORK = [
    pytest.param(self_loop, skip, layers, id=f"{self_loop}-{skip}-{layers}")
    for self_loop in ("one", "own_codes")
    for skip in ("none", "concat")
    for layers in (1, 2, 3, 4)
]


class Average:
    """Another propagation: the mean of what a node receives, weighted by the logarithm of 1 + the raw weight."""

    def __init__(self, edges: WeightedEdges) -> None:
        self.edges, self.weights = edges, torch.log1p(edges.weights)
        self.totals = torch.log1p(edges.self_loops).index_add(0, edges.targets, self.weights)

    def spread(self, states: Tensor) -> Tensor:
        own = states * torch.log1p(self.edges.self_loops)[:, None]
        messages = states[self.edges.sources] * self.weights[:, None]
        return own.index_add(0, self.edges.targets, messages) / self.totals[:, None]


class ForeignNetwork(nn.Module):
    """A network that no fast kernel knows: another propagation, other weights, a further input per node, no ReLU."""

    def __init__(self, inputs: int, outputs: int, further: Tensor) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.first = nn.Parameter(torch.randn(inputs + further.shape[1], 6, generator=generator))
        self.second = nn.Parameter(torch.randn(6, outputs, generator=generator))
        self.register_buffer("further", further)

    def propagation(self, edges: WeightedEdges) -> Average:
        return Average(edges)

    def forward(self, embeddings: Tensor, graph: Average) -> Tensor:
        seen = torch.cat([embeddings, self.further.to(embeddings.dtype)], dim=1)  # type: ignore[operator]
        return graph.spread(torch.tanh(graph.spread(seen) @ self.first)) @ self.second


def foreign_network(graph: Any, inputs: int = INPUTS, outputs: int = 1) -> ForeignNetwork:
    further = torch.from_numpy(np.random.default_rng(7).standard_normal((len(graph), 2))).float()
    return ForeignNetwork(inputs, outputs, further).eval()


def logits_of(network: Any, graph: Any, embeddings: Tensor, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the logits by the network's own forward pass, with other weights of the graph's entries if given."""
    edges = WeightedEdges(
        torch.from_numpy(graph.neighbors.astype(np.int64)),
        torch.from_numpy(np.repeat(np.arange(len(graph)), graph.degrees)),
        torch.from_numpy((graph.weights if weights is None else weights).astype(np.float64)),
        torch.from_numpy(graph.self_loop_weights().astype(np.float64)),
    )
    double = network.double()
    with torch.no_grad():
        found: np.ndarray = double(embeddings, double.propagation(edges)).numpy()
    return found


@pytest.mark.parametrize("references", ["cohort", "bank"])
@pytest.mark.parametrize(("self_loop", "skip", "layers"), EVERY_NETWORK)
def test_the_fast_kernels_compute_what_the_network_computes(
    self_loop: str, skip: str, layers: int, references: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("patients_like_me.explanation.batch_attribution._few_targets", lambda *_: False)
    seed = layers + 10 * len(skip)
    graph = small_graph(references=references, self_loop=self_loop, seed=seed)
    network = small_network("multilabel", skip=skip, layers=layers, seed=seed)
    embeddings = embeddings_for(graph, seed)
    question = Question.ask(network, graph, embeddings, MULTILABEL, np.arange(0, len(graph), 3))
    fast, general = question.known, GeneralPass.of(network, graph, embeddings)
    assert isinstance(fast, KnownPass)
    with torch.no_grad():
        predicted = network(embeddings, FixedPropagation.of_graph(graph)).numpy()
    np.testing.assert_allclose(fast.logits, predicted, rtol=0, atol=1e-12)
    np.testing.assert_allclose(general.logits, predicted, rtol=0, atol=1e-12)

    edges, choice = question.edges, question.choice
    expected = general.importances(edges, choice)
    assert np.abs(expected).max() > 0
    np.testing.assert_allclose(fast.importances(edges, choice), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        leave_one_out(fast, edges, choice), leave_one_out(general, edges, choice), rtol=0, atol=1e-12
    )
    by_kernel = masked_logits(question, expected, [1, 3])
    general_question = Question(network, graph, embeddings, MULTILABEL, general, edges, choice)
    np.testing.assert_allclose(by_kernel, masked_logits(general_question, expected, [1, 3]), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("self_loop", "skip", "layers"), EVERY_NETWORK)
def test_a_newcomer_over_a_known_bank_gets_what_the_network_computes(self_loop: str, skip: str, layers: int) -> None:
    graph = small_graph(references="bank", self_loop=self_loop, seed=layers)
    network, embeddings = small_network("multilabel", skip=skip, layers=layers), embeddings_for(graph)
    newcomers = np.flatnonzero(graph.evaluated)
    first = int(newcomers[0])
    whole, bank = pass_over(network, graph, embeddings), graph.sub_graph(np.arange(first))
    opened = BankPass.of(network, bank, embeddings[:first])

    by_states = BankStates.of(network, bank, embeddings[:first]).logits(graph, embeddings[first:])
    np.testing.assert_allclose(by_states.numpy(), whole.logits[first:], rtol=0, atol=1e-12)

    edges = TargetEdges.of(graph.indptr, graph.neighbors, newcomers)
    choice = np.eye(OUTPUTS["multilabel"])[[1] * len(newcomers)]
    importances = whole.importances(edges, choice)
    assert np.abs(importances).max() > 0
    for number, node in enumerate(newcomers.tolist()):
        row = edges.row(number)
        neighbors, weights = edges.neighbors[row], graph.weights[edges.entries[row]]
        own_codes, own = int(graph.own_codes[node]), embeddings[node].numpy()
        found = opened.logits_of(own, neighbors, weights.astype(np.float64), own_codes)
        np.testing.assert_allclose(found, whole.logits[node], rtol=0, atol=1e-12)
        small = opened.known(own, neighbors, np.arange(len(neighbors)), weights, own_codes)
        np.testing.assert_allclose(small.logits[-1], whole.logits[node], rtol=0, atol=1e-12)
        last = TargetEdges.of(small.graph.indptr, small.graph.columns, np.array([len(small) - 1]))
        np.testing.assert_allclose(small.importances(last, choice[:1]), importances[row], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("self_loop", "skip", "layers"), EVERY_NETWORK)
def test_ego_nets_compute_what_the_network_computes(self_loop: str, skip: str, layers: int) -> None:
    graph = small_graph(self_loop=self_loop, tau=4, max_neighbors=2, nodes=50)
    network, embeddings = small_network("binary", skip=skip, layers=layers), embeddings_for(graph)
    targets = np.argsort(-graph.degrees, kind="stable")[:4]
    question = Question.ask(network, graph, embeddings, BINARY, targets)
    generator, propagation = np.random.default_rng(0), FixedPropagation.of_graph(graph)
    for number in range(len(targets)):
        _, model, inputs = pyg_masks._prepared(question, number)
        with torch.no_grad():
            assert float(model(**inputs)[0]) == pytest.approx(question.logits[number, 0], abs=1e-12)
        game = coalitions._Game.of_target(question, number, samples=2)
        present = generator.random((4, len(game.net))) < 0.5
        present[:, 0] = True
        for row, value in zip(present, game.values(present), strict=True):
            reduced = embeddings.clone()
            reduced[game.net.nodes[torch.from_numpy(~row)]] = 0.0
            with torch.no_grad():
                logit = float(network(reduced, propagation)[targets[number], 0])
            assert value == pytest.approx(game.sign * logit, abs=1e-12)


def test_the_general_path_serves_whatever_is_not_exactly_our_network() -> None:
    graph = small_graph()

    class Changed(GraphNetwork):
        def forward(self, embeddings: Tensor, graph: Any) -> Tensor:
            return 2 * super().forward(embeddings, graph)

    ours = small_network()
    changed = Changed(INPUTS, OUTPUTS["binary"], ours.settings).double().eval()
    changed.load_state_dict(ours.state_dict())
    found = pass_over(changed, graph, embeddings_for(graph))
    assert isinstance(found, GeneralPass)
    assert isinstance(pass_over(ours, graph, embeddings_for(graph)), KnownPass)
    np.testing.assert_allclose(
        found.logits, 2 * pass_over(ours, graph, embeddings_for(graph)).logits, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("references", ["cohort", "bank"])
def test_a_foreign_network_is_explained(references: str) -> None:
    graph = small_graph(references=references)
    network, embeddings = foreign_network(graph, outputs=4), embeddings_for(graph)
    question = Question.ask(network, graph, embeddings, MULTICLASS, np.arange(len(graph)))
    importances = all_methods()["gradient"].score(question)
    effects = all_methods()["leave_one_out"].score(question)
    np.testing.assert_allclose(question.logits, logits_of(network, graph, embeddings), rtol=0, atol=1e-12)
    rows = np.repeat(np.arange(len(graph)), graph.degrees)
    for place in range(0, question.edges.edges, 7):
        node, other = rows[place], graph.neighbors[place]
        both = ((rows == node) & (graph.neighbors == other)) | ((rows == other) & (graph.neighbors == node))
        choice = question.choice[node]

        def target_logit(step: float, both: Any = both, node: Any = node, choice: Any = choice) -> float:
            return float((logits_of(network, graph, embeddings, graph.weights + step * both)[node] * choice).sum())

        slope = (target_logit(1e-4) - target_logit(-1e-4)) / 2e-4
        assert importances[place] == pytest.approx(slope, rel=1e-5, abs=1e-9)
        cut = without_edges(graph, int(node), [int(other)])
        fall = ((question.logits[node] - logits_of(network, cut, embeddings)[node]) * choice).sum()
        assert effects[place] == pytest.approx(fall, abs=1e-12)
    # Parameters of the network that was given are neither changed nor given a gradient.
    assert network.first.grad is None


def test_the_masking_experiment_runs_on_a_foreign_network() -> None:
    graph = small_graph(nodes=60)
    question = Question.ask(foreign_network(graph), graph, embeddings_for(graph), BINARY, np.arange(len(graph)))
    scores = {name: all_methods()[name].score(question) for name in ("leave_one_out", "edge_weight")}
    labels = (np.random.default_rng(0).random(len(graph)) < 0.4).astype(np.int64)
    result = masking_experiment(
        question, scores, labels, np.arange(len(graph)), ["auprc"], Masking([1, 3], replicates=50)
    )
    measured = result.change("leave_one_out", 1, "target_logit_fall")
    assert measured.value is not None
    assert measured.against_random is not None
    assert measured.against_random.value is not None
    assert measured.against_random.value > 0
    assert randomisation_check(question, scores["leave_one_out"]) == []


@pytest.mark.parametrize("name", ["gnn_explainer", "pg_explainer", "subgraphx"])
def test_methods_that_know_our_network_only_say_so(name: str) -> None:
    graph = small_graph()
    busiest = np.array([int(graph.degrees.argmax())])
    question = Question.ask(foreign_network(graph), graph, embeddings_for(graph), BINARY, busiest)
    with pytest.raises(PlmError, match=f"'{name}' does not support the network ForeignNetwork; choose gradient"):
        all_methods()[name].score(question)


@pytest.mark.parametrize("references", ["cohort", "bank"])
def test_explanation_and_what_if_of_a_foreign_network(references: str, finished_run: Callable[..., Path]) -> None:
    scene = set_scene(load_run(finished_run("length_of_stay", references=references)), "test")
    outputs = scene.run.task.kind.outputs(len(scene.instances.label_vocabulary))
    network = foreign_network(scene.graph, scene.embeddings.shape[1], outputs)
    scene.model.__dict__["graph_network"] = network
    row = max(scene.own_rows.tolist(), key=lambda row: scene.graph.degrees[scene.node_of_row(row)])
    node, tau = scene.node_of_row(row), scene.graph.settings.tau + 1
    found = explain(scene, row, change=Change(drop=("R1",), tau=tau))
    assert all(reference.importance is not None for reference in found.references)
    expected = logits_of(network, scene.graph, scene.embeddings.double())[node]
    np.testing.assert_allclose(scene.logits[node].numpy(), expected, rtol=0, atol=1e-12)
    assert found.what_if is not None
    assert found.what_if.before.target_logit == pytest.approx(found.prediction.target_logit)
    assert found.what_if.after.target_logit != pytest.approx(found.what_if.before.target_logit, abs=1e-6)


@pytest.mark.parametrize("references", ["cohort", "bank"])
def test_explanation_by_the_general_path_equals_the_fast_one(
    references: str, finished_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole explanation with a what-if, by both paths, on our own network."""
    folder, change = finished_run("drug_recommendation", references=references), Change(drop=("R1",), tau=3)
    passes = SimpleNamespace(fast=pass_over, general=GeneralPass.of)
    found = {}
    for name, make in vars(passes).items():
        monkeypatch.setattr("patients_like_me.explanation.scene.pass_over", make)
        scene = set_scene(load_run(folder), "test")
        found[name] = [explain(scene, row, change=change).as_json() for row in usable(scene)]
    assert len(found["fast"]) > 1
    compare(found["fast"], found["general"])


def usable(scene: Any) -> list[int]:
    return [row for row in scene.own_rows.tolist() if scene.graph.degrees[scene.node_of_row(row)] > 3][:3]


def compare(one: Any, other: Any) -> None:
    """Assert that two pieces of plain data are equal, numbers within 1e-9."""
    if isinstance(one, float):
        assert other == pytest.approx(one, rel=1e-9, abs=1e-9)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            compare(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            compare(first, second)
    else:
        assert one == other
