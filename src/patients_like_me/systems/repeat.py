"""``repeat``: the answer of the visit before, over the label rates of the training split.

    weight * earlier answer + (1 - weight) * rate,        and the rate alone where there is no earlier answer.

The earlier answer of an instance is read from its history (:attr:`Instances.history`, so with inputs ``known`` from
visits that had ended): the drugs of the last earlier visit that has any, or the label of the last earlier visit that
has one: its class of stay, or whether it was followed by a readmission, which the visits up to the current one show.
For other tasks nobody can tell whether an earlier answer was known by the next visit, so they are not served.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.contract import Account, Fitted, RunContext, System, SystemSettings
from patients_like_me.systems.problem import Logits, Problem, only
from patients_like_me.tasks.instances import Instances


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


def earlier_answers(instances: Instances, outputs: int) -> npt.NDArray[np.float64]:
    """Return the earlier answer of every instance [instances, outputs] as 0 and 1; without one, not a number."""
    drugs = instances.task.kind.is_set
    pairs = _earlier_drugs(instances) if drugs else _earlier_labels(instances)
    last = pairs.filter(pl.col("visit") == pl.col("visit").max().over("instance"))
    answers = np.full((len(instances), outputs), np.nan)
    answers[last["instance"].to_numpy()] = 0.0
    if not drugs:
        answers[last["instance"].to_numpy()] = instances.task.kind.targets(last["label"].to_numpy(), outputs)
        return answers
    # A drug outside the vocabulary cannot be recommended, but its visit is still the last one with drugs.
    numbers: dict[Any, int] = {code: number for number, code in enumerate(instances.label_vocabulary)}
    last = last.filter(pl.col("label").is_in(list(numbers)))
    columns = last["label"].replace_strict(numbers, return_dtype=pl.Int64) if last.height else last["visit"]
    answers[last["instance"].to_numpy(), columns.to_numpy()] = 1.0
    return answers


def _earlier_drugs(instances: Instances) -> pl.DataFrame:
    """Return the drugs of earlier visits that may be seen: instance, visit, label."""
    now = instances.frame.select("instance", pl.col("visit").alias("now"))
    seen = instances.inputs("medication").join(now, on="instance", how="left")
    return seen.filter(pl.col("visit") < pl.col("now")).select("instance", "visit", pl.col("code").alias("label"))


def _earlier_labels(instances: Instances) -> pl.DataFrame:
    """Return the labels of earlier visits: instance, visit, label; that of the current visit is never among them."""
    labelled = instances.task.labeller(instances.cohort, instances.settings)
    return instances.history.join(labelled, on="visit", how="inner")


SYSTEM = System(
    name="repeat",
    description="the answer of the visit before, over the label rates of the training split",
    settings=RepeatSettings,
    tasks=("readmission", "length_of_stay", "drug_recommendation"),
    capabilities=Capabilities(newcomers=True),
    fit=fit,
    predict=predict,
)
