"""The compiled inner loop of the check of rows: separators outside quotes, counted row by row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from patients_like_me.machine_code import loop

#: Places of the ``state`` that goes on from one piece of a file to the next.
COMMAS, COMMAS_OF_HEADER, ROWS, IS_QUOTED, SIGNS_OF_ROW, UNEVEN, STATE_SIZE = range(7)


@loop
def count_separators(signs: npt.NDArray[np.uint8], length: int, state: npt.NDArray[np.int64]) -> int:
    """Look at the next signs of a file; the state says whether a row had another number of commas than the first."""
    commas, of_header, rows, is_quoted, in_row = state[0], state[1], state[2], state[3], state[4]
    for place in range(length):
        sign = signs[place]
        if sign == 34:
            is_quoted = 1 - is_quoted
            in_row += 1
        elif is_quoted:
            continue
        elif sign == 44:
            commas += 1
        elif sign == 10:
            if rows == 0:
                of_header = commas
            elif commas != of_header and (commas > 0 or in_row > 0):
                state[5] = 1
                return 1
            rows += 1
            commas = 0
            in_row = 0
        elif sign != 13:
            in_row += 1
    state[0], state[1], state[2], state[3], state[4] = commas, of_header, rows, is_quoted, in_row
    return 0
