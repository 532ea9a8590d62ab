"""Only references of the same sex and of about the same age: exact in every mode, for newcomers too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from patients_like_me.errors import PlmError
from patients_like_me.graph.build import build_graph
from patients_like_me.graph.node_sets import taken
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.settings import GraphSettings
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets

NODES = 90


def random_sets(seed: int = 0) -> DiagnosisSets:
    generator = np.random.default_rng(seed)
    return DiagnosisSets.from_lists(
        [[str(code) for code in generator.permutation(12)[: generator.integers(3, 9)]] for _ in range(NODES)],
        patients=(np.arange(NODES) // 2).tolist(),
        splits=np.repeat(["train", "validation", "test"], NODES // 3).tolist(),
        sexes=generator.integers(-1, 2, NODES).tolist(),
        ages=[int(age) if age < 95 else -1 for age in generator.integers(20, 100, NODES)],
    )


def may_meet(sets: DiagnosisSets, one: int, other: int) -> bool:
    assert sets.sexes is not None
    assert sets.ages is not None
    sexes, ages = sets.sexes[[one, other]], sets.ages[[one, other]]
    same = -1 in sexes or sexes[0] == sexes[1]
    return bool(same and (-1 in ages or abs(int(ages[0]) - int(ages[1])) <= 10))


@pytest.mark.parametrize("references", ["cohort", "bank"])
@pytest.mark.parametrize("keep", [None, 3])
def test_the_strongest_are_chosen_among_those_who_are_allowed(references: str, keep: int | None) -> None:
    sets = random_sets()
    rule = {"tau": 2, "references": references}
    every = build_graph(sets, GraphSettings(**rule))
    found = build_graph(sets, GraphSettings(**rule, max_neighbors=keep, same_sex=True, max_age_difference=10))
    sizes = np.diff(sets.indptr)
    expected: list[set[int]] = []
    for node in range(NODES):
        pairs = [pair for pair in zip(*every.neighbors_of(node), strict=True) if may_meet(sets, node, int(pair[0]))]
        pairs.sort(key=lambda pair: (-int(pair[1]), sizes[pair[0]], pair[0]))
        expected.append({int(neighbor) for neighbor, _ in pairs[:keep]})
    if found.settings.either_end_keeps:
        ends = {(one, other) for one in range(NODES) for other in expected[one]}
        ends |= {(other, one) for one, other in ends}
        expected = [{other for one, other in ends if one == node} for node in range(NODES)]
    assert [set(found.neighbors_of(node)[0].tolist()) for node in range(NODES)] == expected
    assert any(expected)
    assert found.edges < every.edges


def test_newcomers_are_linked_by_the_same_rule_also_after_loading(tmp_path: Path) -> None:
    sets = random_sets(1)
    settings = GraphSettings(tau=2, references="bank", max_neighbors=4, same_sex=True, max_age_difference=10)
    whole = build_graph(sets, settings)
    known = np.flatnonzero(sets.splits != "test")
    bank = build_graph(taken(sets, known), settings)
    bank.save(tmp_path / "graph")
    for graph in (bank, PatientGraph.load(tmp_path / "graph")):
        after = graph.extend(taken(sets, np.flatnonzero(sets.splits == "test")))
        for node in range(NODES):
            assert after.neighbors_of(node)[0].tolist() == whole.neighbors_of(node)[0].tolist()


def test_sets_without_people_are_refused() -> None:
    sets = DiagnosisSets.from_lists([["2"], ["2"]], patients=[0, 1])
    with pytest.raises(PlmError, match="do not have"):
        build_graph(sets, GraphSettings(tau=1, same_sex=True))
