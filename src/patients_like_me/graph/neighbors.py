"""The neighbours of any rows among the nodes of a bit index: the strongest k, or all."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.graph.bit_index import BitIndex
from patients_like_me.graph.kernels import QueryRows, count_neighbors, list_neighbors, strongest
from patients_like_me.workers import Progress, announced, in_threads

logger = logging.getLogger("patients_like_me")

Csr = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[Any]]

_ROWS_AT_ONCE = 512
_LIST_ENTRIES = 1 << 18


def find_neighbors(
    index: BitIndex,
    rows: QueryRows,
    selection: npt.NDArray[np.int64],
    *,
    tau: int,
    max_neighbors: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    statistics: npt.NDArray[np.int64] | None = None,
) -> Csr:
    """Return as CSR, for each selected row, the nodes that share at least ``tau`` codes with it, in rising order.

    With ``max_neighbors`` only the strongest are kept: by overlap, then by higher cosine of the sets (among equal
    overlaps the smaller set), then by lower index. The result of a row depends on nothing but the row.
    """
    if tau < 1:
        raise PlmError(
            f"tau={tau} is not possible: any two patients share at least 0 diagnoses", remedy="give 1 or more"
        )
    kind = np.uint8 if rows.sizes.max(initial=0) < 256 else np.uint16
    if not len(index) or not len(selection):
        empty = np.zeros(len(selection) + 1, dtype=np.int64)
        return empty, np.empty(0, dtype=np.int32), np.empty(0, dtype=kind)
    if max_neighbors is None:
        return _all_neighbors(index, rows, selection, tau, kind, threads, progress)
    keep = min(max_neighbors, len(index))
    return _strongest_neighbors(index, rows, selection, tau, keep, kind, threads, progress, statistics)


def _strongest_neighbors(
    index: BitIndex,
    rows: QueryRows,
    selection: npt.NDArray[np.int64],
    tau: int,
    keep: int,
    kind: Any,
    threads: int | None,
    progress: Progress | None,
    statistics: npt.NDArray[np.int64] | None,
) -> Csr:
    if index.order != "preference":
        raise ValueError("the strongest neighbours need an index in the order of preference")
    # Rows of one size run through the same instructions: no branch of the processor is guessed wrong.
    by_size = np.argsort(rows.sizes[selection], kind="stable")
    step = max(16, min(_ROWS_AT_ONCE, _LIST_ENTRIES // max(2 * keep, 64)))
    counts = np.zeros(len(selection), dtype=np.int64)

    def part(first: int) -> tuple[Any, Any, Any]:
        places = by_size[first : first + step]
        found = np.zeros(len(places), dtype=np.int64)
        neighbors = np.empty((len(places), keep), dtype=np.int32)
        weights = np.empty((len(places), keep), dtype=kind)
        work = np.zeros(4, dtype=np.int64)
        with announced(strongest):
            strongest(index.columns, rows, selection[places], tau, keep, found, neighbors, weights, work)
        counts[places] = found
        used = np.arange(keep) < found[:, None]
        return neighbors[used], weights[used], work

    parts = in_threads(part, range(0, len(selection), step), threads=threads, progress=progress)
    if statistics is not None:
        statistics += np.sum([work for _, _, work in parts], axis=0)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    neighbors = np.empty(indptr[-1], dtype=np.int32)
    weights = np.empty(indptr[-1], dtype=kind)
    for number, (part_neighbors, part_weights, _) in enumerate(parts):
        places = by_size[number * step : (number + 1) * step]
        lengths = counts[places]
        targets = np.arange(len(part_neighbors)) + np.repeat(indptr[places] - np.cumsum(lengths) + lengths, lengths)
        neighbors[targets], weights[targets] = part_neighbors, part_weights
    return indptr, neighbors, weights


def _all_neighbors(
    index: BitIndex,
    rows: QueryRows,
    selection: npt.NDArray[np.int64],
    tau: int,
    kind: Any,
    threads: int | None,
    progress: Progress | None,
) -> Csr:
    if index.order != "index":
        raise ValueError("listing all neighbours in rising order needs an index in the order of the nodes")
    counts = np.zeros(len(selection), dtype=np.int64)
    firsts = range(0, len(selection), _ROWS_AT_ONCE)

    def count(first: int) -> None:
        part = slice(first, first + _ROWS_AT_ONCE)
        with announced(count_neighbors):
            count_neighbors(index.columns, rows, selection[part], tau, counts[part])

    in_threads(count, firsts, threads=threads)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    _refuse_what_memory_cannot_hold(int(indptr[-1]), np.dtype(kind).itemsize + 4)
    neighbors = np.empty(indptr[-1], dtype=np.int32)
    weights = np.empty(indptr[-1], dtype=kind)

    def fill(first: int) -> None:
        part = slice(first, first + _ROWS_AT_ONCE)
        with announced(list_neighbors):
            list_neighbors(index.columns, rows, selection[part], tau, indptr[:-1][part], neighbors, weights)

    in_threads(fill, firsts, threads=threads, progress=progress)
    return indptr, neighbors, weights


def _refuse_what_memory_cannot_hold(entries: int, bytes_per_entry: int) -> None:
    import psutil

    available = psutil.virtual_memory().available
    if entries * bytes_per_entry > 0.8 * available:
        raise PlmError(
            f"the graph would have {entries // 2:,} edges, {entries * bytes_per_entry / 2**30:.1f} GiB, and "
            f"{available / 2**30:.1f} GiB of memory are free",
            remedy="set max_neighbors, choose a larger tau, or build it in blocks on disk",
        )
