"""The predictions of a run as arrays, checked once: every number about a run starts here.

Instances are sorted by their id and patients numbered by theirs, so no result depends on the order of a file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.runs.run import Run, load_run
from patients_like_me.tasks.forms import Scored
from patients_like_me.tasks.kinds import LabelKind, kind_named
from patients_like_me.tasks.task import Split

COLUMNS = ("instance_id", "subject_id", "split", "prediction_time", "label", "probabilities")
_ROUNDING = 1e-3
_REMEDY = "the predictions are damaged: train the run again"


@dataclass(frozen=True)
class Predictions(Scored):
    """Labels and probabilities of some instances, with the patient of each, and where they come from."""

    outputs: tuple[str, ...] = ()
    instance_ids: tuple[str, ...] = ()
    subject_ids: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    prediction_times: pl.Series | None = None

    @classmethod
    def of(cls, kind: str, labels: Any, probabilities: Any, subjects: Any = None) -> Predictions:
        """Make predictions from arrays; without ``subjects`` every instance is a patient of its own.

        >>> made = Predictions.of("binary", [0, 1, 1], [0.2, 0.9, 0.4], subjects=["b", "a", "b"])
        >>> made.patients.tolist(), made.number_of_patients
        ([1, 0, 1], 2)
        """
        labels = np.asarray(labels, dtype=np.int64)
        names = np.arange(len(labels)) if subjects is None else np.asarray(subjects)
        _, patients = np.unique(names, return_inverse=True)
        made = cls(kind_named(kind), labels, np.asarray(probabilities, dtype=np.float64), patients.astype(np.int64))
        _check_values(made, "the predictions")
        return made

    @property
    def number_of_outputs(self) -> int:
        """The number of classes or codes; 1 for a binary task."""
        return int(self.columns.shape[1])

    def take(self, rows: npt.NDArray[Any]) -> Predictions:
        """Return some of the instances, their patients renumbered in the same order."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        _, patients = np.unique(self.patients[rows], return_inverse=True)
        times = self.prediction_times
        return replace(
            self,
            labels=self.labels[rows],
            probabilities=self.probabilities[rows],
            patients=patients.astype(np.int64),
            instance_ids=_taken(self.instance_ids, rows),
            subject_ids=_taken(self.subject_ids, rows),
            splits=_taken(self.splits, rows),
            prediction_times=None if times is None else times[rows.tolist()],
        )

    def of_split(self, split: Split) -> Predictions:
        """Return the instances of one split."""
        return self.take(np.array([name == split for name in self.splits], dtype=bool))


def read_predictions(run: Path | Run, *, calibrated: bool = True, newcomers: bool = False) -> Predictions:
    """Read the predictions of a finished run; whatever is wrong with them is refused with the reason.

    They are under the calibration of the run, unless ``calibrated`` is False. ``newcomers`` asks for those of the same
    instances as new patients are predicted.
    """
    run = run if isinstance(run, Run) else load_run(run)
    if not run.is_finished:
        raise PlmError(f"the run '{run.folder}' is not finished", remedy="run its plm train command again")
    try:
        frame = run.predictions(calibrated=calibrated, newcomers=newcomers)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise PlmError(f"the predictions of the run '{run.folder}' cannot be read ({reason})", remedy=_REMEDY) from None
    kind = kind_named(run.results.task["kind"])
    return predictions_of_frame(frame, kind, run.label_vocabulary, source=str(run.folder))


def predictions_of_frame(frame: pl.DataFrame, kind: LabelKind, outputs: tuple[str, ...], *, source: str) -> Predictions:
    """Turn a table of predictions into arrays; ``source`` names it in an error."""
    where = f"the predictions of the run '{source}'"
    if lacking := [column for column in COLUMNS if column not in frame.columns]:
        raise PlmError(f"{where} have no column '{lacking[0]}'", remedy=_REMEDY)
    for column in ("instance_id", "subject_id", "split", "label", "probabilities"):
        if frame[column].null_count():
            raise PlmError(f"{where} have an empty value in the column '{column}'", remedy=_REMEDY)
    frame = frame.sort("instance_id")
    if frame["instance_id"].is_duplicated().any():
        twice = frame.filter(pl.col("instance_id").is_duplicated()).height
        raise PlmError(f"{where} have {twice:,} rows that share an instance id with another", remedy=_REMEDY)
    width = kind.outputs(len(outputs))
    lengths = frame["probabilities"].list.len()
    if frame.height and (lengths != width).any():
        found = sorted(set(lengths.to_list()) - {width})[0]
        raise PlmError(f"{where} have a row with {found} probabilities where {width} belong", remedy=_REMEDY)
    flat = frame["probabilities"].explode(empty_as_null=False, keep_nulls=False).cast(pl.Float64)
    if flat.null_count():
        raise PlmError(f"{where} have an empty probability", remedy=_REMEDY)
    probabilities = flat.to_numpy().reshape(frame.height, width)
    _, patients = np.unique(frame["subject_id"].to_numpy().astype(str), return_inverse=True)
    made = Predictions(
        kind=kind,
        labels=_labels_of(frame, kind, width, where),
        probabilities=kind.in_shape(probabilities),
        patients=patients.astype(np.int64),
        outputs=outputs,
        instance_ids=tuple(frame["instance_id"].to_list()),
        subject_ids=tuple(frame["subject_id"].to_list()),
        splits=tuple(frame["split"].to_list()),
        prediction_times=frame["prediction_time"],
    )
    _check_values(made, where)
    return made


def _labels_of(frame: pl.DataFrame, kind: LabelKind, width: int, where: str) -> npt.NDArray[np.int64]:
    numbers = frame["label"].list.len().to_numpy().astype(np.int64)
    listed = frame["label"].explode(empty_as_null=False, keep_nulls=False).to_numpy().astype(np.int64)
    if not kind.is_set:
        if (numbers != 1).any():
            raise PlmError(f"{where} have a row without exactly one label", remedy=_REMEDY)
        return listed
    if len(listed) and (listed.min() < 0 or listed.max() >= width):
        raise PlmError(f"{where} have a label outside of the vocabulary of {width} codes", remedy=_REMEDY)
    labels = kind.no_labels(frame.height, width)
    labels[np.repeat(np.arange(frame.height), numbers), listed] = 1
    return labels


def _check_values(made: Predictions, where: str) -> None:
    shown = made.probabilities
    wrong = ~np.isfinite(shown) | (shown < 0) | (shown > 1)
    if wrong.any():
        value = float(shown[wrong].ravel()[0])
        raise PlmError(f"{where} have a probability of {value:g}, outside 0 to 1", remedy=_REMEDY)
    if len(shown) != len(made) or shown.ndim != made.kind.dimensions or len(made.patients) != len(made):
        raise PlmError(f"{where} have labels and probabilities of different lengths", remedy=_REMEDY)
    if made.kind.adds_up and len(made) and np.abs(shown.sum(axis=1) - 1).max() > _ROUNDING:
        raise PlmError(f"{where} have class probabilities that do not add up to 1", remedy=_REMEDY)
    highest = made.kind.largest_label(made.number_of_outputs)
    if len(made) and made.labels.size and (made.labels.min() < 0 or made.labels.max() > highest):
        raise PlmError(f"{where} have a label outside 0 to {highest}", remedy=_REMEDY)


def _taken(values: tuple[str, ...], rows: npt.NDArray[Any]) -> tuple[str, ...]:
    return tuple(values[row] for row in rows) if values else ()
