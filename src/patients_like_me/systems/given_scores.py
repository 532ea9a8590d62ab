"""Scores that a hospital gives with its records: numbers of the labels table, one per visit, as inputs of a model.

A score is a row ``visit_id, NAME, number`` of the labels table. It must have been computed from what was
known at the prediction, and not on the labels that are predicted here; nothing can check that. The label of the task
itself is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.tasks.instances import Instances, Rows

Scores = npt.NDArray[np.float64]


def given_scores(instances: Instances, names: Sequence[str]) -> Scores:
    """Return the scores of every instance's current visit [N, names]; not a number where none is given."""
    found = np.full((len(instances), len(names)), np.nan)
    labels = instances.cohort.labels
    for place, name in enumerate(names):
        # Labels are found in whatever case their task is written.
        if name.lower() == instances.task.name.lower():
            raise PlmError(f"'{name}' is the label of the task, not a score", remedy="name another column of numbers")
        given = labels.filter(pl.col("task") == name)
        numbers = given.select("visit", pl.col("value").cast(pl.Float64, strict=False))
        if numbers["value"].is_null().any() or not numbers["value"].is_finite().all():
            raise PlmError(f"the score '{name}' has values that are not numbers", remedy="give finite numbers")
        if numbers["visit"].is_duplicated().any():
            raise PlmError(f"the score '{name}' is given twice for a visit", remedy="give one number per visit")
        now = instances.frame.select("visit").join(numbers, on="visit", how="left", maintain_order="left")
        found[:, place] = now["value"].fill_null(np.nan).to_numpy()
    return found


def scales_of(scores: Scores, train: Rows) -> list[list[float]]:
    """Return mean and spread of every score over the training instances that have it."""
    scales = []
    for column in scores[train].T:
        known = column[~np.isnan(column)]
        if not len(known):
            raise PlmError(
                "a given score is known for no training instance", remedy="add it to the labels table of the cohort"
            )
        scales.append([float(known.mean()), float(known.std()) or 1.0])
    return scales


def scored(scores: Scores, scales: Sequence[Sequence[float]]) -> npt.NDArray[np.float32]:
    """Return scores around their mean in units of their spread, 0 where none is given, and a flag where one is.

    >>> scored(np.array([[3.0], [np.nan]]), [[1.0, 2.0]]).tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """
    mean, spread = np.array(scales).T
    known = ~np.isnan(scores)
    return np.concatenate([np.where(known, (scores - mean) / spread, 0.0), known], axis=1).astype(np.float32)
