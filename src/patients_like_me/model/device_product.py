"""The product of a sparse matrix on a graphics card: its rows stay there where they fit, else they come in blocks.

A graph of all neighbours may be larger than the memory of a card. What a product needs there at one time are the dense
states and one block of rows: five bytes per entry where the entries are counts of 8 bits. Rows that do not fit are read
from where they are, in memory or mapped from disk, and sent over with every product.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from patients_like_me.model.devices import free_bytes

#: Entries of one block: their columns and values take 128 MiB as numbers of 32 bits.
ENTRIES_AT_ONCE = 1 << 24
#: The share of a device's free memory that the rows may take for good; the rest is the backbone's and the states'.
KEPT_SHARE = 0.5


class _Rows(NamedTuple):
    """A block of rows as they are sent: places within the block, columns, values."""

    first: int
    last: int
    pointers: Tensor
    columns: Tensor
    values: Tensor


class RowBlocks:
    """The rows of a sparse matrix for one device; ``values`` are numbers, or counts of 8 or 16 bits.

    With ``nodes`` only these rows are multiplied, in this order.

    >>> blocks = RowBlocks(np.array([0, 1, 3]), np.array([1, 0, 1]), np.array([2, 2, 5], dtype=np.uint8), "cpu")
    >>> blocks.product(torch.tensor([[1.0], [10.0]])).tolist(), blocks.are_kept
    ([[20.0], [52.0]], True)
    """

    def __init__(
        self,
        row_pointers: npt.NDArray[np.integer],
        columns: npt.NDArray[np.integer],
        values: npt.NDArray[Any],
        device: torch.device | str,
        *,
        nodes: npt.NDArray[np.int64] | None = None,
        free: int | None = None,
        entries_at_once: int = ENTRIES_AT_ONCE,
    ) -> None:
        self.columns, self.values, self.device = columns, values, torch.device(device)
        chosen = slice(None) if nodes is None else nodes
        self.starts = np.asarray(row_pointers[:-1], dtype=np.int64)[chosen]
        counts = np.asarray(row_pointers[1:], dtype=np.int64)[chosen] - self.starts
        self.size, self.pointers = len(counts), np.concatenate([[0], np.cumsum(counts)])
        self.bounds = block_bounds(self.pointers, entries_at_once)
        needed = int(self.pointers[-1]) * (4 + values.itemsize)
        self.are_kept = needed <= KEPT_SHARE * (free_bytes(self.device) if free is None else free)
        self._kept: list[_Rows] | None = None

    def product(self, dense: Tensor) -> Tensor:
        """Return the product with a dense matrix [N, F] on the device."""
        import warnings

        result = dense.new_empty((self.size, dense.shape[1]))
        for rows in self._rows():
            with warnings.catch_warnings():
                # Torch announces that its CSR layout is in beta.
                warnings.simplefilter("ignore", UserWarning)
                matrix = torch.sparse_csr_tensor(
                    rows.pointers,
                    rows.columns,
                    rows.values.to(dense.dtype),
                    size=(rows.last - rows.first, len(dense)),
                )
            result[rows.first : rows.last] = matrix @ dense
        return result

    def _rows(self) -> Iterator[_Rows]:
        if not self.are_kept:
            yield from self._sent()
            return
        if self._kept is None:
            self._kept = list(self._sent())
        yield from self._kept

    def _sent(self) -> Iterator[_Rows]:
        """Send block after block to the device."""
        for first, last in zip(self.bounds[:-1], self.bounds[1:], strict=True):
            pointers = self.pointers[first : last + 1] - self.pointers[first]
            entries = self._entries(first, last)
            values = np.asarray(self.values[entries])
            if values.dtype == np.uint16:
                # Torch knows these numbers, but few of its functions do.
                values = values.astype(np.int32)
            yield _Rows(
                first,
                last,
                torch.from_numpy(pointers.astype(np.int32)).to(self.device),
                torch.from_numpy(np.ascontiguousarray(self.columns[entries], dtype=np.int32)).to(self.device),
                torch.from_numpy(np.ascontiguousarray(values)).to(self.device),
            )

    def _entries(self, first: int, last: int) -> slice | npt.NDArray[np.int64]:
        """Return where the entries of some rows are: one stretch where the rows follow each other."""
        starts, pointers = self.starts[first:last], self.pointers[first : last + 1]
        if np.array_equal(starts - starts[0], pointers[:-1] - pointers[0]):
            return slice(int(starts[0]), int(starts[0] + pointers[-1] - pointers[0]))
        moved = np.repeat(starts - pointers[:-1], np.diff(pointers))
        entries: npt.NDArray[np.int64] = np.arange(pointers[0], pointers[-1]) + moved
        return entries


def block_bounds(row_pointers: npt.NDArray[np.integer], entries_at_once: int) -> list[int]:
    """Cut rows into blocks of at most about so many entries; a longer row is a block of its own.

    >>> block_bounds(np.array([0, 3, 4, 9, 9]), 4)
    [0, 2, 3, 4]
    """
    bounds, size = [0], len(row_pointers) - 1
    while bounds[-1] < size:
        reached = int(np.searchsorted(row_pointers, row_pointers[bounds[-1]] + entries_at_once, side="right")) - 1
        bounds.append(min(max(reached, bounds[-1] + 1), size))
    return bounds
