"""How many pairs share how many diagnoses, for every overlap at once, from one pass over the pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from patients_like_me.graph.adders import (
    LANES,
    SCRATCH_STRIDE,
    Number,
    count_block,
    planes_of,
    population_count,
    scratch_place,
    trailing_zeros,
)
from patients_like_me.graph.bit_index import BitIndex
from patients_like_me.graph.kernels import Columns, QueryRows, overlap_at, overlap_with
from patients_like_me.workers import announced, in_threads, kernel

Array = Any

_LEAF_PLANES = 6
_ROWS_AT_ONCE = 512


def overlap_histogram(
    indptr: npt.NDArray[np.int64],
    codes: npt.NDArray[np.int32],
    patients: npt.NDArray[np.int32],
    number_of_codes: int,
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> npt.NDArray[np.int64]:
    """Count the pairs of instances of different patients by the number of codes they share.

    Entry ``w`` of the result is the number of unordered pairs that share exactly ``w`` codes.

    >>> indptr, codes = np.array([0, 2, 3, 5]), np.array([0, 1, 1, 0, 1], dtype=np.int32)
    >>> overlap_histogram(indptr, codes, np.arange(3, dtype=np.int32), 2).tolist()
    [0, 2, 1]
    """
    index = BitIndex.build(indptr, codes, patients, number_of_codes)
    rows = index.rows(indptr, codes, patients)
    largest = int(rows.sizes.max(initial=0))
    nodes = len(index)

    def part(first: int) -> npt.NDArray[np.int64]:
        partial = np.zeros(max(largest + 1, 1 << _LEAF_PLANES), dtype=np.int64)
        with announced(_count_pairs):
            _count_pairs(index.columns, rows, first, min(first + _ROWS_AT_ONCE, nodes), partial)
        return partial[: largest + 1]

    parts = in_threads(part, range(0, nodes, _ROWS_AT_ONCE), threads=threads, progress=progress)
    return np.sum(parts, axis=0, dtype=np.int64) if parts else np.zeros(1, dtype=np.int64)


@kernel
def _count_pairs(columns: Columns, rows: QueryRows, first: Number, last: Number, histogram: Array) -> None:
    """Add the pairs of the columns from ``first`` to before ``last`` with all later columns."""
    vectors = columns.words // LANES
    scratch = np.empty(vectors * SCRATCH_STRIDE, np.uint64)
    leaves = np.empty((1 << _LEAF_PLANES, columns.words), np.uint64)
    counter = np.empty(columns.words, np.uint64)
    width = columns.words * 64
    stride = columns.codes * columns.words
    nodes = len(columns.nodes)
    for block in range(first // width, len(columns.largest)):
        for column in range(first, min(last, (block + 1) * width)):
            row = columns.nodes[column]
            size = rows.sizes[row]
            begin, end = max(column + 1 - block * width, 0), min(nodes - block * width, width)
            if size == 0:
                histogram[0] += max(end - begin, 0)
                continue
            for word in range(columns.words):
                leaves[0, word] = _bits_between(begin - word * 64, end - word * 64)
            # A threshold of nothing: every vector is a hit and leaves its planes.
            count_block(columns.table, block * stride, rows.offsets, rows.starts[row], size, 0, scratch, vectors)
            planes = planes_of(size)
            _take_high_counts(scratch, planes, leaves[0], histogram)
            _split_by_planes(scratch, min(planes, _LEAF_PLANES), leaves, counter, histogram)
    for column in range(first, last):
        row = columns.nodes[column]
        for mate in range(rows.mates[row, 0], rows.mates[row, 1]):
            if columns.mates[mate] > column:
                histogram[overlap_with(columns, rows, row, columns.mates[mate])] -= 1


@kernel
def _bits_between(begin: Number, end: Number) -> Number:
    """Return a word with the bits from ``begin`` to before ``end`` set; both may be outside of it."""
    if begin >= 64 or end <= 0 or end <= begin:
        return np.uint64(0)
    word = ~np.uint64(0) << np.uint64(max(begin, 0))
    if end < 64:
        word &= (np.uint64(1) << np.uint64(end)) - np.uint64(1)
    return word


@kernel
def _take_high_counts(scratch: Array, planes: Number, valid: Array, histogram: Array) -> None:
    """Count the columns above the planes that are split, one by one, and take them out."""
    if planes <= _LEAF_PLANES:
        return
    for word in range(len(valid)):
        lane = scratch_place(word)
        high = np.uint64(0)
        for plane in range(_LEAF_PLANES, planes):
            high |= scratch[lane + (plane + 1) * LANES]
        high &= valid[word]
        valid[word] ^= high
        while high:
            bit = trailing_zeros(high)
            high &= high - np.uint64(1)
            histogram[overlap_at(scratch, lane, bit, planes)] += 1


@kernel
def _split_by_planes(scratch: Array, planes: Number, leaves: Array, counter: Array, histogram: Array) -> None:
    """Split the columns by one plane after the other until each leaf holds those of one overlap, and count them."""
    words = leaves.shape[1]
    number = 1
    while planes > 0 and _is_empty(scratch, planes, words):
        planes -= 1
    for plane in range(planes):
        for word in range(words):
            counter[word] = scratch[scratch_place(word) + (plane + 1) * LANES]
        for leaf in range(number):
            for word in range(words):
                whole = leaves[leaf, word]
                leaves[number + leaf, word] = whole & counter[word]
                leaves[leaf, word] = whole & ~counter[word]
        number *= 2
    for leaf in range(number):
        count = np.uint64(0)
        for word in range(words):
            count += population_count(leaves[leaf, word])
        histogram[leaf] += np.int64(count)


@kernel
def _is_empty(scratch: Array, planes: Number, words: Number) -> Number:
    """Tell whether the highest of the planes is zero in every word."""
    some = np.uint64(0)
    for word in range(words):
        some |= scratch[scratch_place(word) + planes * LANES]
    return some == 0
