"""Tasks of the user's own, defined by the labels table: binary, multi-class or multi-label."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import polars as pl

from patients_like_me.records.cohort import KINDS, Cohort
from patients_like_me.tasks.drug_recommendation import code_sets
from patients_like_me.tasks.labels import given_values
from patients_like_me.tasks.task import LabelKind, Task, TaskSettings

_METRICS: dict[LabelKind, tuple[str, ...]] = {
    "binary": ("auprc", "auroc"),
    "multiclass": ("auroc_weighted", "auprc_macro", "f1_macro"),
    "multilabel": ("auprc_per_instance", "f1_per_instance", "jaccard_per_instance"),
}


def own_task(cohort: Cohort, name: str) -> Task:
    """Read a task off the labels table.

    Several values for one visit make it multi-label; otherwise the values 0 and 1 make it binary, and anything
    else multi-class. The classes of a multi-class task are the values of training patients, so they are known only
    when the instances are built (:func:`with_classes`).
    """
    given = given_values(cohort, name)
    values = given["value"].unique().to_list()
    kind: LabelKind
    if given["visit"].is_duplicated().any():
        kind = "multilabel"
    elif set(values) <= {"0", "1"}:
        kind = "binary"
    else:
        kind = "multiclass"
    classes = ("0", "1") if kind == "binary" else ()
    return Task(
        name=name,
        title=f"the own task '{name}' of the labels table",
        kind=kind,
        label=f"the value given for the visit in the labels table, task '{name}'",
        predicted_at="discharge",
        current_inputs=KINDS,
        known_inputs=KINDS,
        metrics=_METRICS[kind],
        question=f"What is the value of '{name}' for the patient's current visit?",
        answer=("Answer with a set of values; several may apply." if kind == "multilabel" else _answer(classes)),
        labeller=partial(_labels, kind=kind, name=name),
        classes=classes,
    )


def with_classes(task: Task, values: list[str]) -> Task:
    """Return a multi-class task with these values as its classes, in numerical order where all are numbers."""
    classes = tuple(_in_order(values))
    return replace(task, classes=classes, answer=_answer(classes))


def _answer(classes: tuple[str, ...]) -> str:
    return f"Answer with one class out of: {', '.join(classes)}."


def _in_order(values: list[str]) -> list[str]:
    try:
        return sorted(values, key=float)
    except ValueError:
        return sorted(values)


def _labels(cohort: Cohort, settings: TaskSettings, *, kind: LabelKind, name: str) -> pl.DataFrame:
    del settings
    given = given_values(cohort, name)
    if kind == "multilabel":
        return code_sets(given.rename({"value": "code"}))
    label = pl.col("value").cast(pl.Int64) if kind == "binary" else pl.col("value")
    return given.select("visit", label.alias("label")).sort("visit")
