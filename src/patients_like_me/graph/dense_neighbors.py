"""The strongest neighbours by the cosine of dense embeddings, from matrix products of blocks.

The products are single precision and their last digits depend on the shape of a block. They serve as bounds only: the
cosines of what survives are computed again in double precision, so the result depends on nothing but the two vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.graph.people import NO_BOUNDS, Bounds
from patients_like_me.graph.weighted_index import Strongest, bounds_per_row, one_number_per_row
from patients_like_me.graph.weighted_kernels import fits, key_of, row_of, value_of
from patients_like_me.graph.weighted_sums import Number
from patients_like_me.workers import Progress, announced, in_threads, kernel

Array = Any
Vectors = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]

_QUERIES_AT_ONCE = 256
_ROWS_AT_ONCE = 4096


class Embedded(NamedTuple):
    """Vectors of length 1, the patients they belong to, and whom these go with by sex and age (no rows: everybody)."""

    vectors: Array
    patients: Array
    people: Array


class DenseLists(NamedTuple):
    """What was found so far for the queries of one call, one row per query."""

    columns: Array
    """int64 ``[queries, capacity]``: rows of the bank."""
    products: Array
    """float32 ``[queries, capacity]``: their products with the query."""
    fill: Array
    """int64: how many rows of the bank are in the list."""
    thresholds: Array
    """float32: rows with a smaller product are not looked at."""


@dataclass(frozen=True)
class DenseIndex:
    """The embeddings of a bank, scaled to length 1; a vector of zeros stays one and is similar to nobody."""

    vectors: Vectors
    patients: Numbers
    groups: Numbers | None
    people: Bounds = field(default_factory=NO_BOUNDS.copy)

    @classmethod
    def build(
        cls,
        embeddings: npt.ArrayLike,
        *,
        patients: npt.ArrayLike | None = None,
        groups: npt.ArrayLike | None = None,
        people: Bounds | None = None,
    ) -> DenseIndex:
        """Take one embedding per row; ``patients`` and ``groups`` are one whole number per row, ``people`` its bounds.

        >>> index = DenseIndex.build([[1, 0], [3, 4], [0, -1]], patients=[0, 1, 2])
        >>> found = index.strongest([[2, 0]], 2)
        >>> found.neighbors.tolist(), found.similarities.round(3).tolist()
        ([[0, 1]], [[1.0, 0.6000000238418579]])
        """
        vectors = _scaled(embeddings)
        given = None if groups is None else one_number_per_row("groups", groups, len(vectors))
        numbers = one_number_per_row("patients", patients, len(vectors))
        return cls(vectors, numbers, given, bounds_per_row(people, len(vectors)))

    def __len__(self) -> int:
        return len(self.vectors)

    def strongest(
        self,
        queries: npt.ArrayLike,
        k: int,
        *,
        patients: npt.ArrayLike | None = None,
        groups: npt.ArrayLike | None = None,
        people: Bounds | None = None,
        exclude_same_patient: bool = True,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> Strongest:
        """Return the ``k`` bank rows of every query with the largest cosine above 0.

        The same rules as :meth:`patients_like_me.graph.weighted_index.WeightedIndex.strongest`: equal cosines in the
        order of the rows, no row of the same patient, with ``groups`` only rows of the same group, with ``people``
        only rows that fit.
        """
        if k < 1:
            raise PlmError(f"k={k} is not possible", remedy="give 1 or more")
        vectors = _scaled(queries)
        if len(vectors) and len(self) and vectors.shape[1] != self.vectors.shape[1]:
            raise PlmError(
                f"the queries have {vectors.shape[1]} dimensions and the bank {self.vectors.shape[1]}",
                remedy="embed both with the same model",
            )
        exclude = exclude_same_patient and patients is not None
        persons = one_number_per_row("patients", patients, len(vectors))
        looking = bounds_per_row(people, len(vectors))
        found = Strongest(np.full((len(vectors), k), -1, dtype=np.int32), np.zeros((len(vectors), k), dtype=np.float32))
        for rows, columns in self._pairings(groups, len(vectors)):
            names = np.arange(len(self))[columns]
            others = self.people[columns] if len(self.people) else self.people
            bank, keep = Embedded(self.vectors[columns], self.patients[columns], others), min(k, len(names))

            def part(
                first: int,
                rows: Any = rows,
                bank: Embedded = bank,
                names: Any = names,
                keep: int = keep,
            ) -> None:
                places = rows[first : first + _QUERIES_AT_ONCE]
                wanted = Embedded(vectors[places], persons[places], looking[places] if len(looking) else looking)
                listed, values = _strongest_of(bank, wanted, keep, exclude)
                found.neighbors[places, :keep] = np.where(listed < 0, -1, names[listed])
                found.similarities[places, :keep] = values

            with _one_thread_per_product():
                in_threads(part, range(0, len(rows), _QUERIES_AT_ONCE), threads=threads, progress=progress)
        return found

    def strongest_of_each(
        self, k: int, *, within_groups: bool = False, threads: int | None = None, progress: Progress | None = None
    ) -> Strongest:
        """Return the strongest of every row of the bank among the rows of other patients."""
        if within_groups and self.groups is None:
            raise PlmError("the index has no groups", remedy="build it with groups")
        groups = self.groups if within_groups else None
        return self.strongest(
            self.vectors, k, patients=self.patients, groups=groups, threads=threads, progress=progress
        )

    def _pairings(self, groups: npt.ArrayLike | None, number: int) -> list[tuple[Any, Any]]:
        """Return which queries are compared with which rows of the bank."""
        if not number or not len(self):
            return []
        if groups is None:
            return [(np.arange(number), slice(0, len(self)))]
        if self.groups is None:
            raise PlmError("the queries have groups and the index has none", remedy="build it with groups")
        wanted = one_number_per_row("groups", groups, number)
        shared = np.intersect1d(wanted, self.groups)
        return [(np.flatnonzero(wanted == group), np.flatnonzero(self.groups == group)) for group in shared]


def _scaled(embeddings: npt.ArrayLike) -> Vectors:
    vectors = np.asarray(embeddings, dtype=np.float32)
    if vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise PlmError(
            f"embeddings of the shape {vectors.shape} are not one row of finite numbers per instance",
            remedy="give a matrix without missing values",
        )
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))[:, None]
    return np.ascontiguousarray(vectors / np.where(lengths > 0, lengths, 1), dtype=np.float32)


def _one_thread_per_product() -> Any:
    """Keep the matrix products from starting threads of their own: the blocks of queries are the threads."""
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1, user_api="blas")


def _strongest_of(among: Embedded, wanted: Embedded, keep: int, exclude: bool) -> tuple[Numbers, Vectors]:
    """Return the strongest rows of a bank for some queries, -1 and 0 where there are no more."""
    bank, queries = among.vectors, wanted.vectors
    # The products of vectors of length 1 are off by at most this.
    margin = np.float32((bank.shape[1] + 8) * 2.0**-23)
    capacity = 2 * keep + 64
    lists = DenseLists(
        np.empty((len(queries), capacity), dtype=np.int64),
        np.empty((len(queries), capacity), dtype=np.float32),
        np.zeros(len(queries), dtype=np.int64),
        np.full(len(queries), -margin, dtype=np.float32),
    )
    listed = np.full((len(queries), keep), -1, dtype=np.int64)
    values = np.zeros((len(queries), keep), dtype=np.float32)
    for first in range(0, len(bank), _ROWS_AT_ONCE):
        block = queries @ bank[first : first + _ROWS_AT_ONCE].T
        with announced(_collect):
            _collect(block, first, among, wanted, exclude, keep, margin, lists)
    with announced(_finish):
        _finish(bank, queries, keep, lists.columns, lists.fill, listed, values)
    return listed, values


@kernel
def _collect(
    block: Array,
    first: Number,
    bank: Embedded,
    queries: Embedded,
    exclude: bool,
    keep: Number,
    margin: Number,
    lists: DenseLists,
) -> None:
    """Add the rows whose product reaches the threshold of a query to its list, and shorten lists that are full."""
    owners, persons = bank.patients, queries.patients
    others, looking = bank.people, queries.people
    compares = len(others) > 0 and len(looking) > 0
    columns, products, fill, thresholds = lists.columns, lists.products, lists.fill, lists.thresholds
    capacity = columns.shape[1]
    for query in range(block.shape[0]):
        threshold, count = thresholds[query], fill[query]
        for place in range(block.shape[1]):
            product = block[query, place]
            if product < threshold or (exclude and owners[first + place] == persons[query]):
                continue
            if compares and not fits(looking[query], others[first + place]):
                continue
            if count == capacity:
                weakest = np.sort(products[query])[capacity - keep]
                threshold = max(threshold, np.float32(weakest - 2 * margin))
                count = 0
                for entry in range(capacity):
                    if products[query, entry] >= threshold:
                        columns[query, count], products[query, count] = columns[query, entry], products[query, entry]
                        count += 1
                if count > capacity - (keep + 64) // 2:
                    # Many equals: only their cosines and their order tell which to keep.
                    keys = _ranked(bank.vectors, queries.vectors[query], columns[query, :count])
                    count = min(len(keys), keep)
                    for rank in range(count):
                        columns[query, rank], products[query, rank] = row_of(keys[rank]), value_of(keys[rank])
                    if count == keep:
                        threshold = max(threshold, np.float32(products[query, keep - 1] - 2 * margin))
                if product < threshold:
                    continue
            columns[query, count], products[query, count] = first + place, product
            count += 1
        thresholds[query], fill[query] = threshold, count


@kernel
def _finish(
    bank: Array, queries: Array, keep: Number, columns: Array, fill: Array, listed: Array, values: Array
) -> None:
    """Write the strongest of every list."""
    for query in range(len(queries)):
        keys = _ranked(bank, queries[query], columns[query, : fill[query]])
        for rank in range(min(len(keys), keep)):
            listed[query, rank], values[query, rank] = row_of(keys[rank]), value_of(keys[rank])


@kernel
def _ranked(bank: Array, query: Array, columns: Array) -> Array:
    """Return the keys of the rows with a cosine above 0, the strongest first."""
    keys = np.empty(len(columns), np.uint64)
    count = 0
    for column in columns:
        cosine = np.float32(_dot(query, bank[column]))
        if cosine > 0:
            keys[count] = key_of(cosine, column)
            count += 1
    return np.sort(keys[:count])


@kernel
def _dot(first: Array, second: Array) -> Number:
    """Return the product of two vectors in double precision, as four sums that are added in a fixed order."""
    sums = (0.0, 0.0, 0.0, 0.0)
    whole = len(first) // 4 * 4
    for place in range(0, whole, 4):
        sums = (
            sums[0] + np.float64(first[place]) * second[place],
            sums[1] + np.float64(first[place + 1]) * second[place + 1],
            sums[2] + np.float64(first[place + 2]) * second[place + 2],
            sums[3] + np.float64(first[place + 3]) * second[place + 3],
        )
    total = (sums[0] + sums[1]) + (sums[2] + sums[3])
    for place in range(whole, len(first)):
        total += np.float64(first[place]) * second[place]
    return total
