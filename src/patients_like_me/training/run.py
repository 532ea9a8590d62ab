"""A run: one training from cohort to run folder, resumed where it was stopped.

========================  ===========================================================================
``run.json``              identity (cohort, task, all settings), status, environment, scores
``epochs.json``           losses, scores, seconds and memory of every epoch
``predictions.parquet``   instance_id, subject_id, split, prediction_time, label, probabilities
``embeddings.safetensors`` the embeddings of validation and test, in the order of the predictions
``model/``                the best weights (safetensors) and the model's settings
``bank/``                 the training instances as references: graph, embeddings, outcomes
``README.md``             the model card
``checkpoint.safetensors`` the state of a training under way; removed when it ends
========================  ===========================================================================
"""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from pydantic import ValidationError

from patients_like_me import __version__
from patients_like_me.errors import PlmError
from patients_like_me.files import LOCK, atomic_file, only_writer, read_json, write_json
from patients_like_me.folders import user_folder
from patients_like_me.records.cohort import Cohort
from patients_like_me.settings import differences_between
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.registry import find_task
from patients_like_me.tasks.task import TaskSettings
from patients_like_me.training.bank import write_bank
from patients_like_me.training.card import model_card
from patients_like_me.training.data import predicted
from patients_like_me.training.evaluation import embed_rows, split_logits
from patients_like_me.training.loop import Watcher, run_training
from patients_like_me.training.preparation import Prepared, prepare_training
from patients_like_me.training.settings import TrainingSettings

FORMAT = 2
CHECKPOINT = "checkpoint.safetensors"
EMBEDDINGS = "embeddings.safetensors"
#: What a run trains unless it is one of the plain baselines.
OWN_MODEL = "patients_like_me"


@dataclass(frozen=True)
class Run:
    """A run folder and what its ``run.json`` says."""

    folder: Path
    about: dict[str, Any]

    @classmethod
    def load(cls, folder: Path) -> Run:
        """Open a run folder."""
        if not (folder / "run.json").is_file():
            raise PlmError(f"'{folder}' is not a run folder (no run.json in it)", remedy="make one with: plm train")
        about = read_json(folder / "run.json", what="run description")
        if about.get("format") != FORMAT:
            raise PlmError(
                f"the run '{folder}' has format {about.get('format')}, this version reads {FORMAT}",
                remedy="train it anew",
            )
        return cls(folder, about)

    @property
    def is_finished(self) -> bool:
        """Tell whether the training came to its end."""
        return bool(self.about["status"] == "finished")

    @property
    def name(self) -> str:
        """What a table calls this run: its strategy, or the plain model it trained."""
        identity = self.about["identity"]
        return str(identity["settings"]["strategy"] if identity["model"] == OWN_MODEL else identity["model"])

    def require_own_model(self) -> None:
        """Refuse a plain baseline where the trained model or its patient graph is needed."""
        if self.about["identity"]["model"] != OWN_MODEL:
            raise PlmError(
                f"the run '{self.folder}' trained the plain model '{self.name}', which has no patient graph and "
                "predicts no new patients",
                remedy="give a run that was trained without --model",
            )

    def training_settings(self) -> TrainingSettings:
        """Return the settings of the training; those of a version that had others are refused."""
        self.require_own_model()
        try:
            return TrainingSettings.model_validate(self.about["identity"]["settings"])
        except ValidationError as error:
            first = error.errors()[0]
            raise PlmError(
                f"the settings of the run '{self.folder}' are not of this version "
                f"({'.'.join(str(part) for part in first['loc'])}: {first['msg'].lower()})",
                remedy="open it with the version that trained it, or train it anew",
            ) from None

    def predictions(self) -> pl.DataFrame:
        """Return the predictions of validation and test."""
        path = self.folder / "predictions.parquet"
        if not path.is_file():
            raise PlmError(f"the run '{self.folder}' has no predictions", remedy="finish it with plm train")
        return pl.read_parquet(path)


def train(
    cohort_folder: Path,
    task_name: str,
    out: Path,
    *,
    settings: TrainingSettings,
    task_settings: TaskSettings,
    cache: Path | None = None,
    watcher: Watcher | None = None,
    report: Callable[[str], None] = lambda _: None,
    save_every: float = 600.0,
) -> Run:
    """Train, or go on with a training that was stopped; a finished run with the same settings is returned as it is."""
    cohort = Cohort.load(cohort_folder)
    instances = build_instances(cohort, find_task(task_name, cohort), task_settings)
    identity = run_identity(cohort, task_name, task_settings, OWN_MODEL, settings.model_dump(mode="json"))
    if run := finished_run(out, identity):
        return run
    with only_writer(out), disk_errors_explained(out):
        # Another process may have finished it just before.
        if run := finished_run(out, identity):
            return run
        prepared = prepare_training(instances, settings, cache=cache, report=report)
        for note in prepared.notes:
            report(note)
        about = begun(identity, cohort_folder)
        write_json(out / "run.json", about)
        for leftover in out.glob(".*.partial"):
            leftover.unlink()
        state = prepared.state
        if (out / CHECKPOINT).is_file():
            state.load(out / CHECKPOINT)
            report(f"going on after epoch {state.epoch}, batch {state.batch}")

        def save() -> None:
            state.save(out / CHECKPOINT)
            write_json(out / "epochs.json", state.epochs)

        run_training(state, prepared.data, save=save, save_every=save_every, watcher=watcher)
        report("writing predictions, weights and the bank")
        scores = _write_results(out, instances, prepared)
        write_json(out / "epochs.json", state.epochs)
        about |= {
            "status": "finished",
            "scores": scores,
            "best_epoch": state.best_epoch + 1,
            "epochs": len(state.epochs),
            "seconds": state.seconds,
            "peak_gib": max(epoch["peak_gib"] for epoch in state.epochs),
            "label_vocabulary": list(instances.label_vocabulary),
            "task": instances.task.as_json(),
            "prompts": prepared.prompt_summary,
            "graph": prepared.graph_summary,
            "instances": {split: len(rows) for split, rows in prepared.data.splits.items()},
            "notes": prepared.notes,
        }
        (out / "README.md").write_text(model_card(about, instances), encoding="utf-8")
        write_json(out / "run.json", about)
        (out / CHECKPOINT).unlink(missing_ok=True)
    return Run(out, about)


def run_identity(
    cohort: Cohort, task_name: str, task_settings: TaskSettings, model: str, settings: dict[str, Any]
) -> dict[str, Any]:
    """Return all that decides a run's result."""
    return {
        "cohort": cohort.hash,
        "task": task_name,
        "task_settings": task_settings.model_dump(mode="json"),
        "model": model,
        "settings": settings,
        "version": __version__,
    }


def begun(identity: dict[str, Any], cohort_folder: Path) -> dict[str, Any]:
    """Return the description of a run that has just begun."""
    return {
        "format": FORMAT,
        "status": "running",
        "identity": identity,
        "cohort_folder": str(cohort_folder.resolve()),
        "environment": environment(),
    }


def finished_run(out: Path, identity: dict[str, Any]) -> Run | None:
    """Return the run in the folder if it is finished; refuse one of other settings."""
    run = same_run(out, identity)
    return run if run is not None and run.is_finished else None


def same_run(out: Path, identity: dict[str, Any]) -> Run | None:
    """Return the run that is in the folder already, None where there is none; refuse one of other settings."""
    if out.is_file():
        raise PlmError(f"'{out}' is a file", remedy="choose another --out")
    if not out.exists() or all(file.name == LOCK for file in out.iterdir()):
        return None
    if not (out / "run.json").is_file():
        raise PlmError(f"'{out}' exists and is not a run folder", remedy="choose another --out")
    run = Run.load(out)
    if run.about["identity"]["cohort"] != identity["cohort"]:
        raise PlmError(f"the run '{out}' belongs to another cohort", remedy="choose another --out")
    if differences := differences_between(run.about["identity"], identity):
        raise PlmError(f"the run '{out}' has other settings: {'; '.join(differences)}", remedy="choose another --out")
    return run


def _write_results(out: Path, instances: Instances, prepared: Prepared) -> dict[str, Any]:
    """Write predictions, weights and bank with the best weights; return the scores of validation and test."""
    from safetensors.torch import save_file

    data, state = prepared.data, prepared.state
    bank = embed_rows(state.model, data, data.train_rows, state.settings)
    scores, frames, embeddings = {}, [], {}
    for split in ("validation", "test"):
        if not len(data.splits[split]):
            continue
        own = embed_rows(state.model, data, data.splits[split], state.settings)
        logits = split_logits(state.model, data, split, own, through_graph=state.settings.uses_graph, bank=bank)
        scores[split] = data.scores(split, logits)
        embeddings[split] = own
        frames.append(prediction_frame(instances, data.splits[split], predicted(data.kind, logits)))
    with atomic_file(out / "predictions.parquet") as temporary:
        pl.concat(frames).write_parquet(temporary)
    with atomic_file(out / EMBEDDINGS) as temporary:
        save_file(embeddings, temporary)
    state.model.save_pretrained(out / "model")
    write_bank(out / "bank", instances, prepared, bank)
    return scores


def prediction_frame(
    instances: Instances, rows: npt.NDArray[np.int64], chances: npt.NDArray[np.floating[Any]]
) -> pl.DataFrame:
    """Return the predictions of some instances as a table; labels and probabilities are lists, one entry per output."""
    chances = chances.reshape(len(rows), -1)
    labels = instances.labels[rows]
    listed = [np.flatnonzero(row).tolist() if labels.ndim == 2 else [int(row)] for row in labels]
    frame = instances.frame[rows.tolist()].join(
        instances.cohort.patients.select("subject", "subject_id"), on="subject", how="left", maintain_order="left"
    )
    times = instances.prediction_times[rows.tolist()]["prediction_time"]
    return pl.DataFrame(
        {
            "instance_id": frame["instance_id"],
            "subject_id": frame["subject_id"],
            "split": frame["split"],
            "prediction_time": times,
            "label": pl.Series(listed, dtype=pl.List(pl.Int64)),
            "probabilities": pl.Series(chances.astype("float32").tolist(), dtype=pl.List(pl.Float32)),
        }
    )


def environment() -> dict[str, Any]:
    """Describe the machine and the versions, for the record."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **{name: version(name) for name in ("torch", "transformers", "peft", "polars", "numpy")},
    }


def default_cache() -> Path:
    """Return the folder for hidden states, readable by its owner only: they are made from patients' records.

    It is ``PLM_CACHE`` where that is set, else in the user's cache folder.
    """
    folder = user_folder("hidden-states", "PLM_CACHE", "cache")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


@contextmanager
def disk_errors_explained(out: Path) -> Iterator[None]:
    """Turn a full disk into a sentence; what was written before stays."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise PlmError(
            f"no space is left on the disk of '{out}' or of the cache",
            remedy="free some and give the same command again: it goes on from the last checkpoint",
        ) from error
