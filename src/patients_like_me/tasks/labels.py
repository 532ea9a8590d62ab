"""Labels that a source brought along, laid over those computed from dates."""

from __future__ import annotations

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort


def given_values(cohort: Cohort, task: str) -> pl.DataFrame:
    """Return the given labels of a task: ``visit`` and ``value`` (text); the case of its name does not matter."""
    return cohort.labels.filter(pl.col("task").str.to_lowercase() == task.lower()).select("visit", "value")


def with_given(computed: pl.DataFrame, given: pl.DataFrame) -> pl.DataFrame:
    """Return the given labels, and the computed ones of visits that have none given.

    >>> computed = pl.DataFrame({"visit": [0, 1], "label": [0, 0]})
    >>> given = pl.DataFrame({"visit": [1, 2], "label": [1, 1]})
    >>> with_given(computed, given).rows()
    [(0, 0), (1, 1), (2, 1)]
    """
    return pl.concat([given, computed.join(given, on="visit", how="anti")]).sort("visit")


def numbers_given(cohort: Cohort, task: str, *, meaning: str) -> pl.DataFrame:
    """Return given labels as numbers, one per visit; ``meaning`` says in the error what was expected."""
    given = given_values(cohort, task)
    numbers = given.with_columns(pl.col("value").cast(pl.Float64, strict=False).alias("number"))
    wrong = numbers.filter(pl.col("number").is_null() | ~pl.col("number").is_finite())
    if wrong.height:
        raise PlmError(
            f"the labels table gives '{wrong['value'][0]}' for the task '{task}' where {meaning} is expected",
            remedy="correct the value and prepare the cohort again",
        )
    if numbers["visit"].is_duplicated().any():
        raise PlmError(
            f"the labels table gives some visits several values for the task '{task}'",
            remedy="keep one per visit",
        )
    return numbers.select("visit", "number")
