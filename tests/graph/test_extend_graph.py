from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graph.plain_product import graph_settings, random_sets, stored_edges
from hypothesis import given, settings
from hypothesis import strategies as st

from patients_like_me.errors import PlmError
from patients_like_me.graph import GraphSettings, PatientGraph, build_graph
from patients_like_me.graph.node_sets import taken
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets


def same(graph: PatientGraph, other: PatientGraph) -> None:
    assert stored_edges(graph) == stored_edges(other)
    assert graph.instance_ids == other.instance_ids
    assert graph.sets.vocabulary == other.sets.vocabulary
    np.testing.assert_array_equal(graph.sets.codes, other.sets.codes)
    np.testing.assert_array_equal(graph.sets.patients, other.sets.patients)


@given(
    seed=st.integers(0, 2**32 - 1),
    bank=st.integers(1, 40),
    new=st.integers(0, 12),
    chosen=graph_settings,
    people=st.sampled_from([None, 6]),
)
@settings(deadline=None, max_examples=120)
def test_extend_equals_a_rebuild(seed: int, bank: int, new: int, chosen: GraphSettings, people: int | None) -> None:
    everyone = random_sets(seed, bank + new, codes=40, patients=people)
    everyone = replace(everyone, splits=np.array(["train"] * bank + ["test"] * new))
    chosen = chosen.model_copy(update={"references": "bank"})
    graph = build_graph(taken(everyone, np.arange(bank)), chosen)
    extended = graph.extend(taken(everyone, np.arange(bank, bank + new)))
    same(extended, build_graph(everyone, chosen))


@pytest.mark.parametrize("limit", [None, 3, 50])
def test_extend_of_a_bank_equals_a_rebuild(limit: int | None) -> None:
    chosen = GraphSettings(tau=4, max_neighbors=limit, references="bank")
    everyone = random_sets(4, 200, patients=80, splits=True)
    evaluated = np.flatnonzero(everyone.splits != "train")
    newcomers, rest = evaluated[:30], np.setdiff1d(np.arange(200), evaluated[:30])
    graph = build_graph(taken(everyone, rest), chosen)
    extended = graph.extend(taken(everyone, newcomers))
    same(extended, build_graph(taken(everyone, np.append(rest, newcomers)), chosen))
    assert stored_edges(extended.sub_graph(np.arange(len(graph)))) == stored_edges(graph)


def test_extending_twice_equals_extending_once() -> None:
    everyone = replace(random_sets(8, 90, patients=60), splits=np.array(["train"] * 60 + ["test"] * 30))
    graph = build_graph(taken(everyone, np.arange(60)), GraphSettings(tau=3, max_neighbors=4, references="bank"))
    twice = graph.extend(taken(everyone, np.arange(60, 75))).extend(taken(everyone, np.arange(75, 90)))
    same(twice, graph.extend(taken(everyone, np.arange(60, 90))))


def test_link_gives_the_rows_of_extend_without_touching_the_graph(tmp_path: Path) -> None:
    everyone = random_sets(6, 150, patients=70, splits=True)
    chosen = GraphSettings(tau=4, max_neighbors=5, references="bank")
    newcomer = np.flatnonzero(everyone.splits == "test")[:1]
    rest = np.setdiff1d(np.arange(150), newcomer)
    build_graph(taken(everyone, rest), chosen).save(tmp_path / "graph")
    graph = PatientGraph.load(tmp_path / "graph")
    links = graph.link(taken(everyone, newcomer))
    neighbors, weights = graph.extend(taken(everyone, newcomer)).neighbors_of(149)
    assert len(links) == 1
    assert len(neighbors) == 5
    np.testing.assert_array_equal(links.neighbors, neighbors)
    np.testing.assert_array_equal(links.weights, weights)
    assert len(graph) == 149


def test_codes_are_matched_by_name_and_codes_of_one_node_count() -> None:
    sets = DiagnosisSets.from_lists([["a", "b"], ["c", "rare"]], patients=[0, 1], splits=["train", "train"])
    graph = build_graph(sets, GraphSettings(tau=2, references="bank"))
    newcomer = DiagnosisSets.from_lists([["rare", "c", "unheard", "Z"]], patients=[2], instance_ids=["new"])
    extended = graph.extend(newcomer)
    assert stored_edges(extended) == {(2, 1): 2}
    assert extended.sets.of(2) == ("c", "rare", "Z", "unheard")


def test_patients_are_told_apart_as_asked() -> None:
    sets = DiagnosisSets.from_lists([["a", "b"]], patients=[0], splits=["train"])
    graph = build_graph(sets, GraphSettings(tau=1, references="bank"))
    later = DiagnosisSets.from_lists([["a", "b"]], patients=[0], instance_ids=["later"])
    assert graph.link(later).neighbors.tolist() == []
    assert graph.link(later, patients="new").neighbors.tolist() == [0]
    assert graph.extend(later, patients="new").sets.patients.tolist() == [0, 1]


def test_newcomers_that_cannot_be_taken_in_are_refused() -> None:
    sets = DiagnosisSets.from_lists([["a"], ["a"]], patients=[0, 1], splits=["train", "test"])
    graph = build_graph(sets, GraphSettings(tau=1, references="bank"))
    newcomer = DiagnosisSets.from_lists([["a"]], patients=[2], instance_ids=["0"])
    with pytest.raises(PlmError, match="1 of the 1 newcomers have the id of an instance in the graph"):
        graph.extend(newcomer)
    labelled = replace(newcomer, instance_ids=("new",), splits=np.array(["train"]))
    with pytest.raises(PlmError, match="its split cannot be 'train'"):
        graph.extend(labelled)
    with pytest.raises(PlmError, match=r"'cohort' accepts no newcomers.*use references 'bank'"):
        build_graph(sets, GraphSettings(tau=1)).extend(replace(newcomer, instance_ids=("new",)))


def test_no_newcomers_change_nothing() -> None:
    sets = random_sets(3, 30, splits=True)
    graph = build_graph(sets, GraphSettings(tau=2, max_neighbors=3, references="bank"))
    same(graph.extend(taken(sets, np.arange(0))), graph)
    assert len(graph.link(taken(sets, np.arange(0)))) == 0
