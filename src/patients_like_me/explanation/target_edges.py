"""The references of some targets, as a list of edges: what every attribution scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TargetEdges:
    """The references of some targets: row ``n`` holds the neighbours of node ``targets[n]`` in rising order.

    ``entries`` are their places in the graph's own compressed rows.
    """

    targets: Integers
    indptr: Integers
    neighbors: Integers
    entries: Integers

    @classmethod
    def of(cls, indptr: Integers, neighbors: npt.NDArray[np.int32], targets: Integers) -> TargetEdges:
        """List the edges of some nodes of a graph in compressed rows.

        >>> edges = TargetEdges.of(np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], dtype=np.int32), np.array([1]))
        >>> edges.neighbors.tolist(), edges.entries.tolist()
        ([0, 2], [1, 2])
        """
        targets = np.asarray(targets, dtype=np.int64)
        counts = indptr[targets + 1] - indptr[targets]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        entries = np.arange(starts[-1]) + np.repeat(indptr[targets] - starts[:-1], counts)
        return cls(targets, starts, neighbors[entries].astype(np.int64), entries)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def edges(self) -> int:
        """The number of edges of all targets."""
        return len(self.entries)

    @property
    def target_of_edge(self) -> Integers:
        """The number of the target (its place in ``targets``) of every edge."""
        return np.repeat(np.arange(len(self)), np.diff(self.indptr))

    def some(self, places: Integers) -> TargetEdges:
        """Return some of the edges of the same targets; ``places`` are their numbers, in any order.

        >>> edges = TargetEdges.of(np.array([0, 2, 3]), np.array([0, 1, 1], dtype=np.int32), np.array([0, 1]))
        >>> edges.some(np.array([2, 1])).indptr.tolist(), edges.some(np.array([2, 1])).neighbors.tolist()
        ([0, 1, 2], [1, 1])
        """
        places = np.sort(places)
        counts = np.bincount(self.target_of_edge[places], minlength=len(self))
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return TargetEdges(self.targets, starts, self.neighbors[places], self.entries[places])

    def row(self, number: int) -> slice:
        """Return where the edges of one target are."""
        return slice(int(self.indptr[number]), int(self.indptr[number + 1]))
