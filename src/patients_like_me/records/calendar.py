"""Whether the dates of a cohort are dates of a calendar.

Research records often have none: eICU's times are minutes that its reader puts on a made-up calendar, and MIMIC moves
every patient's dates by a secret number of years into the future. What lies between two times of one patient can still
be true; "from 2110 to 2190" is not.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from patients_like_me.records.cohort import Cohort

#: From this share of dates in the future on, they are taken as shifted; a few may be mistyped.
SHARE_OF_SHIFTED: Final = 0.1


def why_no_calendar(cohort: Cohort, now: datetime | None = None) -> str:
    """Say why the dates of a cohort must not be read as dates of a calendar; nothing where they can be.

    >>> from patients_like_me.records.small import cohort_of
    >>> def admitted(year):
    ...     return cohort_of([{"subject_id": "ada", "visit_id": "1", "admission_time": datetime(year, 5, 1)}])
    >>> why_no_calendar(admitted(2019)), why_no_calendar(admitted(2144))
    ('', 'the dates of these records lie in the future: they were shifted, and are not those of a calendar')
    """
    if cohort.unordered:
        return cohort.unordered
    times = cohort.visits["admission_time"].drop_nulls()
    ahead = int((times > (now or datetime.now())).sum())
    if ahead and ahead >= SHARE_OF_SHIFTED * len(times):
        return "the dates of these records lie in the future: they were shifted, and are not those of a calendar"
    return ""
