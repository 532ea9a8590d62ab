"""``predictions.parquet``: one row per evaluated instance, the same columns for every system."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.files import atomic_file
from patients_like_me.tasks.instances import Instances

PREDICTIONS: Final = "predictions.parquet"
#: The same instances as new patients are predicted, where that is another way.
AS_NEWCOMERS: Final = "predictions_as_newcomers.parquet"
#: Labels and probabilities are lists: the numbers of the true labels, and one probability per output.
SCHEMA: Final = pl.Schema(
    {
        "instance_id": pl.String(),
        "subject_id": pl.String(),
        "split": pl.String(),
        "prediction_time": pl.Datetime("us"),
        "label": pl.List(pl.Int64()),
        "probabilities": pl.List(pl.Float32()),
    }
)


def listed_labels(labels: npt.NDArray[np.int64]) -> pl.Series:
    """Return labels as lists of label numbers: the class of each instance, or its codes.

    >>> listed_labels(np.array([[0, 1, 1], [0, 0, 0]])).to_list(), listed_labels(np.array([3])).to_list()
    ([[1, 2], []], [[3]])
    """
    listed = [np.flatnonzero(row).tolist() if labels.ndim == 2 else [int(row)] for row in labels]
    return pl.Series("label", listed, dtype=pl.List(pl.Int64))


def ids_of(instances: Instances, rows: npt.NDArray[np.int64] | None = None) -> pl.DataFrame:
    """Return the rows of instances, in their order, with the patients' own ids as ``subject_id``."""
    frame = instances.frame if rows is None else instances.frame[rows.tolist()]
    subjects = instances.cohort.patients.select("subject", "subject_id")
    return frame.join(subjects, on="subject", how="left", maintain_order="left")


def listed_probabilities(probabilities: npt.NDArray[np.floating[Any]]) -> pl.Series:
    """Return probabilities [N, outputs] as lists of 32-bit numbers."""
    kept = probabilities.reshape(len(probabilities), -1).astype(np.float32)
    return pl.Series("probabilities", kept.tolist(), dtype=pl.List(pl.Float32))


def prediction_frame(
    instances: Instances, rows: npt.NDArray[np.int64], probabilities: npt.NDArray[np.floating[Any]]
) -> pl.DataFrame:
    """Return the predictions of some instances as a table."""
    ids = ids_of(instances, rows)
    return pl.DataFrame(
        {
            "instance_id": ids["instance_id"],
            "subject_id": ids["subject_id"],
            "split": ids["split"],
            "prediction_time": instances.prediction_times[rows.tolist()]["prediction_time"].cast(pl.Datetime("us")),
            "label": listed_labels(instances.labels[rows]),
            "probabilities": listed_probabilities(probabilities),
        },
        schema=SCHEMA,
    )


def write_predictions(folder: Path, frames: list[pl.DataFrame], name: str = PREDICTIONS) -> None:
    """Write the predictions of a run, atomically."""
    with atomic_file(folder / name) as temporary:
        pl.concat(frames).write_parquet(temporary)
