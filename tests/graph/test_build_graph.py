from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from graph.plain_product import diagnosis_sets, graph_settings, plain_edges, random_sets, stored_edges
from hypothesis import given, settings

from patients_like_me.errors import PlmError
from patients_like_me.graph import GraphSettings, bit_index, build_graph
from patients_like_me.graph.node_sets import taken
from patients_like_me.settings import checked
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets


@given(sets=diagnosis_sets(), chosen=graph_settings)
@settings(deadline=None, max_examples=120)
def test_edges_and_weights_equal_those_of_a_plain_product(sets: DiagnosisSets, chosen: GraphSettings) -> None:
    assert stored_edges(build_graph(sets, chosen)) == plain_edges(sets, chosen)


@given(sets=diagnosis_sets(splits=True), chosen=graph_settings)
@settings(deadline=None, max_examples=60)
def test_every_split_is_a_graph_of_its_own(sets: DiagnosisSets, chosen: GraphSettings) -> None:
    graph = build_graph(sets, chosen)
    assert stored_edges(graph) == plain_edges(sets, chosen)
    for split in set() if sets.splits is None else set(sets.splits.tolist()):
        members = np.flatnonzero(sets.splits == split)
        alone = build_graph(taken(sets, members), chosen)
        assert stored_edges(graph.sub_graph(members)) == stored_edges(alone)


@pytest.mark.parametrize("max_neighbors", [None, 3])
def test_no_path_leads_from_an_instance_of_a_patient_to_another(max_neighbors: int | None) -> None:
    """The oracle: a later instance shouts, as the answer in its text would, and no own earlier one hears it."""
    sets = random_sets(2, 300, mean_size=25, patients=60, splits=True)
    graph = build_graph(sets, GraphSettings(tau=2, max_neighbors=max_neighbors))
    heard = np.eye(len(sets), dtype=bool)
    links = graph.to_scipy(self_loops=True).astype(bool)
    for _ in range(6):
        heard = (links @ heard) > 0
    of_one_patient = (sets.patients[:, None] == sets.patients[None, :]) & ~np.eye(len(sets), dtype=bool)
    assert heard.sum() > 10 * len(sets)
    assert of_one_patient.any()
    assert not (heard & of_one_patient).any()


@pytest.mark.parametrize("max_neighbors", [None, 1, 4])
@pytest.mark.parametrize(
    ("instances", "codes", "mean_size"), [(700, 30, 9), (300, 1500, 200), (260, 400, 90), (1030, 285, 22)]
)
def test_many_blocks_of_columns(
    monkeypatch: pytest.MonkeyPatch, instances: int, codes: int, mean_size: int, max_neighbors: int | None
) -> None:
    monkeypatch.setattr(bit_index, "_LARGEST_BLOCK_WORDS", 4)
    sets = random_sets(5, instances, codes=codes, mean_size=mean_size, patients=instances // 2)
    chosen = GraphSettings(tau=6, max_neighbors=max_neighbors)
    assert stored_edges(build_graph(sets, chosen)) == plain_edges(sets, chosen)


def test_overlaps_above_255_are_exact() -> None:
    sets = random_sets(1, 30, codes=900, mean_size=700)
    graph = build_graph(sets, GraphSettings(tau=256))
    assert graph.weights.dtype == np.uint16
    assert graph.weights.max() > 300
    assert stored_edges(graph) == plain_edges(sets, GraphSettings(tau=256))


def test_an_overlap_of_thousands_is_exact() -> None:
    everything = [str(code) for code in range(5000)]
    sets = DiagnosisSets.from_lists([everything, everything[:-3], everything[100:]], patients=[0, 1, 2])
    assert build_graph(sets).weights.tolist() == [4997, 4900, 4997, 4897, 4900, 4897]


@pytest.mark.parametrize("max_neighbors", [None, 3])
def test_permuting_the_instances_permutes_the_graph(max_neighbors: int | None) -> None:
    # Sets of different sizes and no equal overlaps of equal sizes are not needed without max_neighbors; with it, ties
    # are broken by index, so the permuted graph is compared with the plain one as well.
    sets = random_sets(11, 200, patients=90)
    chosen = GraphSettings(tau=4, max_neighbors=max_neighbors)
    order = np.random.default_rng(0).permutation(len(sets))
    permuted = build_graph(taken(sets, order), chosen)
    assert stored_edges(permuted) == plain_edges(taken(sets, order), chosen)
    if max_neighbors is None:
        assert stored_edges(build_graph(sets, chosen).sub_graph(order)) == stored_edges(permuted)


def test_permutation_with_max_neighbors_where_no_two_sets_tie() -> None:
    # Node 0 has codes 0..29; node j shares 30 - j with it and with no two nodes equally many.
    sets = DiagnosisSets.from_lists([[str(code) for code in range(n, 30)] for n in range(12)], patients=list(range(12)))
    chosen = GraphSettings(tau=1, max_neighbors=2)
    order = np.random.default_rng(3).permutation(12)
    # Chains of subsets tie in overlap, never in (overlap, size): the cosine decides, not the index.
    assert stored_edges(build_graph(sets, chosen).sub_graph(order)) == stored_edges(
        build_graph(taken(sets, order), chosen)
    )


def test_ties_go_to_the_higher_cosine_then_to_the_lower_index() -> None:
    rows = [["a", "b"], ["a", "b", "x", "y"], ["a", "b", "z"], ["a", "b", "w"], ["q"]]
    graph = build_graph(DiagnosisSets.from_lists(rows, patients=[0, 1, 2, 3, 4]), GraphSettings(tau=1, max_neighbors=1))
    # Everyone keeps node 0, the smallest set; node 0 keeps node 2: smaller than 1, lower than 3.
    assert stored_edges(graph) == {
        (0, 1): 2, (0, 2): 2, (0, 3): 2, (1, 0): 2, (2, 0): 2, (3, 0): 2
    }  # fmt: skip
    rows[0] = ["a", "b", "k", "l", "m"]
    graph = build_graph(DiagnosisSets.from_lists(rows, patients=[0, 1, 2, 3, 4]), GraphSettings(tau=1, max_neighbors=1))
    assert set(stored_edges(graph)) == {(0, 2), (2, 0), (2, 3), (3, 2), (1, 2), (2, 1)}


def test_no_edge_joins_two_instances_of_one_patient() -> None:
    same = DiagnosisSets.from_lists([["a", "b"]] * 4, patients=[7, 7, 3, 7])
    assert set(stored_edges(build_graph(same, GraphSettings(tau=1)))) == {
        (0, 2), (1, 2), (3, 2), (2, 0), (2, 1), (2, 3)
    }  # fmt: skip
    alone = DiagnosisSets.from_lists([["a", "b"]] * 40, patients=[1] * 40)
    assert build_graph(alone, GraphSettings(tau=1, max_neighbors=3)).edges == 0


def test_tau_larger_than_any_set_gives_the_empty_graph() -> None:
    sets = random_sets(2, 50)
    for limit in (None, 5):
        graph = build_graph(sets, GraphSettings(tau=100_000, max_neighbors=limit))
        assert (len(graph), graph.edges) == (50, 0)


@pytest.mark.parametrize("limit", [None, 5])
def test_empty_cohort_and_empty_sets_give_the_empty_graph(limit: int | None) -> None:
    nobody = DiagnosisSets.from_lists([], patients=[])
    assert len(build_graph(nobody, GraphSettings(max_neighbors=limit))) == 0
    nothing = DiagnosisSets.from_lists([[], [], ["a"]], patients=[0, 1, 2])
    graph = build_graph(nothing, GraphSettings(tau=1, max_neighbors=limit))
    assert (len(graph), graph.edges) == (3, 0)


def test_tau_zero_is_refused_in_a_sentence() -> None:
    with pytest.raises(PlmError, match=r"tau=0 is not possible: .* the smallest tau is 1"):
        checked(GraphSettings, tau=0)
    with pytest.raises(PlmError, match="max_neighbors=0 is not possible"):
        checked(GraphSettings, max_neighbors=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codes": np.array([1, 0, 0], dtype=np.int32)}, "diagnoses of row 0 are not sorted and distinct"),
        ({"codes": np.array([0, 1, 5], dtype=np.int32)}, "outside of the vocabulary of 2 codes"),
        ({"patients": np.array([0], dtype=np.int32)}, "2 instances but 1 patients"),
        ({"indptr": np.array([0, 2, 9])}, "indptr does not cut the codes into rows"),
        ({"splits": np.array(["train"])}, "2 instances but 1 splits"),
    ],
)
def test_sets_that_contradict_themselves_are_refused(change: dict[str, np.ndarray], message: str) -> None:
    sets = DiagnosisSets.from_lists([["a", "b"], ["a"]], patients=[0, 1])
    with pytest.raises(PlmError, match=message):
        build_graph(replace(sets, **change))


def test_a_graph_that_memory_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    with pytest.raises(PlmError, match=r"would have [\d,]+ edges.*set max_neighbors, choose a larger tau"):
        build_graph(random_sets(3, 200), GraphSettings(tau=1))


def test_the_number_of_threads_does_not_change_the_result() -> None:
    sets = random_sets(9, 1500, patients=800)
    chosen = GraphSettings(tau=5, max_neighbors=7)
    steps: list[tuple[int, int]] = []
    one = build_graph(sets, chosen, threads=1, progress=lambda done, every: steps.append((done, every)))
    many = build_graph(sets, chosen, threads=5)
    for name in ("indptr", "neighbors", "weights"):
        np.testing.assert_array_equal(getattr(one, name), getattr(many, name))
    assert steps == [(step + 1, len(steps)) for step in range(len(steps))]
    with pytest.raises(PlmError, match="threads=0"):
        build_graph(sets, chosen, threads=0)


def test_the_build_is_logged_without_ids(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="patients_like_me"):
        build_graph(random_sets(1, 20), GraphSettings(tau=3, max_neighbors=2))
    assert "20 nodes" in caplog.text
    assert "the strongest 2 of each node" in caplog.text
    assert "visit" not in caplog.text


def test_the_first_call_says_that_it_compiles_and_works_without_a_cache() -> None:
    program = (
        "import logging, sys; logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(message)s')\n"
        "from patients_like_me.graph.bit_index import BitIndex\n"
        "import numpy as np\n"
        "one = np.zeros(1, dtype=np.int32)\n"
        "print(len(BitIndex.build(np.array([0, 1]), one, one, 1)))\n"
    )
    # Only notebooks may keep machine code: for a plain file no folder is left to write to.
    environment = {**os.environ, "NUMBA_CACHE_LOCATOR_CLASSES": "IPythonCacheLocator"}
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    lines = found.stdout.splitlines()
    assert lines[0].startswith("compiling the kernel '_fill_table' for this machine")
    assert lines[-1] == "1"


@pytest.mark.parametrize("size", [*range(1, 35), 62, 63, 64, 65, 127, 128, 255, 256, 257, 511])
def test_every_width_of_the_counters_is_exact_at_the_threshold(size: int) -> None:
    codes = [f"{number:04d}" for number in range(size + 1)]
    sets = DiagnosisSets.from_lists([codes[:size], codes[:size], codes[1:]], patients=[0, 1, 2])
    for limit in (None, 2):
        graph = build_graph(sets, GraphSettings(tau=size, max_neighbors=limit))
        assert stored_edges(graph) == {(0, 1): size, (1, 0): size}
        if size > 1:
            looser = build_graph(sets, GraphSettings(tau=size - 1, max_neighbors=limit))
            assert looser.edges == 3
            assert sorted(looser.weights.tolist()) == [size - 1] * 4 + [size] * 2
