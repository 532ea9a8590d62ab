from __future__ import annotations

import numpy as np
import pytest
from graph.plain_product import diagnosis_sets, overlaps, random_sets
from hypothesis import given, settings
from scipy.spatial.distance import jensenshannon

from patients_like_me.errors import PlmError
from patients_like_me.graph import GraphSettings, bit_index, build_graph
from patients_like_me.graph.edge_weights import BINS, analyze_edge_weights, compare_weights, overlaps_of
from patients_like_me.graph.node_sets import taken
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets


def plain_histogram(sets: DiagnosisSets) -> np.ndarray:
    first, second = np.triu_indices(len(sets), 1)
    apart = sets.patients[first] != sets.patients[second]
    return np.bincount(overlaps(sets)[first[apart], second[apart]])


def trimmed(histogram: np.ndarray) -> list[int]:
    return np.trim_zeros(histogram, "b").tolist()


@given(sets=diagnosis_sets())
@settings(deadline=None, max_examples=80)
def test_pairs_are_counted_by_overlap(sets: DiagnosisSets) -> None:
    assert trimmed(overlaps_of(sets).pairs) == trimmed(plain_histogram(sets))


@pytest.mark.parametrize(("instances", "codes", "mean_size"), [(1500, 50, 15), (300, 500, 220), (600, 90, 60)])
def test_pairs_over_many_blocks_and_threads(
    monkeypatch: pytest.MonkeyPatch, instances: int, codes: int, mean_size: int
) -> None:
    monkeypatch.setattr(bit_index, "_LARGEST_BLOCK_WORDS", 4)
    sets = random_sets(3, instances, codes=codes, mean_size=mean_size, patients=instances // 3)
    assert trimmed(overlaps_of(sets, threads=3).pairs) == trimmed(plain_histogram(sets))


def test_all_overlaps_in_a_narrow_band() -> None:
    # Everyone shares 16 to 18 codes: a plane in the middle of the counters is empty everywhere.
    common = [f"common {number}" for number in range(16)]
    sets = DiagnosisSets.from_lists([[*common, "x", "y"], [*common, "x", "y"], common], patients=[0, 1, 2])
    assert trimmed(overlaps_of(sets).pairs) == [0] * 16 + [2, 0, 1]


def test_the_tau_curve_equals_the_graphs() -> None:
    sets = random_sets(12, 150, patients=80)
    for point in overlaps_of(sets).tau_curve():
        graph = build_graph(sets, GraphSettings(tau=int(point["tau"])))
        assert graph.edges == point["edges"]
        assert graph.degrees.mean() == pytest.approx(point["average_degree"])


def test_splits_are_counted_apart_and_compared() -> None:
    sets = random_sets(2, 400, patients=300, splits=True)
    analysis = analyze_edge_weights(sets)
    assert [group.name for group in analysis.groups] == ["train", "validation", "test"]
    for group in analysis.groups:
        alone = overlaps_of(taken(sets, np.flatnonzero(sets.splits == group.name)))
        np.testing.assert_array_equal(group.pairs, alone.pairs)
    train, _, test = analysis.groups
    assert analysis.comparison == compare_weights(train.binned, test.binned)
    assert analysis.as_json()["comparison"]["total_variation"] == analysis.comparison.total_variation


def test_bins_are_one_to_ten_and_more() -> None:
    rows = [[str(code) for code in range(12)], [str(code) for code in range(12)], ["0"], []]
    group = overlaps_of(DiagnosisSets.from_lists(rows, patients=[0, 1, 2, 3]))
    assert dict(zip(BINS, group.binned.tolist(), strict=True)) == {
        **dict.fromkeys(BINS, 0), "1": 2, ">10": 1
    }  # fmt: skip
    assert group.shares.sum() == pytest.approx(1)


def test_distances_agree_with_scipy_and_with_their_definitions() -> None:
    generator = np.random.default_rng(5)
    first, second = generator.integers(1, 1000, 11), generator.integers(1, 1000, 11)
    found = compare_weights(first, second)
    distance = jensenshannon(first / first.sum(), second / second.sum(), base=2)
    assert found.jensen_shannon_distance == pytest.approx(distance)
    assert found.jensen_shannon_divergence == pytest.approx(distance**2)
    assert found.jensen_shannon_divergence <= found.total_variation
    expected = np.outer([first.sum(), second.sum()], first + second) / (first.sum() + second.sum())
    observed = np.stack([first, second])
    assert found.g_statistic == pytest.approx(2 * (observed * np.log(observed / expected)).sum())
    assert found.degrees_of_freedom == 10


def test_bins_that_both_lack_do_not_disturb_the_test() -> None:
    found = compare_weights(np.array([5, 0, 0, 7]), np.array([50, 0, 0, 70]))
    assert (found.g_statistic, found.degrees_of_freedom) == (pytest.approx(0), 1)
    assert compare_weights(np.array([5, 0]), np.array([9, 0])).p_value == 1


def test_a_graph_without_edges_has_no_distribution() -> None:
    with pytest.raises(PlmError, match="no edges"):
        compare_weights(np.array([0, 0]), np.array([1, 2]))
    lonely = DiagnosisSets.from_lists([["a"], ["b"]], patients=[0, 1], splits=["train", "test"])
    assert analyze_edge_weights(lonely).comparison is None
    nobody = DiagnosisSets.from_lists([], patients=[])
    assert analyze_edge_weights(nobody).groups[0].edges_at(1) == 0
