"""The social and administrative columns of the synthetic hospital: insurance, language, ways in and out."""

from __future__ import annotations

from functools import cache

import numpy as np
import polars as pl

from patients_like_me.records.synthetic.courses import Courses
from patients_like_me.records.synthetic.settings import Draws
from patients_like_me.records.synthetic.syndromes import Booleans, Floats, Integers, Knowledge

PROVIDERS = 2_000
PROVIDER_SIGNS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"

RACES = {
    "WHITE": 0.62,
    "BLACK/AFRICAN AMERICAN": 0.13,
    "WHITE - OTHER EUROPEAN": 0.025,
    "WHITE - RUSSIAN": 0.015,
    "BLACK/CAPE VERDEAN": 0.015,
    "BLACK/CARIBBEAN ISLAND": 0.01,
    "HISPANIC/LATINO - PUERTO RICAN": 0.025,
    "HISPANIC/LATINO - DOMINICAN": 0.02,
    "HISPANIC OR LATINO": 0.015,
    "ASIAN": 0.02,
    "ASIAN - CHINESE": 0.025,
    "PORTUGUESE": 0.005,
    "OTHER": 0.04,
    "UNKNOWN": 0.03,
    "UNABLE TO OBTAIN": 0.005,
}
MARITAL_STATES = ("MARRIED", "SINGLE", "WIDOWED", "DIVORCED", None)
UNPLANNED = {
    "EW EMER.": 0.45,
    "OBSERVATION ADMIT": 0.22,
    "URGENT": 0.16,
    "EU OBSERVATION": 0.06,
    "DIRECT EMER.": 0.06,
    "DIRECT OBSERVATION": 0.05,
}
PLANNED = {"SURGICAL SAME DAY ADMISSION": 0.65, "ELECTIVE": 0.35}
OBSERVATION = {"EU OBSERVATION": 0.7, "AMBULATORY OBSERVATION": 0.3}
THROUGH_EMERGENCY = ("EW EMER.", "OBSERVATION ADMIT", "EU OBSERVATION")
OTHER_WAYS_IN = {
    "PHYSICIAN REFERRAL": 0.5,
    "TRANSFER FROM HOSPITAL": 0.25,
    "CLINIC REFERRAL": 0.1,
    "WALK-IN/SELF REFERRAL": 0.08,
    "TRANSFER FROM SKILLED NURSING FACILITY": 0.03,
    "PROCEDURE SITE": 0.04,
}
WAYS_OUT = (
    "HOME",
    "HOME HEALTH CARE",
    "SKILLED NURSING FACILITY",
    "REHAB",
    "CHRONIC/LONG TERM ACUTE CARE",
    "HOSPICE",
    "AGAINST ADVICE",
)


def social_columns(courses: Courses, draws: Draws) -> dict[str, pl.Series]:
    """Draw language, marital status and race once per patient."""
    patients = courses.patients
    language = np.where(draws.stream("language").random(patients) < 0.9, 0, 1)
    old, young = courses.age >= 75, courses.age < 35
    weights = np.tile([0.48, 0.34, 0.06, 0.09, 0.03], (patients, 1))
    weights[young] = [0.28, 0.66, 0.0, 0.03, 0.03]
    weights[old & courses.female] = [0.3, 0.17, 0.42, 0.08, 0.03]
    weights[old & ~courses.female] = [0.6, 0.15, 0.15, 0.07, 0.03]
    return {
        "language": pl.Series(["ENGLISH", "?"]).gather(language),
        "marital_status": pl.Series(MARITAL_STATES, dtype=pl.String).gather(
            _choose(weights, draws.stream("marital status").random(patients))
        ),
        "race": _from_shares(RACES, draws.stream("race").random(patients)),
    }


def insurances(age: Floats, draws: Draws) -> pl.Series:
    """Draw the insurance of each visit: mostly Medicare from 65 years on."""
    weights = np.where((age >= 65)[:, None], [0.75, 0.02, 0.23], [0.12, 0.16, 0.72])
    chosen = _choose(weights, draws.stream("insurance").random(len(age)))
    return pl.Series(["Medicare", "Medicaid", "Other"]).gather(chosen)


def admission_kinds(knowledge: Knowledge, courses: Courses, draws: Draws) -> tuple[pl.Series, pl.Series, Booleans]:
    """Draw admission type and location of each visit, and tell who came through the emergency department."""
    planned = draws.stream("planned").random(courses.visits) < knowledge.syndromes["elective"][courses.reason]
    planned &= ~courses.early
    uniform = draws.stream("admission type").random(courses.visits)
    kind = pl.select(
        pl.when(pl.Series(courses.incomplete))
        .then(_from_shares(OBSERVATION, uniform))
        .when(pl.Series(planned))
        .then(_from_shares(PLANNED, uniform))
        .otherwise(_from_shares(UNPLANNED, uniform))
        .alias("kind")
    )["kind"]
    through_emergency = kind.is_in(list(THROUGH_EMERGENCY)).to_numpy()
    other = _from_shares(OTHER_WAYS_IN, draws.stream("way in").random(courses.visits))
    location = pl.select(
        pl.when(pl.Series(through_emergency)).then(pl.lit("EMERGENCY ROOM")).otherwise(other).alias("location")
    )["location"]
    return kind, location, through_emergency


def discharge_locations(courses: Courses, stay_days: Floats, age: Floats, draws: Draws) -> pl.Series:
    """Draw where patients go: the old, the severe and those with long stays less often home."""
    need = 0.5 * courses.acuity + 0.04 * (age - 65.0) + 0.8 * np.log(np.maximum(stay_days, 0.5) / 4.0)
    weights = np.exp(
        np.outer(np.ones(courses.visits), np.log([0.6, 0.24, 0.11, 0.03, 0.012, 0.004, 0.008]))
        + np.outer(need, [-0.5, 0.1, 0.8, 0.6, 0.9, 1.1, -0.6])
    )
    chosen = pl.Series(WAYS_OUT).gather(_choose(weights, draws.stream("way out").random(courses.visits)))
    return pl.select(
        pl.when(pl.Series(courses.died))
        .then(pl.lit("DIED"))
        .when(pl.Series(courses.incomplete))
        .then(pl.lit(None))
        .otherwise(chosen)
        .alias("way_out")
    )["way_out"]


@cache
def provider_names(seed: int) -> pl.Series:
    """Return the staff of the hospital as MIMIC writes it: P and five signs.

    >>> len(provider_names(0)), provider_names(0)[0][0]
    (2000, 'P')
    """
    numbers = Draws(seed, 0).stream("providers").choice(36**5, PROVIDERS, replace=False)
    return pl.Series([f"P{_in_base_36(int(number))}" for number in numbers])


def _in_base_36(number: int) -> str:
    signs = ""
    for _ in range(5):
        number, sign = divmod(number, 36)
        signs = PROVIDER_SIGNS[sign] + signs
    return signs


def _from_shares(shares: dict[str, float], uniform: Floats) -> pl.Series:
    bounds = np.cumsum(list(shares.values()))
    chosen = np.searchsorted(bounds[:-1] / bounds[-1], uniform, side="right")
    return pl.Series(list(shares)).gather(chosen)


def _choose(weights: Floats, uniform: Floats) -> Integers:
    cumulative = np.cumsum(weights, axis=1)
    return np.asarray((uniform[:, None] * cumulative[:, -1:] >= cumulative[:, :-1]).sum(axis=1), dtype=np.int64)
