"""Paths from an instance to another one of its patient are looked for in the graph, and a planted one is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graph.plain_product import random_sets

from patients_like_me.graph import GraphSettings, build_graph
from patients_like_me.graph.own_paths import audit_own_paths, own_paths
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.settings import References


def drawn(references: References, max_neighbors: int | None = 3) -> PatientGraph:
    sets = random_sets(2, 120, mean_size=25, patients=40, splits=True)
    # A patient is in one split.
    names = np.array(["train", "test", "train", "validation"])
    return build_graph(
        replace(sets, splits=names[sets.patients % 4]),
        GraphSettings(tau=2, max_neighbors=max_neighbors, references=references),
    )


def by_hand(graph: PatientGraph) -> tuple[int, int]:
    """Pass messages until nothing changes, and count who heard of an own other instance."""
    heard, links = np.eye(len(graph), dtype=bool), graph.to_scipy(self_loops=True).astype(bool)
    for _ in range(len(graph)):
        heard = (links @ heard) > 0
    own = (graph.sets.patients[:, None] == graph.sets.patients) & ~np.eye(len(graph), dtype=bool)
    reached, train = (heard & own).any(axis=1), np.asarray(graph.splits == "train")
    return int((reached & ~train).sum()), int((reached & train).sum())


@pytest.mark.parametrize("references", ["cohort", "bank"])
@pytest.mark.parametrize("max_neighbors", [1, 3, None])
def test_paths_are_counted_as_messages_take_them(references: References, max_neighbors: int | None) -> None:
    graph = drawn(references, max_neighbors)
    found = own_paths(graph)
    assert (found.evaluated_reached, found.training_reached) == by_hand(graph)
    assert found.evaluated_reached == 0
    assert found.evaluated > 0
    check, notes = audit_own_paths(graph)
    assert (check.verdict, check.found) == ("passed", 0)
    if references == "cohort":
        assert found.training_reached == 0
        assert notes == []
    else:
        assert f"{found.training_reached} of {found.training} training instances" in notes[0].replace(
            "fewer than 11", str(found.training_reached)
        )


@pytest.mark.parametrize("references", ["cohort", "bank"])
def test_a_planted_path_is_a_leak(references: References) -> None:
    graph = drawn(references)
    tested = np.flatnonzero(graph.splits == "test")
    patients, counts = np.unique(graph.sets.patients[tested], return_counts=True)
    first, second = tested[graph.sets.patients[tested] == patients[counts > 1][0]][:2]
    between = int(np.flatnonzero((graph.splits == "train") & (graph.degrees > 0))[0])
    # The first instance receives from another patient, who receives from the second one.
    rows = [graph.neighbors_of(node)[0].tolist() for node in range(len(graph))]
    rows[first], rows[between] = sorted({*rows[first], between}), sorted({*rows[between], int(second)})
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    neighbors = np.array([node for row in rows for node in row], dtype=np.int32)
    planted = replace(graph, indptr=indptr, neighbors=neighbors, weights=np.full(len(neighbors), 2, np.uint8))
    check, _ = audit_own_paths(planted)
    assert (check.verdict, check.found) == (
        "leak",
        sum(by_hand(planted)) if references == "cohort" else by_hand(planted)[0],
    )
    assert check.found > 0
