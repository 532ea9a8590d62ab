from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from patients_like_me.graph import GraphSettings, build_graph
from patients_like_me.graph.drawn_sets import drawn_sets
from patients_like_me.model import propagation
from patients_like_me.model.bank_states import BankStates
from patients_like_me.model.count_product import CountMatrix
from patients_like_me.model.gcn import GraphNetwork
from patients_like_me.model.propagation import FixedPropagation
from patients_like_me.model.randomness import seeded
from patients_like_me.model.settings import GraphNetworkSettings
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets


def sets_with_splits(nodes: int) -> DiagnosisSets:
    return replace(drawn_sets(nodes), splits=np.where(np.arange(nodes) % 3 == 0, "test", "train"))


@pytest.mark.parametrize("references", ["cohort", "bank"])
@pytest.mark.parametrize("keep", [None, 4])
def test_counts_give_the_product_and_the_gradient_of_numbers(
    references: str, keep: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = GraphSettings(tau=8, max_neighbors=keep, references=references, self_loop="own_codes")  # type: ignore[arg-type]
    graph = build_graph(sets_with_splits(60), settings)
    numbers = FixedPropagation.of_graph(graph)
    monkeypatch.setattr(propagation, "LARGE", 1)
    counts = FixedPropagation.of_graph(graph)
    assert isinstance(counts.matrix, CountMatrix)
    assert counts.matrix.symmetric == numbers.matrix.symmetric
    for kind, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        states = torch.randn(60, 5, dtype=kind, generator=torch.Generator().manual_seed(0)).requires_grad_()
        weights = torch.randn(60, 5, dtype=kind, generator=torch.Generator().manual_seed(1))
        found = [form.propagate(states) for form in (counts, numbers)]
        gradients = [torch.autograd.grad((each * weights).sum(), states)[0] for each in found]
        torch.testing.assert_close(found[0], found[1], atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(gradients[0], gradients[1], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("references", ["cohort", "bank"])
@pytest.mark.parametrize("columns_at_once", [1, 7, 1000])
def test_nodes_of_a_large_graph_are_multiplied_where_they_are(
    references: str, columns_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = build_graph(sets_with_splits(60), GraphSettings(tau=6, references=references))  # type: ignore[arg-type]
    monkeypatch.setattr(CountMatrix, "_columns_at_once", lambda *_: columns_at_once)
    for split in ("train", "test"):
        nodes = np.flatnonzero(graph.splits == split)
        if references == "bank" and split == "test":
            nodes = np.concatenate([np.flatnonzero(graph.splits == "train"), nodes])
        expected = FixedPropagation.of_graph(graph.sub_graph(nodes))
        found = FixedPropagation.of_nodes(graph, nodes)
        states = torch.randn(len(nodes), 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(found.propagate(states), expected.propagate(states))
        assert isinstance(found.matrix, CountMatrix)
        torch.testing.assert_close(found.matrix._product_on_device(states), expected.propagate(states))
        if split == "train":
            assert found.matrix.transposed() is found.matrix
    if references == "bank":
        with pytest.raises(ValueError, match="for predictions, not for training"):
            found.matrix.transposed()
        with pytest.raises(ValueError, match="not among them"):
            FixedPropagation.of_nodes(graph, np.flatnonzero(graph.splits == "test"))


def test_the_graph_of_some_nodes_is_the_same_in_any_order() -> None:
    graph = build_graph(sets_with_splits(60), GraphSettings(tau=8))
    nodes = np.flatnonzero(np.arange(60) % 3 != 1)
    rising, turned = graph.sub_graph(nodes), graph.sub_graph(nodes[::-1])
    np.testing.assert_array_equal(rising.to_scipy().toarray(), turned.to_scipy().toarray()[::-1, ::-1])
    assert rising.weights.dtype == graph.weights.dtype
    assert len(rising.neighbors)


@pytest.mark.parametrize("keep", [None, 4])
@pytest.mark.parametrize("skip", ["none", "concat"])
def test_newcomers_against_kept_states_are_those_of_the_whole_graph(keep: int | None, skip: str) -> None:
    sets = drawn_sets(40)
    settings = GraphSettings(tau=8, max_neighbors=keep, references="bank", self_loop="own_codes")
    bank = build_graph(replace(sets, splits=np.full(40, "train")), settings)
    newcomers = replace(drawn_sets(9, seed=3), instance_ids=tuple(f"new {number}" for number in range(9)))
    whole = bank.extend(newcomers, patients="new")
    with seeded(0):
        network = GraphNetwork(5, 2, GraphNetworkSettings(width=6, skip=skip)).eval()  # type: ignore[arg-type]
        embeddings = torch.randn(49, 5)
    expected = network(embeddings, FixedPropagation.of_graph(whole))[40:]
    states = BankStates.of(network, bank, embeddings[:40])
    torch.testing.assert_close(states.logits(whole, embeddings[40:]), expected, atol=1e-6, rtol=1e-5)
    # The states serve again, for others and in any number.
    torch.testing.assert_close(states.logits(bank, embeddings[:0]), expected[:0])
    with pytest.raises(ValueError, match="eval mode"):
        BankStates.of(network.train(), bank, embeddings[:40])
