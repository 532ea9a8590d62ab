"""Compiled inner loops of the event reader: numbering keys, and distinct codes per visit without sorting rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from patients_like_me.workers import kernel


@kernel
def number_keys(
    keys: npt.NDArray[np.uint64],
    table_keys: npt.NDArray[np.uint64],
    table_numbers: npt.NDArray[np.int64],
    known: int,
) -> tuple[npt.NDArray[np.int64], int]:
    """Return the number of each key, and how many keys are known now; new keys get the next numbers.

    The two tables are one open hash table of a power-of-two size, more than half empty; a number of -1 marks an
    empty place.
    """
    numbers = np.empty(len(keys), dtype=np.int64)
    last = np.uint64(len(table_keys) - 1)
    for row in range(len(keys)):
        key = keys[row]
        mixed = (key ^ (key >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
        place = (mixed >> np.uint64(20)) & last
        while table_numbers[place] >= 0 and table_keys[place] != key:
            place = (place + np.uint64(1)) & last
        if table_numbers[place] < 0:
            table_keys[place], table_numbers[place] = key, known
            known += 1
        numbers[row] = table_numbers[place]
    return numbers, known


@kernel
def number_pairs(
    first: npt.NDArray[np.uint32],
    second: npt.NDArray[np.uint32],
    table_keys: npt.NDArray[np.uint64],
    table_numbers: npt.NDArray[np.int64],
    known: int,
) -> tuple[npt.NDArray[np.int64], int]:
    """Do what :func:`number_keys` does for keys of two parts."""
    numbers = np.empty(len(first), dtype=np.int64)
    last = np.uint64(len(table_keys) - 1)
    for row in range(len(first)):
        key = (np.uint64(first[row]) << np.uint64(32)) | np.uint64(second[row])
        mixed = (key ^ (key >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
        place = (mixed >> np.uint64(20)) & last
        while table_numbers[place] >= 0 and table_keys[place] != key:
            place = (place + np.uint64(1)) & last
        if table_numbers[place] < 0:
            table_keys[place], table_numbers[place] = key, known
            known += 1
        numbers[row] = table_numbers[place]
    return numbers, known


@kernel
def find_keys(
    keys: npt.NDArray[np.uint64], table_keys: npt.NDArray[np.uint64], table_numbers: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the number of each key in a table that :func:`number_keys` filled; -1 for one that is not there."""
    numbers = np.empty(len(keys), dtype=np.int64)
    last = np.uint64(len(table_keys) - 1)
    for row in range(len(keys)):
        key = keys[row]
        mixed = (key ^ (key >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
        place = (mixed >> np.uint64(20)) & last
        while table_numbers[place] >= 0 and table_keys[place] != key:
            place = (place + np.uint64(1)) & last
        numbers[row] = table_numbers[place]
    return numbers


@kernel
def starts_of_runs(values: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return where each run of equal values starts, in two columns at once."""
    count = 0
    for row in range(len(values)):
        count += row == 0 or values[row] != values[row - 1] or others[row] != others[row - 1]
    starts = np.empty(count, dtype=np.int64)
    filled = 0
    for row in range(len(values)):
        if row == 0 or values[row] != values[row - 1] or others[row] != others[row - 1]:
            starts[filled] = row
            filled += 1
    return starts


@kernel
def distinct_keys_of_runs(
    run_starts: npt.NDArray[np.int64],
    run_visits: npt.NDArray[np.int64],
    keys: npt.NDArray[np.int64],
    times: npt.NDArray[np.int64],
    rows_of_key: npt.NDArray[np.int64],
    visit_out: npt.NDArray[np.uint32],
    key_out: npt.NDArray[np.uint32],
    time_out: npt.NDArray[np.int64],
    filled: int,
) -> int:
    """Keep each key of a run of one visit once: visit, key and earliest time; count the rows in ``rows_of_key``.

    Run r holds the rows ``run_starts[r]`` to ``run_starts[r + 1]``; runs of visit -1 are passed over. What is kept is
    written from place ``filled`` on, and the place after it is returned.
    """
    # Where a key was last put; a place before the run's own begin belongs to an earlier run.
    place_of_key = np.full(len(rows_of_key), -1, dtype=np.int64)
    for run in range(len(run_visits)):
        if run_visits[run] < 0:
            continue
        begin = filled
        for row in range(run_starts[run], run_starts[run + 1]):
            rows_of_key[keys[row]] += 1
            place = place_of_key[keys[row]]
            if place >= begin:
                time_out[place] = min(time_out[place], times[row])
            else:
                place_of_key[keys[row]] = filled
                visit_out[filled], key_out[filled], time_out[filled] = run_visits[run], keys[row], times[row]
                filled += 1
    return filled


@kernel
def distinct_codes_of_visits(
    run_order: npt.NDArray[np.int64],
    run_starts: npt.NDArray[np.int64],
    visits: npt.NDArray[np.uint32],
    keys: npt.NDArray[np.uint32],
    times: npt.NDArray[np.int64],
    code_starts: npt.NDArray[np.int64],
    codes: npt.NDArray[np.int64],
    number_of_codes: int,
    most: int,
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Replace keys by their codes, each code of a visit once with its earliest time, sorted by visit and code.

    ``run_order`` lists the runs by visit, so that several runs of one visit follow each other; key k has the codes
    ``codes[code_starts[k]:code_starts[k + 1]]``. ``most`` is an upper bound of the result's length.
    """
    visit_out, code_out = np.empty(most, dtype=np.uint32), np.empty(most, dtype=np.uint32)
    time_out = np.empty(most, dtype=np.int64)
    place_of_code = np.full(number_of_codes, -1, dtype=np.int64)
    filled = begin = 0
    current = np.int64(-1)
    for number in range(len(run_order) + 1):
        ended = number == len(run_order)
        visit = np.int64(-1) if ended else np.int64(visits[run_starts[run_order[number]]])
        if visit != current:
            for place in range(begin + 1, filled):
                code, time, hole = code_out[place], time_out[place], place
                while hole > begin and code_out[hole - 1] > code:
                    code_out[hole], time_out[hole] = code_out[hole - 1], time_out[hole - 1]
                    hole -= 1
                code_out[hole], time_out[hole] = code, time
            current, begin = visit, filled
        if ended:
            break
        run = run_order[number]
        for row in range(run_starts[run], run_starts[run + 1]):
            for entry in range(code_starts[keys[row]], code_starts[keys[row] + 1]):
                place = place_of_code[codes[entry]]
                if place >= begin:
                    time_out[place] = min(time_out[place], times[row])
                else:
                    place_of_code[codes[entry]] = filled
                    visit_out[filled], code_out[filled], time_out[filled] = visit, codes[entry], times[row]
                    filled += 1
    return visit_out[:filled], code_out[:filled], time_out[:filled]


def load_kernels() -> None:
    """Load all kernels (the first time: compile them); it takes some tenths of a second, best spent while waiting."""
    nothing, codes = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint32)
    # Columns of polars cannot be written to, which for numba is another type.
    fixed, fixed_codes = nothing.copy(), codes.copy()
    fixed.flags.writeable = fixed_codes.flags.writeable = False
    keys, places, numbers = np.zeros(0, dtype=np.uint64), np.zeros(2, dtype=np.uint64), np.full(2, -1, dtype=np.int64)
    number_keys(keys, places, numbers, 0)
    number_pairs(fixed_codes, fixed_codes, places, numbers, 0)
    find_keys(keys, places, numbers)
    starts_of_runs(fixed, fixed)
    distinct_keys_of_runs(np.zeros(1, dtype=np.int64), nothing, nothing, fixed, nothing, codes, codes, nothing, 0)
    distinct_codes_of_visits(nothing, nothing, codes, codes, nothing, nothing, nothing, 0, 0)
