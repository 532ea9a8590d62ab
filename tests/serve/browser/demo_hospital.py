"""The synthetic hospital behind the walk: real names of codes, a tiny language model, a bank, and patients of today."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from patients_like_me.codes.store import CodeStore
from patients_like_me.records.prepare import prepare
from patients_like_me.records.synthetic import write_synthetic_hospital
from patients_like_me.systems.train import train
from patients_like_me.tasks.task import TaskSettings
from patients_like_me.training.settings import TrainingSettings

PATIENTS, OF_TODAY = 260, 14


def demo_run(folder: Path, tiny_settings: Callable[..., TrainingSettings]) -> tuple[Path, Path]:
    """Train a run on a synthetic hospital; return its folder and the cohort of today."""
    cohorts = {}
    for name, patients, seed in (("cohort", PATIENTS, 1), ("today", OF_TODAY, 7)):
        write_synthetic_hospital(folder / f"{name}-hospital", patients=patients, seed=seed)
        store = CodeStore(folder / "codes")
        cohorts[name] = prepare("mimic4", folder / f"{name}-hospital", folder / name, store=store).folder
    torch.set_num_threads(1)
    settings = tiny_settings(graph={"tau": 4, "max_neighbors": 16, "references": "bank"}, epochs=1, batch_size=32)
    run = folder / "demo"
    train(cohorts["cohort"], "readmission", run, settings=settings, task_settings=TaskSettings(), cache=folder / "kept")
    return run, cohorts["today"]
