"""Predictions are read into arrays in one order, and anything wrong with them is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.predictions import Predictions, read_predictions
from patients_like_me.files import read_json, sealed, write_json

MakeRun = Callable[..., Path]


def test_arrays_hold_what_the_table_says(make_run: MakeRun) -> None:
    folder = make_run(task="drug_recommendation")
    frame = pl.read_parquet(folder / "predictions.parquet").sort("instance_id")
    made = read_predictions(folder)
    assert made.instance_ids == tuple(frame["instance_id"].to_list())
    assert made.labels.shape == made.probabilities.shape == (frame.height, 5)
    assert [row.nonzero()[0].tolist() for row in made.labels] == frame["label"].to_list()
    assert np.allclose(made.probabilities, np.array(frame["probabilities"].to_list()))
    ids = np.array(made.subject_ids)
    assert all(len(set(ids[made.patients == patient])) == 1 for patient in range(made.number_of_patients))
    assert made.number_of_patients == frame["subject_id"].n_unique()


@pytest.mark.parametrize("task", ["readmission", "length_of_stay", "drug_recommendation"])
def test_the_order_of_the_file_does_not_matter(make_run: MakeRun, task: str) -> None:
    first = read_predictions(make_run("a", task))
    other = read_predictions(make_run("b", task, change=lambda frame: frame.sample(fraction=1, shuffle=True, seed=1)))
    assert first.instance_ids == other.instance_ids
    assert np.array_equal(first.labels, other.labels)
    assert np.array_equal(first.probabilities, other.probabilities)
    assert np.array_equal(first.patients, other.patients)


def test_a_split_has_its_own_patients_only(make_run: MakeRun) -> None:
    made = read_predictions(make_run())
    test = made.of_split("test")
    assert set(test.splits) == {"test"}
    assert set(test.patients) == set(range(test.number_of_patients))
    assert len(test) + len(made.of_split("validation")) == len(made)


def _with(column: str, value: object, kind: pl.DataType) -> Callable[[pl.DataFrame], pl.DataFrame]:
    def change(frame: pl.DataFrame) -> pl.DataFrame:
        values = frame[column].to_list()
        values[3] = value
        return frame.with_columns(pl.Series(column, values, dtype=kind))

    return change


FLOATS, NUMBERS = pl.List(pl.Float32), pl.List(pl.Int64)
BAD: dict[str, tuple[str, Callable[[pl.DataFrame], pl.DataFrame], str]] = {
    "above 1": ("readmission", _with("probabilities", [1.25], FLOATS), "probability of 1.25, outside 0 to 1"),
    "below 0": ("readmission", _with("probabilities", [-0.5], FLOATS), "probability of -0.5, outside 0 to 1"),
    "no number": ("readmission", _with("probabilities", [float("nan")], FLOATS), "probability of nan"),
    "empty probability": ("readmission", _with("probabilities", [None], FLOATS), "empty probability"),
    "too many": ("readmission", _with("probabilities", [0.1, 0.2], FLOATS), "2 probabilities where 1 belong"),
    "no label": ("readmission", _with("label", [], NUMBERS), "without exactly one label"),
    "label 2": ("readmission", _with("label", [2], NUMBERS), "label outside 0 to 1"),
    "no patient": ("readmission", _with("subject_id", None, pl.String()), "empty value in the column 'subject_id'"),
    "class sum": ("length_of_stay", _with("probabilities", [0.5] * 10, FLOATS), "do not add up to 1"),
    "code 99": ("drug_recommendation", _with("label", [99], NUMBERS), "outside of the vocabulary of 5 codes"),
    "twice": ("readmission", lambda frame: pl.concat([frame, frame[:2]]), "4 rows that share an instance id"),
    "no column": ("readmission", lambda frame: frame.drop("label"), "no column 'label'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_predictions_are_refused(make_run: MakeRun, case: str) -> None:
    task, change, words = BAD[case]
    folder = make_run(task=task, change=change)
    with pytest.raises(PlmError) as error:
        read_predictions(folder)
    assert words in str(error.value)
    assert str(folder) in str(error.value)


def test_missing_damaged_and_unfinished_runs_are_refused(make_run: MakeRun) -> None:
    folder = make_run()
    (folder / "predictions.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(PlmError, match="cannot be read"):
        read_predictions(folder)
    (folder / "predictions.parquet").unlink()
    with pytest.raises(PlmError, match="has no predictions"):
        read_predictions(folder)
    about = read_json(folder / "run.json", what="run")
    write_json(folder / "run.json", sealed({**about, "status": "running", "results": None}))
    with pytest.raises(PlmError, match="is not finished"):
        read_predictions(folder)


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(PlmError, match="different lengths"):
        Predictions.of("binary", [0, 1], [0.5])
