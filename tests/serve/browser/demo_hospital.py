"""The synthetic hospital behind the walk: real names of codes, a tiny language model and a bank.

Its test patients are today's: their records are there already, and nobody of them is a reference.
"""

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

PATIENTS = 120


def demo_run(folder: Path, tiny_settings: Callable[..., TrainingSettings]) -> tuple[Path, Path]:
    """Train a run on a synthetic hospital; return its folder and its cohort."""
    write_synthetic_hospital(folder / "hospital", patients=PATIENTS, seed=1)
    cohort = prepare("mimic4", folder / "hospital", folder / "cohort", store=CodeStore(folder / "codes")).folder
    torch.set_num_threads(1)
    settings = tiny_settings(graph={"tau": 4, "max_neighbors": 16, "references": "bank"}, epochs=1, batch_size=32)
    run = folder / "demo"
    train(cohort, "readmission", run, settings=settings, task_settings=TaskSettings(), cache=folder / "kept")
    return run, cohort
