"""The compiled part of boosting: growing trees on binned sparse rows, and reading trees on full rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from patients_like_me.workers import kernel

#: Nodes with less information than this in a child are not split, as in scikit-learn.
_LEAST_HESSIAN = 1e-3


@kernel
def grow(
    indptr: Any,
    columns: Any,
    bins: Any,
    starts: Any,
    members: Any,
    members_bins: Any,
    offsets: Any,
    of_zero: Any,
    targets: Any,
    base: Any,
    rounds: Any,
    rate: Any,
    most_leaves: Any,
    least: Any,
    shrinkage: Any,
) -> Any:
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
def _fill(
    node: Any,
    order: Any,
    first: Any,
    last: Any,
    indptr: Any,
    columns: Any,
    bins: Any,
    offsets: Any,
    of_zero: Any,
    slopes: Any,
    curves: Any,
    output: Any,
    sums: Any,
    counts: Any,
    total: Any,
) -> Any:
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
def _find_split(
    node: Any,
    first: Any,
    last: Any,
    offsets: Any,
    sums: Any,
    counts: Any,
    total: Any,
    least: Any,
    shrinkage: Any,
    gain: Any,
    split_feature: Any,
    split_place: Any,
) -> Any:
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
def add_trees(
    logits: Any,
    values: Any,
    trees: Any,
    outputs: Any,
    roots: Any,
    feature: Any,
    threshold: Any,
    left: Any,
    right: Any,
    value: Any,
    is_leaf: Any,
) -> Any:
    """Add the leaf values of some trees to logits [rows, outputs], for dense values [rows, columns].

    A few rows at a time, so that their values stay in the cache while all trees are read.
    """
    for begin in range(0, len(values), 64):
        for tree in trees:
            output, root = outputs[tree], roots[tree]
            for row in range(begin, min(begin + 64, len(values))):
                node = _leaf_of(row, root, values, feature, threshold, left, right, is_leaf)
                logits[row, output] += value[node]


@kernel
def find_leaves(
    found: Any, values: Any, roots: Any, feature: Any, threshold: Any, left: Any, right: Any, is_leaf: Any
) -> Any:
    """Write the leaf of every tree that a row falls into to ``found`` [rows, trees], as a number of a node."""
    for row in range(len(values)):
        for tree in range(len(roots)):
            found[row, tree] = _leaf_of(row, roots[tree], values, feature, threshold, left, right, is_leaf)


@kernel
def _leaf_of(
    row: Any, root: Any, values: Any, feature: Any, threshold: Any, left: Any, right: Any, is_leaf: Any
) -> Any:
    """Return the leaf of one tree that a row falls into."""
    node = root
    while not is_leaf[node]:
        node = left[node] if values[row, feature[node]] <= threshold[node] else right[node]
    return node
