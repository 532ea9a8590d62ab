"""Whole trainings: every strategy learns, saves, resumes and refuses what it must."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_backbones import hash_of
from tiny_runs import rewrite_table

from patients_like_me.errors import PlmError
from patients_like_me.files import only_writer, sha256_of_file
from patients_like_me.records.cohort import Cohort
from patients_like_me.runs.run import Run, load_run
from patients_like_me.runs.watching import Nobody
from patients_like_me.systems.predictor import Predictor
from patients_like_me.systems.problem import only
from patients_like_me.systems.train import train
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import all_tasks
from patients_like_me.tasks.task import TaskSettings
from patients_like_me.training.data import predicted
from patients_like_me.training.evaluation import embed_rows
from patients_like_me.training.preparation import patient_graph_of, prepare_training
from patients_like_me.training.settings import TrainingSettings
from patients_like_me.training.state import TrainingState
from patients_like_me.training.strategies import STRATEGIES

TASKS = all_tasks()

Settings = Callable[..., TrainingSettings]

#: The packaged encoder, frozen: its vectors are computed once, so a real language model learns within seconds.
REAL_WEIGHTS = {"backbone": {"name": "minilm-2", "trainable_layers": 0}, "epochs": 20, "rate": 5e-3, "patience": 20}


def start(cohort: Path, out: Path, settings: TrainingSettings, task: str = "readmission", **more: object) -> Run:
    cache = out.parent / "cache"
    return train(cohort, task, out, settings=settings, task_settings=TaskSettings(), cache=cache, **more)  # type: ignore[arg-type]


def fingerprint(run: Run) -> tuple[str, ...]:
    return tuple(sha256_of_file(run.folder / name) for name in ("model/theta.safetensors", "model/phi.safetensors"))


#: The trainings that these tests share: references of the same split or of the bank, and what else differs.
VARIANTS: dict[str, dict[str, object]] = {
    "cohort": {"graph": {"tau": 2, "references": "cohort"}, "graph_refresh": 2},
    "bank": {"graph": {"tau": 2, "max_neighbors": None, "references": "bank"}},
}


@pytest.fixture(scope="module")
def trained(
    cohort_folder: Path, tiny_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Run]:
    """Return a function that trains by a strategy, once per variant; nobody changes these runs."""
    folder = tmp_path_factory.mktemp("trained")

    def make(strategy: str, references: str) -> Run:
        out = folder / f"{strategy}-{references}"
        return start(cohort_folder, out, tiny_settings(strategy=strategy, **VARIANTS[references]))

    return make


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("references", VARIANTS)
def test_every_strategy_trains_and_delivers_the_best_epoch(
    strategy: str, references: str, trained: Callable[[str, str], Run]
) -> None:
    run = trained(strategy, references)
    assert run.is_finished
    predictions = run.predictions()
    assert set(predictions["split"]) == {"validation", "test"}
    assert predictions["probabilities"].list.len().unique().to_list() == [1]
    epochs = json.loads((run.folder / "epochs.json").read_text())
    assert len(epochs) == run.results.epochs
    best = epochs[(run.results.best_epoch or 0) - 1]
    for name, value in run.results.scores["validation"].items():
        assert best[f"validation_{name}"] == pytest.approx(value, abs=1e-6)
    assert not (run.folder / "checkpoint.safetensors").exists()
    assert "not validated for care" in (run.folder / "README.md").read_text()
    assert "p1v0" not in (run.folder / "README.md").read_text()


@pytest.mark.parametrize("task", ["length_of_stay", "drug_recommendation"])
def test_the_other_kinds_of_tasks_train(task: str, finished_run: Callable[..., Path]) -> None:
    run = load_run(finished_run(task))
    width = 10 if task == "length_of_stay" else len(run.label_vocabulary)
    assert run.predictions()["probabilities"].list.len().unique().to_list() == [width]


@pytest.fixture(scope="module")
def by_real_weights(
    make_cohort: Callable[..., Path], tiny_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[bool], Run]:
    """Return a function that trains on the same texts with their labels or with shuffled ones; they are read once."""
    folder = tmp_path_factory.mktemp("real")

    def make(shuffle_labels: bool) -> Run:
        cohort = make_cohort(patients=220, seed=9, shuffle_labels=shuffle_labels)
        return start(cohort, folder / f"{shuffle_labels}", tiny_settings(strategy="vem", **REAL_WEIGHTS))

    return make


def test_vem_learns_what_is_in_the_text(by_real_weights: Callable[[bool], Run]) -> None:
    run = by_real_weights(False)
    assert run.results.scores["test"]["auroc"] > 0.8
    losses = [epoch["language_loss"] for epoch in json.loads((run.folder / "epochs.json").read_text())]
    assert losses[-1] < losses[0]


def test_shuffled_labels_give_chance_on_fresh_patients(
    by_real_weights: Callable[[bool], Run],
) -> None:
    """The leak alarm: with labels that mean nothing, a score above chance could only come from a leak."""
    run = by_real_weights(True)
    assert abs(run.results.scores["test"]["auroc"] - 0.5) < 0.17


class StoppedError(Exception):
    """Stands for Ctrl-C at any moment."""


class StopWithinEpoch(Nobody):
    """Stops a training after three batches of an epoch."""

    def batch_done(self, state: TrainingState, batches: int) -> None:
        if state.batch == 3:
            raise StoppedError


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_resumed_training_equals_an_uninterrupted_one(
    strategy: str, cohort_folder: Path, tmp_path: Path, tiny_settings: Settings, trained: Callable[[str, str], Run]
) -> None:
    settings = tiny_settings(strategy=strategy, **VARIANTS["cohort"])
    whole = trained(strategy, "cohort")

    class Stopper(Nobody):
        seen = 0

        def batch_done(self, state: object, batches: int) -> None:
            self.seen += 1
            if self.seen in (4, 9):
                raise StoppedError

    for _ in range(2):
        stopper = Stopper()
        with pytest.raises(StoppedError):
            start(cohort_folder, tmp_path / "parts", settings, watcher=stopper, save_every=0.0)
        assert not load_run(tmp_path / "parts").is_finished
    resumed = start(cohort_folder, tmp_path / "parts", settings)
    assert fingerprint(resumed) == fingerprint(whole)
    assert resumed.predictions().equals(whole.predictions())


def test_a_checkpoint_within_an_epoch_is_used(cohort_folder: Path, tmp_path: Path, tiny_settings: Settings) -> None:
    settings = tiny_settings(strategy="lm_only")

    with pytest.raises(StoppedError):
        start(cohort_folder, tmp_path / "run", settings, watcher=StopWithinEpoch(), save_every=0.0)
    lines: list[str] = []
    start(cohort_folder, tmp_path / "run", settings, report=lines.append)
    assert any("continuing after epoch 0, batch 2" in line for line in lines)


def test_a_checkpoint_is_not_taken_up_with_other_weights_of_the_backbone(
    cohort_folder: Path, tiny_folder: Path, tmp_path: Path, tiny_settings: Settings
) -> None:
    own = shutil.copytree(tiny_folder, tmp_path / "backbone")
    settings = tiny_settings(
        strategy="lm_only", backbone={"name": str(own), "trainable_layers": 1, "attention_dropout": None}
    )

    with pytest.raises(StoppedError):
        start(cohort_folder, tmp_path / "run", settings, watcher=StopWithinEpoch(), save_every=0.0)
    weights = own / "model.safetensors"
    save_file({name: value + 1 for name, value in load_file(weights).items()}, weights, metadata={"format": "pt"})
    with pytest.raises(PlmError, match="other weights of the backbone"):
        start(cohort_folder, tmp_path / "run", settings)


def test_a_run_that_another_process_works_on_is_refused(
    cohort_folder: Path, tmp_path: Path, tiny_settings: Settings
) -> None:
    settings = tiny_settings(strategy="lm_only", epochs=1)
    with only_writer(tmp_path / "run"), pytest.raises(PlmError, match="another process is working on"):
        start(cohort_folder, tmp_path / "run", settings)
    assert start(cohort_folder, tmp_path / "run", settings).is_finished
    # A finished run is only read: nobody needs the lock.
    with only_writer(tmp_path / "run"):
        assert start(cohort_folder, tmp_path / "run", settings).is_finished
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_finished_run_is_returned_and_other_settings_are_refused(
    cohort_folder: Path, make_cohort: Callable[..., Path], tmp_path: Path, tiny_settings: Settings
) -> None:
    settings = tiny_settings(strategy="lm_only", epochs=1)
    first = start(cohort_folder, tmp_path / "run", settings)
    assert start(cohort_folder, tmp_path / "run", settings).record == first.record
    with pytest.raises(PlmError, match=r"other settings: settings\.batch_size is 16 there and 8 here"):
        start(cohort_folder, tmp_path / "run", tiny_settings(strategy="lm_only", epochs=1, batch_size=8))
    with pytest.raises(PlmError, match="belongs to another cohort"):
        start(make_cohort(patients=20, seed=5), tmp_path / "run", settings)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("precious")
    with pytest.raises(PlmError, match="not a run folder"):
        start(cohort_folder, tmp_path / "thesis", settings)


def test_a_saved_run_predicts_as_it_did(cohort_folder: Path, trained: Callable[[str, str], Run]) -> None:
    """In bank mode, test patients predicted as newcomers get the probabilities of the run itself."""
    run = trained("vem", "bank")
    again = Predictor.load(run.folder).predict(Cohort.load(cohort_folder), every_visit=True)
    both = run.predictions().join(again, on="instance_id", suffix="_again").filter(pl.col("split") == "test")
    assert both.height
    before, after = (np.array(both[name].to_list()) for name in ("probabilities", "probabilities_again"))
    assert np.abs(before - after).max() < 1e-5


def test_a_new_patient_does_not_depend_on_who_else_is_predicted(
    make_cohort: Callable[..., Path], trained: Callable[[str, str], Run]
) -> None:
    model = Predictor.load(trained("vem", "cohort").folder)
    many = model.predict(Cohort.load(make_cohort(patients=12, seed=8, prefix="n")))
    few = model.predict(Cohort.load(make_cohort(patients=5, seed=8, prefix="n")))
    assert many.height == 12
    both = few.join(many, on="instance_id", suffix="_many")
    assert both.height == 5
    assert np.allclose(
        np.array(both["probabilities"].to_list()), np.array(both["probabilities_many"].to_list()), atol=1e-6
    )


def test_a_patient_of_the_bank_is_no_reference_of_their_own(
    cohort_folder: Path, trained: Callable[[str, str], Run]
) -> None:
    model = Predictor.load(trained("vem", "bank").folder)
    cohort = Cohort.load(cohort_folder)
    from patients_like_me.tasks.instances import instances_to_predict
    from patients_like_me.tasks.registry import find_task

    instances = instances_to_predict(cohort, find_task("readmission"), TaskSettings(), every_visit=True)
    extended = model.run.graph_bank.extended_graph(instances)
    bank_subjects = model.run.graph_bank.instances["subject_id"].to_list()
    subjects = cohort.patients["subject_id"].to_list()
    for row, subject in enumerate(instances.frame["subject"].to_list()):
        neighbors, _ = extended.neighbors_of(len(bank_subjects) + row)
        assert subjects[subject] not in {bank_subjects[neighbor] for neighbor in neighbors}


def test_one_epoch_of_vem_has_an_e_step_and_touches_no_global_random_state(
    cohort_folder: Path, tmp_path: Path, tiny_settings: Settings
) -> None:
    torch_before, numpy_before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    run = start(cohort_folder, tmp_path / "run", tiny_settings(strategy="vem", epochs=1))
    assert torch.equal(torch_before, torch.random.get_rng_state())
    assert (numpy_before == np.random.get_state()[1]).all()  # noqa: NPY002
    assert json.loads((run.folder / "epochs.json").read_text())[0]["graph_loss"] is not None
    assert tiny_settings(strategy="vem", epochs=1).warm_up_epochs == 0


def test_a_loss_that_is_no_number_stops_with_a_sentence(
    cohort_folder: Path, tmp_path: Path, tiny_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from patients_like_me.training import strategies

    honest = strategies.head_rule

    def broken(*words: object) -> strategies.BatchLoss:
        loss = honest(*words)  # type: ignore[arg-type]
        return strategies.BatchLoss(loss.objective * float("nan"), loss.language)

    monkeypatch.setattr(strategies, "head_rule", broken)
    with pytest.raises(PlmError, match=r"no longer a number \(epoch 1, batch 1\)"):
        start(cohort_folder, tmp_path / "run", tiny_settings(strategy="lm_only"))


def test_a_full_disk_keeps_what_was_saved(
    cohort_folder: Path, tmp_path: Path, tiny_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny_settings(strategy="lm_only")
    honest = TrainingState.save
    saves = 0

    def full(self: TrainingState, path: Path) -> None:
        nonlocal saves
        saves += 1
        if saves == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        honest(self, path)

    monkeypatch.setattr(TrainingState, "save", full)
    with pytest.raises(PlmError, match="no space is left"):
        start(cohort_folder, tmp_path / "run", settings)
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert start(cohort_folder, tmp_path / "run", settings).is_finished


def test_a_cohort_that_cannot_be_learnt_is_refused(
    make_cohort: Callable[..., Path], tmp_path: Path, tiny_settings: Settings
) -> None:
    with pytest.raises(PlmError, match="1 patient, too few"):
        start(make_cohort(patients=1), tmp_path / "one", tiny_settings())
    healthy = make_cohort(patients=12, seed=3)
    labels = pl.read_parquet(healthy / "labels.parquet").with_columns(value=pl.lit("0"))
    rewrite_table(healthy, "labels", labels)
    with pytest.raises(PlmError, match=r"all .* training labels are 0"):
        start(healthy, tmp_path / "none", tiny_settings())


def test_a_missing_backbone_is_named(cohort_folder: Path, tmp_path: Path, tiny_settings: Settings) -> None:
    settings = tiny_settings(backbone={"name": str(tmp_path / "nowhere")})
    with pytest.raises(PlmError, match="nowhere"):
        start(cohort_folder, tmp_path / "run", settings)


def test_a_failed_start_does_not_block_its_folder(cohort_folder: Path, tmp_path: Path, tiny_settings: Settings) -> None:
    with pytest.raises(PlmError):
        start(cohort_folder, tmp_path / "run", tiny_settings(backbone={"name": "nowhere"}))
    assert start(cohort_folder, tmp_path / "run", tiny_settings(strategy="lm_only", epochs=1)).is_finished


def test_no_test_instances_are_no_reason_to_fail(cohort_folder: Path, tmp_path: Path, tiny_settings: Settings) -> None:
    run = train(
        cohort_folder,
        "readmission",
        tmp_path / "run",
        settings=tiny_settings(strategy="vem", epochs=2),
        task_settings=TaskSettings(split_shares=(0.8, 0.2, 0)),
        cache=tmp_path / "cache",
    )
    assert set(run.results.scores) == {"validation"}
    with pytest.raises(PlmError, match="no instance is in the validation split"):
        train(
            cohort_folder,
            "readmission",
            tmp_path / "other",
            settings=tiny_settings(strategy="vem"),
            task_settings=TaskSettings(split_shares=(0.8, 0, 0.2)),
        )


def test_an_own_task_is_predicted_where_the_new_cohort_knows_nothing_of_it(
    make_cohort: Callable[..., Path], tmp_path: Path, tiny_settings: Settings
) -> None:
    cohort = make_cohort(patients=40, seed=2)
    labels = pl.read_parquet(cohort / "labels.parquet").filter(pl.col("task") == "length_of_stay")
    own = labels.with_columns(task=pl.lit("grade"), value=pl.concat_str(pl.lit("grade "), pl.col("value")))
    rewrite_table(cohort, "labels", own)
    run = start(cohort, tmp_path / "run", tiny_settings(strategy="vem", epochs=2), "grade")
    model = Predictor.load(run.folder)
    predictions = model.predict(Cohort.load(make_cohort(patients=6, seed=8, prefix="n")))
    assert predictions["probabilities"].list.len().unique().to_list() == [len(model.output_labels)]
    assert all(label.startswith("grade ") for label in model.output_labels)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"mc_samples": 0}, "mc_samples"),
        ({"graph_loss": 0.0, "head_loss": 0.0, "coupling": 0.0}, "the language model would learn nothing"),
        ({"unknown": 1}, "unknown"),
        ({"precision": "float16"}, "gradients scaled"),
        ({"backbone": {"name": "minilm", "dtype": "float16"}}, "float16' cannot be trained"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    changes: dict[str, object], sentence: str, tiny_settings: Settings
) -> None:
    with pytest.raises(PlmError, match=sentence):
        tiny_settings(strategy="vem", **changes)


def test_a_full_disk_is_recognised_in_the_words_of_any_library(tmp_path: Path) -> None:
    from safetensors import SafetensorError

    from patients_like_me.files import atomic_file

    with pytest.raises(OSError, match="No space left"), atomic_file(tmp_path / "x"):
        raise SafetensorError("I/O error: No space left on device (os error 28)")


def test_plan_estimates_in_words(
    cohort_folder: Path, tmp_path: Path, tiny_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from patients_like_me.training.plan import estimate_training

    instances = build_instances(Cohort.load(cohort_folder), TASKS["readmission"])
    monkeypatch.setenv("PLM_CACHE", str(tmp_path / "cache"))
    plan = estimate_training(instances, tiny_settings(strategy="vem"))
    assert plan.language_seconds_per_epoch > 0 < plan.graph_seconds_per_epoch
    rows = plan.words
    assert set(rows) >= {"instances", "language model per epoch", "graph per epoch", "memory", "disk for frozen layers"}
    assert "train" in rows["instances"]
    assert "edges" in rows["patient graph"]
    assert "graph_refresh=" in rows["what the graph adds"]
    assert plan.graph_refresh >= 1
    assert plan.memory_gib > 0.1
    with pytest.raises(PlmError, match="the graph is empty"):
        estimate_training(instances, tiny_settings(strategy="vem", graph={"tau": 40}))


def test_plan_writes_a_sample_of_the_prompts_only(
    make_cohort: Callable[..., Path], tiny_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from patients_like_me.training import plan

    instances = build_instances(Cohort.load(make_cohort(patients=150, seed=4)), TASKS["drug_recommendation"])
    written, batches = [], []
    write, padded = plan.write_prompts, plan.TokenizedPrompts.padded
    monkeypatch.setattr(
        plan, "write_prompts", lambda *a, rows, **k: written.append(len(rows)) or write(*a, rows=rows, **k)
    )
    monkeypatch.setattr(plan.TokenizedPrompts, "padded", lambda s, rows: batches.append(len(rows)) or padded(s, rows))
    found = plan.estimate_training(instances, tiny_settings(strategy="vem"))
    train = len(instances.rows_of("train"))
    assert written == [96]
    assert sum(batches) < train
    tokens = int(found.words["tokens per epoch"].split()[1].replace(",", ""))
    counted = plan.write_prompts(
        instances, lambda texts: [len(text.split()) for text in texts], rows=range(len(instances))
    )
    assert tokens > train * 5 < counted.tokens.sum()


def test_where_nothing_of_the_visit_is_known_an_empty_graph_says_so(
    cohort_folder: Path, tiny_settings: Settings
) -> None:
    known = TaskSettings(inputs="known")
    instances = build_instances(Cohort.load(cohort_folder), TASKS["length_of_stay"], known)
    first = instances.frame["visit"] == instances.frame["first_visit"]
    with pytest.raises(PlmError, match="no instance has a diagnosis that the task may see"):
        patient_graph_of(only(instances, np.flatnonzero(first.to_numpy())), tiny_settings(strategy="vem"))


def test_an_empty_graph_is_refused_unless_asked_for(
    cohort_folder: Path, tmp_path: Path, tiny_settings: Settings
) -> None:
    empty = {"tau": 40, "max_neighbors": 8}
    with pytest.raises(PlmError, match=r"the graph is empty; graph.tau=\d would give") as refused:
        start(cohort_folder, tmp_path / "run", tiny_settings(strategy="vem", graph=empty))
    assert "allow_empty_graph" in str(refused.value.remedy)
    assert not (tmp_path / "run" / "run.json").exists()
    run = start(cohort_folder, tmp_path / "run", tiny_settings(graph=empty, allow_empty_graph=True, epochs=1))
    assert any("0% of the" in note and "tau 40" in note for note in run.results.warnings)
    assert run.results.graph is not None
    assert run.results.graph.splits["test"].linked == 0
    assert start(
        cohort_folder, tmp_path / "alone", tiny_settings(strategy="lm_only", graph=empty, epochs=1)
    ).is_finished


def test_a_run_within_the_split_is_also_scored_as_new_patients_are_predicted(
    finished_run: Callable[..., Path], cohort_folder: Path
) -> None:
    run = load_run(finished_run(references="cohort"))
    found = run.results.scores_as_newcomers
    assert found is not None
    assert found["test"] != run.results.scores["test"]
    predictor = Predictor.load(run)
    frame = predictor.predict(Cohort.load(cohort_folder), every_visit=True).join(
        run.predictions().filter(pl.col("split") == "test").select("instance_id", "label"), on="instance_id"
    )
    probabilities = frame["probabilities"].list.first().to_numpy()
    from patients_like_me.tasks.metrics import score

    expected = score(("auroc",), frame["label"].list.first().to_numpy(), probabilities)
    assert found["test"]["auroc"] == pytest.approx(expected["auroc"], abs=1e-6)
    card = (run.folder / "README.md").read_text()
    assert "test, within the split" in card
    assert "test, as new patients" in card
    assert "of test" in card.split("Instances with a reference")[1]
    through_bank = load_run(finished_run(references="bank"))
    assert through_bank.results.scores_as_newcomers is None
    assert "as new patients" not in (through_bank.folder / "README.md").read_text()


@pytest.mark.parametrize("task", ["readmission", "length_of_stay", "drug_recommendation"])
def test_an_informed_start_knows_the_training_split_alone(
    task: str, cohort_folder: Path, tiny_settings: Settings
) -> None:
    instances = build_instances(Cohort.load(cohort_folder), TASKS[task])
    train_rows = instances.rows_of("train")
    settings = tiny_settings(start="informed")
    prepared = prepare_training(instances, settings, cache=None)
    rates = predicted(instances.task.kind, prepared.state.model.language_head.bias[None])
    labels = instances.labels[train_rows]
    seen = np.eye(10)[labels].mean(axis=0) if task == "length_of_stay" else labels.mean(axis=0)
    assert np.abs(rates - seen).max() < 0.06
    changed = instances.labels.copy()
    others = np.setdiff1d(np.arange(len(instances)), train_rows)
    changed[others] = 1 - changed[others] if task != "length_of_stay" else 0
    again = prepare_training(replace(instances, labels=changed), settings, cache=None)
    model, other = prepared.state.model, again.state.model
    assert hash_of(model, "theta") == hash_of(other, "theta")
    assert hash_of(model, "phi") == hash_of(other, "phi")
    embeddings = embed_rows(model, prepared.data, train_rows, settings)
    assert embeddings.mean(dim=0).abs().max() < 1e-3
    assert (embeddings.std(dim=0, correction=0) - 1).abs().max() < 1e-3
