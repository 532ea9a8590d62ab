r"""The normalised graph of very many edges, as the counts that it is made of: five bytes per entry and no copy.

.. math:: \hat A H = s \odot (A (s \odot H)) + s^2 \odot \ell \odot H

A holds shared diagnoses, 8 bits each, and stays where the graph has it, in memory or mapped from disk; s is the inverse
root of the degrees and ℓ the self-loops. Stored as numbers, Â would take 12 bytes per entry and three times that while
it is made. The products are equal up to rounding.

An entry costs one multiplication per value and one read of a row of H. Where H is larger than the cache of a core, most
of those reads would wait for memory; the columns are therefore taken in stretches whose rows of H stay in the cache,
and every row of A goes on where it stopped. On a graphics card the rows of A are kept or sent in blocks
(``device_product``).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from patients_like_me.model.device_product import RowBlocks
from patients_like_me.model.sparse_product import SparseProduct, in_row_parts
from patients_like_me.workers import kernel

#: Bytes of H that a core works with at a time: they stay in its second-level cache.
_STRETCH_BYTES = 1 << 19
#: Entries that a row should have in a stretch on average; fewer are not worth going on and stopping.
_ENTRIES_PER_STRETCH = 48


class CountMatrix:
    """Â from counts in compressed rows, columns rising, their self-loops, and whether they are symmetric.

    With ``nodes`` it is Â of these nodes alone, in this order, and nothing is copied: what they receive must come from
    among them, as in the graph of a split. ``self_loops`` are then theirs.

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
        nodes: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.row_pointers = np.ascontiguousarray(row_pointers, dtype=np.int64)
        # Plain arrays: kernels are not compiled again for arrays that are mapped from disk.
        self.columns, self.counts = np.asarray(columns), np.asarray(counts)
        self.nodes = nodes
        chosen = slice(None) if nodes is None else nodes
        self.starts = np.ascontiguousarray(self.row_pointers[:-1][chosen])
        self.ends = np.ascontiguousarray(self.row_pointers[1:][chosen])
        self.self_loops = np.asarray(self_loops, dtype=np.float64)
        self.symmetric = symmetric
        if scale is None:
            members = np.ones(len(self.row_pointers) - 1, dtype=bool)
            if nodes is not None:
                members[:] = False
                members[nodes] = True
            degrees = self.self_loops.copy()
            if not _compiled()[0](self.starts, self.ends, self.columns, self.counts, members, degrees):
                raise ValueError("some nodes receive from others that are not among them")
            scale = np.where(degrees > 0, 1.0 / np.sqrt(np.where(degrees > 0, degrees, 1.0)), 0.0)
        self.scale = scale
        self._transposed: CountMatrix | None = None
        self._on_device: dict[torch.device, RowBlocks] = {}

    @property
    def size(self) -> int:
        """Return the number of rows."""
        return len(self.starts)

    @property
    def entries(self) -> int:
        """Return the number of entries of these rows."""
        return int((self.ends - self.starts).sum())

    def transposed(self) -> CountMatrix:
        """Return the transposed matrix, made at the first call."""
        if self.symmetric:
            return self
        if self.nodes is not None:
            raise ValueError("some of these nodes only receive: their graph is for predictions, not for training")
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
        """Return the product without recording a gradient."""
        if dense.device.type != "cpu":
            return self._product_on_device(dense)
        plain = dense.detach().contiguous().numpy()
        if plain.dtype not in (np.float32, np.float64):
            plain = plain.astype(np.float32)
        scale = self.scale.astype(plain.dtype)
        scaled = self._spread_out(plain * scale[:, None])
        loops = (self.scale**2 * self.self_loops).astype(plain.dtype)
        result = np.empty_like(plain)
        multiply = _compiled()[1]
        # A count as a number of the right precision, looked up: no entry is converted twice.
        numbers = np.arange(1 << 8 * self.counts.itemsize, dtype=plain.dtype)
        cursors = self.starts.copy()
        stretch = self._columns_at_once(plain.shape[1] * plain.itemsize)

        def multiply_rows(first: int, last: int) -> None:
            matrix = (cursors, self.ends, self.columns, self.counts, numbers)
            multiply(*matrix, scaled, plain, scale, loops, result, first, last, stretch)

        in_row_parts(multiply_rows, np.concatenate([[0], np.cumsum(self.ends - self.starts)]), width=plain.shape[1])
        return torch.from_numpy(result).to(dense.dtype)

    def _spread_out(self, values: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """Return the values of the nodes at their places among all nodes of the counts."""
        if self.nodes is None:
            return values
        everyone = np.zeros((len(self.row_pointers) - 1, values.shape[1]), dtype=values.dtype)
        everyone[self.nodes] = values
        return everyone

    def _columns_at_once(self, row_bytes: int) -> int:
        """Return how many columns make a stretch: their rows of H fit the cache, unless the graph is too sparse."""
        fitting = _STRETCH_BYTES // max(row_bytes, 1)
        worth_it = _ENTRIES_PER_STRETCH * self.size * (len(self.row_pointers) - 1) // max(self.entries, 1)
        return max(1, fitting, worth_it)

    def _product_on_device(self, dense: Tensor) -> Tensor:
        device = dense.device
        if device not in self._on_device:
            self._on_device[device] = RowBlocks(self.row_pointers, self.columns, self.counts, device, nodes=self.nodes)
        own = dense.detach()
        scale = torch.from_numpy(self.scale).to(own)[:, None]
        loops = torch.from_numpy(self.scale**2 * self.self_loops).to(own)[:, None]
        scaled = scale * own
        if self.nodes is not None:
            everyone = own.new_zeros((len(self.row_pointers) - 1, own.shape[1]))
            scaled = everyone.index_copy(0, torch.from_numpy(self.nodes).to(device), scaled)
        return scale * self._on_device[device].product(scaled) + loops * own


@cache
def _compiled() -> Any:
    return kernel(_add_rows), kernel(_multiply_counts)


def _add_rows(starts: Any, ends: Any, columns: Any, counts: Any, members: Any, degrees: Any) -> Any:
    """Add up every row, and tell whether all columns are members."""
    closed = True
    for row in range(len(starts)):
        total = 0
        for entry in range(starts[row], ends[row]):
            total += counts[entry]
            closed &= members[columns[entry]]
        degrees[row] += total
    return closed


def _multiply_counts(
    cursors: Any,
    ends: Any,
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
    columns_at_once: int,
) -> None:
    size, width = len(scaled), dense.shape[1]
    for row in range(first_row, last_row):
        total = result[row]
        for place in range(width):
            total[place] = 0
    for stop in range(columns_at_once, size + columns_at_once, columns_at_once):
        for row in range(first_row, last_row):
            entry, end = cursors[row], ends[row]
            total = result[row]
            while entry + 4 <= end and columns[entry + 3] < stop:
                a, b = numbers[counts[entry]], numbers[counts[entry + 1]]
                c, d = numbers[counts[entry + 2]], numbers[counts[entry + 3]]
                first, second = scaled[columns[entry]], scaled[columns[entry + 1]]
                third, fourth = scaled[columns[entry + 2]], scaled[columns[entry + 3]]
                for place in range(width):
                    total[place] += a * first[place] + b * second[place] + c * third[place] + d * fourth[place]
                entry += 4
            while entry < end and columns[entry] < stop:
                a, first = numbers[counts[entry]], scaled[columns[entry]]
                for place in range(width):
                    total[place] += a * first[place]
                entry += 1
            cursors[row] = entry
    for row in range(first_row, last_row):
        total, own, factor, loop = result[row], dense[row], scale[row], loops[row]
        for place in range(width):
            total[place] = factor * total[place] + loop * own[place]
