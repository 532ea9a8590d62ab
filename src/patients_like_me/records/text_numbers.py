"""Texts as numbers: each distinct text of a long column gets one, in the order of their appearance.

A text is numbered by its hash, and then compared with the text that has this number, row by row. That takes a third of
the time of a search by text, and two texts of one hash are never taken for one. Where rows share their texts in memory,
each is looked at once (``text_views``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.machine_code import loop
from patients_like_me.records.text_views import places_of, replace_numbers

#: The number of a missing text.
NULL: Final = np.iinfo(np.uint32).max
#: Places of the state of :func:`number_values`.
_KNOWN, _REACHED = range(2)


Words = npt.NDArray[np.uint32]


class TextNumbers:
    """The numbers of the texts of one column, over all its batches.

    >>> numbers = TextNumbers()
    >>> numbers.of(pl.Series(["b", "a", "b"])).tolist(), numbers.of(pl.Series(["c", None, "a"])).tolist()
    ([0, 1, 0], [2, 4294967295, 1])
    >>> numbers.texts.to_list()
    ['b', 'a', 'c']
    """

    def __init__(self) -> None:
        self.texts = pl.Series([], dtype=pl.String)
        self._seed = 0
        self._table = NumberTable()

    def of(self, column: pl.Series) -> Words:
        """Return the number of each text; NULL where there is none."""
        if missing := column.null_count():
            numbers = np.full(len(column), NULL, dtype=np.uint32)
            if missing < len(column):
                numbers[column.is_not_null().to_numpy()] = self.of(column.drop_nulls())
            return numbers
        if (places := places_of(column)) is not None:
            number_of_row, rows = places
            replace_numbers(len(number_of_row), number_of_row, self.of(column.gather(rows)))
            return number_of_row
        while True:
            numbers, new = self._table.of(hashes_of(column, self._seed))
            if len(new):
                self.texts = pl.concat([self.texts, column.gather(new).alias("")], rechunk=True)
            if not len(numbers) or (self.texts.gather(numbers) == column).all():
                return numbers
            # Another hash finds the texts that have numbers; a text that was taken for one of them gets its own.
            self._seed += 1
            self._table = NumberTable(hashes_of(self.texts, self._seed))


class PartsInThree:
    """Keys of any number of parts as keys of three: what is missing is 0, and pairs of parts too many become one.

    >>> parts = [np.array(part, np.uint32) for part in ([1, 1], [2, 3], [4, 4], [5, 5])]
    >>> keys = PartsInThree(4)
    >>> [part.tolist() for part in keys.apart(keys.in_three(parts))]
    [[1, 1], [2, 3], [4, 4], [5, 5]]
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pairs = [NumberTable() for _ in range(count - 3)]

    def in_three(self, parts: Sequence[Words]) -> list[Words]:
        """Return three parts for each row."""
        first, *others = parts
        for pairs in self._pairs:
            packed = (first.astype(np.uint64) << np.uint64(32)) | others.pop(0)
            first, _ = pairs.of(packed)
        nothing = np.zeros(len(first), dtype=np.uint32)
        return [np.ascontiguousarray(part) for part in (first, *others, nothing, nothing)][:3]

    def apart(self, three: Sequence[Words]) -> list[Words]:
        """Return all parts of keys of three."""
        first, *others = three
        for pairs in reversed(self._pairs):
            packed = pairs.values[first]
            first, second = packed >> np.uint64(32), packed & np.uint64(0xFFFFFFFF)
            others.insert(0, second.astype(np.uint32))
        return [first.astype(np.uint32), *others][: self._count]


class NumberTable:
    """Numbers of 64-bit values in the order of their appearance."""

    def __init__(self, values: npt.NDArray[np.uint64] | None = None) -> None:
        self._known = np.empty(0, dtype=np.uint64) if values is None else values
        self._state = np.array([len(self._known), 0], dtype=np.int64)
        self._make_room(1 << max(13, (2 * len(self._known)).bit_length()))

    @property
    def values(self) -> npt.NDArray[np.uint64]:
        """The values by their numbers."""
        return self._known[: self._state[_KNOWN]]

    def of(self, values: npt.NDArray[np.uint64]) -> tuple[Words, npt.NDArray[np.int64]]:
        """Return the number of each value, and the rows in which new ones are."""
        numbers, new = np.empty(len(values), dtype=np.uint32), np.empty(len(values), dtype=np.int64)
        self._state[_REACHED] = count = 0
        while self._state[_REACHED] < len(values):
            count += number_values(
                len(values), values, self._known, self._table, len(self._table), numbers, new[count:], self._state
            )
            if 2 * self._state[_KNOWN] >= len(self._table):
                self._make_room(4 * len(self._table))
        return numbers, new[:count]

    def _make_room(self, places: int) -> None:
        known = np.empty(places // 2 + 1, dtype=np.uint64)
        known[: len(self.values)] = self.values
        self._known, self._table = known, np.full(places, -1, dtype=np.int32)
        place_values(self._known, int(self._state[_KNOWN]), self._table, places)


def hashes_of(texts: pl.Series, seed: int) -> npt.NDArray[np.uint64]:
    """Return a hash of each text, another one for another seed."""
    return np.ascontiguousarray(texts.hash(seed).to_numpy())


@loop
def number_values(
    rows: int,
    values: npt.NDArray[np.uint64],
    known_values: npt.NDArray[np.uint64],
    table: npt.NDArray[np.int32],
    places: int,
    numbers: npt.NDArray[np.uint32],
    new_rows: npt.NDArray[np.int64],
    state: npt.NDArray[np.int64],
) -> int:
    """Number values in the order of their appearance, and list the rows in which new ones are; return how many.

    The loop begins at the row ``state[_REACHED]`` and ends early where the table is half full.
    """
    known, row = state[0], state[1]
    last = np.uint64(places - 1)
    new = 0
    while row < rows and 2 * known < places:
        value = values[row]
        place = (value ^ (value >> np.uint64(32))) & last
        while table[place] >= 0 and known_values[table[place]] != value:
            place = (place + np.uint64(1)) & last
        if table[place] < 0:
            table[place] = known
            known_values[known] = value
            new_rows[new] = row
            known += 1
            new += 1
        numbers[row] = table[place]
        row += 1
    state[0], state[1] = known, row
    return new


@loop
def place_values(values: npt.NDArray[np.uint64], known: int, table: npt.NDArray[np.int32], places: int) -> int:
    """Put known values into an empty table."""
    last = np.uint64(places - 1)
    for number in range(known):
        place = (values[number] ^ (values[number] >> np.uint64(32))) & last
        while table[place] >= 0:
            place = (place + np.uint64(1)) & last
        table[place] = number
    return known
