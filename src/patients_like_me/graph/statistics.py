"""What a patient graph looks like: degrees, isolated nodes, components and weights, whole and per split."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from patients_like_me.graph.node_sets import split_names
from patients_like_me.graph.patient_graph import PatientGraph

_DEGREE_QUANTILES = (0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class SplitStatistics:
    """The figures of one split, or of all nodes."""

    name: str
    nodes: int
    patients: int
    edges: int
    average_degree: float
    median_degree: float
    largest_degree: int
    isolated_share: float
    components: int
    largest_component: int


@dataclass(frozen=True, eq=False)
class GraphStatistics:
    """Figures per split, then of the whole graph, and the histograms of degrees and weights.

    ``degree_histogram[d]`` counts nodes with ``d`` neighbours; ``weight_histogram[w]`` counts edges whose ends share
    ``w`` diagnoses.
    """

    splits: tuple[SplitStatistics, ...]
    degree_histogram: npt.NDArray[np.int64]
    weight_histogram: npt.NDArray[np.int64]
    degree_quantiles: dict[str, float]

    @property
    def whole(self) -> SplitStatistics:
        """The figures of all nodes together."""
        return self.splits[-1]

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain numbers; empty ends of the histograms are cut off."""
        return {
            "splits": [asdict(split) for split in self.splits],
            "degree_quantiles": self.degree_quantiles,
            "degree_histogram": {
                str(degree): int(self.degree_histogram[degree]) for degree in _used(self.degree_histogram)
            },
            "weight_histogram": {
                str(weight): int(self.weight_histogram[weight]) for weight in _used(self.weight_histogram)
            },
        }


def statistics_of(graph: PatientGraph) -> GraphStatistics:
    """Compute the figures of a graph.

    >>> from patients_like_me.graph import build_graph
    >>> from patients_like_me.tasks.diagnosis_sets import DiagnosisSets
    >>> sets = DiagnosisSets.from_lists([["a"] * 9, ["b"]], patients=[0, 1])
    >>> statistics_of(build_graph(sets)).whole.isolated_share
    1.0
    """
    labels = _components(graph)
    parts = [(name, np.asarray(graph.splits == name)) for name in split_names(graph.sets)]
    if len(parts) != 1:
        parts.append(("all", np.ones(len(graph), dtype=bool)))
    weights = _weight_histogram(graph)
    return GraphStatistics(
        splits=tuple(_split_statistics(graph, name, members, labels) for name, members in parts),
        degree_histogram=np.bincount(graph.degrees),
        weight_histogram=weights,
        degree_quantiles={
            f"{quantile:g}": float(np.quantile(graph.degrees, quantile)) if len(graph) else 0.0
            for quantile in _DEGREE_QUANTILES
        },
    )


def _split_statistics(
    graph: PatientGraph, name: str, members: npt.NDArray[np.bool_], labels: npt.NDArray[np.int32]
) -> SplitStatistics:
    degrees = graph.degrees[members]
    sizes = np.unique(labels[members], return_counts=True)[1]
    return SplitStatistics(
        name=name,
        nodes=len(degrees),
        patients=len(np.unique(graph.sets.patients[members])),
        edges=_edges_of(graph, members),
        average_degree=float(degrees.mean()) if len(degrees) else 0.0,
        median_degree=float(np.median(degrees)) if len(degrees) else 0.0,
        largest_degree=int(degrees.max(initial=0)),
        isolated_share=float((degrees == 0).mean()) if len(degrees) else 0.0,
        components=len(sizes),
        largest_component=int(sizes.max(initial=0)),
    )


def _edges_of(graph: PatientGraph, members: npt.NDArray[np.bool_]) -> int:
    if graph.settings.is_directed:
        return int(graph.first_of_pair()[np.repeat(members, graph.degrees)].sum())
    received = int(graph.degrees[members & graph.evaluated].sum())
    return received + (int(graph.degrees[members].sum()) - received) // 2


def _components(graph: PatientGraph) -> npt.NDArray[np.int32]:
    """Return the component of every node, the direction of links not regarded."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    if not len(graph):
        return np.empty(0, dtype=np.int32)
    shape = (len(graph), len(graph))
    matrix = csr_matrix((np.ones(len(graph.neighbors), dtype=np.int8), graph.neighbors, graph.indptr), shape=shape)
    labels: npt.NDArray[np.int32] = connected_components(matrix, directed=True, connection="weak")[1]
    return labels


def _weight_histogram(graph: PatientGraph) -> npt.NDArray[np.int64]:
    """Count edges by weight; one that is stored twice is counted once."""
    if graph.settings.is_directed:
        return np.bincount(graph.weights[graph.first_of_pair()], minlength=graph.settings.tau)
    stored = np.bincount(graph.weights, minlength=graph.settings.tau)
    if not graph.evaluated.any():
        return stored // 2
    received = np.bincount(graph.weights[np.repeat(graph.evaluated, graph.degrees)], minlength=len(stored))
    return received + (stored - received) // 2


def _used(histogram: npt.NDArray[np.int64]) -> list[int]:
    return [int(place) for place in np.flatnonzero(histogram)]
