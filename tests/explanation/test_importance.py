"""Importance equals finite differences, and batch attribution equals importance, for every task, rule and mode."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from explanation.small_graphs import dense_weights, embeddings_for, logits_on, small_graph, small_network
from hypothesis import given, settings
from hypothesis import strategies as st

from patients_like_me.errors import PlmError
from patients_like_me.explanation import batch_attribution, hubs
from patients_like_me.explanation.batch_attribution import attribute, one_by_one
from patients_like_me.explanation.known_pass import known_pass
from patients_like_me.explanation.methods import Question, all_methods
from patients_like_me.explanation.network_pass import GeneralPass, pass_over
from patients_like_me.explanation.target_edges import TargetEdges
from patients_like_me.explanation.targets import chosen_outputs, output_of_label, target_logits


@pytest.fixture
def walking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the kernels even where few targets would go one by one."""
    monkeypatch.setattr(batch_attribution, "_few_targets", lambda *_: False)


def finite_difference(network, graph, embeddings, node: int, neighbor: int, choice, step: float = 1e-4) -> float:
    weights = dense_weights(graph)
    values = []
    for sign in (1, -1):
        changed = weights.copy()
        changed[node, neighbor] += sign * step
        if weights[neighbor, node]:
            changed[neighbor, node] += sign * step
        values.append((logits_on(network, graph, embeddings, changed)[node] * choice).sum())
    return (values[0] - values[1]) / (2 * step)


@pytest.mark.parametrize("kind", ["binary", "multiclass", "multilabel"])
@pytest.mark.parametrize("self_loop", ["one", "own_codes"])
@pytest.mark.parametrize("references", ["cohort", "bank"])
@pytest.mark.parametrize(("layers", "skip"), [(1, "none"), (2, "concat"), (3, "none"), (3, "concat")])
def test_importance_is_the_finite_difference(
    kind: str, self_loop: str, references: str, layers: int, skip: str, walking: None
) -> None:
    graph = small_graph(references=references, self_loop=self_loop, nodes=24)
    network = small_network(kind, layers=layers, skip=skip)
    question = Question.ask(network, graph, embeddings_for(graph), kind, np.arange(len(graph)))  # type: ignore[arg-type]
    found = all_methods()["gradient"].score(question)
    assert len(found) == len(graph.neighbors)
    scale = np.abs(found).max()
    assert scale > 0
    for number in range(0, len(graph), 2):
        for place in range(*question.edges.row(number).indices(len(found))):
            slope = finite_difference(
                network,
                graph,
                question.embeddings,
                number,
                int(question.edges.neighbors[place]),
                question.choice[number],
            )
            assert found[place] == pytest.approx(slope, rel=1e-5, abs=1e-7 * scale)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    layers=st.integers(1, 4),
    references=st.sampled_from(["cohort", "bank"]),
    self_loop=st.sampled_from(["one", "own_codes"]),
    hub_share=st.sampled_from([0.5, 1.3, 99.0]),
)
def test_batch_attribution_equals_one_backward_pass_per_target(
    seed: int, layers: int, references: str, self_loop: str, hub_share: float
) -> None:
    graph = small_graph(references=references, self_loop=self_loop, seed=seed)
    network = small_network("multiclass", layers=layers, seed=seed)
    embeddings = embeddings_for(graph, seed)
    known = known_pass(network, graph, embeddings)
    edges = TargetEdges.of(known.graph.indptr, known.graph.columns, np.arange(len(graph)))
    choice = chosen_outputs("multiclass", torch.from_numpy(known.logits)).numpy()
    expected = GeneralPass.of(network, graph, embeddings).importances(edges, choice)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_attribution, "_few_targets", lambda *_: False)
        patch.setattr(batch_attribution, "_ROWS_AT_ONCE", 40)
        patch.setattr(hubs, "_TIMES_THE_MEAN", hub_share)
        found = attribute(known, edges, choice, threads=2)
    tolerance = 1e-12 * max(np.abs(expected).max(initial=0.0), 1e-12)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=tolerance)
    last = np.where(known.states.active[-1], choice @ known.classifier, 0.0)
    np.testing.assert_allclose(one_by_one(known, edges, last), expected, rtol=1e-9, atol=tolerance)


def test_some_targets_get_the_same_numbers_as_all(walking: None) -> None:
    graph = small_graph()
    question = Question.ask(small_network(), graph, embeddings_for(graph), "binary", np.arange(len(graph)))
    everyone = all_methods()["gradient"].score(question)
    some = question.of_targets(np.array([9, 2, 17]))
    expected = np.concatenate([everyone[question.edges.row(number)] for number in (9, 2, 17)])
    np.testing.assert_allclose(all_methods()["gradient"].score(some), expected, rtol=1e-10)


def test_both_directions_of_an_edge_are_one_parameter() -> None:
    graph = small_graph()
    network, embeddings = small_network(), embeddings_for(graph)
    node = int(graph.degrees.argmax())
    neighbor = int(graph.neighbors_of(node)[0][0])
    weights = dense_weights(graph)

    def slope(both: bool) -> float:
        values = []
        for sign in (1, -1):
            changed = weights.copy()
            changed[node, neighbor] += sign * 1e-4
            changed[neighbor, node] += sign * 1e-4 * both
            values.append(logits_on(network, graph, embeddings, changed)[node, 0])
        return (values[0] - values[1]) / 2e-4

    edges = TargetEdges.of(graph.indptr, graph.neighbors, np.array([node]))
    found = GeneralPass.of(network, graph, embeddings).importances(edges, np.ones((1, 1)))[0]
    assert found == pytest.approx(slope(both=True), rel=1e-5)
    assert found != pytest.approx(slope(both=False), rel=1e-3)


def test_an_isolated_node_has_no_importances() -> None:
    graph = small_graph()
    assert graph.degrees[0] == 0
    edges = TargetEdges.of(graph.indptr, graph.neighbors, np.array([0]))
    assert len(GeneralPass.of(small_network(), graph, embeddings_for(graph)).importances(edges, np.ones((1, 1)))) == 0
    question = Question.ask(small_network(), graph, embeddings_for(graph), "binary", np.array([0]))
    assert len(all_methods()["gradient"].score(question)) == 0


def test_the_known_pass_gives_the_logits_of_the_network() -> None:
    for references in ("cohort", "bank"):
        graph = small_graph(references=references)
        network, embeddings = small_network("multilabel", skip="concat"), embeddings_for(graph)
        expected = logits_on(network, graph, embeddings, dense_weights(graph))
        np.testing.assert_allclose(known_pass(network, graph, embeddings).logits, expected, atol=1e-12)


def test_a_network_in_training_mode_is_refused() -> None:
    graph = small_graph()
    for make in (GeneralPass.of, pass_over):
        with pytest.raises(ValueError, match="eval mode"):
            make(small_network().train(), graph, embeddings_for(graph))


def test_targets() -> None:
    logits = torch.tensor([[-3.0, 1.0, 0.5], [-4.0, -3.0, -2.5]])
    assert chosen_outputs("binary", logits[:, :1]).tolist() == [[1.0], [1.0]]
    assert chosen_outputs("multiclass", logits).tolist() == [[0, 1, 0], [0, 0, 1]]
    assert chosen_outputs("multilabel", logits).tolist() == [[0, 1, 1], [0, 0, 1]]
    assert chosen_outputs("multilabel", logits, output=0).tolist() == [[1, 0, 0], [1, 0, 0]]
    assert target_logits(logits, chosen_outputs("multilabel", logits)).tolist() == [1.5, -2.5]
    with pytest.raises(PlmError, match="no output 7"):
        chosen_outputs("multilabel", logits, output=7)
    with pytest.raises(PlmError, match="does not predict 'X'"):
        output_of_label("X", ("A", "B"))
