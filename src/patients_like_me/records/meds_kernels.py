"""Compiled inner loops for events of all kinds in one table, whose visits are known only after all of them are read.

See ``event_kernels`` for what such a loop may do.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from patients_like_me.machine_code import loop

#: Places of the ``state``: keys known, keys of visits kept, visits named, rows set apart, rows without a visit, runs.
KNOWN, FILLED, VISITS, APART, LOOSE, RUNS = range(6)


@loop
def gather_coded_rows(
    row: int,
    rows: int,
    subjects: npt.NDArray[np.int64],
    ids: npt.NDArray[np.int64],
    no_id: int,
    times: npt.NDArray[np.int64],
    codes: npt.NDArray[np.uint32],
    first: npt.NDArray[np.uint32],
    second: npt.NDArray[np.uint32],
    what: npt.NDArray[np.int8],
    uses: npt.NDArray[np.uint8],
    no_text: int,
    visit_subjects: npt.NDArray[np.int64],
    visit_ids: npt.NDArray[np.int64],
    visit_table: npt.NDArray[np.int64],
    visit_places: int,
    keys: npt.NDArray[np.int64],
    key_table: npt.NDArray[np.int32],
    key_places: int,
    run_starts: npt.NDArray[np.int64],
    run_visits: npt.NDArray[np.int64],
    key_out: npt.NDArray[np.uint32],
    time_out: npt.NDArray[np.int64],
    rows_out: npt.NDArray[np.uint32],
    set_apart: npt.NDArray[np.int64],
    loose_rows: npt.NDArray[np.int64],
    loose_keys: npt.NDArray[np.uint32],
    state: npt.NDArray[np.int64],
) -> int:
    """Go through events of all kinds, of which the code tells what they are, before the visits are known.

    ``what`` says of each code whether its rows are passed over (0), set apart (1) or have a key (2). The key is the
    code and two texts of the row, of which the code uses some (``uses``, two for each). A row with a key that names a
    visit is kept as :func:`gather_rows` does, with the number of rows that it stands for; visits are numbered by
    subject and id in the order of their appearance. Rows without an id are listed with their keys.

    Returns the row that was reached: the last, or an earlier one where a table is half full.
    """
    known, filled, visits = state[KNOWN], state[FILLED], state[VISITS]
    apart, loose, runs = state[APART], state[LOOSE], state[RUNS]
    last_key, last_visit = np.uint64(key_places - 1), np.uint64(visit_places - 1)
    begin = filled
    visit = np.int64(-1)
    current_id, current_subject = np.int64(no_id), np.int64(0)
    while row < rows and 2 * known < key_places and 2 * visits < visit_places:
        code = np.int64(codes[row])
        if what[code] < 2:
            if what[code] == 1:
                set_apart[apart] = row
                apart += 1
            row += 1
            continue
        one = np.int64(first[row]) if uses[2 * code] else no_text
        two = np.int64(second[row]) if uses[2 * code + 1] else no_text
        mixed = np.uint64(code) * np.uint64(0x9E3779B97F4A7C15)
        mixed += np.uint64(one) * np.uint64(0x9E3779B97F4A7C17) + np.uint64(two) * np.uint64(0x9E3779B97F4A7C19)
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
        place = (mixed >> np.uint64(32)) & last_key
        key = np.int64(key_table[place])
        while key >= 0 and (keys[key * 5 + 2] != code or keys[key * 5 + 3] != one or keys[key * 5 + 4] != two):
            place = (place + np.uint64(1)) & last_key
            key = np.int64(key_table[place])
        if key < 0:
            key = known
            key_table[place] = key
            keys[key * 5 + 2], keys[key * 5 + 3], keys[key * 5 + 4] = code, one, two
            known += 1
        keys[key * 5] += 1
        if ids[row] == no_id:
            loose_rows[loose], loose_keys[loose] = row, key
            loose += 1
            row += 1
            continue
        if visit < 0 or ids[row] != current_id or subjects[row] != current_subject:
            begin = filled
            current_id, current_subject = ids[row], subjects[row]
            mixed = np.uint64(current_id) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(29)) ^ np.uint64(current_subject)) * np.uint64(0x9E3779B97F4A7C15)
            place = (mixed ^ (mixed >> np.uint64(32))) & last_visit
            visit = visit_table[place]
            while visit >= 0 and (visit_ids[visit] != current_id or visit_subjects[visit] != current_subject):
                place = (place + np.uint64(1)) & last_visit
                visit = visit_table[place]
            if visit < 0:
                visit = visits
                visit_table[place] = visit
                visit_ids[visit], visit_subjects[visit] = current_id, current_subject
                visits += 1
            run_starts[runs], run_visits[runs] = filled, visit
            runs += 1
        at = keys[key * 5 + 1]
        if at >= begin:
            rows_out[at] += np.uint32(1)
            if times[row] < time_out[at]:
                time_out[at] = times[row]
        else:
            keys[key * 5 + 1] = filled
            key_out[filled], time_out[filled] = key, times[row]
            rows_out[filled] = 1
            filled += 1
        row += 1
    state[KNOWN], state[FILLED], state[VISITS] = known, filled, visits
    state[APART], state[LOOSE], state[RUNS] = apart, loose, runs
    return row


@loop
def place_visits(
    visit_subjects: npt.NDArray[np.int64],
    visit_ids: npt.NDArray[np.int64],
    visits: int,
    visit_table: npt.NDArray[np.int64],
    visit_places: int,
) -> int:
    """Put known visits into an empty table, by the same hash as :func:`gather_coded_rows`."""
    last = np.uint64(visit_places - 1)
    for visit in range(visits):
        mixed = np.uint64(visit_ids[visit]) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29)) ^ np.uint64(visit_subjects[visit])) * np.uint64(0x9E3779B97F4A7C15)
        place = (mixed ^ (mixed >> np.uint64(32))) & last
        while visit_table[place] >= 0:
            place = (place + np.uint64(1)) & last
        visit_table[place] = visit
    return visits


@loop
def count_rows(
    run_starts: npt.NDArray[np.int64],
    run_visits: npt.NDArray[np.int64],
    runs: int,
    keys: npt.NDArray[np.uint32],
    rows: npt.NDArray[np.uint32],
    rows_of_key: npt.NDArray[np.int64],
) -> int:
    """Add up the rows of each key over the runs that belong to a visit."""
    for run in range(runs):
        if run_visits[run] >= 0:
            for at in range(run_starts[run], run_starts[run + 1]):
                rows_of_key[keys[at]] += np.int64(rows[at])
    return runs
