from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from graph.plain_product import overlaps, random_sets, stored_edges

from patients_like_me.graph import GraphSettings, PatientGraph, build_graph
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets


@pytest.fixture
def graph() -> PatientGraph:
    return build_graph(random_sets(14, 80, patients=50, splits=True), GraphSettings(tau=4, self_loop="own_codes"))


def dense(graph: PatientGraph) -> np.ndarray:
    matrix = np.zeros((len(graph), len(graph)), dtype=np.float32)
    for (row, column), weight in stored_edges(graph).items():
        matrix[row, column] = weight
    return matrix


def test_a_graph_is_frozen_and_says_what_it_is(graph: PatientGraph) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.indptr = graph.indptr  # type: ignore[misc]
    assert repr(graph).startswith(f"PatientGraph(80 nodes, {graph.edges:,} edges; tau=4")
    assert graph.node_of_instance["visit 7"] == 7


def test_the_matrix_is_symmetric(graph: PatientGraph) -> None:
    np.testing.assert_array_equal(dense(graph), dense(graph).T)
    assert graph.edges == np.count_nonzero(np.triu(dense(graph)))


@pytest.mark.parametrize("self_loop", ["one", "own_codes"])
def test_self_loops_follow_their_rule(self_loop: str) -> None:
    sets = DiagnosisSets.from_lists([["a", "b", "c"], ["a", "b"], []], patients=[0, 1, 2])
    graph = build_graph(sets, GraphSettings(tau=1, self_loop=self_loop))
    expected = [1, 1, 1] if self_loop == "one" else [3, 2, 1]
    assert graph.self_loop_weights().tolist() == expected
    assert graph.to_scipy(self_loops=True).diagonal().tolist() == expected
    assert graph.to_scipy().diagonal().tolist() == [0, 0, 0]


def test_own_codes_is_the_natural_diagonal() -> None:
    sets = DiagnosisSets.from_lists([["a", "b", "c"], ["a", "b"]], patients=[0, 1])
    graph = build_graph(sets, GraphSettings(tau=1, self_loop="own_codes"))
    product = overlaps(sets) + np.diag(np.diff(sets.indptr))
    np.testing.assert_array_equal(graph.to_scipy(self_loops=True).toarray(), product)


def test_sub_graph_keeps_what_is_inside(graph: PatientGraph) -> None:
    nodes = np.random.default_rng(1).permutation(80)[:33]
    inner = graph.sub_graph(nodes)
    np.testing.assert_array_equal(dense(inner), dense(graph)[np.ix_(nodes, nodes)])
    assert inner.instance_ids == tuple(graph.instance_ids[node] for node in nodes)
    with pytest.raises(ValueError, match="named twice"):
        graph.sub_graph(np.array([1, 1]))


def test_statistics_count_each_edge_once(graph: PatientGraph) -> None:
    found = graph.statistics()
    matrix = dense(graph)
    assert [split.name for split in found.splits] == ["train", "validation", "test", "all"]
    assert found.whole.edges == graph.edges == found.weight_histogram.sum()
    assert found.whole.average_degree == pytest.approx((matrix > 0).sum(axis=1).mean())
    assert found.whole.isolated_share == pytest.approx(((matrix > 0).sum(axis=1) == 0).mean())
    assert sum(split.edges for split in found.splits[:-1]) == found.whole.edges
    assert sum(split.components for split in found.splits[:-1]) == found.whole.components
    assert found.degree_histogram.sum() == 80
    counted = np.bincount(np.triu(matrix)[np.triu(matrix) > 0].astype(int))
    assert found.as_json()["weight_histogram"] == {
        str(weight): int(number) for weight, number in enumerate(counted) if number
    }
    json.dumps(found.as_json())


def test_components_are_found() -> None:
    rows = [["a"], ["a"], ["b"], ["b"], ["b"], ["c"]]
    found = build_graph(DiagnosisSets.from_lists(rows, patients=list(range(6))), GraphSettings(tau=1)).statistics()
    assert (found.whole.components, found.whole.largest_component) == (3, 3)
    assert found.whole.isolated_share == pytest.approx(1 / 6)
    assert found.whole.largest_degree == 2


def test_statistics_of_a_bank_count_received_links() -> None:
    graph = build_graph(random_sets(3, 90, splits=True), GraphSettings(tau=3, references="bank"))
    found = graph.statistics()
    assert found.whole.edges == graph.edges == found.weight_histogram.sum()
    train = next(split for split in found.splits if split.name == "train")
    assert train.edges == graph.sub_graph(np.flatnonzero(graph.splits == "train")).edges


def test_statistics_of_nothing() -> None:
    found = build_graph(DiagnosisSets.from_lists([], patients=[])).statistics()
    assert (found.whole.nodes, found.whole.edges, found.whole.components) == (0, 0, 0)
