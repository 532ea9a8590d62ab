"""Recalibration: fitted on validation alone, the same for predictions, explanations and evaluations, and undone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.errors import PlmError
from patients_like_me.evaluation.evaluate import evaluate
from patients_like_me.evaluation.measures import measures_of
from patients_like_me.evaluation.predictions import Predictions, read_predictions
from patients_like_me.evaluation.recalibration import calibrate_if_possible, calibrate_run, fit_calibration
from patients_like_me.explanation.explain import explain
from patients_like_me.explanation.scene import set_scene
from patients_like_me.records.cohort import Cohort
from patients_like_me.runs.calibration import Calibration, wanted_method
from patients_like_me.runs.run import Run, load_run
from patients_like_me.systems.predictor import Predictor
from patients_like_me.systems.train import train
from patients_like_me.tasks.kinds import KINDS_OF_LABEL, LabelKind, kind_named
from patients_like_me.tasks.task import TaskSettings
from patients_like_me.training.settings import TrainingSettings


def overconfident(kind: str, *, instances: int = 600, seed: int = 0) -> Predictions:
    """Return predictions whose logits are twice as large as they should be."""
    generator = np.random.default_rng(seed)
    label, width = kind_named(kind), {"binary": 1, "multiclass": 4, "multilabel": 5}[kind]
    logits = generator.normal(size=(instances, width))
    right, said = label.probabilities(logits), label.probabilities(2 * logits + (0 if width == 4 else 0.7))
    if label.adds_up:
        labels = np.array([generator.choice(width, p=row) for row in right])
    else:
        labels = label.in_shape((generator.random(right.shape) < right).astype(np.int64))
    return Predictions.of(kind, labels, label.in_shape(said))


def recalibrated(found: Predictions, calibration: Calibration) -> Predictions:
    shown = calibration.apply(found.kind, found.columns)
    return Predictions.of(found.kind, found.labels, found.kind.in_shape(shown))


def value(found: Predictions, metric: str) -> float:
    shown = measures_of(found, only=[metric])[0].value
    assert shown is not None
    return shown


@pytest.mark.parametrize("kind", KINDS_OF_LABEL)
def test_a_logistic_map_finds_the_slope_and_keeps_every_order(kind: LabelKind) -> None:
    found = overconfident(kind)
    fitted = fit_calibration(found, "logistic")
    assert fitted.slope == pytest.approx(0.5, abs=0.1)
    after = recalibrated(found, fitted)
    if not kind.adds_up:
        assert value(after, "calibration_slope") == pytest.approx(1.0, abs=0.01)
        assert value(found, "calibration_slope") < 0.65
        for metric in {"binary": ("auprc", "auroc"), "multilabel": ("auprc_per_instance", "auroc_per_code")}[kind]:
            assert value(after, metric) == value(found, metric)
    assert (after.columns.argmax(axis=1) == found.columns.argmax(axis=1)).all()
    assert value(after, "brier") < value(found, "brier")


@pytest.mark.parametrize("kind", KINDS_OF_LABEL)
def test_an_isotonic_map_never_turns_an_order_round(kind: LabelKind) -> None:
    found = overconfident(kind)
    after = recalibrated(found, fit_calibration(found, "isotonic"))
    if not kind.adds_up:
        order = np.argsort(found.columns, axis=None)
        assert (np.diff(after.columns.ravel()[order]) >= 0).all()
    assert value(after, "calibration_error") < value(found, "calibration_error")
    assert (after.columns > 0).all()
    assert (after.columns < 1).all()


def test_wrong_requests_are_refused() -> None:
    found = overconfident("binary")
    with pytest.raises(PlmError, match="on validation alone"):
        fit_calibration(
            Predictions(found.kind, found.labels, found.probabilities, found.patients, splits=("test",)), "logistic"
        )
    with pytest.raises(PlmError, match="too few instances"):
        fit_calibration(found.take(np.arange(12)), "logistic")
    upside_down = Predictions.of("binary", 1 - found.labels, found.probabilities)
    with pytest.raises(PlmError, match="does not become more frequent"):
        fit_calibration(upside_down, "logistic")
    with pytest.raises(PlmError, match="logistic, isotonic, none"):
        wanted_method("platt")


@pytest.fixture(scope="module")
def larger_cohort(make_cohort: Callable[..., Path]) -> Path:
    return make_cohort(patients=150)


@pytest.mark.parametrize("references", ["bank", "cohort"])
def test_predict_explain_and_evaluate_say_the_same(
    references: str, larger_cohort: Path, tiny_settings: Callable[..., TrainingSettings], tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    settings = tiny_settings(epochs=1, graph={"tau": 2, "max_neighbors": 8, "references": references})
    out = tmp_path / "run"
    run = train(larger_cohort, "readmission", out, settings=settings, task_settings=TaskSettings())
    before, said = run.record, read_predictions(run)
    done = calibrate_run(run)
    assert load_run(out).record == done.record
    calibration = done.record.calibration
    assert calibration is not None
    used = read_predictions(done)
    assert not np.allclose(used.probabilities, said.probabilities)
    assert done.results.scores["test"] == before.results.scores["test"]  # type: ignore[union-attr]
    assert "Calibration:** logistic on" in (out / "README.md").read_text()

    evaluation = evaluate(out, replicates=20)
    assert evaluation.calibration == calibration.in_words()
    assert {each.metric for each in evaluation.before_calibration} >= {"brier", "calibration_slope"}
    scene = set_scene(load_run(out))
    by_id = dict(zip(used.instance_ids, used.probabilities.tolist(), strict=True))
    row = int(scene.own_rows[0])
    found = explain(scene, row)
    assert found.prediction.probability == pytest.approx(by_id[scene.instances.instance_ids[row]], abs=1e-5)

    newcomers = Predictor.load(out).predict(Cohort.load(larger_cohort), every_visit=True)
    as_new = read_predictions(done, newcomers=True)
    expected = pl.DataFrame({"instance_id": as_new.instance_ids, "expected": as_new.probabilities.tolist()})
    both = newcomers.join(expected, on="instance_id")
    assert both.height == len(as_new)
    shown = both["probabilities"].list.get(0).to_numpy()
    np.testing.assert_allclose(shown, both["expected"].to_numpy(), atol=1e-5)

    undone = calibrate_run(out, "none")
    assert undone.record == before
    assert (read_predictions(undone).probabilities == said.probabilities).all()


def test_a_calibration_that_fails_leaves_the_card_whole(
    larger_cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    run = train(larger_cohort, "readmission", out, system="frequency")
    before = (out / "README.md").read_bytes()

    def stopped(self: Path, text: str, encoding: str = "utf-8") -> int:
        self.write_bytes(text.encode(encoding)[:20])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", stopped)
        with pytest.raises(KeyboardInterrupt):
            calibrate_run(run)
    assert (out / "README.md").read_bytes() == before
    assert load_run(out).record == run.record
    assert not list(out.rglob("*.partial"))


def test_a_training_ends_recalibrated_unless_the_preset_says_otherwise(larger_cohort: Path, tmp_path: Path) -> None:
    for preset, expected in (("quick", "logistic"), ("paper", None)):
        words = ["train", str(larger_cohort), "--task", "readmission", "--system", "frequency", "--preset", preset]
        answer = CliRunner().invoke(app, [*words, "--out", str(tmp_path / preset)])
        assert answer.exit_code == 0, answer.output
        found = load_run(tmp_path / preset).record.calibration
        assert (None if found is None else found.method) == expected
        assert ("Recalibrated: " in answer.output) is (expected is not None)


def test_test_patients_have_no_part_in_it(larger_cohort: Path, tmp_path: Path) -> None:
    same_for_all = train(larger_cohort, "readmission", tmp_path / "run", system="frequency")
    done, problem = calibrate_if_possible(same_for_all, "logistic")
    assert not problem
    assert done.record.calibration is not None
    assert done.record.calibration.slope == 1.0
    assert calibrate_if_possible(done, "logistic") == (done, "")
    for wanted in ("isotonic", "none"):
        kept, problem = calibrate_if_possible(done, wanted)
        assert kept == done
        assert "was recalibrated before (logistic on" in problem
    out = tmp_path / "logistic"
    run = train(larger_cohort, "drug_recommendation", out, system="logistic")
    fitted = calibrate_run(run, "isotonic").record.calibration
    frame = run.predictions(calibrated=False)
    other = frame.with_columns(
        pl.when(pl.col("split") == "test").then(pl.col("label").list.head(0)).otherwise("label").alias("label")
    )
    other.write_parquet(out / "predictions.parquet")
    unsealed = run.record.model_copy(update={"digests": {}})
    unsealed.write(out)
    again = calibrate_run(Run(out, unsealed), "isotonic")
    assert again.record.calibration == fitted
