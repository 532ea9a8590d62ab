"""Dates that were made up or shifted are not spoken of as dates of a calendar."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from patients_like_me.records.calendar import why_no_calendar
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.small import cohort_of

NOW = datetime(2026, 1, 1)


def admitted(*years: int | None) -> Cohort:
    return cohort_of(
        [
            {
                "subject_id": f"p{number}",
                "visit_id": f"v{number}",
                "order": 0,
                "admission_time": None if year is None else datetime(year, 3, 1),
            }
            for number, year in enumerate(years)
        ]
    )


def test_what_a_source_says_of_its_times_is_handed_on() -> None:
    assert why_no_calendar(replace(admitted(2014, 2015), unordered="eICU has no dates"), NOW) == "eICU has no dates"


def test_dates_in_the_future_were_shifted_but_one_of_many_was_mistyped() -> None:
    assert "shifted" in why_no_calendar(admitted(2110, 2184, 2025), NOW)
    assert why_no_calendar(admitted(*[2019] * 15, 2204), NOW) == ""


def test_real_dates_and_none_at_all_need_no_warning() -> None:
    assert why_no_calendar(admitted(2018, 2025, None), NOW) == ""
    assert why_no_calendar(admitted(None), NOW) == ""
