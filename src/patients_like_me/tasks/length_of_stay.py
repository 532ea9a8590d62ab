"""Length of stay: how many days does the current visit last, in ten classes?"""

from __future__ import annotations

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.tasks.labels import numbers_given, with_given
from patients_like_me.tasks.task import Task, TaskSettings

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


def class_of_days(days: pl.Expr) -> pl.Expr:
    """Return the class of a stay of so many days (whole days are counted, parts of a day dropped).

    >>> pl.DataFrame({"d": [0.9, 1.0, 7.9, 8.0, 14.99, 15.0]}).select(class_of_days(pl.col("d")))["d"].to_list()
    [0, 1, 7, 8, 8, 9]
    """
    whole = days.floor().cast(pl.Int64)
    return pl.when(whole <= 7).then(whole.clip(lower_bound=0)).when(whole <= 14).then(8).otherwise(9).cast(pl.Int64)


def length_of_stay_labels(cohort: Cohort, settings: TaskSettings) -> pl.DataFrame:
    """Label every visit that has both times with the class of its stay; given labels are days."""
    del settings
    stay = (pl.col("discharge_time") - pl.col("admission_time")).dt.total_microseconds() / 86_400_000_000
    computed = (
        cohort.visits.with_columns(stay.alias("days"))
        .filter(pl.col("days").is_not_null())
        .select("visit", class_of_days(pl.col("days")).alias("label"))
    )
    given = numbers_given(cohort, "length_of_stay", meaning="a number of days")
    if given.filter(pl.col("number") < 0).height:
        raise PlmError("the labels table gives a stay of negative days", remedy="correct the value")
    return with_given(computed, given.select("visit", class_of_days(pl.col("number")).alias("label")))


LENGTH_OF_STAY = Task(
    name="length_of_stay",
    title="how long does the current visit last?",
    kind="multiclass",
    label="the days from admission to discharge of the current visit in ten classes",
    predicted_at="admission",
    current_inputs=("diagnosis", "procedure", "medication"),
    known_inputs=(),
    metrics=("auroc_weighted", "auprc_macro", "f1_macro"),
    question="How long does the patient's current visit last?",
    answer=("Answer with one class: " + "; ".join(f"{number} = {name}" for number, name in enumerate(CLASSES)) + "."),
    labeller=length_of_stay_labels,
    classes=CLASSES,
)
