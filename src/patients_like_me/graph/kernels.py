"""The kernels over all pairs: strongest neighbours, all neighbours, and the count of pairs per overlap.

Every kernel takes a list of rows and goes through the columns in blocks whose bit rows fit the cache. Rows do not
influence each other, so any cut of them into lists gives the same result, in any number of threads or processes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from patients_like_me.graph.adders import (
    COLUMNS_PER_VECTOR,
    LANES,
    SCRATCH_STRIDE,
    Number,
    count_block,
    planes_of,
    population_count,
    scratch_place,
    trailing_zeros,
)
from patients_like_me.workers import kernel

Array = Any


class Columns(NamedTuple):
    """The columns to compare with, as bit rows; see :class:`patients_like_me.graph.bit_index.BitIndex`."""

    table: Array
    """uint64, ``[blocks][codes][words]``: bit rows, cut into blocks of columns."""
    words: int
    codes: int
    largest: Array
    """int64 per block: the largest set of its columns."""
    nodes: Array
    """int32 per column: which node it is."""
    patients: Array
    """int32 per column."""
    mates: Array
    """int64: the columns ordered by patient."""


class QueryRows(NamedTuple):
    """The sets to compare, each as a list of places of bit rows."""

    offsets: Array
    """uint32: where the bit row of a code begins inside a block of the table."""
    starts: Array
    """int64 per row: its first place in ``offsets``."""
    sizes: Array
    """int64 per row: how many places it has."""
    patients: Array
    """int32 per row."""
    mates: Array
    """int64 ``[rows, 2]``: from where to where ``Columns.mates`` holds the columns of the row's own patient."""


class Lists(NamedTuple):
    """What was found so far for the rows of one call, one line per row."""

    columns: Array
    """int32 ``[rows, capacity]``"""
    weights: Array
    """uint16 ``[rows, capacity]``: their overlaps."""
    fill: Array
    """int64: how many columns are in the list."""
    thresholds: Array
    """int64: columns with a smaller overlap are not looked at."""


@kernel
def strongest(
    columns: Columns,
    rows: QueryRows,
    selection: Array,
    tau: Number,
    keep: Number,
    counts: Array,
    neighbors: Array,
    weights: Array,
    statistics: Array,
) -> None:
    """Find for each selected row the ``keep`` columns that share most codes with it, at least ``tau``.

    The columns must come in the order of *rising* preference among equals (larger sets first, then higher index
    first): a later column with the same overlap replaces an earlier one. Because large sets come first, strong
    neighbours come early, the threshold of a row rises at once, and hardly a column must be looked at one by one.
    ``statistics`` counts vectors of columns, bit rows added to them, planes compared, and candidates.
    """
    number = len(selection)
    capacity = max(2 * keep, 64)
    found_columns = np.empty((number, capacity), np.int32)
    found_weights = np.empty((number, capacity), np.uint16)
    fill = np.zeros(number, np.int64)
    thresholds = np.full(number, tau, np.int64)
    lists = Lists(found_columns, found_weights, fill, thresholds)
    tally = np.zeros(1 << 16, np.int64)
    vectors = columns.words // LANES
    scratch = np.empty(vectors * SCRATCH_STRIDE, np.uint64)
    above, level = np.empty(columns.words, np.uint64), np.empty(columns.words, np.uint64)
    stride = columns.codes * columns.words
    # A copy in the order of use: the rows are read once per block of columns.
    sizes = rows.sizes[selection]
    starts = np.cumsum(sizes) - sizes
    offsets = np.empty(sizes.sum(), np.uint32)
    for place in range(number):
        first, start = starts[place], rows.starts[selection[place]]
        offsets[first : first + sizes[place]] = rows.offsets[start : start + sizes[place]]
    for block in range(len(columns.largest)):
        base = block * stride
        for place in range(number):
            row, size, threshold = selection[place], sizes[place], thresholds[place]
            if size < threshold or columns.largest[block] < threshold:
                continue
            start, planes = starts[place], planes_of(size)
            hits = count_block(columns.table, base, offsets, start, size, threshold, scratch, vectors)
            if block == 0:
                wanted = keep + rows.mates[row, 1] - rows.mates[row, 0]
                threshold = max(threshold, _reached_by(scratch, hits, planes, wanted, above, level))
                hits = count_block(columns.table, base, offsets, start, size, threshold, scratch, vectors)
            statistics[0] += vectors
            statistics[1] += vectors * size
            statistics[2] += vectors * planes
            if hits == 0:
                continue
            thresholds[place] = threshold
            first_column, patient = block * columns.words * 64, rows.patients[row]
            _collect(columns, first_column, scratch, hits, planes, patient, keep, lists, place, tally, statistics)
    keys = np.empty(capacity, np.int64)
    for place in range(number):
        if fill[place] > keep:
            _drop_weakest(found_columns[place], found_weights[place], fill[place], keep, tally)
            fill[place] = keep
        counts[place] = fill[place]
        for rank in range(fill[place]):
            node = np.int64(columns.nodes[found_columns[place, rank]])
            keys[rank] = node << 16 | np.int64(found_weights[place, rank])
        _sort(keys, fill[place])
        for rank in range(fill[place]):
            neighbors[place, rank] = keys[rank] >> 16
            weights[place, rank] = keys[rank] & 0xFFFF


@kernel
def _reached_by(scratch: Array, hits: Number, planes: Number, wanted: Number, above: Array, level: Array) -> Number:
    """Return the largest overlap that ``wanted`` columns of a sample reach: a weaker one cannot be kept.

    It is found bit by bit from the top plane down: ``level`` marks the columns that are equal to it so far, ``above``
    those that are larger already. The first columns of the block are the sample; any sample gives a valid bound.
    """
    vectors = min(len(level) // LANES, 1 + 8 * wanted // COLUMNS_PER_VECTOR)
    for word in range(vectors * LANES):
        above[word] = np.uint64(0)
        level[word] = scratch[scratch_place(word)] if (hits >> np.uint64(word)) & np.uint64(1) else np.uint64(0)
    reached = 0
    for plane in range(planes - 1, -1, -1):
        count = np.int64(0)
        for vector in range(vectors):
            start = vector * SCRATCH_STRIDE + (plane + 1) * LANES
            for lane in range(LANES):
                place = vector * LANES + lane
                count += np.int64(population_count(above[place] | (level[place] & scratch[start + lane])))
        if count >= wanted:
            reached |= 1 << plane
        for vector in range(vectors):
            start = vector * SCRATCH_STRIDE + (plane + 1) * LANES
            for lane in range(LANES):
                place = vector * LANES + lane
                larger = level[place] & scratch[start + lane]
                if count >= wanted:
                    level[place] = larger
                else:
                    above[place] |= larger
                    level[place] ^= larger
    return reached


@kernel
def _collect(
    columns: Columns,
    first_column: Number,
    scratch: Array,
    hits: Number,
    planes: Number,
    patient: Number,
    keep: Number,
    lists: Lists,
    place: Number,
    tally: Array,
    statistics: Array,
) -> None:
    """Add the columns that reached the threshold of a row to its list, and raise the threshold when it is full."""
    found_columns, found_weights = lists.columns[place], lists.weights[place]
    fill, threshold, patients = lists.fill[place], lists.thresholds[place], columns.patients
    while hits:
        word = np.int64(trailing_zeros(hits))
        hits &= hits - np.uint64(1)
        lane = scratch_place(word)
        mask = scratch[lane]
        while mask:
            bit = trailing_zeros(mask)
            mask &= mask - np.uint64(1)
            weight = overlap_at(scratch, lane, bit, planes)
            column = first_column + word * 64 + np.int64(bit)
            if weight < threshold or patients[column] == patient:
                continue
            statistics[3] += 1
            if fill == len(found_columns):
                threshold = _drop_weakest(found_columns, found_weights, fill, keep, tally)
                fill = keep
                if weight < threshold:
                    continue
            found_columns[fill] = column
            found_weights[fill] = weight
            fill += 1
    lists.fill[place], lists.thresholds[place] = fill, threshold


@kernel
def overlap_at(scratch: Array, lane: Number, bit: Number, planes: Number) -> Number:
    """Read one column's counter out of the planes; there are at least five."""
    one = np.uint64(1)
    overlap = (scratch[lane + LANES] >> bit) & one
    overlap |= ((scratch[lane + 2 * LANES] >> bit) & one) << np.uint64(1)
    overlap |= ((scratch[lane + 3 * LANES] >> bit) & one) << np.uint64(2)
    overlap |= ((scratch[lane + 4 * LANES] >> bit) & one) << np.uint64(3)
    overlap |= ((scratch[lane + 5 * LANES] >> bit) & one) << np.uint64(4)
    for plane in range(5, planes):
        overlap |= ((scratch[lane + (plane + 1) * LANES] >> bit) & one) << np.uint64(plane)
    return np.int64(overlap)


@kernel
def _drop_weakest(columns: Array, weights: Array, fill: Number, keep: Number, tally: Array) -> Number:
    """Leave the ``keep`` strongest of a row's list, the latest among equals; return the weakest overlap left.

    ``tally`` holds zeros before and after.
    """
    level = np.int64(0)
    for place in range(fill):
        tally[weights[place]] += 1
        level = max(level, np.int64(weights[place]))
    stronger = np.int64(0)
    while stronger + tally[level] < keep:
        stronger += tally[level]
        level -= 1
    dropped = tally[level] - (keep - stronger)
    kept = 0
    for place in range(fill):
        weight = np.int64(weights[place])
        tally[weight] = 0
        if weight == level and dropped > 0:
            dropped -= 1
        elif weight >= level:
            columns[kept] = columns[place]
            weights[kept] = weight
            kept += 1
    return level


@kernel
def _sort(keys: Array, length: Number) -> None:
    """Sort the first keys in place (Shell's method: short lists, no recursion)."""
    gap = 1
    while gap < length // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for place in range(gap, length):
            key = keys[place]
            hole = place
            while hole >= gap and keys[hole - gap] > key:
                keys[hole] = keys[hole - gap]
                hole -= gap
            keys[hole] = key
        gap //= 3


@kernel
def count_neighbors(columns: Columns, rows: QueryRows, selection: Array, tau: Number, counts: Array) -> None:
    """Count for each selected row the columns of other patients that share at least ``tau`` codes with it."""
    vectors = columns.words // LANES
    scratch = np.empty(vectors * SCRATCH_STRIDE, np.uint64)
    stride = columns.codes * columns.words
    counts[:] = 0
    for block in range(len(columns.largest)):
        for place in range(len(selection)):
            row = selection[place]
            size = rows.sizes[row]
            if size < tau or columns.largest[block] < tau:
                continue
            hits = count_block(
                columns.table, block * stride, rows.offsets, rows.starts[row], size, tau, scratch, vectors
            )
            while hits:
                lane = scratch_place(np.int64(trailing_zeros(hits)))
                hits &= hits - np.uint64(1)
                counts[place] += np.int64(population_count(scratch[lane]))
    for place in range(len(selection)):
        row = selection[place]
        for mate in range(rows.mates[row, 0], rows.mates[row, 1]):
            if overlap_with(columns, rows, row, columns.mates[mate]) >= tau:
                counts[place] -= 1


@kernel
def overlap_with(columns: Columns, rows: QueryRows, row: Number, column: Number) -> Number:
    """Count the codes that one row shares with one column, bit by bit."""
    block, inside = divmod(column, columns.words * 64)
    base = block * columns.codes * columns.words + inside // 64
    overlap = np.int64(0)
    for place in range(rows.starts[row], rows.starts[row] + rows.sizes[row]):
        word = columns.table[base + np.int64(rows.offsets[place])]
        overlap += np.int64((word >> np.uint64(inside % 64)) & np.uint64(1))
    return overlap


@kernel
def list_neighbors(
    columns: Columns, rows: QueryRows, selection: Array, tau: Number, starts: Array, neighbors: Array, weights: Array
) -> None:
    """Write for each selected row its neighbours and overlaps from ``starts`` on, in the order of the columns."""
    vectors = columns.words // LANES
    scratch = np.empty(vectors * SCRATCH_STRIDE, np.uint64)
    stride = columns.codes * columns.words
    cursors = starts.copy()
    for block in range(len(columns.largest)):
        for place in range(len(selection)):
            row = selection[place]
            size = rows.sizes[row]
            if size < tau or columns.largest[block] < tau:
                continue
            hits = count_block(
                columns.table, block * stride, rows.offsets, rows.starts[row], size, tau, scratch, vectors
            )
            planes = planes_of(size)
            cursor = cursors[place]
            while hits:
                word = np.int64(trailing_zeros(hits))
                hits &= hits - np.uint64(1)
                lane = scratch_place(word)
                mask = scratch[lane]
                while mask:
                    bit = trailing_zeros(mask)
                    mask &= mask - np.uint64(1)
                    column = (block * columns.words + word) * 64 + np.int64(bit)
                    if columns.patients[column] != rows.patients[row]:
                        neighbors[cursor] = columns.nodes[column]
                        weights[cursor] = overlap_at(scratch, lane, bit, planes)
                        cursor += 1
            cursors[place] = cursor
