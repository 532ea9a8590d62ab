"""What is odd about the visits of a cohort and not wrong for sure: it is said, and left as it is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from patients_like_me.plain_text import counted
from patients_like_me.records.code_table import NO_TIME, CodeTable
from patients_like_me.records.cohort import Kind
from patients_like_me.records.event_kernels import count_far_times
from patients_like_me.records.values import in_the_days_of

#: From this share of visits without any code on, the notes say so.
_BARE = 0.1
#: A code that is dated so many microseconds before or after its visit, a year, is worth a note.
_FAR = 366 * 24 * 3600 * 1_000_000


def notes_on_bare_visits(visits: pl.DataFrame, codes: Mapping[Kind, CodeTable]) -> list[str]:
    """Say how many visits have no code at all, where that is more than a tenth: a table may have been cut."""
    bare = np.ones(visits.height, dtype=np.bool_)
    for table in codes.values():
        bare[table.visit] = False
    if bare.mean() < _BARE:
        return []
    return [f"{bare.mean():.0%} of the visits ({bare.sum():,} of {visits.height:,}) have no code of any kind"]


def notes_on_far_times(visits: pl.DataFrame, codes: Mapping[Kind, CodeTable]) -> list[str]:
    """Say how many codes are dated long before or after their visit: a year may be mistyped, or dates shifted apart."""
    admitted, left = (visits[name].cast(pl.Int64) for name in ("admission_time", "discharge_time"))
    # A visit without a time has no code that is far from it.
    earliest = (admitted - _FAR).fill_null(-NO_TIME).to_numpy()
    latest = (left.fill_null(admitted) + _FAR).fill_null(NO_TIME).to_numpy()
    notes = []
    for kind, table in codes.items():
        far = count_far_times(table.height, table.visit, table.time, NO_TIME, earliest, latest)
        if far:
            notes.append(
                f"{counted(far, f'{kind} code')} {'is' if far == 1 else 'are'} dated more than a year before or after "
                f"{'its visit' if far == 1 else 'their visits'}"
            )
    return notes


def notes_on_deaths(visits: pl.DataFrame) -> list[str]:
    """Say how many visits hold the day of their patient's death, although the source does not let them end with it."""
    count = visits.select((in_the_days_of("death_time") & ~pl.col("died")).sum()).item()
    if not count:
        return []
    verb, taken = ("includes", "a death") if count == 1 else ("include", "deaths")
    which = f"{counted(count, 'visit')} {verb} the day on which the patient died"
    return [f"{which}, but nothing says that it was in hospital: not taken as {taken} in hospital"]
