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

from patients_like_me.workers import in_threads, kernel

Values = npt.NDArray[np.float64]
Places = npt.NDArray[np.int32]
#: Nodes with less information than this in a child are not split, as in scikit-learn.
_LEAST_HESSIAN = 1e-3


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
        return (distinct[1:] + distinct[:-1]) / 2
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
class Growth:
    """How trees are grown."""

    rounds: int
    learning_rate: float
    leaves: int
    leaf_instances: int
    shrinkage: float


def boost_labels(rows: BinnedRows, targets: npt.NDArray[Any], growth: Growth) -> list[GrownTrees]:
    """Boost every column of 0/1 targets [instances, labels] on its own."""
    columns = [np.ascontiguousarray(targets[:, label : label + 1], np.float64) for label in range(targets.shape[1])]
    return in_threads(lambda one: _boost(rows, one, growth), columns)


def boost_classes(rows: BinnedRows, targets: npt.NDArray[Any], growth: Growth) -> GrownTrees:
    """Boost the classes of one answer together: a tree per class and round; two classes are one column."""
    if targets.shape[1] == 2:
        return _boost(rows, np.ascontiguousarray(targets[:, 1:], np.float64), growth)
    return _boost(rows, np.ascontiguousarray(targets, np.float64), growth)


def _boost(rows: BinnedRows, targets: Values, growth: Growth) -> GrownTrees:
    rates = np.clip(targets.mean(axis=0), np.finfo(np.float64).eps, 1 - np.finfo(np.float64).eps)
    base = np.log(rates) - (np.log(1 - rates) if targets.shape[1] == 1 else np.log(rates).mean())
    found = _grow(
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


@kernel
def _grow(  # type: ignore[no-untyped-def]
    indptr,
    columns,
    bins,
    starts,
    members,
    members_bins,
    offsets,
    of_zero,
    targets,
    base,
    rounds,
    rate,
    most_leaves,
    least,
    shrinkage,
):
    """Grow all trees; return output, round, size per tree and feature, bin place, left, right, value, leaf per node."""
    number, outputs = targets.shape
    width = offsets[-1]
    most = 2 * most_leaves - 1
    logits = np.empty((number, outputs))
    for row in range(number):
        logits[row] = base
    slopes = np.empty((number, outputs), np.float32)
    curves = np.empty((number, outputs), np.float32)
    trees = rounds * outputs
    tree_output, tree_round = np.empty(trees, np.int32), np.empty(trees, np.int32)
    sizes = np.zeros(trees, np.int32)
    capacity = trees * most
    feature, place = np.zeros(capacity, np.int32), np.zeros(capacity, np.int64)
    left, right = np.zeros(capacity, np.int32), np.zeros(capacity, np.int32)
    value, is_leaf = np.zeros(capacity), np.zeros(capacity, np.bool_)
    sums = np.empty((most, width, 2))
    counts = np.empty((most, width), np.int64)
    order, spare = np.empty(number, np.int64), np.empty(number, np.int64)
    first, last = np.empty(most, np.int64), np.empty(most, np.int64)
    total = np.empty((most, 2))
    gain, split_feature, split_place = np.empty(most), np.empty(most, np.int64), np.empty(most, np.int64)
    bin_of = np.full(number, -1, np.int64)
    end, tree = 0, 0
    for turn in range(rounds):
        for row in range(number):
            if outputs == 1:
                raw = logits[row, 0]
                share = 1.0 / (1.0 + np.exp(-raw)) if raw >= 0 else np.exp(raw) / (1.0 + np.exp(raw))
                slopes[row, 0] = share - targets[row, 0]
                curves[row, 0] = share * (1.0 - share)
            else:
                highest = logits[row].max()
                whole = 0.0
                for output in range(outputs):
                    whole += np.exp(logits[row, output] - highest)
                for output in range(outputs):
                    share = np.exp(logits[row, output] - highest) / whole
                    slopes[row, output] = share - targets[row, output]
                    curves[row, output] = share * (1.0 - share)
        for output in range(outputs):
            start = end
            for row in range(number):
                order[row] = row
            first[0], last[0], nodes, leaves = 0, number, 1, 1
            _fill(
                0,
                order,
                first,
                last,
                indptr,
                columns,
                bins,
                offsets,
                of_zero,
                slopes,
                curves,
                output,
                sums,
                counts,
                total,
            )
            _find_split(
                0, first, last, offsets, sums, counts, total, least, shrinkage, gain, split_feature, split_place
            )
            while leaves < most_leaves:
                chosen, best = -1, 0.0
                for node in range(nodes):
                    if gain[node] > best:
                        chosen, best = node, gain[node]
                if chosen < 0:
                    break
                column, limit = split_feature[chosen], split_place[chosen]
                # Rows with a bin at or below the limit go left, and keep their order on both sides.
                kept, moved = first[chosen], 0
                for entry in range(starts[column], starts[column + 1]):
                    bin_of[members[entry]] = offsets[column] + members_bins[entry]
                for index in range(first[chosen], last[chosen]):
                    row = order[index]
                    at = bin_of[row] if bin_of[row] >= 0 else of_zero[column]
                    if at <= limit:
                        order[kept] = row
                        kept += 1
                    else:
                        spare[moved] = row
                        moved += 1
                for index in range(moved):
                    order[kept + index] = spare[index]
                for entry in range(starts[column], starts[column + 1]):
                    bin_of[members[entry]] = -1
                one, other = nodes, nodes + 1
                nodes += 2
                leaves += 1
                first[one], last[one], first[other], last[other] = first[chosen], kept, kept, last[chosen]
                feature[start + chosen], place[start + chosen] = column, limit
                left[start + chosen], right[start + chosen] = one, other
                gain[chosen] = -1.0
                smaller, larger = (one, other) if last[one] - first[one] <= last[other] - first[other] else (other, one)
                _fill(
                    smaller,
                    order,
                    first,
                    last,
                    indptr,
                    columns,
                    bins,
                    offsets,
                    of_zero,
                    slopes,
                    curves,
                    output,
                    sums,
                    counts,
                    total,
                )
                for index in range(width):
                    sums[larger, index, 0] = sums[chosen, index, 0] - sums[smaller, index, 0]
                    sums[larger, index, 1] = sums[chosen, index, 1] - sums[smaller, index, 1]
                    counts[larger, index] = counts[chosen, index] - counts[smaller, index]
                total[larger, 0] = total[chosen, 0] - total[smaller, 0]
                total[larger, 1] = total[chosen, 1] - total[smaller, 1]
                for node in (one, other):
                    _find_split(
                        node,
                        first,
                        last,
                        offsets,
                        sums,
                        counts,
                        total,
                        least,
                        shrinkage,
                        gain,
                        split_feature,
                        split_place,
                    )
            for node in range(nodes):
                if left[start + node] == 0:
                    is_leaf[start + node] = True
                    answer = -rate * total[node, 0] / (total[node, 1] + shrinkage + 1e-15)
                    value[start + node] = answer
                    for index in range(first[node], last[node]):
                        logits[order[index], output] += answer
            tree_output[tree], tree_round[tree], sizes[tree] = output, turn, nodes
            tree += 1
            end += nodes
    return (
        tree_output,
        tree_round,
        sizes,
        feature[:end],
        place[:end],
        left[:end],
        right[:end],
        value[:end],
        is_leaf[:end],
    )


@kernel
def _fill(  # type: ignore[no-untyped-def]
    node, order, first, last, indptr, columns, bins, offsets, of_zero, slopes, curves, output, sums, counts, total
):
    """Sum gradients and hessians of a node's rows per bin; the bin of 0 holds what is left of the node's total."""
    sums[node] = 0.0
    counts[node] = 0
    slope, curve = 0.0, 0.0
    for index in range(first[node], last[node]):
        row = order[index]
        one, two = np.float64(slopes[row, output]), np.float64(curves[row, output])
        slope += one
        curve += two
        for entry in range(indptr[row], indptr[row + 1]):
            at = offsets[columns[entry]] + bins[entry]
            sums[node, at, 0] += one
            sums[node, at, 1] += two
            counts[node, at] += 1
    total[node, 0], total[node, 1] = slope, curve
    for column in range(len(of_zero)):
        known_slope, known_curve, known = 0.0, 0.0, 0
        for at in range(offsets[column], offsets[column + 1]):
            known_slope += sums[node, at, 0]
            known_curve += sums[node, at, 1]
            known += counts[node, at]
        at = of_zero[column]
        sums[node, at, 0] = slope - known_slope
        sums[node, at, 1] = curve - known_curve
        counts[node, at] = last[node] - first[node] - known


@kernel
def _find_split(  # type: ignore[no-untyped-def]
    node, first, last, offsets, sums, counts, total, least, shrinkage, gain, split_feature, split_place
):
    """Find the split with the largest gain of a node; a gain of -1 marks a node that is not split."""
    gain[node] = -1.0
    size = last[node] - first[node]
    slope, curve = total[node, 0], total[node, 1]
    if size < 2 * least or curve < _LEAST_HESSIAN:
        return
    before = slope * slope / (curve + shrinkage + 1e-15)
    best = 0.0
    for column in range(len(offsets) - 1):
        on_left, left_slope, left_curve = 0, 0.0, 0.0
        for at in range(offsets[column], offsets[column + 1] - 1):
            on_left += counts[node, at]
            left_slope += sums[node, at, 0]
            left_curve += sums[node, at, 1]
            if on_left < least or left_curve < _LEAST_HESSIAN:
                continue
            right_slope, right_curve = slope - left_slope, curve - left_curve
            if size - on_left < least or right_curve < _LEAST_HESSIAN:
                break
            after = left_slope * left_slope / (left_curve + shrinkage + 1e-15)
            after += right_slope * right_slope / (right_curve + shrinkage + 1e-15)
            if after - before > best:
                best = after - before
                gain[node], split_feature[node], split_place[node] = best, column, at


@kernel
def add_trees(  # type: ignore[no-untyped-def]
    logits, values, trees, outputs, roots, feature, threshold, left, right, value, is_leaf
):
    """Add the leaf values of some trees to logits [rows, outputs], for dense values [rows, columns].

    A few rows at a time, so that their values stay in the cache while all trees are read.
    """
    for begin in range(0, len(values), 64):
        for tree in trees:
            output, root = outputs[tree], roots[tree]
            for row in range(begin, min(begin + 64, len(values))):
                node = root
                while not is_leaf[node]:
                    node = left[node] if values[row, feature[node]] <= threshold[node] else right[node]
                logits[row, output] += value[node]


@kernel
def reached_leaves(  # type: ignore[no-untyped-def]
    found, values, trees, roots, feature, threshold, left, right, is_leaf
):
    """Write the node that every row reaches in some trees into ``found`` [rows, trees]."""
    for begin in range(0, len(values), 64):
        for number in range(len(trees)):
            for row in range(begin, min(begin + 64, len(values))):
                node = roots[trees[number]]
                while not is_leaf[node]:
                    node = left[node] if values[row, feature[node]] <= threshold[node] else right[node]
                found[row, number] = node
