"""``repeat``: the answer of the visit before, over the label rates of the training split.

    weight * earlier answer + (1 - weight) * rate,        and the rate alone where there is no earlier answer.

The earlier answer of an instance is read from its history (:attr:`Instances.history`, so with inputs ``known`` from
visits that had ended): the codes (drugs) of the last earlier visit that has any, or the label of the last earlier visit
that has one: its class of stay, or whether it was followed by a readmission, which the visits up to the current one
show. Tasks that do not say that the label is known by the next visit are not served.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from patients_like_me.records.cohort import Kind
from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.contract import Account, Fitted, RunContext, System, SystemSettings
from patients_like_me.systems.problem import Logits, Problem, only
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.task import Task


class RepeatSettings(SystemSettings):
    """The answer of the visit before, over the label rates."""

    weight: float = Field(0.9, ge=0.5, le=1, description="share of the earlier answer; the rest is the label's rate")


def fit(problem: Problem, run: RunContext) -> Fitted:
    """Count the labels of the training split."""
    answers = earlier_answers(only(problem.instances, problem.evaluated), problem.outputs)
    alone, evaluated = int(np.isnan(answers[:, 0]).sum()), len(answers)
    note = f"{alone:,} of {evaluated:,} evaluated instances have no earlier answer and get the rates"
    return Fitted(run.settings, {"rates": problem.rates}, account=Account(notes=[note]))


def predict(fitted: Fitted, instances: Instances) -> Logits:
    """Return the earlier answer of every instance, over the rates."""
    rates, weight = fitted.arrays["rates"], fitted.settings.weight
    probabilities = np.tile(rates, (len(instances), 1))
    answers = earlier_answers(instances, len(rates))
    known: npt.NDArray[np.bool_] = ~np.isnan(answers[:, 0])
    probabilities[known] = (weight * answers + (1 - weight) * probabilities)[known]
    return instances.task.kind.logits(probabilities)


def has_earlier_answers(task: Task) -> bool:
    """Tell whether earlier answers are known by the next visit; a set must be of codes, which the history shows."""
    return task.known_by_next_visit and (not task.kind.is_set or task.label_codes is not None)


def earlier_answers(instances: Instances, outputs: int) -> npt.NDArray[np.float64]:
    """Return the earlier answer of every instance [instances, outputs] as 0 and 1; without one, not a number."""
    kind, codes = instances.task.kind, instances.task.label_codes
    as_codes = codes if kind.is_set else None
    pairs = _earlier_labels(instances) if as_codes is None else _earlier_codes(instances, as_codes)
    last = pairs.filter(pl.col("visit") == pl.col("visit").max().over("instance"))
    answers = np.full((len(instances), outputs), np.nan)
    answers[last["instance"].to_numpy()] = 0.0
    if as_codes is None:
        answers[last["instance"].to_numpy()] = kind.targets(last["label"].to_numpy(), outputs)
        return answers
    # A code outside the vocabulary cannot be predicted, but its visit is still the last one with codes.
    numbers: dict[Any, int] = {code: number for number, code in enumerate(instances.label_vocabulary)}
    last = last.filter(pl.col("label").is_in(list(numbers)))
    columns = last["label"].replace_strict(numbers, return_dtype=pl.Int64) if last.height else last["visit"]
    answers[last["instance"].to_numpy(), columns.to_numpy()] = 1.0
    return answers


def _earlier_codes(instances: Instances, kind: Kind) -> pl.DataFrame:
    """Return the codes of earlier visits that may be seen: instance, visit, label."""
    now = instances.frame.select("instance", pl.col("visit").alias("now"))
    seen = instances.inputs(kind).join(now, on="instance", how="left")
    return seen.filter(pl.col("visit") < pl.col("now")).select("instance", "visit", pl.col("code").alias("label"))


def _earlier_labels(instances: Instances) -> pl.DataFrame:
    """Return the labels of earlier visits: instance, visit, label; that of the current visit is never among them."""
    labelled = instances.task.labeller(instances.cohort, instances.settings)
    return instances.history.join(labelled, on="visit", how="inner")


SYSTEM = System(
    name="repeat",
    description="the answer of the visit before, over the label rates of the training split",
    settings=RepeatSettings,
    suits=has_earlier_answers,
    capabilities=Capabilities(newcomers=True),
    fit=fit,
    predict=predict,
)
