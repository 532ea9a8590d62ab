"""Labels that come with a source, which replace those computed from dates."""

from __future__ import annotations

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.tasks.task import Task


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


def numbers_given(cohort: Cohort, task: Task) -> pl.DataFrame:
    """Return given labels as numbers, one per visit: ``visit`` and ``number``; what the task forbids is refused."""
    given = given_values(cohort, task.name)
    task.check_given(given["value"])
    if given["visit"].is_duplicated().any():
        raise PlmError(
            f"the labels table gives some visits several values for the task '{task.name}'",
            remedy="keep one per visit",
        )
    return given.select("visit", pl.col("value").cast(pl.Float64).alias("number"))


def code_sets(codes: pl.DataFrame) -> pl.DataFrame:
    """Gather rows of (visit, code) into one sorted list per visit.

    >>> code_sets(pl.DataFrame({"visit": [1, 0, 1], "code": ["B01A", "A02B", "A10A"]})).rows()
    [(0, ['A02B']), (1, ['A10A', 'B01A'])]
    """
    return codes.group_by("visit").agg(pl.col("code").unique().sort().alias("label")).sort("visit")
