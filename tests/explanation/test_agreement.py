"""Rank agreement against scipy, and the two checks that build on it."""

from __future__ import annotations

import numpy as np
import pytest
from explanation.small_graphs import embeddings_for, small_graph, small_network
from scipy.stats import kendalltau, spearmanr

from patients_like_me.errors import PlmError
from patients_like_me.explanation.agreement import TOP, agreements, ordered_entries
from patients_like_me.explanation.methods import Question, all_methods
from patients_like_me.explanation.robustness import randomisation_check, randomised, stability
from patients_like_me.tasks.kinds import BINARY


def whole_question(seed: int = 0, *, width: int = 7, **settings: object) -> Question:
    graph = small_graph(nodes=60, **settings)  # type: ignore[arg-type]
    network = small_network(seed=seed, width=width)
    return Question.ask(network, graph, embeddings_for(graph), BINARY, np.arange(len(graph)))


def test_correlations_are_those_of_scipy() -> None:
    question = whole_question()
    generator = np.random.default_rng(0)
    first, second = generator.integers(0, 4, question.edges.edges), generator.random(question.edges.edges)
    (found,) = agreements(question.edges, {"a": first.astype(float), "b": second})
    rows = [question.edges.row(n) for n in range(len(question.edges))]
    rows = [row for row in rows if row.stop - row.start > TOP]
    expected = [kendalltau(first[row], second[row]).statistic for row in rows if np.ptp(first[row])]
    assert found.kendall == pytest.approx(np.mean(expected))
    expected = [spearmanr(first[row], second[row]).statistic for row in rows if np.ptp(first[row])]
    assert found.spearman == pytest.approx(np.mean(expected))
    assert found.targets == len(rows)


def test_a_ranking_agrees_with_itself_and_not_with_its_reverse() -> None:
    question = whole_question()
    scores = np.random.default_rng(0).random(question.edges.edges)
    same, reverse, _ = agreements(question.edges, {"a": scores, "b": 3 * scores + 1, "c": -scores})
    assert (same.kendall, same.spearman, same.top_overlap) == (pytest.approx(1), pytest.approx(1), pytest.approx(1))
    assert (reverse.kendall, reverse.spearman) == (pytest.approx(-1), pytest.approx(-1))


def test_only_ties_give_no_correlation() -> None:
    question = whole_question()
    (found,) = agreements(
        question.edges, {"a": np.ones(question.edges.edges), "b": np.arange(question.edges.edges) * 1.0}
    )
    assert found.kendall is None
    assert found.spearman is None
    assert found.top_overlap is not None


def test_ties_are_broken_by_chance_and_repeatably() -> None:
    question = whole_question()
    scores = np.ones(question.edges.edges)
    first = ordered_entries(question.edges, scores, seed=1)
    np.testing.assert_array_equal(first, ordered_entries(question.edges, scores, seed=1))
    assert (first != ordered_entries(question.edges, scores, seed=2)).any()
    for number in range(len(question.edges)):
        row = question.edges.row(number)
        assert sorted(first[row]) == list(range(row.start, row.stop))


def test_random_weights_give_other_importances() -> None:
    question = whole_question(width=48)
    importances = all_methods()["gradient"].score(question)
    found = randomisation_check(question, importances)
    assert [each.second for each in found] == [
        "random weights: classifier",
        "random weights: last layer",
        "random weights: all",
    ]
    for each in found:
        assert each.spearman is not None
        assert abs(each.spearman) < 0.8


def test_randomising_keeps_what_it_says() -> None:
    import torch

    network = small_network()
    last_only = randomised(network, "last_layer")
    old, new = dict(network.named_parameters()), dict(last_only.named_parameters())
    assert torch.equal(old["convolutions.0.weight"], new["convolutions.0.weight"])
    assert not torch.equal(old["convolutions.2.weight"], new["convolutions.2.weight"])
    assert not torch.equal(old["classifier.weight"], new["classifier.weight"])
    assert not torch.equal(
        old["convolutions.0.weight"], dict(randomised(network, "all").named_parameters())["convolutions.0.weight"]
    )


def test_stability_between_seeds() -> None:
    same, other = whole_question(seed=0), whole_question(seed=1)
    found = stability([same, same, other], ["one", "again", "other"])
    assert [(each.first, each.second) for each in found] == [("one", "again"), ("one", "other"), ("again", "other")]
    assert found[0].top_overlap == pytest.approx(1)
    assert found[1].top_overlap < 1  # type: ignore[operator]
    with pytest.raises(PlmError, match="other instances or another graph"):
        stability([same, whole_question(max_neighbors=2)], ["one", "strange"])
