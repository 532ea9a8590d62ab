"""Masking: of the references that a page shows, or of all neighbours; one target at a time, or graph-wide."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from explanation.small_graphs import dense_weights, embeddings_for, logits_on, small_graph, small_network

from patients_like_me.evaluation.intervals import Difference, Interval
from patients_like_me.explanation.agreement import ordered_entries
from patients_like_me.explanation.masking_experiment import (
    PROBABILITY,
    MaskedChange,
    Masking,
    MaskingResult,
    masked_logits,
    masking_experiment,
    of_references,
)
from patients_like_me.explanation.methods import Question
from patients_like_me.explanation.methods.gradient import gradient
from patients_like_me.report.run_sections.faithfulness import verdict
from patients_like_me.tasks.kinds import BINARY


@pytest.fixture(params=["cohort", "bank"])
def question(request: pytest.FixtureRequest) -> Question:
    graph = small_graph(references=request.param, nodes=60, tau=1, max_neighbors=None)
    targets = np.flatnonzero(graph.evaluated) if request.param == "bank" else np.arange(len(graph))
    return Question.ask(small_network(), graph, embeddings_for(graph), BINARY, targets)


def test_only_the_ten_nearest_in_embedding_space_are_masked(question: Question) -> None:
    scores = {"gradient": gradient(question)}
    shown, restricted = of_references(question, scores, "shown")
    cosine = torch.nn.functional.normalize(question.embeddings, dim=1)
    cosines = (cosine @ cosine.T).numpy()
    assert np.diff(question.edges.indptr).max() > 10
    for number, target in enumerate(question.edges.targets):
        every, kept = question.edges.row(number), shown.edges.row(number)
        neighbors = question.edges.neighbors[every]
        nearest = set(neighbors[np.argsort(-cosines[target, neighbors])[:10]].tolist())
        assert set(shown.edges.neighbors[kept].tolist()) == nearest
        score_of = dict(zip(neighbors.tolist(), scores["gradient"][every].tolist(), strict=True))
        found = zip(shown.edges.neighbors[kept].tolist(), restricted["gradient"][kept].tolist(), strict=True)
        assert all(score_of[node] == score for node, score in found)
    same, unchanged = of_references(question, scores, "all")
    assert same is question
    assert unchanged["gradient"] is scores["gradient"]


def test_graph_wide_removes_the_edges_of_all_targets_at_once(question: Question) -> None:
    shown, scores = of_references(question, {"gradient": gradient(question)}, "shown")
    found = masked_logits(shown, scores["gradient"], [3], graph_wide=True)[0]
    weights = dense_weights(question.graph)
    order = ordered_entries(shown.edges, scores["gradient"])
    for number, target in enumerate(shown.edges.targets):
        for place in order[shown.edges.row(number)][:3]:
            neighbor = shown.edges.neighbors[place]
            weights[target, neighbor] = weights[neighbor, target] = 0
    expected = logits_on(small_network(), question.graph, question.embeddings, weights)[shown.edges.targets]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    alone = masked_logits(shown, scores["gradient"], [3])[0]
    is_bank = question.graph.settings.references == "bank"
    # An evaluated instance of a bank sends nothing: there both forms are the same.
    assert np.allclose(found, alone) == is_bank


def test_the_result_says_what_was_masked(question: Question) -> None:
    labels = (np.arange(len(question.edges)) % 2).astype(np.int64)
    scores = {"gradient": gradient(question)}
    shown, every = (
        masking_experiment(question, scores, labels, np.arange(len(labels)), ["auprc"], masking)
        for masking in (Masking([3], replicates=10), Masking([3], "all", graph_wide=True, replicates=10))
    )
    assert (shown.as_json()["references"], shown.as_json()["graph_wide"]) == ("shown", False)
    assert (every.as_json()["references"], every.as_json()["graph_wide"]) == ("all", True)
    first, second = (each.change("gradient", 3, PROBABILITY).value for each in (shown, every))
    assert first != second


def masked(method: str, value: float, half: float, against: tuple[float, float] | None) -> MaskedChange:
    difference = None
    if against is not None:
        difference = Difference(against[0], Interval(against[0] - against[1], against[0] + against[1], 0.95, 10), 0.5)
    return MaskedChange(method, 3, PROBABILITY, value, Interval(value - half, value + half, 0.95, 10), difference)


def result_of(*changes: MaskedChange) -> MaskingResult:
    return MaskingResult("all", 100, 100, 100, {3: 0}, {}, changes)


def test_a_verdict_has_a_size_and_an_interval() -> None:
    hardly = result_of(masked("gradient", 0.0032, 0.0002, (0.0001, 0.0001)), masked("random", 0.0031, 0.0002, None))
    said = verdict(hardly, 3, 0.1)
    assert said.tone == "warning"
    assert said.words.startswith("The references hardly matter in this run")
    assert "0.32 points on average (95 % interval 0.3 points to 0.34 points)" in said.words
    surely = result_of(masked("gradient", 0.03, 0.002, (0.01, 0.004)), masked("random", 0.02, 0.002, None))
    said = verdict(surely, 3, 0.1)
    assert said.tone == "plain"
    assert "Further than random removal: gradient (by 1 points, 0.6 points to 1.4 points)" in said.words
    unsure = result_of(masked("gradient", 0.03, 0.002, (0.001, 0.004)), masked("random", 0.029, 0.002, None))
    assert "no method moves them further than random" in verdict(unsure, 3, 0.1).words
