"""Fixtures of the experiments' tests: a request for trainings of a second, and experiments whose runs are trained here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from patients_like_me.evaluation.experiments.catalogue import EXPERIMENTS
from patients_like_me.evaluation.experiments.jobs import Plan, open_cohorts, plan_experiment
from patients_like_me.evaluation.experiments.request import Request
from patients_like_me.evaluation.experiments.worker import train_job
from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.contract import Account, Fitted, RunContext, System, SystemSettings
from patients_like_me.systems.problem import Logits, Problem
from patients_like_me.systems.registry import all_systems
from patients_like_me.tasks.instances import Instances


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
def make_request(tiny_changes: dict[str, object]) -> Callable[..., Request]:
    def make(out: Path, **options: object) -> Request:
        return Request(out=out, **{"changes": tiny_changes, "seeds": 1, **options})  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def make_plan(make_request: Callable[..., Request], cohort_folder: Path) -> Callable[..., Plan]:
    def make(name: str, out: Path, **options: object) -> Plan:
        return plan_experiment(EXPERIMENTS[name], open_cohorts([cohort_folder]), make_request(out, **options))

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
            train_job(job, out.parent / "cache")
        return plan, out

    return make


class WalkSettings(SystemSettings):
    """Settings of a system that is trained in epochs."""

    epochs: int = 5
    width: int = 4


def _random_system(name: str, tasks: tuple[str, ...] = ()) -> System:
    """Return a system whose predictions depend on the seed alone."""

    def fit(problem: Problem, run: RunContext) -> Fitted:
        weights = np.random.default_rng(run.seed).normal(size=(run.settings.width, problem.outputs))
        # What a system keeps besides its weights is no parameter.
        kept = {"weights": weights, "memory": np.zeros(7)}
        return Fitted(run.settings, kept, account=Account(trained_weights=weights.size))

    def predict(fitted: Fitted, instances: Instances) -> Logits:
        inputs = np.random.default_rng(len(instances)).normal(size=(len(instances), fitted.settings.width))
        logits: Logits = inputs @ fitted.arrays["weights"]
        return logits

    capabilities = Capabilities(random=True, epochs=True)
    return System(name, "random predictions", WalkSettings, fit, predict, capabilities, tasks=tasks)


@pytest.fixture(scope="module")
def two_random_systems() -> Iterator[tuple[str, str]]:
    """Register two systems that are trained in epochs; the second serves readmission alone."""
    registered = all_systems()
    assert isinstance(registered, dict)
    names = ("random_walk", "random_walk_of_readmission")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registered, names[0], _random_system(names[0]))
        patch.setitem(registered, names[1], _random_system(names[1], ("readmission",)))
        yield names
