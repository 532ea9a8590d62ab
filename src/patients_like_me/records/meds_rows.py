"""The rows of a MEDS dataset as whole numbers, gathered before the visits are known.

A row that has a code of a diagnosis, procedure or medication is reduced to its key (the code, and the texts of other
columns that the dialect uses with it) and to the visit that it names, or to its place in time. See ``meds_kernels``.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.records.event_rows import (
    NO_VISIT,
    GatheredRows,
    KeyTable,
    Numbers,
    run_starts,
    with_room,
)
from patients_like_me.records.meds_kernels import (
    APART,
    FILLED,
    KNOWN,
    LOOSE,
    RUNS,
    VISITS,
    count_rows,
    gather_coded_rows,
    place_visits,
)
from patients_like_me.records.text_numbers import NULL, PartsInThree

#: What becomes of the rows of a code.
PASSED_OVER, SET_APART, HAS_KEY = range(3)
_FIRST_PLACES: Final = 1 << 13
_CUTS: Final = 64
Words = npt.NDArray[np.uint32]


class CodedRows:
    """Distinct pairs of named visit and key with their first time and number of rows, and the rows that name no visit.

    ``texts`` is how many columns of texts a key may use, ``expected`` a guess of how many rows there are.
    """

    def __init__(self, texts: int, expected: int = 0) -> None:
        self._texts = texts
        self._expected = expected
        #: More than two texts and the code are made three parts.
        self._parts = PartsInThree(texts + 1) if texts > 2 else None
        self._state = np.zeros(6, dtype=np.int64)
        self._runs = (np.empty(0, np.int64), np.empty(0, np.int64))
        self._pairs = (np.empty(0, np.uint32), np.empty(0, np.int64), np.empty(0, np.uint32))
        self._keys = KeyTable()
        self._visit_ids = np.empty(0, dtype=np.int64)
        self._visit_subjects = np.empty(0, dtype=np.int64)
        self._loose: list[tuple[Numbers, Numbers, Words]] = []
        self._make_room_for_visits(_FIRST_PLACES)

    def add(
        self,
        subjects: Numbers,
        ids: Numbers,
        times: Numbers,
        codes: Words,
        texts: list[Words],
        what: npt.NDArray[np.int8],
        uses: npt.NDArray[np.uint8],
    ) -> Numbers:
        """Add rows (``ids`` is NO_VISIT where no visit is named) and return the numbers of those that are set apart.

        ``what`` says for each code what becomes of its rows, ``uses`` which texts belong to its key.
        """
        rows = len(codes)
        self._pairs = with_room(self._pairs, int(self._state[FILLED]), rows, self._expected)
        # A run that is cut where a table gets more room is noted twice.
        self._runs = with_room(self._runs, int(self._state[RUNS]), rows + _CUTS)
        self._state[[APART, LOOSE]] = 0
        apart, loose_rows, loose_keys = np.empty(rows, np.int64), np.empty(rows, np.int64), np.empty(rows, np.uint32)
        first, second, used = self._two_texts(codes, texts, uses)
        reached = 0
        while reached < rows:
            reached = gather_coded_rows(
                reached,
                rows,
                subjects,
                ids,
                NO_VISIT,
                times,
                codes,
                first,
                second,
                what,
                used,
                NULL,
                self._visit_subjects,
                self._visit_ids,
                self._visit_table,
                len(self._visit_table),
                self._keys.keys,
                self._keys.table,
                len(self._keys.table),
                *self._runs,
                *self._pairs,
                apart,
                loose_rows,
                loose_keys,
                self._state,
            )
            if 2 * self._state[KNOWN] >= len(self._keys.table):
                self._keys.make_room(int(self._state[KNOWN]), 4 * len(self._keys.table))
            if 2 * self._state[VISITS] >= len(self._visit_table):
                self._make_room_for_visits(4 * len(self._visit_table))
        if loose := int(self._state[LOOSE]):
            at = loose_rows[:loose]
            self._loose.append((subjects[at], times[at], loose_keys[:loose].copy()))
        return apart[: self._state[APART]]

    def _two_texts(
        self, codes: Words, texts: list[Words], uses: npt.NDArray[np.uint8]
    ) -> tuple[Words, Words, npt.NDArray[np.uint8]]:
        """Return the texts as two columns, and which of them belong to the key of each code."""
        if self._parts is not None:
            masked = [np.where(uses[codes, place] > 0, text, np.uint32(NULL)) for place, text in enumerate(texts)]
            first, second, _ = self._parts.in_three([*masked, codes])
            return first, second, np.ones(2 * len(uses), dtype=np.uint8)
        nothing = np.zeros(len(codes), dtype=np.uint32)
        first, second = [*texts, nothing, nothing][:2]
        used = np.zeros((len(uses), 2), dtype=np.uint8)
        used[:, : self._texts] = uses
        return first, second, used.reshape(-1)

    def keys(self) -> npt.NDArray[np.uint32]:
        """Return the parts of every key, a row each: the number of the code, and those of its texts."""
        code, first, second = self._keys.parts(int(self._state[KNOWN]))
        if self._parts is not None:
            *texts, code = self._parts.apart([first, second, code])
            return np.stack([code, *texts], axis=1)
        return np.stack([code, *(first, second)[: self._texts]], axis=1)

    @property
    def rows_of_key(self) -> Numbers:
        """How many rows each key has, with and without a visit."""
        return self._keys.rows(int(self._state[KNOWN]))

    def named_visits(self) -> tuple[Numbers, Numbers]:
        """Return subject and id of the visits that rows name, in the order in which pairs number them."""
        visits = self._state[VISITS]
        return self._visit_subjects[:visits], self._visit_ids[:visits]

    def runs(self) -> tuple[Numbers, Numbers]:
        """Return where the pairs of each run start, and the visit that they name."""
        starts, visits = (column[: self._state[RUNS]] for column in self._runs)
        return starts, visits

    def pairs(self) -> tuple[Words, Numbers, Words]:
        """Return key, first time and number of rows of each pair."""
        (key, time, rows), filled = self._pairs, self._state[FILLED]
        return key[:filled], time[:filled], rows[:filled]

    def loose(self) -> tuple[Numbers, Numbers, Words]:
        """Return subject, time and key of the rows that name no visit."""
        nothing = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint32))
        subjects, times, keys = zip(nothing, *self._loose, strict=True)
        return np.concatenate(subjects), np.concatenate(times), np.concatenate(keys)

    def _make_room_for_visits(self, places: int) -> None:
        visits, room = int(self._state[VISITS]), places // 2 + 1
        ids, subjects = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
        ids[:visits], subjects[:visits] = self._visit_ids[:visits], self._visit_subjects[:visits]
        self._visit_ids, self._visit_subjects = ids, subjects
        self._visit_table = np.full(places, -1, dtype=np.int64)
        place_visits(self._visit_subjects, self._visit_ids, visits, self._visit_table, places)


class PairsOfVisits:
    """The gathered rows with their visits: for the visits of a cohort, the part that some of the keys have in them.

    ``ids`` are the ids of all visits, ``named`` the row among them of each visit that pairs name, and ``loose`` that of
    each row that names none; -1 for no visit.
    """

    def __init__(self, ids: pl.Series, rows: CodedRows, named: Numbers, loose: Numbers) -> None:
        self._ids, self._rows = ids, rows
        self._lock = Lock()
        self._counted: tuple[pl.DataFrame, Numbers, Numbers] | None = None
        self._key, self._time, self._count = rows.pairs()
        starts, visits = rows.runs()
        self._run_starts, self._run_rows = np.append(starts, len(self._key)), named[visits]
        if len(loose):
            _, times, keys = rows.loose()
            starts = len(self._key) + run_starts(loose)
            end = len(self._key) + len(loose)
            self._run_starts = np.concatenate([self._run_starts[:-1], starts, [end]])
            self._run_rows = np.append(self._run_rows, loose[starts - len(self._key)])
            self._key, self._time = np.append(self._key, keys), np.append(self._time, times)
            self._count = np.append(self._count, np.ones(len(loose), dtype=np.uint32))

    def rows_of(self, visits: npt.NDArray[np.bool_]) -> int:
        """Return how many rows name one of these visits."""
        if not visits.any():
            return 0
        starts, named = self._rows.runs()
        counts = self._rows.pairs()[2].astype(np.int64)
        return int(np.add.reduceat(counts, starts)[visits[named]].sum()) if len(starts) else 0

    def gathered(self, visit_index: pl.DataFrame, *, keys: pl.DataFrame, row_of_key: Numbers) -> GatheredRows:
        """Return the rows of ``keys``; ``row_of_key`` is the row in them of each key, or -1."""
        run_visits, in_visits = self._in_visits(visit_index, len(row_of_key))
        mine = np.flatnonzero(row_of_key >= 0)
        rows_of_key = np.zeros(keys.height, dtype=np.int64)
        np.add.at(rows_of_key, row_of_key[mine], in_visits[mine])
        return GatheredRows(
            keys=keys,
            rows_of_key=rows_of_key,
            run_starts=self._run_starts,
            run_visits=run_visits,
            key=self._key,
            time=self._time,
            rows=int(self._rows.rows_of_key[mine].sum()),
            row_of_key=row_of_key,
        )

    def _in_visits(self, visit_index: pl.DataFrame, keys: int) -> tuple[Numbers, Numbers]:
        """Return the visit of each run and how many rows each key has in visits, which is asked for every kind."""
        with self._lock:
            if self._counted is None or self._counted[0] is not visit_index:
                index = visit_index.select("visit_id", pl.col("visit").cast(pl.Int64))
                ids = self._ids.to_frame("visit_id")
                numbers = ids.join(index, on="visit_id", how="left", maintain_order="left")["visit"]
                # The last entry is that of the rows without a visit.
                run_visits = np.append(numbers.fill_null(-1).to_numpy(), -1)[self._run_rows]
                in_visits = np.zeros(keys, dtype=np.int64)
                count_rows(self._run_starts, run_visits, len(run_visits), self._key, self._count, in_visits)
                self._counted = visit_index, run_visits, in_visits
            return self._counted[1:]
