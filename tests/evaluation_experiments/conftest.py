"""Fixtures of the experiments' tests: a wish for trainings of a second, and experiments whose runs are trained here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from patients_like_me.evaluation.experiments.catalogue import EXPERIMENTS
from patients_like_me.evaluation.experiments.jobs import Plan, Wish, open_cohorts, plan_experiment
from patients_like_me.evaluation.experiments.worker import perform


@pytest.fixture(scope="session")
def tiny_changes(tiny_folder: Path) -> dict[str, object]:
    return {
        "backbone": {"name": str(tiny_folder), "trainable_layers": 1, "attention_dropout": None},
        "graph": {"tau": 2, "max_neighbors": 8},
        "max_tokens": 200,
        "batch_size": 16,
        "epochs": 2,
        "graph_steps": 10,
        "rate": 5e-3,
    }


@pytest.fixture(scope="session")
def make_wish(tiny_changes: dict[str, object]) -> Callable[..., Wish]:
    def make(out: Path, **options: object) -> Wish:
        return Wish(out=out, **{"changes": tiny_changes, "seeds": 1, **options})  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def make_plan(make_wish: Callable[..., Wish], cohort_folder: Path) -> Callable[..., Plan]:
    def make(name: str, out: Path, **options: object) -> Plan:
        return plan_experiment(EXPERIMENTS[name], open_cohorts([cohort_folder]), make_wish(out, **options))

    return make


@pytest.fixture(scope="session")
def trained_plan(
    make_plan: Callable[..., Plan], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Plan, Path]]:
    """Return a function that plans an experiment and trains its runs in this process; all share one folder."""
    out = tmp_path_factory.mktemp("experiments") / "out"

    def make(name: str, **options: object) -> tuple[Plan, Path]:
        torch.set_num_threads(1)
        plan = make_plan(name, out, **options)
        for job in plan.jobs:
            perform(job, out.parent / "cache")
        return plan, out

    return make
