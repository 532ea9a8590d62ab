"""``frequency`` and ``repeat``: the label rates of the training split, and the answer of the visit before.

``frequency`` gives every instance the same probabilities: the prevalence, the class shares, or each code's rate (so the
most frequent drugs are recommended to everyone). ``repeat`` says that what was will be again:

    weight * earlier answer + (1 - weight) * rate,        and the rate alone where there is no earlier answer.

The earlier answer of an instance is read from its history (:attr:`Instances.history`, so with inputs ``known`` from
visits that had ended): the drugs of the last earlier visit that has any, or the label of the last earlier visit that
has one: its class of stay, or whether it was followed by a readmission, which the visits up to the current one show.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.systems.problem import Candidate, Chances, Fitted, Problem
from patients_like_me.systems.settings import PlainSettings, RepeatSettings
from patients_like_me.tasks.instances import Instances


def fit_frequency(problem: Problem, settings: PlainSettings) -> Fitted:
    """Predict the label rates of the training split for everyone."""
    del settings
    return Fitted(Candidate({}, _rates_for_all(problem), {"rates": problem.rates}))


def fit_repeat(problem: Problem, settings: RepeatSettings) -> Fitted:
    """Predict the answer of the visit before, over the label rates."""
    chances = _rates_for_all(problem)
    answers = earlier_answers(problem.instances, chances.shape[1])
    known: npt.NDArray[np.bool_] = ~np.isnan(answers[problem.evaluated, 0])
    repeated = settings.weight * answers[problem.evaluated] + (1 - settings.weight) * chances
    chances[known] = repeated[known]
    note = f"{int((~known).sum()):,} of {len(known):,} evaluated instances have no earlier answer and get the rates"
    return Fitted(Candidate({}, chances, {"rates": problem.rates}), notes=[note])


def earlier_answers(instances: Instances, outputs: int) -> npt.NDArray[np.float64]:
    """Return the earlier answer of every instance [instances, outputs] as 0 and 1; without one, not a number."""
    if not instances.task.known_by_next_visit:
        raise PlmError(
            f"whether an earlier answer of the task '{instances.task.name}' was known by the next visit cannot be told",
            remedy="use the model 'frequency'",
        )
    drugs = instances.task.kind.is_set
    pairs = _earlier_drugs(instances) if drugs else _earlier_labels(instances)
    last = pairs.filter(pl.col("visit") == pl.col("visit").max().over("instance"))
    answers = np.full((len(instances), outputs), np.nan)
    answers[last["instance"].to_numpy()] = 0.0
    if instances.task.kind == "binary":
        answers[last["instance"].to_numpy(), 0] = last["label"].to_numpy()
        return answers
    if drugs:
        # A drug outside the vocabulary cannot be recommended, but its visit is still the last one with drugs.
        numbers: dict[Any, int] = {code: number for number, code in enumerate(instances.label_vocabulary)}
        last = last.filter(pl.col("label").is_in(list(numbers)))
        columns = last["label"].replace_strict(numbers, return_dtype=pl.Int64) if last.height else last["visit"]
    else:
        columns = last["label"]
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


def _rates_for_all(problem: Problem) -> Chances:
    return np.tile(problem.rates, (len(problem.evaluated), 1))
