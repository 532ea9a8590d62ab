"""Histogram gradient boosting on sparse rows: what scikit-learn's grows, from the values that are not 0 alone.

A bag has twenty values other than 0 in a row of five hundred. A histogram over the full columns reads all of them; here
a node reads the values that are there, and the bin of 0 is what is missing to the sum of the node. Gains, thresholds,
the order of growth and leaf values are those of scikit-learn's ``HistGradientBoostingClassifier`` with the same
settings, which a test compares. Bins are found once for all labels of a task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from patients_like_me.workers import in_threads

Values = npt.NDArray[np.float64]
Places = npt.NDArray[np.int32]


@dataclass(frozen=True)
class BinnedRows:
    """CSR rows of bins without those of the value 0, and where the bins of every column begin."""

    indptr: npt.NDArray[np.int64]
    columns: Places
    bins: npt.NDArray[np.uint8]
    #: The same by column: the rows that have another value than 0, and their bins.
    starts: npt.NDArray[np.int64]
    members: Places
    members_bins: npt.NDArray[np.uint8]
    #: First place of every column's bins in a histogram [columns + 1], and the place of the value 0 [columns].
    offsets: npt.NDArray[np.int64]
    of_zero: npt.NDArray[np.int64]
    thresholds: Values

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @classmethod
    def of(cls, rows: Any, most_bins: int) -> BinnedRows:
        """Bin a scipy CSR array [instances, columns]; a column has at most ``most_bins`` bins.

        >>> from scipy.sparse import csr_array
        >>> rows = BinnedRows.of(csr_array(np.array([[0.0, 2.0], [1.0, 0.0], [1.0, 3.0]])), 15)
        >>> rows.thresholds[rows.offsets[1]:rows.offsets[2]].tolist()
        [1.0, 2.5, inf]
        """
        by_column = rows.tocsc()
        number = rows.shape[1]
        edges = []
        for column in range(number):
            values = by_column.data[by_column.indptr[column] : by_column.indptr[column + 1]].astype(np.float64)
            edges.append(_edges(values, rows.shape[0] - len(values), most_bins))
        offsets = np.concatenate([[0], np.cumsum([len(each) + 1 for each in edges])]).astype(np.int64)
        thresholds = np.concatenate([np.append(each, np.inf) for each in edges]) if number else np.zeros(0)
        of_zero = np.array([np.searchsorted(each, 0.0, side="left") for each in edges], np.int64)
        for column in range(number):
            here = slice(by_column.indptr[column], by_column.indptr[column + 1])
            by_column.data[here] = np.searchsorted(edges[column], by_column.data[here].astype(np.float64), side="left")
        binned = by_column.tocsr()
        binned.sort_indices()
        bins = binned.data.astype(np.uint8)
        used = bins != of_zero[binned.indices]
        return cls(
            np.concatenate([[0], np.cumsum(used)])[binned.indptr].astype(np.int64),
            binned.indices[used].astype(np.int32),
            bins[used],
            *_by_column(by_column, of_zero),
            offsets,
            of_zero + offsets[:-1],
            thresholds,
        )


def _by_column(binned: Any, of_zero: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], Places, Any]:
    """Return starts, rows and bins of a CSC array of bins without the bins of the value 0."""
    bins = binned.data.astype(np.uint8)
    used = bins != np.repeat(of_zero, np.diff(binned.indptr))
    starts = np.concatenate([[0], np.cumsum(used)])[binned.indptr].astype(np.int64)
    return starts, binned.indices[used].astype(np.int32), bins[used]


def _edges(values: Values, zeros: int, most_bins: int) -> Values:
    """Return the thresholds of a column: between all values where they are few, else at quantiles."""
    whole = np.sort(np.concatenate([values, np.zeros(zeros)]))
    distinct = np.unique(whole)
    if len(distinct) <= most_bins:
        return np.asarray((distinct[1:] + distinct[:-1]) / 2)
    shares = np.linspace(0, 100, num=most_bins + 1)[1:-1]
    return np.unique(np.percentile(whole, shares, method="averaged_inverted_cdf"))


@dataclass(frozen=True)
class GrownTrees:
    """Trees of one label or of all classes: the nodes of all trees one after another, ``sizes`` nodes per tree.

    ``outputs`` and ``rounds`` say which column and round a tree belongs to; children are numbers within the tree.
    """

    base: Values
    outputs: Places
    rounds: Places
    sizes: Places
    feature: Places
    threshold: Values
    left: Places
    right: Places
    value: Values
    is_leaf: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TreeGrowth:
    """How trees are grown."""

    rounds: int
    learning_rate: float
    leaves: int
    leaf_instances: int
    shrinkage: float


def boost_labels(rows: BinnedRows, targets: npt.NDArray[Any], growth: TreeGrowth) -> list[GrownTrees]:
    """Boost every column of 0/1 targets [instances, labels] on its own."""
    columns = [np.ascontiguousarray(targets[:, label : label + 1], np.float64) for label in range(targets.shape[1])]
    return in_threads(lambda one: _boost(rows, one, growth), columns)


def boost_classes(rows: BinnedRows, targets: npt.NDArray[Any], growth: TreeGrowth) -> GrownTrees:
    """Boost the classes of one answer together: a tree per class and round; two classes are one column."""
    if targets.shape[1] == 2:
        return _boost(rows, np.ascontiguousarray(targets[:, 1:], np.float64), growth)
    return _boost(rows, np.ascontiguousarray(targets, np.float64), growth)


def _boost(rows: BinnedRows, targets: Values, growth: TreeGrowth) -> GrownTrees:
    from patients_like_me.systems.tree_kernels import grow

    rates = np.clip(targets.mean(axis=0), np.finfo(np.float64).eps, 1 - np.finfo(np.float64).eps)
    base = np.log(rates) - (np.log(1 - rates) if targets.shape[1] == 1 else np.log(rates).mean())
    found = grow(
        rows.indptr,
        rows.columns,
        rows.bins,
        rows.starts,
        rows.members,
        rows.members_bins,
        rows.offsets,
        rows.of_zero,
        targets,
        base,
        growth.rounds,
        growth.learning_rate,
        growth.leaves,
        growth.leaf_instances,
        growth.shrinkage,
    )
    outputs, rounds, sizes, feature, place, left, right, value, is_leaf = found
    threshold = np.where(is_leaf, 0.0, rows.thresholds[np.where(is_leaf, 0, place)])
    return GrownTrees(base, outputs, rounds, sizes, feature, threshold, left, right, value, is_leaf)
