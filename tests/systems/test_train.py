"""Runs of plain models: the same folder as any run, returned when finished, refused where they cannot serve."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from patients_like_me.systems.settings import PLAIN_MODELS
from patients_like_me.training.run import Run
from tiny_runs import write_hospital
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.records.prepare import prepare
from patients_like_me.systems.train import train_baseline
from patients_like_me.tasks.metrics import score
from patients_like_me.tasks.registry import TASKS
from patients_like_me.tasks.task import TaskSettings
from patients_like_me.training.opened_run import open_run

FAST = {"boosting": {"trees": [5], "leaf_instances": 5}}


@pytest.fixture(scope="module")
def plain_run(cohort_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Run]:
    folder = tmp_path_factory.mktemp("plain")

    def make(model: str, task: str = "readmission") -> Run:
        return train_baseline(cohort_folder, task, folder / f"{task}-{model}", model=model, settings=FAST.get(model))

    return make


@pytest.mark.parametrize("model", PLAIN_MODELS)
@pytest.mark.parametrize("task", list(TASKS))
def test_a_plain_run_has_the_folder_of_any_run(model: str, task: str, plain_run: Callable[..., Run]) -> None:
    run = Run.load(plain_run(model, task).folder)
    assert run.is_finished
    assert run.name == model
    assert set(run.about) >= {
        "scores",
        "seconds",
        "peak_gib",
        "label_vocabulary",
        "task",
        "instances",
        "notes",
        "tried",
    }
    frame = run.predictions()
    assert set(frame["split"]) == {"validation", "test"}
    assert frame.height == run.about["instances"]["validation"] + run.about["instances"]["test"]
    for split in ("validation", "test"):
        chosen = frame.filter(split=split)
        chances = np.array(chosen["probabilities"].to_list(), dtype=np.float32)
        if task == "drug_recommendation":
            labels = np.zeros(chances.shape, dtype=np.int64)
            for place, codes in enumerate(chosen["label"].to_list()):
                labels[place, codes] = 1
        else:
            labels = np.array(chosen["label"].to_list())[:, 0]
        shaped = chances[:, 0] if task == "readmission" else chances
        assert score(TASKS[task].metrics, labels, shaped) == run.about["scores"][split]
    assert not list(run.folder.glob("*.partial"))
    assert not list(run.folder.rglob("*.pkl"))


@pytest.mark.parametrize("model", PLAIN_MODELS)
def test_the_card_says_what_was_made_and_names_no_patient(model: str, plain_run: Callable[..., Run]) -> None:
    card = (plain_run(model).folder / "README.md").read_text()
    assert card.startswith(f"# readmission, {model}\n")
    assert "A plain baseline" in card
    assert "Kept of the model" in card
    assert "not\nvalidated for care" in card
    assert "p1v0" not in card


def test_the_best_of_what_was_tried_is_delivered(plain_run: Callable[..., Run]) -> None:
    run = plain_run("logistic")
    best = max(run.about["tried"], key=lambda entry: entry["validation_score"])
    assert run.about["tuned"]["C"] == best["C"]
    assert run.about["scores"]["validation"]["auprc"] == pytest.approx(best["validation_score"], abs=1e-6)


def test_kept_coefficients_give_the_predictions_again(plain_run: Callable[..., Run]) -> None:
    from safetensors.numpy import load_file

    from patients_like_me.systems.bags import bag_of

    run = plain_run("logistic", "drug_recommendation")
    kept = load_file(run.folder / "parameters.safetensors")
    features = json.loads((run.folder / "features.json").read_text())
    instances = open_run(run.folder).instances
    bag = bag_of(instances, instances.rows_of("train"))
    assert list(bag.features) == features
    logits = bag.values[instances.rows_of("test")] @ kept["weights"].T + kept["intercepts"]
    written = np.array(run.predictions().filter(split="test")["probabilities"].to_list())
    assert np.allclose(1 / (1 + np.exp(-logits)), written, atol=1e-6)


def test_a_finished_run_is_returned_and_other_settings_are_refused(
    cohort_folder: Path, make_cohort: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    first = train_baseline(cohort_folder, "readmission", out, model="repeat")
    written = (out / "run.json").stat().st_mtime_ns
    assert train_baseline(cohort_folder, "readmission", out, model="repeat").about == first.about
    assert (out / "run.json").stat().st_mtime_ns == written
    with pytest.raises(PlmError, match=r"settings\.weight is 0\.9 there and 0\.8 here"):
        train_baseline(cohort_folder, "readmission", out, model="repeat", settings={"weight": 0.8})
    with pytest.raises(PlmError, match='model is "repeat" there and "frequency" here'):
        train_baseline(cohort_folder, "readmission", out, model="frequency")
    with pytest.raises(PlmError, match="another cohort"):
        train_baseline(make_cohort(patients=20, seed=5), "readmission", out, model="repeat")


def test_the_order_of_the_source_changes_nothing(tmp_path: Path) -> None:
    """Write the same hospital with its lines in another order: every instance is predicted as before."""
    source = write_hospital(tmp_path / "tables", patients=40, seed=6)
    other = tmp_path / "other"
    other.mkdir()
    for table in source.iterdir():
        header, *lines = table.read_text().splitlines()
        (other / table.name).write_text("\n".join([header, *reversed(lines)]) + "\n")
    store = CodeStore(tmp_path / "codes")
    cohorts = [
        prepare("tables", folder, tmp_path / f"c-{folder.name}", store=store).folder for folder in (source, other)
    ]
    for model in PLAIN_MODELS:
        before, after = (
            train_baseline(
                cohort, "length_of_stay", tmp_path / model / cohort.name, model=model, settings=FAST.get(model)
            )
            .predictions()
            .sort("instance_id")
            for cohort in cohorts
        )
        assert before.equals(after)


def test_a_stopped_run_starts_anew(cohort_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from patients_like_me.systems import train

    def stopped(*words: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(train, "_write_parameters", stopped)
        with pytest.raises(KeyboardInterrupt):
            train_baseline(cohort_folder, "readmission", out, model="frequency")
    assert not Run.load(out).is_finished
    assert train_baseline(cohort_folder, "readmission", out, model="frequency").is_finished


def test_the_preset_decides_what_is_seen(cohort_folder: Path, tmp_path: Path) -> None:
    known = train_baseline(
        cohort_folder,
        "drug_recommendation",
        tmp_path / "known",
        model="logistic",
        task_settings=TaskSettings(inputs="known"),
    )
    features = json.loads((known.folder / "features.json").read_text())
    assert features
    assert not any(name.startswith("current") for name in features)


def test_without_test_patients_validation_alone_is_written(cohort_folder: Path, tmp_path: Path) -> None:
    shares = TaskSettings(split_shares=(0.8, 0.2, 0))
    run = train_baseline(cohort_folder, "readmission", tmp_path / "a", model="logistic", task_settings=shares)
    assert set(run.about["scores"]) == {"validation"}
    nothing = TaskSettings(split_shares=(0.8, 0, 0.2))
    with pytest.raises(PlmError, match="no instance is in the validation split"):
        train_baseline(cohort_folder, "readmission", tmp_path / "b", model="logistic", task_settings=nothing)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("model", PLAIN_MODELS)
def test_one_class_in_training_gives_its_rate(model: str, make_cohort: Callable[..., Path], tmp_path: Path) -> None:
    healthy = make_cohort(patients=12, seed=3)
    labels = pl.read_parquet(healthy / "labels.parquet")
    none = pl.when(pl.col("task") == "readmission").then(pl.lit("0")).otherwise(pl.col("value"))
    labels.with_columns(value=none).write_parquet(healthy / "labels.parquet")
    run = train_baseline(healthy, "readmission", tmp_path / "run", model=model, settings=FAST.get(model))
    assert run.about["scores"]["test"] == {"auprc": None, "auroc": None}
    assert np.array(run.predictions()["probabilities"].to_list()).max() < 1e-6


def test_too_few_patients_are_refused(make_cohort: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(PlmError, match="1 patient, too few"):
        train_baseline(make_cohort(patients=1), "readmission", tmp_path / "run", model="frequency")


def test_what_needs_the_trained_model_is_refused(plain_run: Callable[..., Run], cohort_folder: Path) -> None:
    run = plain_run("logistic")
    with pytest.raises(PlmError, match=r"plain model 'logistic'.*without --model"):
        run.require_own_model()
    opened = open_run(run.folder)
    assert not opened.is_own_model
    with pytest.raises(PlmError, match="plain model 'logistic'"):
        opened.graph_of("test")
    with pytest.raises(PlmError, match="plain model 'logistic'"):
        _ = opened.settings
    answer = CliRunner().invoke(app, ["predict", str(run.folder), str(cohort_folder), "--out", "x.parquet"])
    assert isinstance(answer.exception, PlmError)
    assert "plain model 'logistic'" in str(answer.exception)


def test_the_command_trains_a_plain_model(cohort_folder: Path, tmp_path: Path) -> None:
    words = ["train", str(cohort_folder), "--task", "length_of_stay", "--model", "neighbors", "--threads", "1"]
    changes = ["--set", "tau=[2]", "--set", "task.inputs=known", "--preset", "paper", "--out", str(tmp_path / "run")]
    answer = CliRunner().invoke(app, [*words, *changes])
    assert answer.exit_code == 0, answer.output
    assert "neighbors: tau 2" in answer.output
    assert "Note: " in answer.output
    identity = Run.load(tmp_path / "run").about["identity"]
    assert identity["settings"]["tau"] == [2]
    assert identity["task_settings"]["inputs"] == "known"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--model", "magic"], "there is no plain model 'magic'"),
        (["--model", "logistic", "--strategy", "lm_only"], "no strategy or backbone"),
        (["--model", "logistic", "--backbone", "minilm-2"], "no strategy or backbone"),
        (["--model", "logistic", "--set", "graph.tau=2"], "graph"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    words: list[str], sentence: str, cohort_folder: Path, tmp_path: Path
) -> None:
    answer = CliRunner().invoke(
        app, ["train", str(cohort_folder), "--task", "readmission", "--out", str(tmp_path / "run"), *words]
    )
    assert isinstance(answer.exception, PlmError)
    assert sentence in str(answer.exception)
    assert not (tmp_path / "run").exists()
