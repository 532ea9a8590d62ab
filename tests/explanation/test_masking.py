"""Removing edges: exact, both directions, renormalised, and without effect where there is no influence."""

from __future__ import annotations

import numpy as np
import pytest
from explanation.small_graphs import dense_weights, embeddings_for, logits_on, small_graph, small_network
from hypothesis import given, settings
from hypothesis import strategies as st

from patients_like_me.explanation.agreement import ordered_entries
from patients_like_me.explanation.ego_net import ego_net
from patients_like_me.explanation.known_pass import known_pass
from patients_like_me.explanation.masking import leave_one_out, logits_without
from patients_like_me.explanation.masking_experiment import masked_logits
from patients_like_me.explanation.methods import Question, all_methods
from patients_like_me.explanation.target_edges import TargetEdges


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    layers=st.integers(1, 4),
    references=st.sampled_from(["cohort", "bank"]),
    self_loop=st.sampled_from(["one", "own_codes"]),
    skip=st.sampled_from(["none", "concat"]),
)
def test_removal_equals_a_pass_over_the_graph_without_the_edges(
    seed: int, layers: int, references: str, self_loop: str, skip: str
) -> None:
    generator = np.random.default_rng(seed)
    graph = small_graph(references=references, self_loop=self_loop, seed=seed, nodes=30)
    network, embeddings = small_network("multiclass", layers=layers, skip=skip), embeddings_for(graph, seed)
    known = known_pass(network, graph, embeddings)
    targets, indptr, entries, expected = [], [0], [], []
    for node in range(0, len(graph), 3):
        row = np.arange(graph.indptr[node], graph.indptr[node + 1])
        for size in {0, min(1, len(row)), len(row) // 2, len(row)}:
            removed = generator.choice(row, size, replace=False) if size else row[:0]
            weights = dense_weights(graph)
            weights[node, graph.neighbors[removed]] = 0
            if not graph.evaluated[node]:
                weights[graph.neighbors[removed], node] = 0
            targets.append(node)
            entries += removed.tolist()
            indptr.append(len(entries))
            expected.append(logits_on(network, graph, embeddings, weights)[node])
    found = logits_without(known, np.array(targets), np.array(indptr), np.array(entries, dtype=np.int64), threads=2)
    np.testing.assert_allclose(found, np.array(expected), rtol=0, atol=1e-12)


def test_an_edge_that_cannot_influence_the_target_changes_nothing() -> None:
    # With one layer, what a reference receives from others never reaches the target.
    graph = small_graph(tau=4, max_neighbors=2, nodes=60)
    network, embeddings = small_network(layers=1), embeddings_for(graph)
    node = int(graph.degrees.argmax())
    before = logits_on(network, graph, embeddings, dense_weights(graph))[node]
    near = {node, *graph.neighbors_of(node)[0].tolist()}
    far = [(a, int(b)) for a in range(len(graph)) for b in graph.neighbors_of(a)[0] if a not in near and b not in near]
    assert far
    weights = dense_weights(graph)
    for a, b in far:
        weights[a, b] = 0
    assert (logits_on(network, graph, embeddings, weights)[node] == before).all()
    edges = TargetEdges.of(graph.indptr, graph.neighbors, np.array([far[0][0]]))
    known = known_pass(network, graph, embeddings)
    logits_without(known, edges.targets, np.array([0, 1]), edges.entries[:1])
    # The pass that was kept is not touched by a removal.
    np.testing.assert_array_equal(known.logits, known_pass(network, graph, embeddings).logits)


def test_removing_nothing_changes_nothing() -> None:
    graph = small_graph()
    known = known_pass(small_network(), graph, embeddings_for(graph))
    found = logits_without(known, np.arange(len(graph)), np.zeros(len(graph) + 1, np.int64), np.zeros(0, np.int64))
    np.testing.assert_allclose(found, known.logits, atol=1e-14)


def test_only_edges_of_the_target_can_be_removed() -> None:
    graph = small_graph()
    known = known_pass(small_network(), graph, embeddings_for(graph))
    other = int(graph.indptr[int(graph.degrees.argmax())])
    with pytest.raises(ValueError, match="does not belong"):
        logits_without(known, np.array([0]), np.array([0, 1]), np.array([other]))


def test_leave_one_out_has_the_sign_of_support() -> None:
    graph = small_graph()
    question = Question.ask(small_network(), graph, embeddings_for(graph), "binary", np.arange(len(graph)))
    found = leave_one_out(question.known, question.edges, question.choice)
    place = int(np.abs(found).argmax())
    node, other = int(question.edges.targets[question.edges.target_of_edge[place]]), question.edges.neighbors[place]
    weights = dense_weights(graph)
    weights[node, other] = weights[other, node] = 0
    without = logits_on(small_network(), graph, question.embeddings, weights)[node, 0]
    assert found[place] == pytest.approx(question.logits[node, 0] - without, abs=1e-12)


def test_gradient_times_weight_is_the_effect_of_a_small_removal() -> None:
    # Scaled to small weights beside large self-loops, removing an edge is a small step.
    graph = small_graph(tau=1, max_neighbors=3)
    question = Question.ask(small_network(), graph, embeddings_for(graph), "binary", np.arange(len(graph)))
    first_order = all_methods()["gradient_times_weight"].score(question)
    measured = all_methods()["leave_one_out"].score(question)
    assert np.corrcoef(first_order, measured)[0, 1] > 0.8


def test_the_first_k_are_removed_and_never_more_than_there_are() -> None:
    graph = small_graph()
    question = Question.ask(small_network(), graph, embeddings_for(graph), "binary", np.arange(len(graph)))
    scores = np.random.default_rng(1).random(question.edges.edges)
    order = ordered_entries(question.edges, scores)
    found = masked_logits(question, scores, [1, 2, 50])
    assert found.shape == (3, len(graph), 1)
    for node in (0, 4, 9):
        for place, k in enumerate((1, 2, 50)):
            chosen = order[question.edges.row(node)][:k]
            weights = dense_weights(graph)
            for other in question.edges.neighbors[chosen]:
                weights[node, other] = weights[other, node] = 0
            expected = logits_on(small_network(), graph, question.embeddings, weights)[node]
            np.testing.assert_allclose(found[place, node], expected, atol=1e-12)
    np.testing.assert_allclose(found[:, 0], np.broadcast_to(question.logits[0], (3, 1)), atol=1e-14)


@pytest.mark.parametrize("references", ["cohort", "bank"])
def test_the_ego_net_gives_the_target_the_same_logits(references: str) -> None:
    import torch

    graph = small_graph(references=references, tau=4, max_neighbors=2, nodes=60)
    network, embeddings = small_network(layers=2), embeddings_for(graph)
    known = known_pass(network, graph, embeddings)
    for node in (0, 45, int(graph.degrees.argmax())):
        net = ego_net(known, node)
        assert net.nodes[0] == node
        assert sorted(net.nodes[1 : net.references + 1].tolist()) == graph.neighbors_of(node)[0].tolist()
        states = embeddings[net.nodes]
        matrix = torch.diag(net.loop_values)
        matrix[net.edge_index[1], net.edge_index[0]] = net.edge_values
        for layer in network.convolutions:
            states = torch.relu(matrix @ (states @ layer.weight) + layer.bias)
        np.testing.assert_allclose(network.classifier(states)[0].detach(), known.logits[node], atol=1e-12)
