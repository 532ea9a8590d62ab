"""Every method under one interface: a finite score per edge, repeatable, and sensible on a graph made for it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from explanation.small_graphs import embeddings_for, small_graph, small_network

from patients_like_me import parts
from patients_like_me.errors import PlmError
from patients_like_me.explanation import coalitions, pyg_masks
from patients_like_me.explanation.methods import Method, Question, all_methods, methods_named
from patients_like_me.model.gcn import GraphNetwork
from patients_like_me.model.propagation import FixedPropagation
from patients_like_me.model.settings import GraphNetworkSettings
from patients_like_me.tasks.kinds import BINARY, kind_named


def small_question(
    kind: str = "multiclass", references: str = "cohort", layers: int = 2, **settings: object
) -> Question:
    graph = small_graph(references=references, nodes=30)
    busiest = 20 + np.argsort(-graph.degrees[20:], kind="stable")[:3]
    targets = np.array([0, *busiest])
    return Question.ask(
        small_network(kind, layers=layers), graph, embeddings_for(graph), kind_named(kind), targets, **settings
    )  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pyg_masks.gnn_explainer.__kwdefaults__, "steps", 8)
    monkeypatch.setitem(pyg_masks.pg_explainer.__kwdefaults__, "epochs", 2)


@pytest.mark.parametrize("references", ["cohort", "bank"])
@pytest.mark.parametrize("kind", ["binary", "multiclass", "multilabel"])
@pytest.mark.parametrize("name", all_methods())
def test_every_method_scores_every_edge(name: str, kind: str, references: str) -> None:
    question = small_question(kind, references)
    assert question.edges.edges > 3
    weights_before = [parameter.clone() for parameter in question.network.parameters()]
    first = all_methods()[name].score(question)
    assert first.shape == (question.edges.edges,)
    assert first.dtype == np.float64
    assert np.isfinite(first).all()
    np.testing.assert_array_equal(first, all_methods()[name].score(question))
    for before, after in zip(weights_before, question.network.parameters(), strict=True):
        assert torch.equal(before, after)
        assert after.grad is None


@pytest.mark.parametrize("name", all_methods())
def test_every_method_accepts_targets_without_references(name: str) -> None:
    graph = small_graph(nodes=30)
    question = Question.ask(small_network(layers=2), graph, embeddings_for(graph), BINARY, np.array([0]))
    assert all_methods()[name].score(question).shape == (0,)


def one_that_matters() -> Question:
    """Return a target whose logit comes from one reference alone: the only one whose embedding is not zero."""
    graph = small_graph(nodes=30)
    network = GraphNetwork(1, 1, GraphNetworkSettings(layers=1, width=1)).double().eval()
    with torch.no_grad():
        network.convolutions[0].weight.fill_(1.0)  # type: ignore[operator,union-attr]
        network.convolutions[0].bias.fill_(0.0)  # type: ignore[operator,union-attr]
        network.classifier.weight.fill_(9.0)
        network.classifier.bias.fill_(-0.1)
    node = int(graph.degrees.argmax())
    embeddings = torch.zeros(len(graph), 1, dtype=torch.float64)
    embeddings[int(graph.neighbors_of(node)[0][2])] = 2.0
    return Question.ask(network, graph, embeddings, BINARY, np.array([node]))


@pytest.mark.parametrize("name", ["gradient", "gradient_times_weight", "leave_one_out", "gnn_explainer", "subgraphx"])
def test_the_one_reference_that_matters_comes_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pyg_masks.gnn_explainer.__kwdefaults__, "steps", 60)
    question = one_that_matters()
    assert question.edges.edges > 4
    assert int(all_methods()[name].score(question).argmax()) == 2


def test_the_decision_network_of_pyg_gives_the_logits_of_ours() -> None:
    question = small_question("binary")
    for number in range(len(question.edges)):
        _, model, inputs = pyg_masks._prepared(question, number)
        with torch.no_grad():
            assert float(model(**inputs)[0]) == pytest.approx(question.logits[number, 0], abs=1e-12)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_coalition_is_worth_what_the_whole_network_says_without_the_absent(layers: int) -> None:
    question = small_question("binary", layers=layers)
    generator = np.random.default_rng(0)
    graph = FixedPropagation.of_graph(question.graph)
    for number in range(len(question.edges)):
        game = coalitions._Game.of_target(question, number, samples=2)
        present = generator.random((5, len(game.net))) < 0.5
        present[:, 0] = True
        worth = game.values(present)
        for row, value in zip(present, worth, strict=True):
            embeddings = question.embeddings.clone()
            embeddings[game.net.nodes[torch.from_numpy(~row)]] = 0.0
            with torch.no_grad():
                logit = question.network(embeddings, graph)[question.edges.targets[number], 0]
            assert value == pytest.approx(game.sign * float(logit), abs=1e-12)


def test_a_shapley_value_of_an_absent_influence_is_zero() -> None:
    question = one_that_matters()
    game = coalitions._Game.of_target(question, 0, samples=4)
    values = game.shapley([frozenset([place]) for place in range(1, game.net.references + 1)])
    assert values[2] > 0
    assert np.abs(np.delete(values, 2)).max() == pytest.approx(0, abs=1e-12)


def test_edge_weight_and_cosine_are_what_they_say() -> None:
    question = small_question()
    neighbors, shared = question.graph.neighbors_of(int(question.edges.targets[1]))
    row = question.edges.row(1)
    np.testing.assert_array_equal(all_methods()["edge_weight"].score(question)[row], shared)
    expected = torch.cosine_similarity(
        question.embeddings[question.edges.targets[1]][None], question.embeddings[neighbors.astype(int)]
    )
    np.testing.assert_allclose(all_methods()["cosine"].score(question)[row], expected, atol=1e-12)


def test_random_follows_the_seed() -> None:
    scores = [all_methods()["random"].score(small_question(seed=seed)) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(scores[0], scores[1])
    assert (scores[0] != scores[2]).all()


def test_methods_are_found_by_name_and_group() -> None:
    assert {method.name for method in methods_named(["all"])} == set(all_methods())
    assert not any(method.slow for method in methods_named(["fast"]))
    with pytest.raises(PlmError, match="no method 'magic'"):
        methods_named(["magic"])


def test_a_method_of_another_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    later = Method("latest", "the last node first", lambda question: question.edges.neighbors.astype(np.float64))
    point = SimpleNamespace(name="latest", value="other:METHOD", dist=None, load=lambda: later)
    monkeypatch.setattr(parts, "entry_points", lambda group: [point] if group.endswith("explanation_methods") else [])
    parts._found.cache_clear()
    try:
        question = small_question()
        assert methods_named(["latest"])[0].score(question).shape == (question.edges.edges,)
        assert "latest" in {method.name for method in methods_named(["fast"])}
    finally:
        parts._found.cache_clear()


def test_finding_the_methods_loads_nothing_slow() -> None:
    program = (
        "import sys; from patients_like_me.explanation.methods import all_methods; all_methods(); "
        "print([name for name in ('torch', 'numba', 'torch_geometric', 'sklearn') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
