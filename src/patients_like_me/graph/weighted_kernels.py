"""The kernel that finds the strongest weighted overlaps: bounds for all columns, exact values for what survives.

Products are added as 16-bit fractions, each rounded by less than two units. So a column whose sum is below the k-th
largest sum by more than a small *slack* is out, whatever its exact value; the similarity of the rest is computed from
the weights themselves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from patients_like_me.graph.adders import trailing_zeros
from patients_like_me.graph.weighted_sums import CHUNK, Number, prefetch, sum_chunk
from patients_like_me.workers import kernel

Array = Any

_ROWS_AHEAD = 12


class WeightedColumns(NamedTuple):
    """The instances to compare with, as columns; see :class:`patients_like_me.graph.weighted_index.WeightedIndex`."""

    table: Array
    """uint16 ``[chunks][frequent codes][CHUNK]``: weight rows of the frequent codes."""
    frequent: int
    block: int
    """Columns in a block, a multiple of ``CHUNK``."""
    posting_starts: Array
    """int64 ``[blocks][rare codes] + 1``: where the columns of a rare code begin in a block."""
    rare: int
    positions: Array
    """uint16: a column inside its block."""
    fractions: Array
    """uint16: the weight of the rare code there."""
    starts: Array
    """int64: where the entries of a column begin."""
    entries: Array
    """Records of a code and its weight as it was given, together because they are read together."""
    patients: Array
    """int64 per column."""
    people: Array
    """int16 ``[columns, 3]``: whom each column goes with (:mod:`patients_like_me.graph.people`); no rows: everybody."""
    rows: Array
    """int32 per column: which row of the bank it is."""
    column_of_row: Array
    """int32 per row: its column."""


class Queries(NamedTuple):
    """The instances whose neighbours are wanted."""

    starts: Array
    """int64: the codes and weights as they were given, without codes that the bank lacks."""
    codes: Array
    weights: Array
    frequent_starts: Array
    """int64: the frequent codes, as offsets of weight rows (uint32) and factors (uint16)."""
    frequent_offsets: Array
    frequent_factors: Array
    rare_starts: Array
    """int64: the rare codes, as numbers (int32) and factors (uint16)."""
    rare_numbers: Array
    rare_factors: Array
    patients: Array
    people: Array
    """int16 ``[queries, 3]``: whom each query goes with; no rows: everybody."""
    columns: Array
    """int64 ``[queries, 2]``: the range of columns that a query may be linked to."""
    units: Array
    """float64: the similarity that a sum of 1 stands for."""
    slacks: Array
    """int64: a sum that is smaller than another one by more than this belongs to a smaller similarity."""
    thresholds: Array
    """int64: the smallest sum that a column with a similarity above 0 can have."""


class Lists(NamedTuple):
    """What was found so far for the queries of one call, one row per query."""

    columns: Array
    """int32 ``[queries, capacity]``"""
    sums: Array
    """uint16 ``[queries, capacity]``: their similarities in units, up to rounding."""
    fill: Array
    """int64: how many columns are in the list."""
    thresholds: Array
    """int64: columns with a smaller sum are not looked at."""
    proven: Array
    """int64: columns with a smaller sum cannot be among the strongest; a threshold above it is a guess."""


class Scratch(NamedTuple):
    """Memory that one call uses again and again."""

    begun: Array
    sums: Array
    masks: Array
    tally: Array
    keys: Array
    spans: Array
    own: Array


@kernel
def strongest_weighted(
    bank: WeightedColumns,
    queries: Queries,
    selection: Array,
    keep: Number,
    exclude: bool,
    number_of_codes: Number,
    neighbors: Array,
    similarities: Array,
    statistics: Array,
) -> None:
    """Write for each selected query the ``keep`` most similar columns, the strongest first.

    The columns come in random order, so those seen so far are a sample of all, and the threshold of a query is guessed
    from it. The few queries for which the guess was too high are searched again with what is proven.
    ``statistics`` counts the columns that were listed, those whose similarity was computed, and second searches.
    """
    number = len(selection)
    capacity = 2 * keep + CHUNK
    lists = Lists(
        np.empty((number, capacity), np.int32),
        np.empty((number, capacity), np.uint16),
        np.zeros(number, np.int64),
        queries.thresholds[selection],
        queries.thresholds[selection],
    )
    scratch = Scratch(
        np.zeros(bank.block, np.uint16),
        np.empty(CHUNK, np.uint16),
        np.empty(2, np.uint64),
        np.empty(256, np.int64),
        np.empty(capacity, np.uint64),
        np.empty((capacity, 2), np.int64),
        np.zeros(number_of_codes, np.float64),
    )
    waiting = np.arange(number)
    for attempt in range(2):
        for block in range(-(-len(bank.rows) // bank.block)):
            _search_block(
                bank, queries, selection, waiting, block, keep, exclude, attempt == 0, lists, scratch, statistics
            )
        failed = 0
        for place in waiting:
            if lists.fill[place] >= keep:
                lists.proven[place] = _drop(lists, place, keep, queries.slacks[selection[place]], True, scratch.tally)
            if lists.thresholds[place] > lists.proven[place]:
                lists.thresholds[place], lists.fill[place] = lists.proven[place], 0
                waiting[failed] = place
                failed += 1
        waiting = waiting[:failed]
        statistics[2] += failed
    for number, query in enumerate(selection):
        count = _rank(bank, queries, query, keep, lists, number, scratch, statistics)
        for rank in range(count):
            neighbors[number, rank] = row_of(scratch.keys[rank])
            similarities[number, rank] = value_of(scratch.keys[rank])


@kernel
def _search_block(
    bank: WeightedColumns,
    queries: Queries,
    selection: Array,
    waiting: Array,
    block: Number,
    keep: Number,
    exclude: bool,
    guess: bool,
    lists: Lists,
    scratch: Scratch,
    statistics: Array,
) -> None:
    """Add the columns of one block that reach the threshold of a query to its list, for all waiting queries."""
    # Arrays are taken out of their tuples once: every access inside the loops would count references.
    table, frequent, bank_patients = bank.table, bank.frequent, bank.patients
    posting_starts, positions, fractions = bank.posting_starts, bank.positions, bank.fractions
    offsets, factors, frequent_starts = queries.frequent_offsets, queries.frequent_factors, queries.frequent_starts
    rare_starts, rare_numbers, rare_factors = queries.rare_starts, queries.rare_numbers, queries.rare_factors
    ranges, patients = queries.columns, queries.patients
    bank_people, people = bank.people, queries.people
    compares = len(bank_people) > 0 and len(people) > 0
    columns, sums, fills, thresholds = lists.columns, lists.sums, lists.fill, lists.thresholds
    begun, totals, masks = scratch.begun, scratch.sums, scratch.masks
    capacity, listed = columns.shape[1], 0
    first = block * bank.block
    for place in waiting:
        query = selection[place]
        low, high = ranges[query, 0], ranges[query, 1]
        last = min(first + bank.block, high)
        if low >= last:
            continue
        for code in range(rare_starts[query], rare_starts[query + 1]):
            factor = np.uint32(rare_factors[code])
            postings = block * bank.rare + rare_numbers[code]
            for posting in range(posting_starts[postings], posting_starts[postings + 1]):
                # One more, so that no code that is shared leaves a sum at 0.
                share = (np.uint32(fractions[posting]) * factor >> np.uint32(16)) + np.uint32(1)
                begun[positions[posting]] += np.uint16(share)
        start = frequent_starts[query]
        size = frequent_starts[query + 1] - start
        threshold, fill = thresholds[place], fills[place]
        for chunk in range(max(first, low // CHUNK * CHUNK), last, CHUNK):
            if sum_chunk(
                table,
                chunk * frequent,
                offsets,
                factors,
                start,
                size,
                begun,
                chunk - first,
                threshold,
                totals,
                masks,
            ):
                for half in range(2):
                    mask = masks[half]
                    while mask:
                        bit = half * 64 + np.int64(trailing_zeros(mask))
                        mask &= mask - np.uint64(1)
                        column, total = chunk + bit, totals[bit]
                        if total < threshold or column < low or column >= high:
                            continue
                        if exclude and bank_patients[column] == patients[query]:
                            continue
                        if compares and not fits(people[query], bank_people[column]):
                            continue
                        if fill == capacity:
                            fills[place] = fill
                            _make_room(bank, queries, query, keep, lists, place, scratch, statistics)
                            threshold, fill = thresholds[place], fills[place]
                            if total < threshold:
                                continue
                        columns[place, fill], sums[place, fill] = column, total
                        fill += 1
                        listed += 1
            seen = chunk // CHUNK - low // CHUNK + 1
            if guess and seen & (seen - 1) == 0:
                # Among the columns seen, this many of the strongest are expected, and hardly ever as many as `rank`.
                expected = keep * (min(chunk + CHUNK, high) - low) / (high - low)
                rank = np.int64(expected + 3 * np.sqrt(expected) + 3)
                if rank < min(fill, keep):
                    fills[place] = fill
                    _drop(lists, place, rank, queries.slacks[query], False, scratch.tally)
                    threshold, fill = thresholds[place], fills[place]
        fills[place] = fill
        for code in range(rare_starts[query], rare_starts[query + 1]):
            postings = block * bank.rare + rare_numbers[code]
            for posting in range(posting_starts[postings], posting_starts[postings + 1]):
                begun[positions[posting]] = 0
    statistics[0] += listed


@kernel
def _clear(array: Array) -> None:
    """Fill an array with zeros; a slice would be filled number by number."""
    for place in range(len(array)):
        array[place] = 0


@kernel
def _make_room(
    bank: WeightedColumns,
    queries: Queries,
    query: Number,
    keep: Number,
    lists: Lists,
    place: Number,
    scratch: Scratch,
    statistics: Array,
) -> None:
    """Shorten a full list by what the bounds rule out; where they rule out too little (many equals), by similarity."""
    slack, capacity = queries.slacks[query], lists.columns.shape[1]
    lists.proven[place] = _drop(lists, place, keep, slack, True, scratch.tally)
    if lists.fill[place] <= capacity - (keep + CHUNK) // 2:
        return
    count = _rank(bank, queries, query, keep, lists, place, scratch, statistics)
    lists.fill[place] = count
    for rank in range(count):
        lists.columns[place, rank] = bank.column_of_row[row_of(scratch.keys[rank])]
        units = value_of(scratch.keys[rank]) / queries.units[query]
        lists.sums[place, rank] = max(0, np.int64(units * (1 - 1e-6)) - 1)
    if count == keep:
        lists.proven[place] = max(lists.proven[place], np.int64(lists.sums[place, keep - 1]) - slack)
        lists.thresholds[place] = max(lists.thresholds[place], lists.proven[place])


@kernel
def _drop(lists: Lists, place: Number, rank: Number, slack: Number, prove: bool, tally: Array) -> Number:
    """Raise the threshold to the sum of a rank minus the slack and drop what is below; return what is proven by it.

    With ``rank`` the number of columns to keep this is a proof: that many are more similar than any that is dropped.
    """
    columns, sums, fill = lists.columns[place], lists.sums[place], lists.fill[place]
    _clear(tally)
    for entry in range(fill):
        tally[sums[entry] >> 8] += 1
    wanted, high = rank, 255
    while tally[high] < wanted:
        wanted -= tally[high]
        high -= 1
    _clear(tally)
    for entry in range(fill):
        if sums[entry] >> 8 == high:
            tally[sums[entry] & 255] += 1
    low = 255
    while tally[low] < wanted:
        wanted -= tally[low]
        low -= 1
    reached = high * 256 + low - slack
    if prove and reached < lists.thresholds[place]:
        return max(lists.proven[place], reached)
    threshold = max(lists.thresholds[place], reached)
    kept = 0
    for entry in range(fill):
        if sums[entry] >= threshold:
            columns[kept], sums[kept] = columns[entry], sums[entry]
            kept += 1
    lists.fill[place], lists.thresholds[place] = kept, threshold
    return threshold if prove else lists.proven[place]


@kernel
def _rank(
    bank: WeightedColumns,
    queries: Queries,
    query: Number,
    keep: Number,
    lists: Lists,
    place: Number,
    scratch: Scratch,
    statistics: Array,
) -> Number:
    """Compute the similarities of the listed columns, put the strongest into ``scratch.keys``, and return how many.

    The keys are in rising order: the strongest first, equal similarities in the order of the bank's rows.
    """
    keys, own, spans = scratch.keys, scratch.own, scratch.spans
    columns, fill = lists.columns, lists.fill[place]
    starts, entries, rows = bank.starts, bank.entries, bank.rows
    for entry in range(queries.starts[query], queries.starts[query + 1]):
        own[queries.codes[entry]] = queries.weights[entry]
    for listed in range(fill):
        column = columns[place, listed]
        spans[listed, 0], spans[listed, 1] = starts[column], starts[column + 1]
    count = 0
    for listed in range(fill):
        # The rows are anywhere in memory: ask for a later one while this one is computed.
        later = min(listed + _ROWS_AHEAD, fill - 1)
        for entry in range(spans[later, 0], spans[later, 1], 8):
            prefetch(entries, entry)
        similarity = 0.0
        for entry in range(spans[listed, 0], spans[listed, 1]):
            similarity += own[entries[entry].code] * entries[entry].weight
        rounded = np.float32(similarity)
        if rounded > 0:
            keys[count] = key_of(rounded, rows[columns[place, listed]])
            count += 1
    for entry in range(queries.starts[query], queries.starts[query + 1]):
        own[queries.codes[entry]] = 0.0
    statistics[1] += fill
    keys[:count].sort()
    return min(count, keep)


@kernel
def fits(looking: Array, other: Array) -> bool:
    """Tell whether two rows of bounds fit, as :func:`patients_like_me.graph.people.fitting` does."""
    return bool((looking[0] & other[0]) != 0 and looking[1] <= other[2] and other[1] <= looking[2])


@kernel
def key_of(similarity: Number, row: Number) -> Number:
    """Return a number that is smaller for a larger similarity (above 0), and for the lower row among equal ones.

    The bits of a float above 0 are in the order of its value.
    """
    return np.uint64(~np.float32(similarity).view(np.uint32)) << np.uint64(32) | np.uint64(row)


@kernel
def row_of(key: Number) -> Number:
    """Return the row of the bank that a key holds."""
    return np.int64(key & np.uint64(0xFFFFFFFF))


@kernel
def value_of(key: Number) -> Number:
    """Return the similarity that a key holds."""
    return np.uint32(~key >> np.uint64(32)).view(np.float32)
