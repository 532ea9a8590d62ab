"""Instances as rows of weighted codes, and the weights that make their overlap the IDF cosine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError


@dataclass(frozen=True)
class WeightedRows:
    """The codes of every instance with their weights, as rows of a sparse matrix (CSR).

    Row ``i`` holds ``codes[indptr[i]:indptr[i + 1]]``, rising and distinct; all weights are above 0.
    """

    indptr: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    number_of_codes: int

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @classmethod
    def of(
        cls,
        indptr: npt.ArrayLike,
        codes: npt.ArrayLike,
        weights: npt.ArrayLike | None = None,
        *,
        number_of_codes: int | None = None,
    ) -> WeightedRows:
        """Take a CSR matrix in any order: weights of a repeated code are added, zeros are left out.

        Without ``weights`` every code of a row has the weight 1.

        >>> rows = WeightedRows.of([0, 3, 3], [2, 0, 2], [0.5, 0.0, 0.25])
        >>> rows.codes.tolist(), rows.weights.tolist(), len(rows)
        ([2], [0.75], 2)
        """
        starts = np.ascontiguousarray(indptr, dtype=np.int64)
        names = np.ascontiguousarray(codes, dtype=np.int32)
        values = np.ones(len(names), np.float32) if weights is None else np.ascontiguousarray(weights, np.float32)
        number = int(names.max(initial=-1)) + 1 if number_of_codes is None else number_of_codes
        if len(values) != len(names) or not len(starts) or starts[0] != 0 or starts[-1] != len(names):
            raise PlmError(
                f"{len(names):,} codes, {len(values):,} weights and row ends up to "
                f"{starts[-1] if len(starts) else 0:,} do not belong together",
                remedy="give the arrays of one CSR matrix",
            )
        if (np.diff(starts) < 0).any() or (names < 0).any() or (names >= number).any():
            raise PlmError(
                f"a row end falls or a code is outside of 0 to {number - 1}", remedy="number the codes from 0"
            )
        if not np.isfinite(values).all() or (values < 0).any():
            raise PlmError("a code weight is negative or not finite", remedy="give weights of 0 or more")
        owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        same_row = owners[1:] == owners[:-1]
        if (same_row & (np.diff(names) <= 0)).any():
            keys, place = np.unique(owners * np.int64(number) + names, return_inverse=True)
            values = np.bincount(place, weights=values).astype(np.float32)
            owners, names = keys // number, (keys % number).astype(np.int32)
            starts = np.searchsorted(owners, np.arange(len(starts)))
        rows = cls(starts, names, values, number)
        return rows if (values > 0).all() else rows.where(values > 0)

    @classmethod
    def from_lists(cls, rows: Sequence[Mapping[int, float]], *, number_of_codes: int | None = None) -> WeightedRows:
        """Make rows from plain mappings of code to weight."""
        return cls.of(
            np.concatenate([[0], np.cumsum([len(row) for row in rows])]),
            [code for row in rows for code in row],
            [weight for row in rows for weight in row.values()],
            number_of_codes=number_of_codes,
        )

    def where(self, chosen: npt.NDArray[np.bool_], *, number_of_codes: int | None = None) -> WeightedRows:
        """Return the rows with the chosen entries only."""
        number = self.number_of_codes if number_of_codes is None else number_of_codes
        if chosen.all():
            return WeightedRows(self.indptr, self.codes, self.weights, number)
        starts = np.concatenate([[0], np.cumsum(chosen)])[self.indptr]
        return WeightedRows(starts, self.codes[chosen], self.weights[chosen], number)

    def taken(self, rows: npt.NDArray[np.int64]) -> WeightedRows:
        """Return the given rows, in the given order."""
        sizes = np.diff(self.indptr)[rows]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        places = np.arange(starts[-1]) + np.repeat(self.indptr[rows] - starts[:-1], sizes)
        return WeightedRows(starts, self.codes[places], self.weights[places], self.number_of_codes)

    def times(self, code_weights: npt.ArrayLike) -> WeightedRows:
        """Return the rows with every weight multiplied by that of its code."""
        factors = np.asarray(code_weights, dtype=np.float32)
        if len(factors) < self.number_of_codes:
            raise PlmError(
                f"there are {len(factors):,} code weights for {self.number_of_codes:,} codes",
                remedy="give one per code",
            )
        return WeightedRows.of(
            self.indptr, self.codes, self.weights * factors[self.codes], number_of_codes=self.number_of_codes
        )

    def normalised(self) -> WeightedRows:
        """Return the rows scaled to length 1, so that overlaps are cosines; an empty row stays empty.

        >>> WeightedRows.from_lists([{0: 3, 1: 4}, {}]).normalised().weights.tolist()
        [0.6000000238418579, 0.800000011920929]
        """
        sizes = np.diff(self.indptr)
        owners = np.repeat(np.arange(len(self)), sizes)
        lengths = np.sqrt(np.bincount(owners, self.weights.astype(np.float64) ** 2, minlength=len(self)))
        weights = (self.weights / lengths[owners]).astype(np.float32)
        return WeightedRows(self.indptr, self.codes, weights, self.number_of_codes)


def idf_weights(bank: WeightedRows) -> npt.NDArray[np.float32]:
    """Return log((n + 1) / (n_c + 1)) for every code c that n_c of the n rows of the bank have.

    Only the bank counts: the codes of evaluated instances and newcomers must not move the weights. A code that
    no row of the bank has gets log(n + 1); it is shared with nobody, but belongs to the length of a query.

    >>> idf_weights(WeightedRows.from_lists([{0: 1}, {0: 1, 1: 1}, {0: 1}], number_of_codes=3)).round(3).tolist()
    [0.0, 0.6930000185966492, 1.3860000371932983]
    """
    counts = np.bincount(bank.codes, minlength=bank.number_of_codes)
    return np.log((len(bank) + 1) / (counts + 1)).astype(np.float32)


def idf_cosine(bank: WeightedRows, *others: WeightedRows) -> tuple[WeightedRows, ...]:
    """Return the bank and any other rows, weighted by the bank's IDF and scaled to length 1.

    >>> bank = WeightedRows.from_lists([{0: 1}, {1: 1}, {0: 1, 1: 1}])
    >>> weighted, queries = idf_cosine(bank, WeightedRows.from_lists([{1: 1}], number_of_codes=2))
    >>> queries.weights.tolist()
    [1.0]
    """
    weights = idf_weights(bank)
    return tuple(rows.times(weights).normalised() for rows in (bank, *others))
