"""Compiled inner loops of the event reader: numbering ids, gathering rows, and distinct codes per visit.

None of them sorts rows. They take arrays and whole numbers and write into arrays that the caller made
(``machine_code``). Hash tables are open and of a power-of-two size, at most half full; -1 marks an empty place.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from patients_like_me.machine_code import load, loop

#: Places of the ``state`` of :func:`gather_rows`: keys known, keys of visits kept, rows of other subjects, runs.
KNOWN, FILLED, OF_OTHERS, RUNS = range(4)


@loop
def number_ids(ids: npt.NDArray[np.int64], length: int, table: npt.NDArray[np.int64], size: int) -> int:
    """Put the rows of distinct ids into a hash table; return how many there are."""
    last = np.uint64(size - 1)
    for row in range(length):
        mixed = np.uint64(ids[row]) * np.uint64(0x9E3779B97F4A7C15)
        place = (mixed ^ (mixed >> np.uint64(32))) & last
        while table[place] >= 0:
            place = (place + np.uint64(1)) & last
        table[place] = row
    return length


@loop
def gather_rows(
    row: int,
    rows: int,
    ids: npt.NDArray[np.int64],
    subjects: npt.NDArray[np.int64],
    has_subjects: int,
    times: npt.NDArray[np.int64],
    first: npt.NDArray[np.uint32],
    second: npt.NDArray[np.uint32],
    third: npt.NDArray[np.uint32],
    known_ids: npt.NDArray[np.int64],
    id_table: npt.NDArray[np.int64],
    id_places: int,
    visit_of_id: npt.NDArray[np.int64],
    subject_of_id: npt.NDArray[np.int64],
    no_subject: int,
    keys: npt.NDArray[np.int64],
    key_table: npt.NDArray[np.int32],
    key_places: int,
    run_starts: npt.NDArray[np.int64],
    run_visits: npt.NDArray[np.int64],
    key_out: npt.NDArray[np.uint32],
    time_out: npt.NDArray[np.int64],
    state: npt.NDArray[np.int64],
) -> int:
    """Keep each key of a run of rows of one visit once, with its earliest time; count the rows of each key.

    A row has an id, a subject and three parts of a key. The id of a run is looked up once, in ``id_table``, whose
    entries are rows of ``known_ids``; with ``id_places`` 0 the id itself is such a row, or negative. Rows of no visit
    are passed over, those of another subject than the visit's counted. For each run it is noted where its keys start,
    and its visit.

    Keys are numbered in the order of their appearance. For each, ``keys`` has its number of rows, where it was last put
    (which belongs to an earlier run if it is before the begin of this one), and its parts. Returns the row that was
    reached: the last, or an earlier one where the table of keys is half full.
    """
    known, filled, of_others, runs = state[KNOWN], state[FILLED], state[OF_OTHERS], state[RUNS]
    last_id, last_key = np.uint64(id_places - 1), np.uint64(key_places - 1)
    visit = np.int64(-1)
    begin = filled
    current_id, current_subject = np.int64(0), np.int64(0)
    is_first = True
    while row < rows and 2 * known < key_places:
        subject = subjects[row] if has_subjects else no_subject
        if is_first or ids[row] != current_id or subject != current_subject:
            is_first, begin = False, filled
            current_id, current_subject = ids[row], np.int64(subject)
            entry = current_id
            if id_places:
                mixed = np.uint64(current_id) * np.uint64(0x9E3779B97F4A7C15)
                place = (mixed ^ (mixed >> np.uint64(32))) & last_id
                while id_table[place] >= 0 and known_ids[id_table[place]] != current_id:
                    place = (place + np.uint64(1)) & last_id
                entry = id_table[place]
            visit = np.int64(-1)
            if entry >= 0:
                visit = visit_of_id[entry]
                if subject != no_subject and subject != subject_of_id[entry]:
                    visit = np.int64(-2)
                else:
                    run_starts[runs], run_visits[runs] = filled, visit
                    runs += 1
        one, two, three = np.int64(first[row]), np.int64(second[row]), np.int64(third[row])
        mixed = np.uint64(one) * np.uint64(0x9E3779B97F4A7C15)
        mixed += np.uint64(two) * np.uint64(0x9E3779B97F4A7C17) + np.uint64(three) * np.uint64(0x9E3779B97F4A7C19)
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
        place = (mixed >> np.uint64(32)) & last_key
        key = np.int64(key_table[place])
        while key >= 0 and (keys[key * 5 + 2] != one or keys[key * 5 + 3] != two or keys[key * 5 + 4] != three):
            place = (place + np.uint64(1)) & last_key
            key = np.int64(key_table[place])
        if key < 0:
            key = known
            key_table[place] = key
            keys[key * 5 + 2], keys[key * 5 + 3], keys[key * 5 + 4] = one, two, three
            known += 1
        if visit >= 0:
            keys[key * 5] += 1
            at = keys[key * 5 + 1]
            if at < begin:
                keys[key * 5 + 1] = filled
                key_out[filled], time_out[filled] = key, times[row]
                filled += 1
            elif times[row] < time_out[at]:
                time_out[at] = times[row]
        elif visit == -2:
            of_others += 1
        row += 1
    state[KNOWN], state[FILLED], state[OF_OTHERS], state[RUNS] = known, filled, of_others, runs
    return row


@loop
def place_keys(keys: npt.NDArray[np.int64], known: int, key_table: npt.NDArray[np.int32], key_places: int) -> int:
    """Put known keys into an empty table, by the same hash as :func:`gather_rows`."""
    last = np.uint64(key_places - 1)
    for key in range(known):
        mixed = np.uint64(keys[key * 5 + 2]) * np.uint64(0x9E3779B97F4A7C15)
        mixed += np.uint64(keys[key * 5 + 3]) * np.uint64(0x9E3779B97F4A7C17)
        mixed += np.uint64(keys[key * 5 + 4]) * np.uint64(0x9E3779B97F4A7C19)
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
        place = (mixed >> np.uint64(32)) & last
        while key_table[place] >= 0:
            place = (place + np.uint64(1)) & last
        key_table[place] = key
    return known


@loop
def order_by_visit(
    run_visits: npt.NDArray[np.int64],
    runs: int,
    starts: npt.NDArray[np.int64],
    visits: int,
    order: npt.NDArray[np.int64],
) -> int:
    """List the runs of visits by visit, those of one in their order; ``starts`` has a 0 for each visit and one more.

    Returns how many there are: runs without a visit are left out.
    """
    filled = 0
    for run in range(runs):
        if run_visits[run] >= 0:
            starts[run_visits[run] + 1] += 1
            filled += 1
    for visit in range(visits):
        starts[visit + 1] += starts[visit]
    for run in range(runs):
        visit = run_visits[run]
        if visit >= 0:
            order[starts[visit]] = run
            starts[visit] += 1
    return filled


@loop
def distinct_codes_of_visits(
    run_order: npt.NDArray[np.int64],
    runs: int,
    run_starts: npt.NDArray[np.int64],
    run_visits: npt.NDArray[np.int64],
    keys: npt.NDArray[np.uint32],
    times: npt.NDArray[np.int64],
    code_starts: npt.NDArray[np.int64],
    code_ends: npt.NDArray[np.int64],
    codes: npt.NDArray[np.int64],
    words: int,
    found: npt.NDArray[np.uint64],
    first_times: npt.NDArray[np.int64],
    bit_of_word: npt.NDArray[np.int64],
    visit_out: npt.NDArray[np.uint32],
    code_out: npt.NDArray[np.uint32],
    time_out: npt.NDArray[np.int64],
) -> int:
    """Replace keys by their codes, each code of a visit once with its earliest time, sorted by visit and code.

    ``run_order`` lists the runs by visit, so that several runs of one visit follow each other; key k has the codes
    ``codes[code_starts[k]:code_ends[k]]``. The codes of a visit are bits of ``found``, all 0 at first, in so many
    ``words``; ``bit_of_word`` is the number of a single bit by the table of de Bruijn. Returns how many rows were
    written.
    """
    filled = 0
    current = np.int64(-1)
    low, high = np.int64(words), np.int64(-1)
    for number in range(runs + 1):
        ended = number == runs
        run = np.int64(0) if ended else run_order[number]
        visit = np.int64(-1) if ended else run_visits[run]
        if visit != current:
            for word in range(low, high + 1):
                bits = found[word]
                while bits:
                    bit = bits & (~bits + np.uint64(1))
                    code = word * 64 + bit_of_word[(bit * np.uint64(0x03F79D71B4CB0A89)) >> np.uint64(58)]
                    visit_out[filled], code_out[filled], time_out[filled] = current, code, first_times[code]
                    filled += 1
                    bits ^= bit
                found[word] = 0
            current = visit
            low, high = np.int64(words), np.int64(-1)
        if ended:
            break
        for row in range(run_starts[run], run_starts[run + 1]):
            key = np.int64(keys[row])
            for entry in range(code_starts[key], code_ends[key]):
                code = codes[entry]
                word, bit = code >> 6, np.uint64(1) << np.uint64(code & 63)
                if found[word] & bit:
                    if times[row] < first_times[code]:
                        first_times[code] = times[row]
                else:
                    found[word] |= bit
                    first_times[code] = times[row]
                    if word < low:
                        low = word
                    if word > high:
                        high = word
    return filled


@loop
def count_codes(
    rows: int, keys: npt.NDArray[np.uint32], code_starts: npt.NDArray[np.int64], code_ends: npt.NDArray[np.int64]
) -> int:
    """Count the codes of all keys together."""
    codes = 0
    for row in range(rows):
        codes += code_ends[keys[row]] - code_starts[keys[row]]
    return codes


@loop
def count_far_times(
    rows: int,
    visits: npt.NDArray[np.uint32],
    times: npt.NDArray[np.int64],
    no_time: int,
    earliest: npt.NDArray[np.int64],
    latest: npt.NDArray[np.int64],
) -> int:
    """Count the times that are before the earliest or after the latest time of their visit."""
    far = 0
    for row in range(rows):
        time, visit = times[row], visits[row]
        if time != no_time and (time < earliest[visit] or time > latest[visit]):
            far += 1
    return far


def load_kernels() -> None:
    """Load all loops (the first time: compile them), best done while waiting for something else."""
    load(number_ids.path)
