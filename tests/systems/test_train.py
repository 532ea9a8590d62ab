"""Runs of systems: the same folder for each, returned when finished, refused where they cannot serve."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tiny_runs import rewrite_table, write_hospital
from typer.testing import CliRunner

from patients_like_me import files
from patients_like_me.cli import app
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.explanation.scene import set_scene
from patients_like_me.records.prepare import prepare
from patients_like_me.runs.run import Run, load_run
from patients_like_me.systems.predictor import Predictor
from patients_like_me.systems.registry import all_systems
from patients_like_me.systems.train import train
from patients_like_me.tasks.metrics import score
from patients_like_me.tasks.registry import all_tasks
from patients_like_me.tasks.task import TaskSettings

TASKS = all_tasks()
#: The systems without epochs: fitted within seconds.
QUICK_SYSTEMS = tuple(name for name, system in all_systems().items() if not system.capabilities.epochs)
FAST = {"boosting": {"trees": [5], "leaf_instances": 5}}


@pytest.fixture(scope="module")
def plain_run(cohort_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Run]:
    folder = tmp_path_factory.mktemp("plain")

    def make(model: str, task: str = "readmission") -> Run:
        return train(cohort_folder, task, folder / f"{task}-{model}", system=model, settings=FAST.get(model))

    return make


@pytest.mark.parametrize("model", QUICK_SYSTEMS)
@pytest.mark.parametrize("task", list(TASKS))
def test_a_plain_run_has_the_folder_of_any_run(model: str, task: str, plain_run: Callable[..., Run]) -> None:
    run = load_run(plain_run(model, task).folder)
    assert run.is_finished
    assert run.name == model
    frame = run.predictions()
    assert set(frame["split"]) == {"validation", "test"}
    assert frame.height == run.results.instances["validation"] + run.results.instances["test"]
    for split in ("validation", "test"):
        chosen = frame.filter(split=split)
        probabilities = np.array(chosen["probabilities"].to_list(), dtype=np.float32)
        if task == "drug_recommendation":
            labels = np.zeros(probabilities.shape, dtype=np.int64)
            for place, codes in enumerate(chosen["label"].to_list()):
                labels[place, codes] = 1
        else:
            labels = np.array(chosen["label"].to_list())[:, 0]
        shaped = probabilities[:, 0] if task == "readmission" else probabilities
        assert score(TASKS[task].metrics, labels, shaped) == run.results.scores[split]
    assert not list(run.folder.glob("*.partial"))
    assert not list(run.folder.rglob("*.pkl"))


@pytest.mark.parametrize("model", QUICK_SYSTEMS)
def test_the_card_says_what_was_made_and_names_no_patient(model: str, plain_run: Callable[..., Run]) -> None:
    card = (plain_run(model).folder / "README.md").read_text()
    assert card.startswith(f"# readmission, {model}\n")
    assert f"- **System:** {model}: {all_systems()[model].description}" in card
    assert "not validated for care" in card
    assert "p1v0" not in card


def test_the_best_of_what_was_tried_is_delivered(plain_run: Callable[..., Run]) -> None:
    run = plain_run("logistic")
    best = max(run.results.tried, key=lambda entry: entry["validation_score"])
    assert run.results.chosen["C"] == best["C"]
    assert run.results.scores["validation"]["auprc"] == pytest.approx(best["validation_score"], abs=1e-6)


def test_kept_coefficients_give_the_predictions_again(plain_run: Callable[..., Run]) -> None:
    from safetensors.numpy import load_file

    from patients_like_me.systems.bags import bag_of

    run = plain_run("logistic", "drug_recommendation")
    kept = load_file(run.folder / "fitted.safetensors")
    features = json.loads((run.folder / "fitted.json").read_text())["features"]
    instances = load_run(run.folder).instances
    bag = bag_of(instances, instances.rows_of("train"))
    assert list(bag.features) == features
    logits = bag.values[instances.rows_of("test")] @ kept["weights"].T + kept["intercepts"]
    written = np.array(run.predictions().filter(split="test")["probabilities"].to_list())
    assert np.allclose(1 / (1 + np.exp(-logits)), written, atol=1e-6)


def test_a_finished_run_is_returned_and_other_settings_are_refused(
    cohort_folder: Path, make_cohort: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    first = train(cohort_folder, "readmission", out, system="repeat")
    written = (out / "run.json").stat().st_mtime_ns
    # What a kill after the last line of the record leaves behind is removed.
    (out / "stages" / "first").mkdir(parents=True)
    (out / "checkpoint.safetensors").touch()
    assert train(cohort_folder, "readmission", out, system="repeat").record == first.record
    assert (out / "run.json").stat().st_mtime_ns == written
    assert not [name for name in ("stages", "checkpoint.safetensors") if (out / name).exists()]
    with pytest.raises(PlmError, match=r"settings\.weight is 0\.9 there and 0\.8 here"):
        train(cohort_folder, "readmission", out, system="repeat", settings={"weight": 0.8})
    with pytest.raises(PlmError, match='system is "repeat" there and "frequency" here'):
        train(cohort_folder, "readmission", out, system="frequency")
    with pytest.raises(PlmError, match="another cohort"):
        train(make_cohort(patients=20, seed=5), "readmission", out, system="repeat")


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
    for model in QUICK_SYSTEMS:
        before, after = (
            train(cohort, "length_of_stay", tmp_path / model / cohort.name, system=model, settings=FAST.get(model))
            .predictions()
            .sort("instance_id")
            for cohort in cohorts
        )
        assert before.equals(after)


def test_a_stopped_run_starts_again(cohort_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from patients_like_me.systems import train as module

    def stopped(*words: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(module, "save_fitted", stopped)
        with pytest.raises(KeyboardInterrupt):
            train(cohort_folder, "readmission", out, system="frequency")
    assert not load_run(out).is_finished
    assert train(cohort_folder, "readmission", out, system="frequency").is_finished


def test_the_preset_decides_what_is_seen(cohort_folder: Path, tmp_path: Path) -> None:
    known = train(
        cohort_folder,
        "drug_recommendation",
        tmp_path / "known",
        system="logistic",
        task_settings=TaskSettings(inputs="known"),
    )
    features = json.loads((known.folder / "fitted.json").read_text())["features"]
    assert features
    assert not any(name.startswith("current") for name in features)


def test_without_test_patients_validation_alone_is_written(cohort_folder: Path, tmp_path: Path) -> None:
    shares = TaskSettings(split_shares=(0.8, 0.2, 0))
    run = train(cohort_folder, "readmission", tmp_path / "a", system="logistic", task_settings=shares)
    assert set(run.results.scores) == {"validation"}
    nothing = TaskSettings(split_shares=(0.8, 0, 0.2))
    with pytest.raises(PlmError, match="no instance is in the validation split"):
        train(cohort_folder, "readmission", tmp_path / "b", system="logistic", task_settings=nothing)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("model", QUICK_SYSTEMS)
def test_one_class_in_training_gives_its_rate(model: str, make_cohort: Callable[..., Path], tmp_path: Path) -> None:
    healthy = make_cohort(patients=12, seed=3)
    labels = pl.read_parquet(healthy / "labels.parquet")
    none = pl.when(pl.col("task") == "readmission").then(pl.lit("0")).otherwise(pl.col("value"))
    rewrite_table(healthy, "labels", labels.with_columns(value=none))
    run = train(healthy, "readmission", tmp_path / "run", system=model, settings=FAST.get(model))
    assert run.results.scores["test"] == {"auprc": None, "auroc": None}
    # An optimiser stops somewhere on the way to a logit of minus infinity; a counted rate is 0.
    limit = 1e-4 if model in ("linear", "references") else 1e-6
    assert np.array(run.predictions()["probabilities"].to_list()).max() < limit


def test_too_few_patients_are_refused(make_cohort: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(PlmError, match="1 patient, too few"):
        train(make_cohort(patients=1), "readmission", tmp_path / "run", system="frequency")


def test_what_needs_references_is_refused(plain_run: Callable[..., Run]) -> None:
    run = plain_run("logistic")
    for asked in (run.require_references, lambda: run.graph_of("test"), lambda: set_scene(run)):
        with pytest.raises(PlmError, match=r"system 'logistic', which has no references.*plm systems"):
            asked()


@pytest.mark.parametrize("model", QUICK_SYSTEMS)
@pytest.mark.parametrize("task", list(TASKS))
def test_newcomers_are_predicted_as_the_run_predicts(
    model: str, task: str, plain_run: Callable[..., Run], cohort_folder: Path, tmp_path: Path
) -> None:
    run = plain_run(model, task)
    answer = CliRunner().invoke(
        app, ["predict", str(run.folder), str(cohort_folder), "--every-visit", "--out", str(tmp_path / "new.parquet")]
    )
    assert answer.exit_code == 0, answer.output
    again = pl.read_parquet(tmp_path / "new.parquet")
    both = run.predictions().join(again, on="instance_id", suffix="_again")
    assert both.height == run.predictions().height
    before, after = (np.array(both[name].to_list()) for name in ("probabilities", "probabilities_again"))
    assert np.array_equal(before, after)
    labels = json.loads((tmp_path / "new.labels.json").read_text())["labels"]
    assert len(labels) == before.shape[1]


def test_predicting_training_patients_is_said(
    cohort_folder: Path, make_cohort: Callable[..., Path], plain_run: Callable[..., Run], tmp_path: Path
) -> None:
    """Nobody should read scores for new patients off those whose outcome the model was fitted to."""
    run, out = plain_run("frequency"), str(tmp_path / "predictions.parquet")
    done = CliRunner().invoke(app, ["predict", str(run.folder), str(cohort_folder), "--out", out])
    seen = set(run.predictions()["subject_id"])
    fitted_to = len(set(pl.read_parquet(out)["subject_id"]) - seen)
    assert done.exit_code == 0
    assert seen
    assert fitted_to
    assert f"and {fitted_to:,} of the predicted patients are training patients" in " ".join(done.stderr.split())
    others = CliRunner().invoke(app, ["predict", str(run.folder), str(make_cohort(patients=40)), "--out", out])
    assert others.exit_code == 0, others.output
    assert "training patients" not in others.output


def test_predictions_are_not_left_without_their_labels(
    plain_run: Callable[..., Run], cohort_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    run = plain_run("frequency")
    monkeypatch.setattr(files, "write_json", full)
    words = ["predict", str(run.folder), str(cohort_folder), "--out", str(tmp_path / "new.parquet")]
    assert isinstance(CliRunner().invoke(app, words).exception, OSError)
    assert not list(tmp_path.iterdir())


def test_a_damaged_fit_is_named(plain_run: Callable[..., Run], tmp_path: Path) -> None:
    run = shutil.copytree(plain_run("frequency").folder, tmp_path / "run")
    (run / "fitted.safetensors").write_bytes(b"nothing")
    with pytest.raises(PlmError, match=r"fitted.safetensors' is damaged.*train the run again"):
        Predictor.load(run)


def test_the_command_trains_a_plain_model(cohort_folder: Path, tmp_path: Path) -> None:
    words = ["train", str(cohort_folder), "--task", "length_of_stay", "--system", "neighbors", "--threads", "1"]
    changes = ["--set", "tau=[2]", "--set", "task.inputs=known", "--preset", "paper", "--out", str(tmp_path / "run")]
    answer = CliRunner().invoke(app, [*words, *changes])
    assert answer.exit_code == 0, answer.output
    assert "neighbors: tau 2" in answer.output
    assert "Note: " in answer.output
    identity = load_run(tmp_path / "run").identity
    assert identity.settings["tau"] == [2]
    assert identity.task_settings["inputs"] == "known"


def test_the_systems_are_listed_and_planned(cohort_folder: Path) -> None:
    listed = CliRunner().invoke(app, ["systems"], env={"COLUMNS": "250"})
    assert listed.exit_code == 0, listed.output
    for name in all_systems():
        assert name in listed.output
    planned = CliRunner().invoke(app, ["plan", str(cohort_folder), "--system", "logistic"])
    assert planned.exit_code == 0, planned.output
    assert "instances" in planned.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--system", "magic"], "there is no system 'magic'"),
        (["--system", "logistic", "--strategy", "lm_only"], "the system 'logistic' has no strategy to choose"),
        (["--system", "logistic", "--backbone", "minilm-2"], "the system 'logistic' has no backbone to choose"),
        (["--system", "logistic", "--set", "graph.tau=2"], "graph"),
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
