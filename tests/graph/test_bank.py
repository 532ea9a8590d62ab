from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graph.plain_product import diagnosis_sets, graph_settings, plain_edges, random_sets, stored_edges
from hypothesis import given, settings

from patients_like_me.errors import PlmError
from patients_like_me.graph import GraphSettings, PatientGraph, build_graph
from patients_like_me.graph.node_sets import taken
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets

BANK = GraphSettings(tau=4, max_neighbors=6, references="bank", self_loop="own_codes")


def propagated(graph: PatientGraph, embeddings: np.ndarray, layers: int = 3) -> np.ndarray:
    """Pass messages as a graph network does, normalised by the sums of the rows."""
    matrix = graph.to_scipy(self_loops=True).astype(np.float64)
    scale = 1 / np.sqrt(matrix.sum(axis=1))
    for _ in range(layers):
        embeddings = np.tanh(scale[:, None] * (matrix @ (scale[:, None] * embeddings)))
    return embeddings


@given(sets=diagnosis_sets(splits=True), chosen=graph_settings)
@settings(deadline=None, max_examples=60)
def test_bank_equals_the_plain_product(sets: DiagnosisSets, chosen: GraphSettings) -> None:
    if not len(sets) or not (sets.splits == "train").any():
        return
    chosen = chosen.model_copy(update={"references": "bank"})
    assert stored_edges(build_graph(sets, chosen)) == plain_edges(sets, chosen)


@pytest.fixture
def sets() -> DiagnosisSets:
    return random_sets(21, 300, patients=120, splits=True)


def test_evaluated_instances_only_receive_and_only_from_the_bank(sets: DiagnosisSets) -> None:
    graph = build_graph(sets, BANK)
    evaluated = sets.splits != "train"
    assert graph.edges > 0
    assert not evaluated[graph.neighbors].any()
    assert graph.degrees[evaluated].max() == BANK.max_neighbors


def test_training_instances_receive_by_the_rule_of_newcomers(sets: DiagnosisSets) -> None:
    """Each one taken out of the bank and linked again as a newcomer has the neighbours it was trained with."""
    graph = build_graph(sets, BANK)
    bank = np.flatnonzero(sets.splits == "train")
    assert graph.degrees[bank].max() == graph.degrees[sets.splits != "train"].max() == BANK.max_neighbors
    alone = build_graph(taken(sets, bank), BANK)
    newcomers = taken(sets, bank)
    renamed = tuple(f"again {instance}" for instance in newcomers.instance_ids)
    links = alone.link(replace(newcomers, instance_ids=renamed, splits=None))
    np.testing.assert_array_equal(np.bincount(np.diff(links.indptr)), np.bincount(graph.degrees[bank]))
    np.testing.assert_array_equal(links.neighbors, alone.neighbors)
    within = build_graph(sets, BANK.model_copy(update={"references": "cohort"}))
    assert within.degrees.max() > BANK.max_neighbors


def test_a_pair_is_one_edge_in_whichever_direction(sets: DiagnosisSets) -> None:
    graph = build_graph(sets, BANK)
    pairs = {frozenset(entry) for entry in stored_edges(graph)}
    assert graph.edges == len(pairs) < len(graph.neighbors)
    statistics = graph.statistics()
    assert statistics.whole.edges == len(pairs) == statistics.weight_histogram.sum()


def test_the_bank_is_the_same_whoever_is_evaluated(sets: DiagnosisSets) -> None:
    bank = np.flatnonzero(sets.splits == "train")
    alone = build_graph(taken(sets, bank), BANK)
    assert stored_edges(build_graph(sets, BANK).sub_graph(bank)) == stored_edges(alone)


def test_no_evaluated_instance_influences_another_over_any_number_of_layers(sets: DiagnosisSets) -> None:
    graph = build_graph(sets, BANK)
    embeddings = np.random.default_rng(0).normal(size=(len(sets), 4))
    evaluated = np.flatnonzero(sets.splits != "train")
    before = propagated(graph, embeddings)
    changed = embeddings.copy()
    changed[evaluated[0]] += 10
    moved = np.abs(propagated(graph, changed) - before).max(axis=1) > 0
    assert np.flatnonzero(moved).tolist() == [evaluated[0]]


def test_a_prediction_does_not_depend_on_who_else_is_evaluated(sets: DiagnosisSets) -> None:
    embeddings = np.random.default_rng(0).normal(size=(len(sets), 4))
    everyone = propagated(build_graph(sets, BANK), embeddings)
    for person in np.flatnonzero(sets.splits != "train")[:5]:
        nodes = np.append(np.flatnonzero(sets.splits == "train"), person)
        single = propagated(build_graph(taken(sets, nodes), BANK), embeddings[nodes])
        np.testing.assert_allclose(single[-1], everyone[person], rtol=1e-12)


def test_the_symmetric_mode_does_pass_messages_between_test_instances(sets: DiagnosisSets) -> None:
    graph = build_graph(sets, BANK.model_copy(update={"references": "cohort"}))
    test = np.flatnonzero(sets.splits == "test")
    linked = test[graph.degrees[test] > 0][0]
    embeddings = np.random.default_rng(0).normal(size=(len(sets), 4))
    changed = embeddings.copy()
    changed[linked] += 10
    moved = np.abs(propagated(graph, changed) - propagated(graph, embeddings)).max(axis=1) > 0
    assert moved.sum() > 1


@pytest.mark.parametrize("splits", [None, np.array(["test", "test"])])
def test_a_bank_without_training_instances_is_refused(splits: np.ndarray | None) -> None:
    sets = replace(DiagnosisSets.from_lists([["a"], ["a"]], patients=[0, 1]), splits=splits)
    with pytest.raises(PlmError, match="needs instances of the split 'train'"):
        build_graph(sets, BANK)
