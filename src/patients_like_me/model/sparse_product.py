"""A fast product of a fixed sparse matrix with a dense one, with its gradient.

Y = M X for a CSR matrix M [N, N] and X [N, F]. The gradient with respect to X is M^T G; a symmetric M serves for both.
Rows are independent, so the sums are formed in the same order for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from patients_like_me.model.device_product import RowBlocks
from patients_like_me.workers import kernel

#: Multiplications below which starting threads costs more than it saves.
_WORTH_A_THREAD = 1_000_000


class CsrMatrix:
    """A square sparse matrix in compressed rows: row i holds ``columns[row_pointers[i] : row_pointers[i + 1]]``.

    >>> matrix = CsrMatrix(np.array([0, 1, 3]), np.array([1, 0, 1]), np.array([2.0, 2.0, 5.0]), symmetric=True)
    >>> matrix.multiply(torch.tensor([[1.0], [10.0]], dtype=torch.float64)).tolist()
    [[20.0], [52.0]]
    """

    def __init__(
        self,
        row_pointers: npt.NDArray[np.integer],
        columns: npt.NDArray[np.integer],
        values: npt.NDArray[np.floating],
        *,
        symmetric: bool,
    ) -> None:
        self.row_pointers = np.ascontiguousarray(row_pointers, dtype=np.int64)
        self.columns = np.ascontiguousarray(columns, dtype=np.int32)
        self.values = np.ascontiguousarray(values)
        self.symmetric = symmetric
        self._transposed: CsrMatrix | None = None
        self._on_device: dict[tuple[torch.device, torch.dtype], RowBlocks] = {}
        self._values_as: dict[np.dtype[Any], npt.NDArray[np.floating]] = {self.values.dtype: self.values}

    @property
    def size(self) -> int:
        """Return the number of rows."""
        return len(self.row_pointers) - 1

    def transposed(self) -> CsrMatrix:
        """Return the transposed matrix, made at the first call."""
        if self.symmetric:
            return self
        if self._transposed is None:
            from scipy.sparse import csr_matrix

            turned = csr_matrix((self.values, self.columns, self.row_pointers), shape=(self.size, self.size)).T.tocsr()
            self._transposed = CsrMatrix(turned.indptr, turned.indices, turned.data, symmetric=False)
            self._transposed._transposed = self
        return self._transposed

    def multiply(self, dense: Tensor) -> Tensor:
        """Return the product with a dense matrix [N, F], differentiable in the dense matrix."""
        product: Tensor = SparseProduct.apply(dense, self)  # type: ignore[no-untyped-call]
        return product

    def product(self, dense: Tensor) -> Tensor:
        """Return the product without recording a gradient; for this alone there may be fewer rows than columns."""
        if dense.device.type != "cpu" or dense.dtype not in (torch.float32, torch.float64):
            return self._on(dense.device, dense.dtype).product(dense)
        plain = dense.detach().contiguous().numpy()
        if plain.dtype not in self._values_as:
            self._values_as[plain.dtype] = self.values.astype(plain.dtype)
        result = np.empty((self.size, plain.shape[1]), dtype=plain.dtype)
        multiply, values = _kernel(), self._values_as[plain.dtype]

        def multiply_rows(first: int, last: int) -> None:
            multiply(self.row_pointers, self.columns, values, plain, result, first, last)

        in_row_parts(multiply_rows, self.row_pointers, width=plain.shape[1])
        return torch.from_numpy(result)

    def _on(self, device: torch.device, dtype: torch.dtype) -> RowBlocks:
        if (device, dtype) not in self._on_device:
            values = self.values if dtype == torch.float64 else self.values.astype(np.float32)
            self._on_device[device, dtype] = RowBlocks(self.row_pointers, self.columns, values, device)
        return self._on_device[device, dtype]


class SparseProduct(torch.autograd.Function):
    """The product with a fixed matrix that has ``product`` and ``transposed``, differentiable in the dense one."""

    @staticmethod
    def forward(context: Any, dense: Tensor, matrix: Any) -> Tensor:
        """Return the product."""
        context.matrix = matrix
        product: Tensor = matrix.product(dense)
        return product

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the product of the gradient with the transposed matrix."""
        return context.matrix.transposed().multiply(gradients[0]), None


def in_row_parts(multiply_rows: Callable[[int, int], None], row_pointers: npt.NDArray[np.int64], *, width: int) -> None:
    """Call ``multiply_rows(first, last)`` for all rows, in torch's number of threads where that is worth it."""
    size, entries = len(row_pointers) - 1, int(row_pointers[-1])
    threads = torch.get_num_threads() if entries * width > _WORTH_A_THREAD else 1
    if threads == 1:
        multiply_rows(0, size)
        return
    # Parts with about the same number of entries, several per thread, since rows differ in cost.
    bounds = np.unique(np.searchsorted(row_pointers, np.linspace(0, entries, 4 * threads + 1))).tolist()
    bounds = [0, *[bound for bound in bounds if 0 < bound < size], size]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(multiply_rows, bounds[:-1], bounds[1:]))


@cache
def _kernel() -> Any:
    return kernel(_multiply_rows)


def _multiply_rows(
    row_pointers: Any, columns: Any, values: Any, dense: Any, result: Any, first_row: int, last_row: int
) -> None:
    width = dense.shape[1]
    for row in range(first_row, last_row):
        total = result[row]
        for place in range(width):
            total[place] = 0
        entry, end = row_pointers[row], row_pointers[row + 1]
        # Four neighbours at a time: the running total is read and written a quarter as often.
        while entry + 4 <= end:
            a, b, c, d = values[entry], values[entry + 1], values[entry + 2], values[entry + 3]
            first, second = dense[columns[entry]], dense[columns[entry + 1]]
            third, fourth = dense[columns[entry + 2]], dense[columns[entry + 3]]
            for place in range(width):
                total[place] += a * first[place] + b * second[place] + c * third[place] + d * fourth[place]
            entry += 4
        while entry < end:
            a, first = values[entry], dense[columns[entry]]
            for place in range(width):
                total[place] += a * first[place]
            entry += 1
