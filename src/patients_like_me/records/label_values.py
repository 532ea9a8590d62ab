"""One form for the values of a labels table, so that one class is never taken for two.

Whole numbers lose their ``.0``. Where all values of a task say yes or no (``1``, ``true``, ``Yes``, ``y``, ``0.0``,
...), they become ``1`` and ``0``. Both are said. Words for yes and no beside other numbers, and words for a missing
value, are refused with the row.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.plain_text import counted
from patients_like_me.records.source_files import SourceTable
from patients_like_me.records.values import NO, YES

_YES_OR_NO: Final = (*YES, *NO)
#: A class or a code may be called "none" or "NA"; these are never one.
NEVER_A_VALUE: Final = ("null", "nan", "#n/a", "<na>", "\\n", "?", "-", "#ref!", "#value!")
_NUMBER: Final = r"^[+-]?\d+(\.\d+)?$"


def in_one_form(labels: pl.DataFrame, table: SourceTable, notes: list[str]) -> pl.DataFrame:
    """Return the labels (``task``, ``value``, ...) with values in one form; ``notes`` takes what was changed."""
    word, value = pl.col("value").str.to_lowercase(), pl.col("value")
    numbered = labels.with_row_index("row").with_columns(
        word.is_in(_YES_OR_NO).all().over("task").alias("yes or no"),
        (word.is_in(_YES_OR_NO) & ~value.str.contains(_NUMBER)).alias("word"),
        value.str.contains(_NUMBER).any().over("task").alias("numbers"),
    )
    _refuse_first(
        numbered, word.is_in(NEVER_A_VALUE), table, "the value is a word for a missing value", "remove the row"
    )
    _refuse_first(
        numbered,
        pl.col("word") & pl.col("numbers") & ~pl.col("yes or no"),
        table,
        "the value is a word for yes or no, but the task has numbers other than 0 and 1",
        "write the values of a task in one way",
    )
    normal = (
        pl.when("yes or no")
        .then(word.is_in(YES).cast(pl.Int8).cast(pl.String))
        .otherwise(value.str.replace(r"^([+-]?\d+)\.0+$", "$1"))
    )
    changed = numbered.with_columns(normal.alias("normal")).filter(pl.col("normal") != value)
    for task, rows, is_word in (
        changed.group_by("task", maintain_order=True).agg(pl.len(), pl.col("yes or no").first()).iter_rows()
    ):
        how = "1 and 0, for yes and no" if is_word else "whole numbers without '.0'"
        what = f"{counted(rows, 'label')} of the task '{task}' {'was' if rows == 1 else 'were'} brought into one form"
        notes.append(f"{what}: {how}")
    formed = labels.with_columns(numbered.select(normal.alias("value")).to_series())
    notes += _notes_on_several_values(formed)
    return formed


def _notes_on_several_values(labels: pl.DataFrame) -> list[str]:
    """Say how many visits have several values of a task: whether that is meant, or some are wrong, only you know."""
    of_visit = labels.group_by("task", "visit_id", maintain_order=True).agg(pl.col("value").n_unique())
    counts = of_visit.group_by("task", maintain_order=True).agg((pl.col("value") > 1).sum(), pl.len())
    return [
        f"{several:,} of {visits:,} visits have several values of the task '{task}': several of its classes may apply"
        for task, several, visits in counts.iter_rows()
        if several
    ]


def _refuse_first(labels: pl.DataFrame, bad: pl.Expr, table: SourceTable, what: str, remedy: str) -> None:
    hits = labels.filter(bad)
    if hits.height:
        place = table.place_of_number(int(hits["row"][0]))
        raise PlmError(f"{place}: {what} ({counted(hits.height, 'such row')})", remedy=remedy)
