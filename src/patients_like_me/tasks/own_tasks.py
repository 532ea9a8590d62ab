"""Tasks of the user's own, defined by the labels table: binary, multi-class or multi-label."""

from __future__ import annotations

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
    else multi-class with the values as classes, in numerical order where all are numbers.
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
    classes = ("0", "1") if kind == "binary" else () if kind == "multilabel" else tuple(_in_order(values))
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
        answer=(
            "Answer with a set of values; several may apply."
            if kind == "multilabel"
            else f"Answer with one class out of: {', '.join(classes)}."
        ),
        labeller=partial(_labels, kind=kind, classes=classes, name=name),
        classes=classes,
    )


def _in_order(values: list[str]) -> list[str]:
    try:
        return sorted(values, key=float)
    except ValueError:
        return sorted(values)


def _labels(
    cohort: Cohort, settings: TaskSettings, *, kind: LabelKind, classes: tuple[str, ...], name: str
) -> pl.DataFrame:
    del settings
    given = given_values(cohort, name)
    if kind == "multilabel":
        return code_sets(given.rename({"value": "code"}))
    position = {value: number for number, value in enumerate(classes)}
    return given.select("visit", pl.col("value").replace_strict(position, return_dtype=pl.Int64).alias("label")).sort(
        "visit"
    )
