"""When things happen: stays, gaps between visits, deaths, all in minutes since the start of the year 2100.

A patient's visits never overlap, are in time order and end with death where the patient dies. The calendar is
shifted as in MIMIC: each patient has an own anchor year between 2110 and 2185 that replaces a hidden real year.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from patients_like_me.records.synthetic.contents import Contents
from patients_like_me.records.synthetic.courses import Courses
from patients_like_me.records.synthetic.settings import Draws
from patients_like_me.records.synthetic.syndromes import Booleans, Floats, Integers, Knowledge

EPOCH = "2100-01-01"
DAY = 24 * 60
YEAR = 365.25 * DAY
FIRST_ANCHOR_YEAR, LAST_ANCHOR_YEAR = 2110, 2185
LONGEST_COURSE = 11 * YEAR
SHORTEST_STAY, LONGEST_STAY = 3 / 24, 120.0

STAY_BY_ACUITY = 0.3
STAY_PER_PROCEDURE = 0.09
STAY_IN_CRITICAL_ILLNESS = 0.35
STAY_NOISE = 0.45
STAY_WHEN_INCOMPLETE = 0.35
USUAL_PROCEDURES = 3.0

EARLY_GAP_SHAPE, EARLY_GAP_SCALE = 1.6, 2.6
LATE_GAP_START = 12.0
LATE_GAP_NOISE = 0.8
LONGEST_DEATH_AFTER_DISCHARGE = 365

# Three-year groups as MIMIC-IV writes them, and how often a first visit falls into each. ICD-10 replaced ICD-9 on
# 1 October 2015; with these shares about 15 % of the visits come before.
YEAR_GROUPS = ("2008 - 2010", "2011 - 2013", "2014 - 2016", "2017 - 2019")
YEAR_GROUP_SHARES = (0.03, 0.06, 0.17, 0.74)
FIRST_REAL_YEARS = (2008, 2011, 2014, 2017)
ICD10_START = 2015.75


@dataclass(frozen=True)
class Timeline:
    """Hold times of visits (minutes since 2100) and the dates of patients (days since 2100, -1 for none)."""

    admitted: Integers
    discharged: Integers
    stay_days: Floats
    icd9: Booleans
    anchor_year: Integers
    year_group: Integers
    death_day: Integers


def draw_timeline(knowledge: Knowledge, courses: Courses, contents: Contents, draws: Draws) -> Timeline:
    """Draw stays and gaps, and lay the visits of each patient on the calendar."""
    stay_days = _stays(knowledge, courses, contents, draws)
    gap_days = _gaps(knowledge, courses, draws)
    anchor_year = draws.stream("anchor year").integers(FIRST_ANCHOR_YEAR, LAST_ANCHOR_YEAR + 1, courses.patients)
    admitted, discharged = _place(courses, stay_days, gap_days, anchor_year, draws)
    year_group, icd9 = _real_years(courses, admitted, anchor_year, draws)
    return Timeline(
        admitted=admitted,
        discharged=discharged,
        stay_days=(discharged - admitted) / DAY,
        icd9=icd9,
        anchor_year=anchor_year,
        year_group=year_group,
        death_day=_deaths(knowledge, courses, discharged, draws),
    )


def start_of_year(year: Integers) -> Integers:
    """Return the minutes from the start of 2100 to the start of each year.

    >>> start_of_year(np.array([2100, 2101])).tolist()
    [0, 525600]
    """
    days = (year - 1970).astype("datetime64[Y]").astype("datetime64[D]") - np.datetime64(EPOCH)
    return np.asarray(days.astype(np.int64) * DAY)


def _stays(knowledge: Knowledge, courses: Courses, contents: Contents, draws: Draws) -> Floats:
    """Draw the length of stay: longer with acuity, critical illness and every procedure."""
    procedures = np.bincount(contents.procedures.visit, minlength=courses.visits)
    noise = draws.stream("stay").standard_normal(courses.visits)
    days = knowledge.syndromes["stay_days"][courses.reason] * np.exp(
        STAY_BY_ACUITY * courses.acuity
        + STAY_PER_PROCEDURE * (procedures - USUAL_PROCEDURES)
        + STAY_IN_CRITICAL_ILLNESS * courses.critical
        + STAY_NOISE * noise
    )
    days = np.where(courses.incomplete, STAY_WHEN_INCOMPLETE * days, days)
    return np.asarray(np.clip(days, SHORTEST_STAY, LONGEST_STAY), dtype=float)


def _gaps(knowledge: Knowledge, courses: Courses, draws: Draws) -> Floats:
    """Draw the days from the discharge before to each admission (0 for first visits)."""
    before = np.maximum(np.arange(courses.visits) - 1, 0)
    interval = knowledge.syndromes["interval_days"][courses.reason[before]]
    early = 0.3 + draws.stream("early gap").gamma(EARLY_GAP_SHAPE, EARLY_GAP_SCALE, courses.visits)
    noise = draws.stream("late gap").standard_normal(courses.visits)
    late = LATE_GAP_START + np.maximum(interval - LATE_GAP_START, 5.0) * np.exp(
        LATE_GAP_NOISE * noise - 0.2 * courses.severity[courses.patient]
    )
    gaps = np.where(courses.early, np.minimum(early, 25.0), late)
    return np.where(courses.order == 0, 0.0, gaps)


def _place(
    courses: Courses, stay_days: Floats, gap_days: Floats, anchor_year: Integers, draws: Draws
) -> tuple[Integers, Integers]:
    """Add up stays and gaps per patient; very long courses have their long gaps shortened to fit the calendar."""
    long_part = np.maximum(gap_days - LATE_GAP_START, 0.0) * DAY
    short_part = np.minimum(gap_days, LATE_GAP_START) * DAY
    total_long = np.bincount(courses.patient, long_part, minlength=courses.patients)
    fixed = np.bincount(courses.patient, short_part + (stay_days + 1.0) * DAY, minlength=courses.patients)
    with np.errstate(divide="ignore"):
        shrink = np.minimum(1.0, (LONGEST_COURSE - np.minimum(fixed, LONGEST_COURSE / 2)) / total_long)
    gaps = short_part + long_part * shrink[courses.patient]

    start = start_of_year(anchor_year) + draws.stream("first day").integers(0, 365, courses.patients) * DAY
    counts = np.bincount(courses.patient)
    is_first = courses.order == 0
    elapsed = np.cumsum(gaps + stay_days * DAY)
    admission_after = elapsed - stay_days * DAY
    admission_after -= np.repeat(admission_after[is_first], counts)
    minute = np.clip(15 * 60 + 300 * draws.stream("hour in").standard_normal(courses.patients), 5, DAY - 6)
    admitted = np.floor((start + minute)[courses.patient] + admission_after).astype(np.int64)

    planned_discharge = admitted + stay_days * DAY
    minute_out = np.clip(14 * 60 + 150 * draws.stream("hour out").standard_normal(courses.visits), 480, 1260)
    by_day = np.floor(planned_discharge / DAY) * DAY + minute_out
    usual = (stay_days >= 1.0) & ~courses.died & (by_day > admitted + 4 * 60)
    discharged = np.floor(np.where(usual, by_day, planned_discharge)).astype(np.int64)
    return _without_overlap(courses, admitted, discharged)


def _without_overlap(courses: Courses, admitted: Integers, discharged: Integers) -> tuple[Integers, Integers]:
    """Move a visit later where the discharge before it was moved past its admission."""
    late = np.zeros(courses.visits, dtype=np.int64)
    for order in range(1, int(courses.order.max(initial=0)) + 1):
        rows = np.flatnonzero(courses.order == order)
        earliest = discharged[rows - 1] + late[rows - 1] + 6 * 60
        late[rows] = np.maximum(earliest - admitted[rows], 0)
    return admitted + late, discharged + late


def _real_years(courses: Courses, admitted: Integers, anchor_year: Integers, draws: Draws) -> tuple[Integers, Booleans]:
    """Give each patient a hidden real year; visits before October 2015 were coded in ICD-9-CM."""
    bounds = np.cumsum(YEAR_GROUP_SHARES)
    group = np.searchsorted(bounds[:-1], draws.stream("year group").random(courses.patients), side="right")
    real_year = np.asarray(FIRST_REAL_YEARS)[group] + draws.stream("real year").integers(0, 3, courses.patients)
    since_anchor = (admitted - start_of_year(anchor_year)[courses.patient]) / YEAR
    return group, real_year[courses.patient] + since_anchor < ICD10_START


def _deaths(knowledge: Knowledge, courses: Courses, discharged: Integers, draws: Draws) -> Integers:
    """Return the day of death: the discharge for deaths in hospital, within a year after it for some others."""
    last = courses.last_visit
    day_out = discharged[last] // DAY
    log_odds = (
        -2.7
        + 0.7 * knowledge.syndromes["death"][courses.reason[last]]
        + 0.7 * courses.severity
        + 0.04 * (courses.age - 65.0)
    )
    later = draws.stream("later death").random(courses.patients) < 1.0 / (1.0 + np.exp(-log_odds))
    wait = np.minimum(draws.stream("wait").exponential(120.0, courses.patients), LONGEST_DEATH_AFTER_DISCHARGE)
    after = day_out + 1 + wait.astype(np.int64)
    return np.where(courses.died[last], day_out, np.where(later, after, -1))
