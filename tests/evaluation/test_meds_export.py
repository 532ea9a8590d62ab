"""MEDS-style tables hold the labels and predictions of a run, nothing more and nothing less."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.evaluation.meds_export import export_run, meds_tables
from patients_like_me.evaluation.predictions import Predictions, read_predictions
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.forms.synthetic import write_synthetic_hospital_as
from patients_like_me.records.prepare import prepare
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task

MakeRun = Callable[..., Path]


def test_binary_tables_have_the_columns_of_the_schema(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run()
    export_run(folder, tmp_path / "meds")
    table = pl.read_parquet(tmp_path / "meds" / "predictions.parquet")
    assert dict(table.schema) == {
        "subject_id": pl.Int64(),
        "prediction_time": pl.Datetime("us"),
        "instance_id": pl.String(),
        "split": pl.String(),
        "boolean_value": pl.Boolean(),
        "predicted_boolean_value": pl.Boolean(),
        "predicted_boolean_probability": pl.Float64(),
    }
    made = read_predictions(folder)
    assert table["boolean_value"].to_list() == (made.labels == 1).tolist()
    assert table["predicted_boolean_value"].to_list() == (made.probabilities >= 0.2).tolist()
    assert np.allclose(table["predicted_boolean_probability"].to_numpy(), made.probabilities)
    assert table["subject_id"].cast(pl.String).to_list() == list(made.subject_ids)
    labels = pl.read_parquet(tmp_path / "meds" / "labels.parquet")
    assert labels.columns == ["subject_id", "prediction_time", "boolean_value"]


@pytest.mark.parametrize(("task", "value"), [("readmission", "boolean_value"), ("length_of_stay", "categorical_value")])
def test_labels_pass_the_schema_of_the_package_meds(make_run: MakeRun, tmp_path: Path, task: str, value: str) -> None:
    import pyarrow.parquet
    from meds import DataSchema, LabelSchema

    def dated(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(pl.lit(datetime(2150, 1, 1)).cast(pl.Datetime("us")).alias("prediction_time"))

    export_run(make_run(task=task, change=dated), tmp_path / "meds")
    labels = LabelSchema.align(pyarrow.parquet.read_table(tmp_path / "meds" / "labels.parquet"))
    LabelSchema.validate(labels)
    assert labels.column_names == ["subject_id", "prediction_time", value]
    predictions = pyarrow.parquet.read_table(tmp_path / "meds" / "predictions.parquet")
    assert LabelSchema.align(predictions.select(labels.column_names)).equals(labels)
    # The package has no schema of predictions; its events allow more columns, and so take all of them.
    assert DataSchema.allow_extra_columns
    kind = value.removesuffix("_value")
    names = {"prediction_time": "time", "instance_id": "code"}
    events = DataSchema.align(predictions.rename_columns(names))
    assert set(events.column_names) >= {"subject_id", *(names.get(name, name) for name in predictions.column_names)}
    assert {str(events.schema.field(f"predicted_{kind}_{what}").type) for what in ("value", "probability")} == {
        {"boolean": "bool", "categorical": "large_string"}[kind],
        "double",
    }


def test_exported_labels_are_read_back_as_a_task(tmp_path: Path) -> None:
    """The same answer for every visit, through the label file of a MEDS dataset."""
    folder, store = tmp_path / "meds", CodeStore(tmp_path / "codes")
    write_synthetic_hospital_as("meds", folder, patients=30)
    cohort = Cohort.load(prepare("meds", folder, tmp_path / "cohort", store=store).folder)
    instances = build_instances(cohort, find_task("readmission"))
    subjects = instances.frame.join(cohort.patients, on="subject", how="left", maintain_order="left")["subject_id"]
    made = Predictions.of("binary", instances.labels, np.full(len(instances), 0.5), subjects=subjects)
    tables = meds_tables(
        replace(made, subject_ids=tuple(subjects), prediction_times=instances.prediction_times["prediction_time"])
    ).tables
    tables["labels"].write_parquet(tmp_path / "returns.parquet")
    reading = {"labels": str(tmp_path / "returns.parquet")}
    again = Cohort.load(prepare("meds", folder, tmp_path / "again", reading=reading, store=store).folder)
    back = build_instances(again, find_task("returns", again))
    assert set(instances.labels.tolist()) == {0, 1}
    assert back.instance_ids == instances.instance_ids
    assert np.array_equal(back.labels, instances.labels)


def test_classes_by_name_and_every_probability(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run(task="length_of_stay")
    made, exported = read_predictions(folder), export_run(folder, tmp_path / "meds").tables
    table = exported["predictions"]
    assert table["categorical_value"].to_list() == [made.outputs[label] for label in made.labels]
    assert table["predicted_categorical_value"][0] == made.outputs[int(made.probabilities[0].argmax())]
    every = exported["probabilities"]
    assert every.height == made.probabilities.size
    sums = every.group_by("instance_id").agg(pl.col("predicted_categorical_probability").sum())
    assert np.allclose(sums["predicted_categorical_probability"].to_numpy(), 1, atol=1e-4)


def test_one_row_per_code_for_sets(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run(task="drug_recommendation")
    made, table = read_predictions(folder), export_run(folder, tmp_path / "meds").tables["predictions"]
    assert table.height == made.labels.size
    back = table["boolean_value"].to_numpy().reshape(made.labels.shape)
    assert np.array_equal(back, made.labels == 1)
    assert table["code"][: len(made.outputs)].to_list() == list(made.outputs)


def test_text_ids_are_numbered_and_named(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run(change=lambda frame: frame.with_columns((pl.lit("p") + pl.col("subject_id")).alias("subject_id")))
    tables = export_run(folder, tmp_path / "meds").tables
    back = tables["predictions"].join(tables["subjects"], on="subject_id", how="left")
    assert back["source_subject_id"].to_list() == list(read_predictions(folder).subject_ids)


def test_ids_that_become_one_number_are_refused(make_run: MakeRun, tmp_path: Path) -> None:
    def same_number(frame: pl.DataFrame) -> pl.DataFrame:
        ids = ["7", "07", *frame["subject_id"].to_list()[2:]]
        return frame.with_columns(pl.Series("subject_id", ids))

    with pytest.raises(PlmError, match="the same whole number"):
        export_run(make_run(change=same_number), tmp_path / "meds")


def test_the_command_says_what_it_wrote(make_run: MakeRun, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export", str(make_run()), "--out", str(tmp_path / "meds")])
    assert result.exit_code == 0, result.output
    assert "predictions.parquet" in result.output
    assert "no prediction time" in result.output
    again = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--out", str(tmp_path / "meds")])
    assert isinstance(again.exception, PlmError)
