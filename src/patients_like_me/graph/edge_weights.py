"""The paper's edge-weight analysis: are the training and the test graph alike, and how sparse is each tau?

Everything comes from the histogram of overlaps, so the pairs are gone through once per split, whatever tau is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.graph.node_sets import check_sets, split_names, taken
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets

LAST_BIN = 10
BINS = (*(str(weight) for weight in range(1, LAST_BIN + 1)), f">{LAST_BIN}")


@dataclass(frozen=True, eq=False)
class Overlaps:
    """How many pairs of instances of different patients share how many diagnoses, in one group of instances."""

    name: str
    nodes: int
    pairs: npt.NDArray[np.int64]

    @property
    def binned(self) -> npt.NDArray[np.int64]:
        """Edges of the graph at tau 1, by weight 1 to 10 and more than 10."""
        padded = np.zeros(max(len(self.pairs), LAST_BIN + 2), dtype=np.int64)
        padded[: len(self.pairs)] = self.pairs
        return np.append(padded[1 : LAST_BIN + 1], padded[LAST_BIN + 1 :].sum())

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """The binned edges as shares of all edges."""
        return np.asarray(self.binned / max(self.binned.sum(), 1), dtype=np.float64)

    def edges_at(self, tau: int) -> int:
        """Return how many edges the graph has at a threshold."""
        return int(self.pairs[tau:].sum())

    def tau_curve(self) -> list[dict[str, float]]:
        """Return edges and average degree for every tau from 1 to the largest overlap."""
        largest = int(np.flatnonzero(self.pairs).max(initial=0))
        return [
            {
                "tau": tau,
                "edges": self.edges_at(tau),
                "average_degree": 2 * self.edges_at(tau) / max(self.nodes, 1),
            }
            for tau in range(1, max(largest, 1) + 1)
        ]


@dataclass(frozen=True)
class WeightComparison:
    """How different two distributions of edge weights are.

    ``jensen_shannon_divergence`` is in bits (0 equal, 1 disjoint); its square root is the ``distance``, a metric.
    ``total_variation`` is half the sum of absolute differences. ``g_statistic`` with its degrees of freedom and p-value
    is the likelihood-ratio test that both come from one distribution. The pairs of a graph are not independent and
    there are millions of them, so the p-value is tiny for differences that do not matter: read the distances and
    ``cramers_v``, the size of the effect (0 none, 1 complete).
    """

    jensen_shannon_divergence: float
    jensen_shannon_distance: float
    total_variation: float
    g_statistic: float
    degrees_of_freedom: int
    p_value: float
    cramers_v: float


@dataclass(frozen=True, eq=False)
class EdgeWeightAnalysis:
    """The overlaps of every split, and the comparison of the training with the test graph."""

    groups: tuple[Overlaps, ...]
    comparison: WeightComparison | None

    def as_json(self) -> dict[str, Any]:
        """Return tables of plain numbers."""
        return {
            "bins": list(BINS),
            "groups": [
                {
                    "name": group.name,
                    "nodes": group.nodes,
                    "edges_per_bin": group.binned.tolist(),
                    "tau_curve": group.tau_curve(),
                }
                for group in self.groups
            ],
            "comparison": None if self.comparison is None else vars(self.comparison),
        }


def overlaps_of(sets: DiagnosisSets, *, name: str = "all", threads: int | None = None) -> Overlaps:
    """Count the overlaps of all pairs of a group.

    >>> sets = DiagnosisSets.from_lists([["a", "b"], ["a", "b"], ["b"]], patients=[0, 1, 2])
    >>> [row["edges"] for row in overlaps_of(sets).tau_curve()]
    [3, 1]
    """
    from patients_like_me.graph.histogram import overlap_histogram

    check_sets(sets)
    pairs = overlap_histogram(sets.indptr, sets.codes, sets.patients, len(sets.vocabulary), threads=threads)
    return Overlaps(name, len(sets), pairs)


def analyze_edge_weights(
    sets: DiagnosisSets, *, first: str = "train", second: str = "test", threads: int | None = None
) -> EdgeWeightAnalysis:
    """Count the overlaps in the graph of every split and compare two of them; without splits, of all instances."""
    if sets.splits is None:
        return EdgeWeightAnalysis((overlaps_of(sets, threads=threads),), None)
    groups = tuple(
        overlaps_of(taken(sets, np.flatnonzero(sets.splits == name)), name=name, threads=threads)
        for name in split_names(sets)
    )
    found = {group.name: group for group in groups}
    if first not in found or second not in found:
        return EdgeWeightAnalysis(groups, None)
    if not found[first].binned.sum() or not found[second].binned.sum():
        return EdgeWeightAnalysis(groups, None)
    return EdgeWeightAnalysis(groups, compare_weights(found[first].binned, found[second].binned))


def compare_weights(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> WeightComparison:
    """Compare two histograms over the same bins.

    >>> compare_weights(np.array([10, 10]), np.array([20, 20])).total_variation
    0.0
    >>> round(compare_weights(np.array([10, 0]), np.array([0, 10])).jensen_shannon_divergence, 9)
    1.0
    """
    # scipy.stats and scipy.spatial take a second to load; what is needed of them are three sums.
    from scipy.special import chdtrc

    if not first.sum() or not second.sum():
        raise PlmError("one of the graphs has no edges, so its weights have no distribution")
    one, other = first / first.sum(), second / second.sum()
    middle = (one + other) / 2
    divergence = (_information(one, middle) + _information(other, middle)) / 2
    # Rounding can leave a tiny negative number under the root.
    distance = float(np.sqrt(max(divergence, 0.0)))
    table = np.stack([first, second])[:, (first + second) > 0].astype(np.float64)
    freedom = table.shape[1] - 1
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    pearson = float(((table - expected) ** 2 / expected).sum())
    statistic = 2 * float((table * np.log(np.where(table > 0, table, expected) / expected)).sum())
    p_value = float(chdtrc(freedom, statistic)) if freedom else 1.0
    return WeightComparison(
        jensen_shannon_divergence=distance**2,
        jensen_shannon_distance=distance,
        total_variation=float(np.abs(one - other).sum() / 2),
        g_statistic=float(statistic),
        degrees_of_freedom=int(freedom),
        p_value=float(p_value),
        cramers_v=float(np.sqrt(pearson / table.sum())),
    )


def _information(share: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
    """Return the Kullback-Leibler divergence of two distributions in bits; nothing where a share is 0."""
    some = share > 0
    return float((share[some] * np.log2(share[some] / other[some])).sum())
