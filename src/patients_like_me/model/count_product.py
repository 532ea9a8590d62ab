r"""The normalised graph of very many edges, as the counts that it is made of: five bytes per entry and no copy.

.. math:: \hat A H = s \odot (A (s \odot H)) + s^2 \odot \ell \odot H

A holds shared diagnoses, 8 bits each, and stays where the graph has it, in memory or mapped from disk; s is the inverse
root of the degrees and ℓ the self-loops. Stored as numbers, Â would take 12 bytes per entry and three times that while
it is made. The products are equal up to rounding.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from patients_like_me.model.sparse_product import SparseProduct, in_row_parts
from patients_like_me.workers import kernel


class CountMatrix:
    """Â from counts in compressed rows, their self-loops, and whether they are symmetric.

    >>> counts = np.array([3, 3], dtype=np.uint8)
    >>> matrix = CountMatrix(np.array([0, 1, 2]), np.array([1, 0], dtype=np.int32), counts, np.ones(2), symmetric=True)
    >>> matrix.multiply(torch.tensor([[4.0], [8.0]], dtype=torch.float64)).tolist()
    [[7.0], [5.0]]
    """

    def __init__(
        self,
        row_pointers: npt.NDArray[np.integer],
        columns: npt.NDArray[np.integer],
        counts: npt.NDArray[np.integer],
        self_loops: npt.NDArray[np.number],
        *,
        symmetric: bool,
        scale: npt.NDArray[np.float64] | None = None,
    ) -> None:
        self.row_pointers = np.ascontiguousarray(row_pointers, dtype=np.int64)
        self.columns, self.counts = columns, counts
        self.self_loops = np.asarray(self_loops, dtype=np.float64)
        self.symmetric = symmetric
        if scale is None:
            degrees = self.self_loops.copy()
            _compiled()[0](self.row_pointers, np.asarray(counts), degrees)
            scale = np.where(degrees > 0, 1.0 / np.sqrt(np.where(degrees > 0, degrees, 1.0)), 0.0)
        self.scale = scale
        self._transposed: CountMatrix | None = None

    @property
    def size(self) -> int:
        """Return the number of rows."""
        return len(self.row_pointers) - 1

    def transposed(self) -> CountMatrix:
        """Return the transposed matrix, made at the first call."""
        if self.symmetric:
            return self
        if self._transposed is None:
            from scipy.sparse import csr_matrix

            shape = (self.size, self.size)
            turned = csr_matrix((self.counts, self.columns, self.row_pointers), shape=shape).T.tocsr()
            self._transposed = CountMatrix(
                turned.indptr, turned.indices, turned.data, self.self_loops, symmetric=False, scale=self.scale
            )
            self._transposed._transposed = self
        return self._transposed

    def multiply(self, dense: Tensor) -> Tensor:
        """Return the product with a dense matrix [N, F], differentiable in the dense matrix."""
        product: Tensor = SparseProduct.apply(dense, self)  # type: ignore[no-untyped-call]
        return product

    def product(self, dense: Tensor) -> Tensor:
        """Return the product without recording a gradient; it is computed on the CPU."""
        plain = dense.detach().cpu().contiguous().numpy()
        if plain.dtype not in (np.float32, np.float64):
            plain = plain.astype(np.float32)
        scale = self.scale.astype(plain.dtype)
        scaled = plain * scale[:, None]
        loops = (self.scale**2 * self.self_loops).astype(plain.dtype)
        result = np.empty_like(plain)
        multiply = _compiled()[1]
        columns, counts = np.asarray(self.columns), np.asarray(self.counts)
        # A count as a number of the right precision, looked up: no entry is converted twice.
        numbers = np.arange(1 << 8 * counts.itemsize, dtype=plain.dtype)

        def multiply_rows(first: int, last: int) -> None:
            multiply(self.row_pointers, columns, counts, numbers, scaled, plain, scale, loops, result, first, last)

        in_row_parts(multiply_rows, self.row_pointers, width=plain.shape[1])
        return torch.from_numpy(result).to(dense.dtype).to(dense.device)


@cache
def _compiled() -> Any:
    return kernel(_add_rows), kernel(_multiply_counts)


def _add_rows(row_pointers: Any, counts: Any, degrees: Any) -> None:
    for row in range(len(row_pointers) - 1):
        total = 0
        for entry in range(row_pointers[row], row_pointers[row + 1]):
            total += counts[entry]
        degrees[row] += total


def _multiply_counts(
    row_pointers: Any,
    columns: Any,
    counts: Any,
    numbers: Any,
    scaled: Any,
    dense: Any,
    scale: Any,
    loops: Any,
    result: Any,
    first_row: int,
    last_row: int,
) -> None:
    width = dense.shape[1]
    for row in range(first_row, last_row):
        total = result[row]
        for place in range(width):
            total[place] = 0
        entry, end = row_pointers[row], row_pointers[row + 1]
        while entry + 4 <= end:
            a, b = numbers[counts[entry]], numbers[counts[entry + 1]]
            c, d = numbers[counts[entry + 2]], numbers[counts[entry + 3]]
            first, second = scaled[columns[entry]], scaled[columns[entry + 1]]
            third, fourth = scaled[columns[entry + 2]], scaled[columns[entry + 3]]
            for place in range(width):
                total[place] += a * first[place] + b * second[place] + c * third[place] + d * fourth[place]
            entry += 4
        while entry < end:
            a, first = numbers[counts[entry]], scaled[columns[entry]]
            for place in range(width):
                total[place] += a * first[place]
            entry += 1
        own, factor, loop = dense[row], scale[row], loops[row]
        for place in range(width):
            total[place] = factor * total[place] + loop * own[place]
