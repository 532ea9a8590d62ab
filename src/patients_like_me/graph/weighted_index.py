"""A bank of instances as weighted codes, built once, against which any instances can be compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.graph.people import NO_BOUNDS, Bounds
from patients_like_me.graph.weighted_kernels import Queries, WeightedColumns, strongest_weighted
from patients_like_me.graph.weighted_rows import WeightedRows
from patients_like_me.graph.weighted_sums import CHUNK
from patients_like_me.workers import Progress, announced, in_threads, kernel

_LARGEST_FRACTION = 65535
_FREQUENT = 0.04
"""From this share of the bank on a code has a weight row; adding a whole row is then faster than its single columns."""
_BLOCK_BYTES = 1 << 19
_LARGEST_BLOCK = 8192
_QUERIES_AT_ONCE = 256
_LIST_ENTRIES = 1 << 18


class Strongest(NamedTuple):
    """The most similar bank rows of every query, the strongest first, so that the first k columns are the top k."""

    neighbors: npt.NDArray[np.int32]
    """``[queries, k]``: rows of the bank; -1 where there are no more."""
    similarities: npt.NDArray[np.float32]
    """``[queries, k]``: 0 where there are no more."""


@dataclass(frozen=True)
class WeightedIndex:
    """The bank, ready for :meth:`strongest`.

    similarity(i, j) = sum over the codes c that i and j share of w_ic * w_jc, for any weights that are not negative;
    with rows of length 1 it is the cosine. It is computed in double precision from the weights in the order of the
    codes and rounded to single precision once: no result depends on threads, on blocks, or on the other queries.
    """

    bank: WeightedColumns
    rows: WeightedRows
    patients: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64] | None
    largest: npt.NDArray[np.float64]
    """Per code: its largest weight in the bank; 0 where the bank lacks it."""
    smallest: npt.NDArray[np.float64]
    """Per code: its smallest 16-bit fraction."""
    frequent_number: npt.NDArray[np.int64]
    """Per code: its weight row, or -1."""
    rare_number: npt.NDArray[np.int64]
    """Per code: its number among the rare codes, or -1."""

    @classmethod
    def build(
        cls,
        rows: WeightedRows,
        *,
        patients: npt.ArrayLike | None = None,
        groups: npt.ArrayLike | None = None,
        people: Bounds | None = None,
    ) -> WeightedIndex:
        """Index the rows of a bank; ``patients`` and ``groups`` (sites, say) are one whole number per row.

        ``people`` says whom each row goes with by sex and age, as :class:`~.people.PersonRule` writes it.

        >>> rows = WeightedRows.from_lists([{0: 0.6, 1: 0.8}, {1: 1.0}, {0: 1.0}])
        >>> index = WeightedIndex.build(rows, patients=[7, 8, 9])
        >>> found = index.strongest(rows, 2, patients=[7, 8, 9])
        >>> found.neighbors.tolist()
        [[1, 2], [0, -1], [0, -1]]
        >>> found.similarities.round(3).tolist()
        [[0.800000011920929, 0.6000000238418579], [0.800000011920929, 0.0], [0.6000000238418579, 0.0]]
        """
        number = len(rows)
        patient_numbers = one_number_per_row("patients", patients, number)
        group_numbers = None if groups is None else one_number_per_row("groups", groups, number)
        # In random order, the columns of a group together: the kernel takes the first columns as a sample.
        order = np.random.default_rng(0).permutation(number)
        if group_numbers is not None:
            order = order[np.argsort(group_numbers[order], kind="stable")]
        columns = rows.taken(order)
        counts = np.bincount(columns.codes, minlength=rows.number_of_codes)
        largest = np.zeros(rows.number_of_codes)
        np.maximum.at(largest, columns.codes, columns.weights)
        fractions = np.floor(columns.weights / largest[columns.codes] * _LARGEST_FRACTION)
        smallest = np.full(rows.number_of_codes, float(_LARGEST_FRACTION))
        np.minimum.at(smallest, columns.codes, fractions)
        frequent = counts >= max(_FREQUENT * number, 1)
        rare = (counts > 0) & ~frequent
        frequent_number = np.where(frequent, np.cumsum(frequent) - 1, -1)
        rare_number = np.where(rare, np.cumsum(rare) - 1, -1)
        block = _columns_per_block(int(frequent.sum()), number)
        entries = np.empty(len(columns.codes), dtype=[("code", np.int32), ("weight", np.float32)])
        entries["code"], entries["weight"] = columns.codes, columns.weights
        bank = WeightedColumns(
            table=_aligned_zeros(-(-number // CHUNK) * int(frequent.sum()) * CHUNK),
            frequent=int(frequent.sum()),
            block=block,
            posting_starts=np.zeros(-(-number // block) * int(rare.sum()) + 1, dtype=np.int64),
            rare=int(rare.sum()),
            positions=np.empty(int(counts[rare].sum()), dtype=np.uint16),
            fractions=np.empty(int(counts[rare].sum()), dtype=np.uint16),
            starts=columns.indptr,
            entries=entries,
            patients=patient_numbers[order],
            people=bounds_per_row(people, number)[order if people is not None else order[:0]],
            rows=order.astype(np.int32),
            column_of_row=np.argsort(order).astype(np.int32),
        )
        with announced(_fill):
            _fill(bank, columns.codes, fractions.astype(np.uint16), frequent_number, rare_number)
        return cls(bank, rows, patient_numbers, group_numbers, largest, smallest, frequent_number, rare_number)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """The bytes of the index."""
        return sum(part.nbytes for part in self.bank if isinstance(part, np.ndarray))

    def strongest(
        self,
        queries: WeightedRows,
        k: int,
        *,
        patients: npt.ArrayLike | None = None,
        groups: npt.ArrayLike | None = None,
        people: Bounds | None = None,
        exclude_same_patient: bool = True,
        threads: int | None = None,
        progress: Progress | None = None,
        statistics: npt.NDArray[np.int64] | None = None,
    ) -> Strongest:
        """Return the ``k`` bank rows of every query with the largest similarity, exactly.

        Equal similarities (in single precision) are taken in the order of the bank's rows, the lower row first. A
        similarity of 0 is never returned. For several k ask for the largest: the others are its first columns; the same
        holds for powers of the similarity, which do not change the order.

        ``patients`` are those of the queries; without them the queries are new persons and no row is excluded. With
        ``groups`` a query is compared with the rows of its own group only, with ``people`` with those that fit.
        """
        if k < 1:
            raise PlmError(f"k={k} is not possible", remedy="give 1 or more")
        number, keep = len(queries), min(k, len(self))
        neighbors = np.full((number, k), -1, dtype=np.int32)
        similarities = np.zeros((number, k), dtype=np.float32)
        if not number or not keep:
            return Strongest(neighbors, similarities)
        exclude = exclude_same_patient and patients is not None
        prepared = self._prepared(
            queries,
            one_number_per_row("patients", patients, number),
            bounds_per_row(people, number),
            self._ranges(groups, number),
        )
        # Queries of one group read the same blocks.
        order = np.argsort(prepared.columns[:, 0], kind="stable")
        step = max(16, min(_QUERIES_AT_ONCE, _LIST_ENTRIES // (2 * keep + CHUNK)))

        def part(first: int) -> npt.NDArray[np.int64]:
            selection = order[first : first + step]
            found = np.full((len(selection), keep), -1, dtype=np.int32)
            values = np.zeros((len(selection), keep), dtype=np.float32)
            work = np.zeros(3, dtype=np.int64)
            with announced(strongest_weighted):
                strongest_weighted(
                    self.bank, prepared, selection, keep, exclude, self.rows.number_of_codes, found, values, work
                )
            neighbors[selection, :keep], similarities[selection, :keep] = found, values
            return work

        parts = in_threads(part, range(0, number, step), threads=threads, progress=progress)
        if statistics is not None:
            statistics += np.sum(parts, axis=0)
        return Strongest(neighbors, similarities)

    def strongest_of_each(
        self,
        k: int,
        *,
        within_groups: bool = False,
        exclude_same_patient: bool = True,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> Strongest:
        """Return the strongest of every row of the bank among the others; no row is its own neighbour."""
        if within_groups and self.groups is None:
            raise PlmError("the index has no groups", remedy="build it with groups")
        if exclude_same_patient:
            index, patients = self, self.patients
        else:
            patients = np.arange(len(self))
            index = replace(self, bank=self.bank._replace(patients=patients[self.bank.rows]))
        groups = self.groups if within_groups else None
        return index.strongest(self.rows, k, patients=patients, groups=groups, threads=threads, progress=progress)

    def _ranges(self, groups: npt.ArrayLike | None, number: int) -> npt.NDArray[np.int64]:
        """Return from which column to which each query is compared."""
        if groups is None:
            return np.tile(np.array([0, len(self)]), (number, 1))
        if self.groups is None:
            raise PlmError("the queries have groups and the index has none", remedy="build it with groups")
        wanted, ordered = one_number_per_row("groups", groups, number), np.sort(self.groups)
        return np.stack([np.searchsorted(ordered, wanted, side) for side in ("left", "right")], axis=1)

    def _prepared(
        self, queries: WeightedRows, patients: npt.NDArray[np.int64], people: Bounds, columns: npt.NDArray[np.int64]
    ) -> Queries:
        """Give every query its factors: 16-bit fractions of the largest sum that any column could have."""
        if queries.number_of_codes > len(self.largest):
            known = queries.codes < len(self.largest)
            queries = queries.where(known, number_of_codes=len(self.largest))
        queries = queries.where(self.largest[queries.codes] > 0)
        sizes = np.diff(queries.indptr)
        reach = queries.weights * self.largest[queries.codes]
        total = np.add.reduceat(np.append(reach, 0.0), queries.indptr[:-1]) * (sizes > 0)
        frequent = self.frequent_number[queries.codes] >= 0
        owners = np.repeat(np.arange(len(queries)), sizes)
        rare_codes = np.bincount(owners[~frequent], minlength=len(queries))
        # Room for the one unit that every rare code may add.
        scale = _LARGEST_FRACTION - 1 - rare_codes
        if (scale < 1).any():
            raise PlmError(
                f"a query has {int(sizes.max()):,} codes; at most {_LARGEST_FRACTION - 2:,} can be compared",
                remedy="map the codes to broader categories",
            )
        units = np.where(total > 0, total, 1.0) / scale
        factors = np.floor(reach / units[owners])
        # A product below 2**16 adds nothing to a sum: then a sum of 0 does not mean that no code is shared.
        vanishing = np.zeros(len(queries), dtype=bool)
        vanishing[owners[frequent & (factors * self.smallest[queries.codes] < 1 << 16)]] = True
        codes, whole = queries.codes, factors.astype(np.uint16)

        def starts(chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
            return np.concatenate([[0], np.cumsum(chosen)])[queries.indptr]

        return Queries(
            starts=queries.indptr,
            codes=codes,
            weights=queries.weights,
            frequent_starts=starts(frequent),
            frequent_offsets=(self.frequent_number[codes[frequent]] * CHUNK).astype(np.uint32),
            frequent_factors=whole[frequent],
            rare_starts=starts(~frequent),
            rare_numbers=self.rare_number[codes[~frequent]].astype(np.int32),
            rare_factors=whole[~frequent],
            patients=patients,
            people=people,
            columns=columns,
            units=units,
            # A product is up to two units too small, that of a rare code up to one too large.
            slacks=2 * sizes + rare_codes + 2,
            thresholds=np.where(vanishing, 0, 1),
        )


def one_number_per_row(name: str, given: npt.ArrayLike | None, number: int) -> npt.NDArray[np.int64]:
    """Return one whole number per row; zeros if none are given."""
    numbers = np.zeros(number, dtype=np.int64) if given is None else np.asarray(given)
    if numbers.shape != (number,) or (numbers.size and not np.issubdtype(numbers.dtype, np.integer)):
        raise PlmError(
            f"{name} has the shape {numbers.shape} and the type {numbers.dtype}",
            remedy=f"give {number:,} whole numbers, one per row",
        )
    return np.ascontiguousarray(numbers, dtype=np.int64)


def bounds_per_row(given: Bounds | None, number: int) -> Bounds:
    """Return three whole numbers per row; none at all if none are given."""
    if given is None:
        return NO_BOUNDS
    if given.shape != (number, NO_BOUNDS.shape[1]):
        raise PlmError(
            f"people has the shape {given.shape}", remedy=f"give {number:,} rows of bounds, as a PersonRule makes them"
        )
    return np.ascontiguousarray(given, dtype=np.int16)


def _columns_per_block(frequent: int, number: int) -> int:
    """Choose the width of a block so that its weight rows fit the second-level cache."""
    fitting = _BLOCK_BYTES // max(2 * frequent, 1)
    needed = -(-number // CHUNK) * CHUNK
    return max(CHUNK, min(fitting // CHUNK * CHUNK, _LARGEST_BLOCK, needed))


def _aligned_zeros(length: int) -> npt.NDArray[np.uint16]:
    """Return zeros that begin with a cache line: a vector that crosses two lines takes two loads."""
    memory = np.zeros(length + 32, dtype=np.uint16)
    first = -memory.ctypes.data % 64 // 2
    return memory[first : first + length]


@kernel
def _fill(bank: WeightedColumns, codes: Any, fractions: Any, frequent_number: Any, rare_number: Any) -> None:
    """Fill the weight rows, and the lists of the rare codes block by block."""
    indptr, frequent, rare, block = bank.starts, bank.frequent, bank.rare, bank.block
    table, starts, positions, rare_fractions = bank.table, bank.posting_starts, bank.positions, bank.fractions
    for column in range(len(indptr) - 1):
        for place in range(indptr[column], indptr[column + 1]):
            row = frequent_number[codes[place]]
            if row >= 0:
                table[(column // CHUNK * frequent + row) * CHUNK + column % CHUNK] = fractions[place]
            else:
                starts[column // block * rare + rare_number[codes[place]] + 1] += 1
    for number in range(1, len(starts)):
        starts[number] += starts[number - 1]
    cursors = starts.copy()
    for column in range(len(indptr) - 1):
        for place in range(indptr[column], indptr[column + 1]):
            number = rare_number[codes[place]]
            if number >= 0:
                cursor = cursors[column // block * rare + number]
                positions[cursor] = column % block
                rare_fractions[cursor] = fractions[place]
                cursors[column // block * rare + number] += 1
