"""Length of stay: how many days does the current visit last, in ten classes?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import polars as pl

from patients_like_me.records.cohort import Cohort
from patients_like_me.tasks.kinds import MULTICLASS
from patients_like_me.tasks.labels import numbers_given, with_given
from patients_like_me.tasks.task import GivenNumbers, Task, TaskSettings, Words

CLASSES = (
    "under 1 day",
    "1 day",
    "2 days",
    "3 days",
    "4 days",
    "5 days",
    "6 days",
    "7 days",
    "8 to 14 days",
    "15 days or more",
)
_NUMBERS = f"{{{','.join(str(number) for number in range(len(CLASSES)))}}}"


def words(settings: TaskSettings) -> Words:
    """Say what is predicted."""
    del settings
    return Words(
        title="how long does the current visit last?",
        label="the days from admission to discharge of the current visit in ten classes",
        question=(
            "Predict the ICU length-of-stay (LOS) category for the current visit. Choose exactly one class from "
            f"{_NUMBERS}, where: 0: LOS < 1 day; 1: LOS = 1 day; "
            + "".join(f"{days}: LOS = {days} days; " for days in range(2, 8))
            + "8: LOS = 8-14 days; 9: LOS >= 15 days."
        ),
        answer=f"A single class label in {_NUMBERS}.",
        about="length of stay",
    )


def class_of_days(days: pl.Expr) -> pl.Expr:
    """Return the class of a stay of this many days (whole days are counted, parts of a day dropped).

    >>> pl.DataFrame({"d": [0.9, 1.0, 7.9, 8.0, 14.99, 15.0]}).select(class_of_days(pl.col("d")))["d"].to_list()
    [0, 1, 7, 8, 8, 9]
    """
    whole = days.floor().cast(pl.Int64)
    return pl.when(whole <= 7).then(whole.clip(lower_bound=0)).when(whole <= 14).then(8).otherwise(9).cast(pl.Int64)


def labels(cohort: Cohort, settings: TaskSettings) -> pl.DataFrame:
    """Label every visit that has both times with the class of its stay; given labels are days."""
    del settings
    stay = (pl.col("discharge_time") - pl.col("admission_time")).dt.total_microseconds() / 86_400_000_000
    computed = (
        cohort.visits.with_columns(stay.alias("days"))
        .filter(pl.col("days").is_not_null())
        .select("visit", class_of_days(pl.col("days")).alias("label"))
    )
    given = numbers_given(cohort, TASK)
    return with_given(computed, given.select("visit", class_of_days(pl.col("number")).alias("label")))


def recomputed(visit: Mapping[str, Any], settings: TaskSettings) -> int:
    """Return the class of one visit from its times."""
    del settings
    days = int((visit["discharge_time"] - visit["admission_time"]).total_seconds() // 86_400)
    return days if days <= 7 else 8 if days <= 14 else 9


TASK = Task(
    name="length_of_stay",
    kind=MULTICLASS,
    predicted_at="admission",
    current_inputs=("diagnosis", "procedure", "medication"),
    known_inputs=(),
    wording=words,
    labeller=labels,
    classes=CLASSES,
    ordered=True,
    known_by_next_visit=True,
    recomputed=recomputed,
    given=GivenNumbers("a number of days from 0 to 36,500", lambda days: math.isfinite(days) and 0 <= days <= 36_500),
    short_title="LOS",
    metrics_note="LOS: AUROC one-versus-rest weighted by class, AUPRC and F1 averaged over classes.",
)
