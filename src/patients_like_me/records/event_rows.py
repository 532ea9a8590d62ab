"""Rows of events as whole numbers: visits found by their ids, keys numbered, each key of a visit kept once.

A key is what the codes of a row depend on, in one or more parts of 32 bits. The work is done in compiled loops
(``event_kernels``), a batch at a time; what is kept grows with distinct pairs of visit and key, not with rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.records.code_table import CodeTable
from patients_like_me.records.event_kernels import (
    FILLED,
    KNOWN,
    OF_OTHERS,
    RUNS,
    count_codes,
    distinct_codes_of_visits,
    gather_rows,
    number_ids,
    order_by_visit,
    place_keys,
)
from patients_like_me.records.ids import normal_ids
from patients_like_me.records.text_numbers import PartsInThree, TextNumbers

#: Stands for a missing visit id or patient; some sources number their visits below zero too.
NO_VISIT: Final = np.iinfo(np.int64).min
_FIRST_PLACES: Final = 1 << 13
_CUTS: Final = 64
#: What a row of an event table takes at least in a file, and for how many rows at most there is room beforehand.
_LEAST_BYTES: Final = 4
_MOST_EXPECTED: Final = 1 << 26
#: What the table of keys has for each: rows, place, and three parts.
_WIDTH: Final = 5
#: Where each bit is found by the multiplication of de Bruijn.
_BIT_OF_WORD: Final = np.empty(64, dtype=np.int64)
_BIT_OF_WORD[[(0x03F79D71B4CB0A89 << bit) % (1 << 64) >> 58 for bit in range(64)]] = np.arange(64)
Numbers = npt.NDArray[np.int64]


class VisitIds:
    """The ids of the cohort's visits, to be found among those of events: whole numbers or text.

    >>> ids = VisitIds(pl.DataFrame({"visit_id": ["9", "7"], "visit": [0, 1]}))
    >>> ids.entries(pl.Series(["7", "8", "9", " 7 ", None])).tolist()
    [1, -1, 0, 1, -1]
    """

    def __init__(self, visit_index: pl.DataFrame) -> None:
        self.visits = visit_index["visit"].cast(pl.Int64).to_numpy()
        subjects = visit_index["subject_id"] if "subject_id" in visit_index.columns else pl.Series([], dtype=pl.String)
        #: The patient of each visit; where ids are text, one number for all, which a table never names.
        self.subjects = (
            subjects.cast(pl.Int64).to_numpy() if subjects.dtype.is_integer() else np.zeros(len(self.visits), np.int64)
        )
        self.ids = ids = visit_index["visit_id"]
        #: The number of places in the table in which ids are searched; 0 where entries are rows of the index already.
        self.places = 0
        self.table = np.zeros(0, dtype=np.int64)
        self.known = np.zeros(0, dtype=np.int64)
        self._texts: TextNumbers | None = None
        #: For text, the row of the index for every id that was seen; -1 for a stranger.
        self._row_of_text = np.arange(len(ids))
        if ids.dtype == pl.String:
            # The cohort's ids are the first texts, so that the number of a text is a row of the index.
            self._texts = TextNumbers()
            self._texts.of(ids)
        else:
            self.known = np.ascontiguousarray(ids.cast(pl.Int64).to_numpy())
            self.places = 1 << max(1, 2 * len(ids)).bit_length()
            self.table = np.full(self.places, -1, dtype=np.int64)
            number_ids(self.known, len(self.known), self.table, self.places)

    def entries(self, visit_ids: pl.Series) -> Numbers:
        """Return what the compiled loop takes: ids that it looks up itself, or for text rows of the index, or -1."""
        if self._texts is None:
            return as_numbers(visit_ids, NO_VISIT)
        numbers = self._texts.of(visit_ids)
        seen = len(self._row_of_text)
        if len(self._texts.texts) > seen:
            # Ids that are not written as the cohort's are may still be the same in their normal form.
            others = normal_ids(self._texts.texts[seen:].alias("visit_id"))
            index = pl.DataFrame({"visit_id": self.ids, "row": np.arange(len(self.ids))})
            rows = others.to_frame().join(index, on="visit_id", how="left", maintain_order="left")["row"]
            self._row_of_text = np.append(self._row_of_text, rows.fill_null(-1).to_numpy())
        # The last entry is that of a missing id.
        return np.append(self._row_of_text, -1)[np.minimum(numbers, len(self._row_of_text))]


@dataclass(frozen=True)
class GatheredRows:
    """Pairs of visit and key, in runs of one visit, with the first time of each.

    Run r holds the pairs ``run_starts[r]`` to ``run_starts[r + 1]`` of the visit ``run_visits[r]``, -1 for none.
    ``keys`` has a row for each key, ``rows_of_key`` how many rows of it belong to a visit; where ``row_of_key`` is
    given, a key is a number for which it has the row in ``keys``, or -1. ``rows``, ``of_others`` and ``undated`` count
    all rows, those of another patient than their visit's, and those without a time.
    """

    keys: pl.DataFrame
    rows_of_key: Numbers
    run_starts: Numbers
    run_visits: Numbers
    key: npt.NDArray[np.uint32]
    time: Numbers
    rows: int
    of_others: int = 0
    row_of_key: Numbers | None = None
    undated: int = 0

    def codes(self, codes: pl.Series) -> CodeTable:
        """Replace the keys by ``codes``, a list of text for each: each code of a visit once, in order of both."""
        texts = codes.explode(empty_as_null=False).unique().sort()
        numbers = codes.explode(empty_as_null=False).to_frame("code").join(
            pl.DataFrame({"code": texts, "number": np.arange(len(texts))}), on="code", how="left", maintain_order="left"
        )["number"]  # fmt: skip
        ends = codes.list.len().cast(pl.Int64).cum_sum().to_numpy()
        starts = np.append(0, ends)[:-1]
        if self.row_of_key is not None:
            # A key that is not among these has no codes.
            has_row = self.row_of_key >= 0
            starts, ends = (np.where(has_row, place[self.row_of_key], 0) for place in (starts, ends))
        # A table in which no key has several codes, as most have none, needs no count.
        has_one = (ends - starts).max(initial=0) <= 1
        most = len(self.key) if has_one else count_codes(len(self.key), self.key, starts, ends)
        out = np.empty(most, np.uint32), np.empty(most, np.uint32), np.empty(most, np.int64)
        visits = int(self.run_visits.max(initial=-1)) + 1
        order = np.empty(len(self.run_visits), dtype=np.int64)
        filled = distinct_codes_of_visits(
            order,
            order_by_visit(self.run_visits, len(order), np.zeros(visits + 1, dtype=np.int64), visits, order),
            self.run_starts,
            self.run_visits,
            self.key,
            self.time,
            starts,
            ends,
            numbers.to_numpy(),
            len(texts) // 64 + 1,
            np.zeros(len(texts) // 64 + 1, dtype=np.uint64),
            np.zeros(len(texts), dtype=np.int64),
            _BIT_OF_WORD,
            *out,
        )
        visit, found, times = out
        return CodeTable(visit[:filled], found[:filled], times[:filled], texts)


class EventRows:
    """Distinct pairs of visit and key with the first time of each, in the order of the file.

    >>> rows = EventRows(VisitIds(pl.DataFrame({"visit_id": [70, 90], "visit": [0, 1]})), parts=2)
    >>> parts = [np.array(part, np.uint32) for part in ([5, 5, 5, 5], [1, 2, 1, 2])]
    >>> rows.add(pl.Series([70, 70, 70, 80]), None, np.array([9, 8, 7, 6]), parts)
    >>> [part.tolist() for part in rows.parts_of_keys()]
    [[5, 5], [1, 2]]
    >>> gathered = rows.gathered(pl.DataFrame({"code": ["a", "b"]}), rows=4)
    >>> gathered.run_visits.tolist(), gathered.key.tolist(), gathered.time.tolist(), gathered.rows_of_key.tolist()
    ([0], [0, 1], [7, 8], [2, 1])
    """

    def __init__(self, visits: VisitIds, parts: int, expected: int = 0) -> None:
        self.visits = visits
        self._expected = expected
        self._parts = PartsInThree(parts)
        self._state = np.zeros(4, dtype=np.int64)
        self._runs = (np.empty(0, np.int64), np.empty(0, np.int64))
        self._pairs = (np.empty(0, np.uint32), np.empty(0, np.int64))
        self._keys = KeyTable()

    def add(
        self,
        visit_ids: pl.Series,
        subject_ids: pl.Series | None,
        times: Numbers,
        parts: Sequence[npt.NDArray[np.uint32]],
    ) -> None:
        """Add rows: visit and patient as the query selects them, time, and the parts of the key."""
        rows = len(times)
        self._pairs = with_room(self._pairs, int(self._state[FILLED]), rows, self._expected)
        # A run that is cut where the table of keys gets more room is noted twice.
        self._runs = with_room(self._runs, int(self._state[RUNS]), rows + _CUTS)
        ids = self.visits.entries(visit_ids)
        subjects = ids if subject_ids is None else as_numbers(subject_ids, NO_VISIT)
        three = self._parts.in_three(parts)
        reached = 0
        while reached < rows:
            reached = gather_rows(
                reached,
                rows,
                ids,
                subjects,
                int(subject_ids is not None),
                times,
                *three,
                self.visits.known,
                self.visits.table,
                self.visits.places,
                self.visits.visits,
                self.visits.subjects,
                NO_VISIT,
                self._keys.keys,
                self._keys.table,
                len(self._keys.table),
                *self._runs,
                *self._pairs,
                self._state,
            )
            if reached < rows:
                self._keys.make_room(self.known_keys, 4 * len(self._keys.table))

    @property
    def known_keys(self) -> int:
        """How many different keys there are."""
        return int(self._state[KNOWN])

    def parts_of_keys(self) -> list[npt.NDArray[np.uint32]]:
        """Return the parts of all keys, in the order of their numbers."""
        return self._parts.apart(self._keys.parts(self.known_keys))

    def gathered(self, keys: pl.DataFrame, rows: int) -> GatheredRows:
        """Return what was gathered of so many rows; ``keys`` are the distinct keys as the source has them."""
        starts, visits = (column[: self._state[RUNS]] for column in self._runs)
        (key, time), filled = self._pairs, self._state[FILLED]
        return GatheredRows(
            keys=keys,
            rows_of_key=self._keys.rows(self.known_keys),
            run_starts=np.append(starts, filled),
            run_visits=visits,
            key=key[:filled],
            time=time[:filled],
            rows=rows,
            of_others=int(self._state[OF_OTHERS]),
        )


def expected_rows(size: int) -> int:
    """Return how many rows files of so many bytes may hold, a guess: compressed, a row takes five bytes and more.

    >>> expected_rows(80), expected_rows(1 << 40)
    (20, 67108864)
    """
    return min(size // _LEAST_BYTES, _MOST_EXPECTED)


class KeyTable:
    """Distinct keys of three parts, numbered in the order of their appearance, in a hash table that a loop fills.

    ``keys`` has for each key its number of rows, the place where it was last put, and its parts.
    """

    def __init__(self) -> None:
        self.keys = np.empty(0, dtype=np.int64)
        self.make_room(0, _FIRST_PLACES)

    def make_room(self, known: int, places: int) -> None:
        """Let the table have so many places, half of which may be filled."""
        keys = np.zeros((places // 2 + 1, _WIDTH), dtype=np.int64)
        keys[:, 1] = -1
        keys.reshape(-1)[: known * _WIDTH] = self.keys[: known * _WIDTH]
        self.keys = keys.reshape(-1)
        self.table = np.full(places, -1, dtype=np.int32)
        place_keys(self.keys, known, self.table, places)

    def rows(self, known: int) -> Numbers:
        """Return the number of rows of each key."""
        return np.ascontiguousarray(self.keys[: known * _WIDTH].reshape(known, _WIDTH)[:, 0])

    def parts(self, known: int) -> list[npt.NDArray[np.uint32]]:
        """Return the three parts of all keys."""
        return list(self.keys[: known * _WIDTH].reshape(known, _WIDTH)[:, 2:].astype(np.uint32).T)


Columns = TypeVar("Columns", bound=tuple[npt.NDArray[Any], ...])


def with_room(columns: Columns, filled: int, more: int, expected: int = 0) -> Columns:
    """Return columns with room for more rows than are filled; twice as much, for what is not used takes no memory.

    Where that many rows are ``expected``, there is room for them at once, so that none is copied later.
    """
    if filled + more <= len(columns[0]):
        return columns
    size = max(2 * (filled + more), expected)
    wider = tuple(np.empty(size, column.dtype) for column in columns)
    for new, old in zip(wider, columns, strict=True):
        new[:filled] = old[:filled]
    return cast(Columns, wider)


def as_numbers(column: pl.Series, missing: int) -> Numbers:
    """Return a column as whole numbers of 64 bits without gaps in memory.

    >>> as_numbers(pl.Series([7, None]), -1).tolist()
    [7, -1]
    """
    numbers = column.cast(pl.Int64)
    return np.ascontiguousarray((numbers.fill_null(missing) if numbers.null_count() else numbers).to_numpy())


def run_starts(values: npt.NDArray[np.generic]) -> Numbers:
    """Return where each run of equal values starts.

    >>> run_starts(np.array([3, 3, 1, 3])).tolist()
    [0, 2, 3]
    """
    if not len(values):
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
