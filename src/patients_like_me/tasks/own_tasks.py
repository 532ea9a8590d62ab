"""Tasks of the user's own, defined by the labels table: binary, multi-class or multi-label."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.plain_text import counted
from patients_like_me.records.cohort import KINDS, Cohort
from patients_like_me.tasks.kinds import BINARY, MULTICLASS, MULTILABEL, LabelKind
from patients_like_me.tasks.labels import code_sets, given_values
from patients_like_me.tasks.task import Task, TaskSettings, Words


def own_task(cohort: Cohort, name: str) -> Task:
    """Read a task off the labels table.

    Several values for one visit make it multi-label; otherwise the values 0 and 1 make it binary, and anything
    else multi-class. The classes of a multi-class task are the values of training patients, so they are known only
    when the instances are built (:func:`with_classes`).
    """
    given = given_values(cohort, name)
    _refuse_two_forms(name, given["value"])
    if given["visit"].is_duplicated().any():
        sets = "Answer with a set of values; several may apply."
        return _task(name, MULTILABEL, lambda given: code_sets(given.rename({"value": "code"})), answer=sets)
    if set(given["value"].unique().to_list()) <= {"0", "1"}:
        whole = pl.col("value").cast(pl.Int64).alias("label")
        return _task(name, BINARY, lambda given: given.select("visit", whole).sort("visit"), classes=("0", "1"))
    return _task(name, MULTICLASS, lambda given: given.select("visit", pl.col("value").alias("label")).sort("visit"))


def _refuse_two_forms(name: str, values: pl.Series) -> None:
    """Refuse a class that is written in upper and lower case: only the hospital knows whether it is one."""
    distinct = values.unique()
    if alike := distinct.len() - distinct.str.to_lowercase().n_unique():
        raise PlmError(
            f"the labels table gives classes of the task '{name}' that differ only in upper and lower case "
            f"({counted(alike, 'such case')})",
            remedy="write each class in one way and prepare the cohort again",
        )


def with_classes(task: Task, values: list[str]) -> Task:
    """Return a multi-class task with these values as its classes, in numerical order where all are numbers."""
    classes = tuple(_in_order(values))
    words = replace(task.words, answer=_answer(classes))
    return replace(task, classes=classes, words=words, wording=lambda _: words)


def _task(
    name: str,
    kind: LabelKind,
    labels: Callable[[pl.DataFrame], pl.DataFrame],
    *,
    classes: tuple[str, ...] = (),
    answer: str | None = None,
) -> Task:
    """Make a task whose labels are the given values, turned into labels by ``labels``."""
    words = Words(
        title=f"the task '{name}' of the labels table",
        label=f"the value given for the visit in the labels table, task '{name}'",
        question=f"What is the value of '{name}' for the patient's current visit?",
        answer=answer or _answer(classes),
        about=name.replace("_", " "),
    )

    def labeller(cohort: Cohort, settings: TaskSettings) -> pl.DataFrame:
        del settings
        return labels(given_values(cohort, name))

    return Task(
        name=name,
        kind=kind,
        predicted_at="discharge",
        current_inputs=KINDS,
        known_inputs=KINDS,
        wording=lambda _: words,
        labeller=labeller,
        classes=classes,
    )


def _answer(classes: tuple[str, ...]) -> str:
    return f"Answer with one class out of: {', '.join(classes)}." if classes else "Answer with one class."


def _in_order(values: list[str]) -> list[str]:
    try:
        return sorted(values, key=float)
    except ValueError:
        return sorted(values)
