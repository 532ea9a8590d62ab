"""Equal texts of a batch by where they lie in memory, without looking at them.

A column of polars holds, for each row, 16 bytes: a short text itself, or where a longer one lies. What was decoded from
a list of different texts, as columns of codes in Parquet are, points to few places again and again. Two rows of one
place have one text; two places may have the same text, which the caller finds out, for few rows are left to look at.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.machine_code import loop

#: Fewer rows are not worth it.
_FEW: Final = 20_000
_PLACES: Final = 1 << 15


def places_of(texts: pl.Series) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]] | None:
    """Return the number of each row's place, and a row for each place in the order of their appearance.

    None where there are few rows or many places, or a text is missing.

    >>> numbers, rows = places_of(pl.Series(["b", "a"] * 10_000))
    >>> numbers[:4].tolist(), rows.tolist(), places_of(pl.Series(["b", "a"]))
    ([0, 1, 0, 1], [0, 1], None)
    """
    if len(texts) < _FEW or texts.null_count():
        return None
    import pyarrow as pa

    array = texts.rechunk().to_arrow(compat_level=pl.CompatLevel.newest())
    if array.type != pa.string_view():
        return None
    views = np.frombuffer(array.buffers()[1], dtype=np.uint64)[2 * array.offset : 2 * (array.offset + len(array))]
    numbers, rows = np.empty(len(array), dtype=np.uint32), np.empty(_PLACES // 2 + 1, dtype=np.int64)
    table = np.full(_PLACES, -1, dtype=np.int32)
    found = number_views(len(array), views, table, _PLACES, numbers, rows)
    return None if 2 * found >= _PLACES else (numbers, rows[:found])


@loop
def number_views(
    rows: int,
    views: npt.NDArray[np.uint64],
    table: npt.NDArray[np.int32],
    places: int,
    numbers: npt.NDArray[np.uint32],
    first_rows: npt.NDArray[np.int64],
) -> int:
    """Number the pairs of 64 bits in the order of their appearance; stop where the table is half full."""
    last = np.uint64(places - 1)
    found = 0
    for row in range(rows):
        low, high = views[2 * row], views[2 * row + 1]
        mixed = low * np.uint64(0x9E3779B97F4A7C15) + high * np.uint64(0xC2B2AE3D27D4EB4F)
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
        place = (mixed >> np.uint64(32)) & last
        number = np.int64(table[place])
        while number >= 0 and (views[2 * first_rows[number]] != low or views[2 * first_rows[number] + 1] != high):
            place = (place + np.uint64(1)) & last
            number = np.int64(table[place])
        if number < 0:
            if 2 * found + 2 >= places:
                return places
            number = np.int64(found)
            table[place] = number
            first_rows[number] = row
            found += 1
        numbers[row] = number
    return found


@loop
def replace_numbers(rows: int, numbers: npt.NDArray[np.uint32], by: npt.NDArray[np.uint32]) -> int:
    """Replace each number by the one that stands at its place in ``by``."""
    for row in range(rows):
        numbers[row] = by[numbers[row]]
    return rows
