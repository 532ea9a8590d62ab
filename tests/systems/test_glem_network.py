"""GLEM: the mixed loss and the graph network held to plain numpy, its three modes, and no test patient anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from systems.leak_checks import check_blind_to_test, with_a_leak
from systems.test_neural import StopAt, StoppedError

from patients_like_me.errors import PlmError
from patients_like_me.model.propagation import FixedPropagation
from patients_like_me.records.cohort import Cohort
from patients_like_me.settings import checked
from patients_like_me.systems.contract import RunContext
from patients_like_me.systems.glem import SYSTEM, Glem, GlemSettings, bank_of, hidden_labels
from patients_like_me.systems.problem import Problem, problem_of
from patients_like_me.systems.soft_label_graph import (
    MixedTargets,
    SoftLabelGraph,
    SoftLabelGraphSettings,
    mixed_loss,
    soft_labels,
)
from patients_like_me.systems.train import train
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.kinds import BINARY, MULTICLASS, MULTILABEL, LabelKind
from patients_like_me.tasks.registry import find_task


def plain_loss(kind: LabelKind, logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    if kind == "multiclass":
        shifted = logits - logits.max(1, keepdims=True)
        return -(targets * (shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))).sum(1)
    probabilities = 1 / (1 + np.exp(-logits))
    return -(targets * np.log(probabilities) + (1 - targets) * np.log(1 - probabilities)).mean(1)


def plain_soft(kind: LabelKind, logits: np.ndarray, temperature: float) -> np.ndarray:
    if kind == "multiclass":
        powers = np.exp(logits / temperature - (logits / temperature).max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)
    return 1 / (1 + np.exp(-logits / temperature))


@pytest.mark.parametrize(("kind", "outputs"), [(BINARY, 1), (MULTICLASS, 4), (MULTILABEL, 5)])
def test_mixed_loss_equals_plain_numpy(kind: LabelKind, outputs: int) -> None:
    draw = np.random.default_rng(0)
    logits, taught = draw.normal(size=(9, outputs)), draw.normal(size=(9, outputs))
    labels = (
        np.eye(outputs)[draw.integers(outputs, size=9)] if kind == "multiclass" else draw.integers(0, 2, (9, outputs))
    )
    known, softened = draw.random(9) < 0.6, draw.random(9) < 0.5
    share, temperature, smoothing = 0.3, 0.7, 0.1
    answers = outputs if kind == "multiclass" else 2
    smooth = labels * (1 - smoothing) + smoothing / answers
    expected = (1 - share) * plain_loss(kind, logits, smooth)[known].mean()
    expected += share * plain_loss(kind, logits, plain_soft(kind, taught, temperature))[softened].mean()
    targets = MixedTargets(
        torch.from_numpy(labels).double(),
        torch.from_numpy(known),
        soft_labels(kind, torch.from_numpy(taught), temperature),
        torch.from_numpy(softened),
    )
    found = mixed_loss(kind, torch.from_numpy(logits), targets, share, smoothing)
    assert float(found) == pytest.approx(expected, abs=1e-5)
    plain = mixed_loss(kind, torch.from_numpy(logits), MixedTargets(targets.labels, targets.known), share)
    assert float(plain) == pytest.approx(plain_loss(kind, logits, labels)[known].mean(), abs=1e-5)


def test_graph_network_equals_plain_numpy() -> None:
    draw = np.random.default_rng(1)
    weights = np.triu(draw.integers(0, 3, (6, 6)), 1)
    dense = weights + weights.T
    rows, columns = np.nonzero(dense)
    pointers = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=6))])
    graph = FixedPropagation(pointers, columns, dense[rows, columns], np.ones(6))
    torch.manual_seed(0)
    network = SoftLabelGraph(4, 2, SoftLabelGraphSettings(width=5))
    states = torch.randn(6, 4)
    network.train()
    network(states, graph)  # moves the running statistics of the norm
    looped = dense + np.eye(6)
    scale = 1 / np.sqrt(looped.sum(1))
    spread = scale[:, None] * looped * scale
    kept = {name: value.double().numpy() for name, value in network.state_dict().items()}
    hidden = spread @ (states.numpy() @ kept["convolutions.0.weight"]) + kept["convolutions.0.bias"]
    norm = (hidden - kept["norms.0.running_mean"]) / np.sqrt(kept["norms.0.running_var"] + 1e-5)
    hidden = np.maximum(norm * kept["norms.0.weight"] + kept["norms.0.bias"], 0)
    expected = spread @ (hidden @ kept["convolutions.1.weight"]) + kept["convolutions.1.bias"]
    with torch.no_grad():
        np.testing.assert_allclose(network.eval()(states, graph).numpy(), expected, atol=1e-5)


@pytest.fixture
def settings(tiny_folder: Path) -> Callable[..., GlemSettings]:
    def make(**changes: Any) -> GlemSettings:
        base: dict[str, Any] = {
            "backbone": {"name": str(tiny_folder), "trainable_layers": 1},
            "precision": "float32",
            "max_tokens": 120,
            "epochs": 1,
            "rate": 0.003,
            "iterations": 1,
            "graph": {"tau": 2, "max_neighbors": 8, "references": "bank"},
            "graph_part": {"width": 8, "steps": 10},
        }
        return GlemSettings(**{**base, **changes})

    return make


@pytest.fixture(scope="module")
def problem(make_cohort: Callable[..., Path]) -> Problem:
    return problem_of(build_instances(Cohort.load(make_cohort(patients=24, seed=3)), find_task("readmission")))


def test_modes_decide_who_has_soft_labels(problem: Problem, settings: Callable[..., GlemSettings]) -> None:
    found = {}
    for mode in ("distil", "holdout", "literal"):
        training = Glem(problem, RunContext(settings(mode=mode, soft_ratios=(0.1, 0.5))))
        targets = training.targets(torch.randn(len(problem.train), 1), 0.5, 0)
        found[mode] = (training.known, targets)
    assert found["literal"][1].soft is None
    assert found["distil"][0].all()
    assert torch.equal(found["distil"][1].softened, found["distil"][0])
    known, targets = found["holdout"]
    # The hidden are whole patients, and nobody has both a label and a soft label.
    hidden = hidden_labels(problem, settings(mode="holdout"))
    subjects = problem.instances.frame["subject"].to_numpy()[problem.train]
    assert not set(subjects[hidden]) & set(subjects[~hidden])
    assert targets.softened.any()
    assert not (targets.softened & known).any()
    assert SYSTEM.title_of(settings(mode="holdout")) == "GLEM[holdout]"


def test_holdout_ignores_hidden_labels(problem: Problem, settings: Callable[..., GlemSettings]) -> None:
    from dataclasses import replace

    wanted = settings(mode="holdout", iterations=0, graph_part={"width": 8, "steps": 5})
    hidden = hidden_labels(problem, wanted)
    other = replace(problem, targets=np.where(hidden[:, None], 1 - problem.targets, problem.targets))
    first, second = (SYSTEM.fit(each, RunContext(wanted)).arrays for each in (problem, other))
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_no_test_patient_is_in_the_graph(problem: Problem, settings: Callable[..., GlemSettings]) -> None:
    def graph(given: Problem) -> list[Any]:
        found = bank_of(given, settings().graph).graph
        return [found.indptr, found.neighbors, found.weights]

    check_blind_to_test(problem, graph)
    with pytest.raises(AssertionError, match="records of test patients"):
        check_blind_to_test(problem, lambda given: graph(with_a_leak(given)))


def test_a_stopped_training_goes_on_where_it_was(
    cohort_folder: Path, settings: Callable[..., GlemSettings], tmp_path: Path
) -> None:
    whole = train(cohort_folder, "readmission", tmp_path / "whole", system="glem", settings=settings())
    # After the first stage, in the middle of the second round's language model.
    batches = -(-len(whole.rows_of("train")) // 36)
    with pytest.raises(StoppedError):
        train(
            cohort_folder,
            "readmission",
            tmp_path / "parts",
            system="glem",
            settings=settings(),
            watcher=StopAt(batches + 2),
            save_every=0.0,
        )
    lines: list[str] = []
    again = train(
        cohort_folder, "readmission", tmp_path / "parts", system="glem", settings=settings(), report=lines.append
    )
    assert "stage 'graph-0' is finished already" in lines
    assert again.predictions().equals(whole.predictions())
    assert not (again.folder / "stages").exists()
    assert again.results.chosen == whole.results.chosen


def test_an_empty_graph_and_a_graph_of_the_cohort_are_refused(
    problem: Problem, settings: Callable[..., GlemSettings]
) -> None:
    with pytest.raises(PlmError, match=r"share 13 diagnoses or more, so the graph is empty; lower graph\.tau"):
        SYSTEM.fit(problem, RunContext(settings(graph={"tau": 13, "references": "bank"})))
    assert checked(GlemSettings, graph={"tau": 2}).graph.references == "bank"
    with pytest.raises(ValueError, match="must be 'bank'"):
        settings(graph={"tau": 2, "references": "cohort"})
