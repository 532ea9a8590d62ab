"""The featuriser and the epoch loop that neural systems share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from systems.tiny_network import SMALL_NETWORK, SmallNetwork
from torch import nn

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.small import cohort_of
from patients_like_me.runs.run import Run, load_run
from patients_like_me.runs.watching import Nobody, Watched
from patients_like_me.systems import planning
from patients_like_me.systems import train as training
from patients_like_me.systems.contract import RunContext
from patients_like_me.systems.epochs import EpochSettings, train_network
from patients_like_me.systems.features import PADDING, VisitFeatures, Vocabularies
from patients_like_me.systems.planning import plan_training
from patients_like_me.systems.problem import problem_of
from patients_like_me.systems.registry import find_system
from patients_like_me.systems.train import train
from patients_like_me.tasks.instances import Instances, Rows, build_instances
from patients_like_me.tasks.registry import find_task
from patients_like_me.tasks.task import TaskSettings


def two_patients(**settings: Any) -> Instances:
    """Return a patient with three visits, ten days apart, and one with a single visit and a code of its own."""
    day = datetime(2150, 1, 1)
    visits = [
        {
            "subject_id": "p",
            "visit_id": f"p{n}",
            "admission_time": day + timedelta(days=10 * n),
            "discharge_time": day + timedelta(days=10 * n + 2),
            "diagnoses": ["d1", "d2"][: n + 1],
            "medications": [f"m{n}"],
        }
        for n in range(3)
    ]
    visits.append(
        {
            "subject_id": "q",
            "visit_id": "q0",
            "admission_time": day,
            "discharge_time": day + timedelta(days=1),
            "diagnoses": ["d9"],
            "medications": ["m9"],
        }
    )
    return build_instances(cohort_of(visits), find_task("drug_recommendation"), TaskSettings.model_validate(settings))


def test_visits_become_padded_tensors_with_gaps_and_masks() -> None:
    instances = two_patients()
    rows = np.array([instances.instance_ids.index(name) for name in ("p2", "q0")])
    vocabularies = Vocabularies.of_training(instances, np.array([instances.instance_ids.index("p2")]))
    assert vocabularies.codes["diagnosis"] == ("d1", "d2")
    assert vocabularies.codes["medication"] == ("m0", "m1")
    assert vocabularies.size("procedure") == 1
    batch = VisitFeatures.of(instances, vocabularies).batch(rows)
    assert batch.visit_mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.gaps.tolist() == [[0.0, 10.0, 10.0], [0.0, 0.0, 0.0]]
    assert batch.codes["diagnosis"][0].tolist() == [[1, PADDING], [1, 2], [1, 2]]
    # The drugs of the current visit are the answer, and 'd9' is in no training record.
    assert batch.codes["medication"][0].tolist() == [[1], [2], [PADDING]]
    assert not batch.codes["diagnosis"][1].any()
    assert Vocabularies.from_json(vocabularies.as_json()) == vocabularies


def test_what_was_not_known_is_not_among_the_features() -> None:
    instances = two_patients(inputs="known")
    row = np.array([instances.instance_ids.index("p1")])
    batch = VisitFeatures.of(instances, Vocabularies.of_training(instances, np.arange(len(instances)))).batch(row)
    assert not batch.codes["diagnosis"][0, 1].any()
    assert batch.codes["diagnosis"][0, 0].any()


@pytest.fixture
def start(cohort_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Return a function that trains the small network, registered for this test alone."""
    for module in (training, planning):
        monkeypatch.setattr(module, "find_system", {SMALL_NETWORK.name: SMALL_NETWORK}.__getitem__)

    def make(out: Path, *, settings: dict[str, Any] | None = None, **more: Any) -> Run:
        wanted = {"epochs": 3, "batch_size": 16, **(settings or {})}
        return train(cohort_folder, "readmission", out, system="small_network", settings=wanted, **more)

    return make


class StoppedError(KeyboardInterrupt):
    """Stands for Ctrl-C at any moment."""


class StopAt(Nobody):
    """Stops a training after some batches."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    def batch_done(self, state: Watched, batches: int) -> None:
        self.left -= 1
        if not self.left:
            raise StoppedError


def test_a_resumed_training_equals_an_uninterrupted_one(start: Callable[..., Run], tmp_path: Path) -> None:
    whole = start(tmp_path / "whole")
    for batches in (2, 6):
        with pytest.raises(StoppedError):
            start(tmp_path / "parts", watcher=StopAt(batches), save_every=0.0)
        assert not load_run(tmp_path / "parts").is_finished
    lines: list[str] = []
    resumed = start(tmp_path / "parts", report=lines.append)
    assert any(line.startswith("continuing after epoch") for line in lines)
    assert resumed.predictions().equals(whole.predictions())
    for name in ("fitted.safetensors", "fitted.json"):
        assert (resumed.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    assert not (resumed.folder / "checkpoint.safetensors").exists()
    assert len(resumed.epoch_records()) == resumed.results.epochs == 3


@pytest.mark.parametrize(
    ("system", "settings"),
    [
        ("grasp", {"embedding": 8, "hidden": 8, "clusters": 3}),
        ("g_bert", {"width": 8, "graph_heads": 2, "heads": 2, "feed_forward": 8, "rounds": 1, "round_epochs": 1}),
        ("retain", {"embedding": 8, "visit_hidden": 8, "code_hidden": 8}),
        ("micron", {"width": 8, "hidden": 8}),
    ],
)
def test_clusters_phases_and_every_optimiser_survive_an_interruption(
    system: str,
    settings: dict[str, Any],
    coded_cohort: Path,
    made_up_knowledge: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PLM_CODES", str(made_up_knowledge))
    wanted = {"epochs": 3, "batch_size": 16, **settings}
    task = "drug_recommendation" if system == "micron" else "readmission"
    whole = train(coded_cohort, task, tmp_path / "whole", system=system, settings=wanted)
    for batches in (3, 5):
        with pytest.raises(StoppedError):
            train(
                coded_cohort,
                task,
                tmp_path / "parts",
                system=system,
                settings=wanted,
                watcher=StopAt(batches),
                save_every=0.0,
            )
    resumed = train(coded_cohort, task, tmp_path / "parts", system=system, settings=wanted)
    assert resumed.predictions().equals(whole.predictions())
    assert (resumed.folder / "fitted.safetensors").read_bytes() == (whole.folder / "fitted.safetensors").read_bytes()


def test_an_epoch_of_pre_training_is_not_judged(
    coded_cohort: Path, made_up_knowledge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLM_CODES", str(made_up_knowledge))
    small = {"width": 8, "graph_heads": 2, "heads": 2, "feed_forward": 8, "rounds": 2, "round_epochs": 1}
    wanted = {"epochs": 4, "patience": 1, **small}
    run = train(coded_cohort, "drug_recommendation", tmp_path / "run", system="g_bert", settings=wanted)
    scores = [record["validation_auprc_per_instance"] for record in run.epoch_records()]
    assert scores[0] is None
    assert scores[1] is not None
    assert run.results.best_epoch in (2, 4)


@pytest.mark.parametrize("task", ["readmission", "length_of_stay", "drug_recommendation"])
def test_a_last_layer_starts_at_the_training_rates(cohort_folder: Path, task: str) -> None:
    problem = problem_of(build_instances(Cohort.load(cohort_folder), find_task(task)))
    deepr = find_system("deepr")
    fitted = deepr.fit(problem, RunContext(deepr.settings_of(None, embedding=2, motifs=2, epochs=1, rate=1e-9)))
    first = problem.kind.probabilities(fitted.arrays["head.output.bias"][None])[0]
    # Half an instance more of each answer keeps rates of 0 and 1 finite.
    number, answers = len(problem.train), problem.outputs if problem.kind.name == "multiclass" else 2
    wanted = (problem.rates * number + 0.5) / (number + 0.5 * answers)
    np.testing.assert_allclose(first, wanted, atol=1e-6)


def test_the_best_epoch_is_delivered_and_patience_ends_the_training(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start(tmp_path / "run", settings={"epochs": 30, "patience": 2, "rate": 0.05})
    scores = [record["validation_auprc"] for record in run.epoch_records()]
    assert run.results.best_epoch == 1 + int(np.argmax(scores))
    assert len(scores) == run.results.best_epoch + 2 or len(scores) == 30
    assert run.results.scores["validation"]["auprc"] == pytest.approx(max(scores), abs=1e-6)


def test_a_batch_in_parts_learns_what_the_whole_batch_learns(cohort_folder: Path) -> None:
    problem = problem_of(build_instances(Cohort.load(cohort_folder), find_task("readmission")))
    inputs = torch.from_numpy(np.random.default_rng(0).normal(size=(len(problem.instances), 4))).float()
    met: list[int] = []

    def loss(network: nn.Module, rows: Rows, targets: torch.Tensor, _epoch: int) -> torch.Tensor:
        met.append(len(rows))
        return problem.kind.loss(network(inputs[torch.from_numpy(rows)]), targets).mean()

    learned = []
    for rows_at_once in (None, 3):
        met.clear()
        settings = EpochSettings(epochs=2, batch_size=16, optimizer="adadelta", rate=1.0)
        network, account = train_network(
            problem,
            RunContext(settings),
            lambda: nn.Linear(4, problem.outputs),
            lambda network, rows: network(inputs[torch.from_numpy(rows)]),
            loss,
            rows_at_once=rows_at_once,
        )
        learned.append((network, [epoch["training_loss"] for epoch in account.epochs]))
    assert max(met) == 3
    (whole, losses), (parts, of_parts) = learned
    torch.testing.assert_close(parts.weight, whole.weight, rtol=1e-4, atol=1e-6)
    assert of_parts == pytest.approx(losses, rel=1e-5)


def test_a_loss_that_is_no_number_and_a_damaged_checkpoint_end_in_a_sentence(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        forward = SmallNetwork.forward
        patch.setattr(SmallNetwork, "forward", lambda network, batch: forward(network, batch) * float("inf"))
        with pytest.raises(PlmError, match=r"the loss is no longer a number \(epoch \d+, batch \d+\)"):
            start(tmp_path / "nan", settings={"epochs": 30})
    with pytest.raises(StoppedError):
        start(tmp_path / "run", watcher=StopAt(2), save_every=0.0)
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(b"nothing")
    with pytest.raises(PlmError, match=r"the checkpoint .* cannot be read .*start the training again"):
        start(tmp_path / "run")


def test_the_room_plans_a_system_that_says_nothing_itself(start: Callable[..., Run], cohort_folder: Path) -> None:
    del start
    settings = SMALL_NETWORK.settings_of(None, epochs=4)
    plan = plan_training(cohort_folder, "readmission", "small_network", settings, TaskSettings())
    assert plan.seconds_per_epoch is not None
    assert "at most 4 epochs" in plan.words


def test_no_global_random_state_is_touched(start: Callable[..., Run], tmp_path: Path) -> None:
    import torch

    before = torch.random.get_rng_state()
    start(tmp_path / "run")
    assert torch.equal(before, torch.random.get_rng_state())
