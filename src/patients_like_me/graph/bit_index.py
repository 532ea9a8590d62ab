"""The bit rows of a set of nodes, built once, against which any rows can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.graph.adders import LANES, MAX_PLANES, Number
from patients_like_me.graph.kernels import Columns, QueryRows
from patients_like_me.workers import announced, kernel

Order = Literal["preference", "index"]

_BLOCK_BYTES = 1 << 19
_LARGEST_BLOCK_WORDS = 32


@dataclass(frozen=True)
class BitIndex:
    """Nodes as columns of a bit table: one bit row per code that at least two nodes have.

    ``order='preference'`` sorts the columns so that among equal overlaps a later one is the better neighbour (the
    smaller set, which is the higher cosine; then the lower index); ``'index'`` leaves them as they are.
    """

    columns: Columns
    row_of_code: npt.NDArray[np.int64]
    order: Order

    @classmethod
    def build(
        cls,
        indptr: npt.NDArray[np.int64],
        codes: npt.NDArray[np.int32],
        patients: npt.NDArray[np.int32],
        number_of_codes: int,
        *,
        order: Order = "preference",
        shared_codes_only: bool = True,
    ) -> BitIndex:
        """Build the table; ``shared_codes_only`` leaves out codes of a single node, which no two nodes share.

        >>> indptr, codes = np.array([0, 2, 3, 5]), np.array([0, 1, 1, 0, 1], dtype=np.int32)
        >>> index = BitIndex.build(indptr, codes, np.arange(3, dtype=np.int32), 2)
        >>> index.columns.nodes.tolist()
        [2, 0, 1]
        """
        sizes = np.diff(indptr)
        if sizes.size and sizes.max() >= 1 << MAX_PLANES:
            raise PlmError(
                f"an instance has {sizes.max():,} diagnoses; the graph can count at most {(1 << MAX_PLANES) - 1:,}",
                remedy="map the codes to broader categories",
            )
        occurrences = np.bincount(codes, minlength=number_of_codes)
        wanted = occurrences >= (2 if shared_codes_only else 1)
        row_of_code = np.where(wanted, np.cumsum(wanted) - 1, -1).astype(np.int64)
        number = int(wanted.sum())
        # Stable and reversed: larger sets first, and the higher index first among sets of one size.
        nodes = np.arange(len(sizes)) if order == "index" else np.argsort(sizes, kind="stable")[::-1]
        words = _words_per_block(number, len(sizes))
        blocks = -(-len(sizes) // (64 * words))
        table = np.zeros(blocks * number * words, dtype=np.uint64)
        with announced(_fill_table):
            _fill_table(table, indptr, codes, row_of_code, nodes, words, number)
        padded = np.zeros(blocks * 64 * words, dtype=np.int64)
        padded[: len(sizes)] = sizes[nodes]
        column_patients = np.ascontiguousarray(patients[nodes], dtype=np.int32)
        columns = Columns(
            table=table,
            words=words,
            codes=number,
            largest=padded.reshape(blocks, 64 * words).max(axis=1),
            nodes=nodes.astype(np.int32),
            patients=column_patients,
            mates=np.argsort(column_patients, kind="stable").astype(np.int64),
        )
        return cls(columns=columns, row_of_code=row_of_code, order=order)

    def __len__(self) -> int:
        return len(self.columns.nodes)

    @property
    def nbytes(self) -> int:
        """The bytes of the bit table."""
        return int(self.columns.table.nbytes)

    @cached_property
    def _patients_in_order(self) -> npt.NDArray[np.int32]:
        """The patients of the columns, rising: looked up for every newcomer."""
        ordered: npt.NDArray[np.int32] = self.columns.patients[self.columns.mates]
        return ordered

    def rows(
        self,
        indptr: npt.NDArray[np.int64],
        codes: npt.NDArray[np.int32],
        patients: npt.NDArray[np.int32],
    ) -> QueryRows:
        """Make sets of codes comparable with the columns; codes without a bit row are left out."""
        numbered = codes < len(self.row_of_code)
        places = np.full(len(codes), -1, dtype=np.int64)
        places[numbered] = self.row_of_code[codes[numbered]]
        known = places >= 0
        sizes = np.diff(indptr)
        if not known.all():
            kept_before = np.concatenate([[0], np.cumsum(known)])
            indptr = kept_before[indptr]
            sizes = np.diff(indptr)
            places = places[known]
        ordered = self._patients_in_order
        mates = np.stack(
            [np.searchsorted(ordered, patients, "left"), np.searchsorted(ordered, patients, "right")], axis=1
        )
        return QueryRows(
            offsets=(places * self.columns.words).astype(np.uint32),
            starts=np.ascontiguousarray(indptr[:-1], dtype=np.int64),
            sizes=sizes.astype(np.int64),
            patients=np.ascontiguousarray(patients, dtype=np.int32),
            mates=mates.astype(np.int64),
        )


def _words_per_block(codes: int, nodes: int) -> int:
    """Choose the width of a block so that its bit rows fit the second-level cache."""
    words = _LARGEST_BLOCK_WORDS
    while words > LANES and words * 8 * codes > _BLOCK_BYTES:
        words //= 2
    needed = -(-nodes // 64)
    return max(LANES, min(words, -(-needed // LANES) * LANES))


@kernel
def _fill_table(
    table: Any, indptr: Any, codes: Any, row_of_code: Any, nodes: Any, words: Number, number_of_rows: Number
) -> None:
    """Set the bit of every (code, column)."""
    for column in range(len(nodes)):
        block, inside = divmod(column, 64 * words)
        bit = np.uint64(1) << np.uint64(inside % 64)
        for place in range(indptr[nodes[column]], indptr[nodes[column] + 1]):
            row = row_of_code[codes[place]]
            if row >= 0:
                table[(block * number_of_rows + row) * words + inside // 64] |= bit
