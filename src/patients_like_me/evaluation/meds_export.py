"""Labels and predictions in the column names of the MEDS label schema and of meds-evaluation.

==========  ==================================  ===================================================================
kind        ``labels.parquet``                  ``predictions.parquet``, besides the label's columns
==========  ==================================  ===================================================================
binary      boolean_value                       predicted_boolean_value, predicted_boolean_probability
multiclass  categorical_value                   predicted_categorical_value, predicted_categorical_probability: the
                                                most probable class; ``probabilities.parquet`` has every class
multilabel  code, boolean_value                 predicted_boolean_value, predicted_boolean_probability: a row per
                                                instance and code
==========  ==================================  ===================================================================

Every table begins with ``subject_id`` (whole number) and ``prediction_time`` (microseconds), and also has
``instance_id`` and ``split``, but for the labels of binary and multi-class tasks: the schema of the package ``meds``
allows no other columns there. It knows no labels that are sets; those tables go beyond it. Text ids of patients that
are not whole numbers are numbered, and ``subjects.parquet`` says which is which.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.evaluate import thresholds_of
from patients_like_me.evaluation.predictions import Predictions, read_predictions
from patients_like_me.evaluation.thresholds import Threshold
from patients_like_me.files import atomic_folder, write_json
from patients_like_me.runs.run import Run, load_run

_LARGEST: Final = 2**63 - 1


@dataclass(frozen=True)
class MedsTables:
    """The tables by file name, and what a reader must know about them."""

    tables: dict[str, pl.DataFrame]
    about: dict[str, Any]


def meds_tables(predictions: Predictions, threshold: Threshold | None = None) -> MedsTables:
    """Lay predictions out as label and prediction tables; ``threshold`` decides what is called positive.

    >>> made = Predictions.of("binary", [0, 1], [0.1, 0.8], subjects=[7, 9])
    >>> meds_tables(made, Threshold("0.2", 0.2, "fixed")).tables["predictions"].columns[4:]
    ['boolean_value', 'predicted_boolean_value', 'predicted_boolean_probability']
    """
    keys, subjects = _keys(predictions)
    cut = None if threshold is None else threshold.value
    tables: dict[str, pl.DataFrame] = {}
    if not predictions.kind.has_threshold:
        names = pl.Series([*predictions.outputs] or [str(at) for at in range(predictions.number_of_outputs)])
        true = keys.with_columns(names.gather(predictions.labels.tolist()).alias("categorical_value"))
        highest = predictions.probabilities.argmax(axis=1)
        tables["labels"] = true.drop("instance_id", "split")
        tables["predictions"] = true.with_columns(
            names.gather(highest.tolist()).alias("predicted_categorical_value"),
            pl.Series("predicted_categorical_probability", predictions.probabilities.max(axis=1), dtype=pl.Float64),
        )
        tables["probabilities"] = _long(keys, names).with_columns(
            pl.Series("predicted_categorical_probability", predictions.probabilities.ravel(), dtype=pl.Float64)
        )
    else:
        long = predictions.kind.is_set
        codes = pl.Series([*predictions.outputs] or [str(at) for at in range(predictions.number_of_outputs)])
        rows = _long(keys, codes).rename({"categorical_value": "code"}) if long else keys
        true = rows.with_columns(pl.Series("boolean_value", predictions.labels.ravel() == 1, dtype=pl.Boolean))
        probabilities = predictions.probabilities.ravel()
        called = [None] * len(probabilities) if cut is None else (probabilities >= cut).tolist()
        tables["labels"] = true if long else true.drop("instance_id", "split")
        tables["predictions"] = true.with_columns(
            pl.Series("predicted_boolean_value", called, dtype=pl.Boolean),
            pl.Series("predicted_boolean_probability", probabilities, dtype=pl.Float64),
        )
    if subjects is not None:
        tables["subjects"] = subjects
    about = {
        "kind": predictions.kind.name,
        "outputs": list(predictions.outputs),
        "threshold": None if threshold is None else threshold.as_json(),
        "subject_ids": "as in the source" if subjects is None else "numbered; see subjects.parquet",
        "instances_without_a_time": int(keys["prediction_time"].null_count()),
    }
    return MedsTables(tables, about)


def export_run(run: Path | Run, out: Path) -> MedsTables:
    """Write the predictions of a run (validation and test) as MEDS-style tables into a new folder."""
    run = run if isinstance(run, Run) else load_run(run)
    predictions = read_predictions(run)
    thresholds = thresholds_of(predictions)
    made = meds_tables(predictions, thresholds[0] if thresholds else None)
    about = {"task": run.identity.task, "run": run.name, **made.about}
    with atomic_folder(out) as folder:
        for name, table in made.tables.items():
            table.write_parquet(folder / f"{name}.parquet")
        write_json(folder / "export.json", about)
    return MedsTables(made.tables, about)


def _keys(predictions: Predictions) -> tuple[pl.DataFrame, pl.DataFrame | None]:
    """Return the columns every table begins with, and the numbering of patients where one was needed."""
    number = len(predictions)
    ids = predictions.subject_ids or tuple(str(patient) for patient in predictions.patients)
    subjects = None
    if all(_is_whole_number(name) for name in ids):
        numbers = np.array([int(name) for name in ids], dtype=np.int64)
        if len(set(ids)) != len(set(numbers.tolist())):
            raise PlmError(
                "two patients have ids that are the same whole number (such as '7' and '07')",
                remedy="give patients ids that differ as numbers, and prepare the cohort again",
            )
    else:
        numbers = predictions.patients
        subjects = pl.DataFrame({"subject_id": numbers, "source_subject_id": ids}).unique().sort("subject_id")
    times = predictions.prediction_times
    keys = pl.DataFrame(
        {
            "subject_id": pl.Series(numbers, dtype=pl.Int64),
            "prediction_time": pl.Series([None] * number if times is None else times, dtype=pl.Datetime("us")),
            "instance_id": pl.Series(predictions.instance_ids or [str(at) for at in range(number)], dtype=pl.String),
            "split": pl.Series(predictions.splits or [None] * number, dtype=pl.String),
        }
    )
    return keys, subjects


def _long(keys: pl.DataFrame, names: pl.Series) -> pl.DataFrame:
    """Repeat every instance for every output, in the order of the probability matrix."""
    repeated = keys[np.repeat(np.arange(keys.height), len(names)).tolist()]
    tiled = names.gather(np.tile(np.arange(len(names)), keys.height).tolist())
    return repeated.with_columns(tiled.alias("categorical_value"))


def _is_whole_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and int(name) <= _LARGEST
