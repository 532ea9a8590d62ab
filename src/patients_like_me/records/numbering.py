"""Whole numbers for visit ids and for the keys of events, given batch by batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

#: Stands for a missing part of a key.
NULL = np.iinfo(np.uint32).max
Numbers = npt.NDArray[np.int64]


class VisitNumbers:
    """Turns visit ids into visit numbers, once per run of equal ids: whole numbers by search, text as categories.

    ``expression`` is what a query selects to get ids in the form that :meth:`runs_of` takes.

    >>> index = pl.DataFrame({"visit_id": [9, 7], "visit": [0, 1]})
    >>> starts, visits = VisitNumbers(index).runs_of(pl.Series([7, 7, 8, 9]))
    >>> starts.tolist(), visits.tolist()
    ([0, 2, 3, 4], [1, -1, 0])
    """

    def __init__(self, visit_index: pl.DataFrame) -> None:
        self.visits = visit_index["visit"].cast(pl.Int64).to_numpy()
        ids = visit_index["visit_id"]
        if ids.dtype == pl.String:
            # The cohort's ids are the first categories, so that the number of a category is a row of the index.
            categories = pl.Categorical(pl.Categories.random("visits"))
            self.kept_alive = ids.cast(categories)
            self.expression = pl.col("visit_id").fill_null("").cast(categories).to_physical().cast(pl.Int64)
            known = np.arange(len(ids))
        else:
            self.expression = pl.col("visit_id").fill_null(-1)
            known = ids.to_numpy()
        self.order = np.argsort(known, kind="stable")
        self.sorted_ids = known[self.order]

    def runs_of(self, visit_ids: pl.Series) -> tuple[Numbers, Numbers]:
        """Return where each run of one visit starts (and the last ends), and its visit number or -1."""
        ids = visit_ids.to_numpy()
        starts = run_starts(ids)
        heads = ids[starts]
        place = np.minimum(np.searchsorted(self.sorted_ids, heads), len(self.sorted_ids) - 1)
        numbers = np.where(self.sorted_ids[place] == heads, self.visits[self.order[place]], -1)
        return np.append(starts, len(ids)), numbers


class KeyNumbers:
    """The distinct keys seen so far, numbered in the order of their appearance; a key has one or two parts.

    ``rows`` counts, by number, the rows of each key that belong to a visit of the cohort.

    >>> keys = KeyNumbers()
    >>> keys.numbers_of([np.array([5, 5], np.uint32), np.array([1, 2], np.uint32)]).tolist(), keys.known
    ([0, 1], 2)
    >>> [part.tolist() for part in keys.parts(2)]
    [[5, 5], [1, 2]]
    """

    def __init__(self) -> None:
        self.known = 0
        self.rows = np.zeros(0, dtype=np.int64)
        self._empty_table(1 << 16)

    def numbers_of(self, parts: Sequence[npt.NDArray[np.uint32]]) -> Numbers:
        """Return the number of each row's key; keys not seen before get the next numbers."""
        from patients_like_me.records.event_kernels import number_keys

        packed = parts[-1].astype(np.uint64)
        if len(parts) == 2:
            packed |= parts[0].astype(np.uint64) << np.uint64(32)
        if 2 * (self.known + len(packed)) > len(self.table_keys):
            old = self._in_order()
            self._empty_table(4 * (self.known + len(packed)))
            number_keys(old, self.table_keys, self.table_numbers, 0)
        numbers: Numbers
        numbers, self.known = number_keys(packed, self.table_keys, self.table_numbers, self.known)
        if self.known > len(self.rows):
            self.rows = np.append(self.rows, np.zeros(self.known, dtype=np.int64))
        return numbers

    def parts(self, count: int) -> list[npt.NDArray[np.uint64]]:
        """Return the parts of all keys, in the order of their numbers."""
        packed = self._in_order()
        last = packed & np.uint64(0xFFFFFFFF)
        return [last] if count == 1 else [packed >> np.uint64(32), last]

    def _in_order(self) -> npt.NDArray[np.uint64]:
        filled = np.flatnonzero(self.table_numbers >= 0)
        return self.table_keys[filled[np.argsort(self.table_numbers[filled])]]

    def _empty_table(self, at_least: int) -> None:
        size = 1 << (at_least - 1).bit_length()
        self.table_keys: npt.NDArray[np.uint64] = np.zeros(size, dtype=np.uint64)
        self.table_numbers: Numbers = np.full(size, -1, dtype=np.int64)


def run_starts(values: npt.NDArray[np.generic]) -> Numbers:
    """Return where each run of equal values starts.

    >>> run_starts(np.array([3, 3, 1, 3])).tolist()
    [0, 2, 3]
    """
    if not len(values):
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
