"""What an M-step reads: how far the store is from fresh embeddings, the same for every preset and strategy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from patients_like_me.records.cohort import Cohort
from patients_like_me.settings import preset_names
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task
from patients_like_me.training import loop
from patients_like_me.training.evaluation import store_error
from patients_like_me.training.preparation import prepare_training
from patients_like_me.training.settings import TrainingSettings, settings_of_preset
from patients_like_me.training.state import TrainingState

#: The aim: the error of what an M-step reads, relative to the spread between patients.
LARGEST_ERROR = 0.1


def errors_at_m_steps(
    settings: TrainingSettings, cohort: Path, monkeypatch: pytest.MonkeyPatch, task: str = "readmission"
) -> list[float]:
    """Train and return the error of the store before every M-step."""
    prepared = prepare_training(build_instances(Cohort.load(cohort), find_task(task)), settings, cache=None)
    found: list[float] = []
    step = loop.m_step

    def measured(*given: Any, **more: Any) -> Any:
        found.append(store_error(prepared.state, prepared.data))
        return step(*given, **more)

    monkeypatch.setattr(loop, "m_step", measured)
    loop.run_training(prepared.state, prepared.data)
    return found


def small(preset: str, folder: Path, **changes: Any) -> TrainingSettings:
    """Return a preset with a tiny backbone that has dropout and learns fast; what decides freshness stays."""
    backbone = {"name": str(folder), "trainable_layers": 1, "attention_dropout": None}
    few = {"graph": {"tau": 2}, "epochs": 3, "patience": 3, "graph_steps": 4, "batch_size": 16, "precision": "float32"}
    return settings_of_preset(preset, **{"backbone": backbone, "backbone_rate": 1e-3, **few, **changes})


@pytest.mark.parametrize("strategy", ["vem", "alternating"])
@pytest.mark.parametrize("preset", preset_names())
def test_every_m_step_of_every_preset_reads_fresh_embeddings(
    preset: str, strategy: str, cohort_folder: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = errors_at_m_steps(small(preset, tiny_folder, strategy=strategy), cohort_folder, monkeypatch)
    assert len(errors) == 3
    assert max(errors) < LARGEST_ERROR


@pytest.mark.parametrize("strategy", ["vem", "alternating", "two_stage"])
def test_all_strategies_read_rows_of_the_same_freshness(
    strategy: str, cohort_folder: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what the batches wrote no strategy has fresh rows; refreshed ones are fresh for all."""
    written = small("paper", tiny_folder, strategy=strategy, store_refresh="never")
    refreshed = small("paper", tiny_folder, strategy=strategy)
    assert min(errors_at_m_steps(written, cohort_folder, monkeypatch)) > LARGEST_ERROR
    assert max(errors_at_m_steps(refreshed, cohort_folder, monkeypatch)) < 1e-5


def test_the_projection_of_the_moment_is_applied_whatever_the_batches_wrote(
    cohort_folder: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a frozen backbone the rows are exact, although the projection has learned since they were written."""
    backbone = {"name": str(tiny_folder), "trainable_layers": 0, "attention_dropout": None}
    settings = small("paper", tiny_folder, backbone=backbone, store_refresh="never", rate=1e-2)
    assert max(errors_at_m_steps(settings, cohort_folder, monkeypatch)) < 1e-5


def test_a_second_stage_gets_the_rows_of_the_best_epoch(
    cohort_folder: Path, tiny_settings: Callable[..., TrainingSettings], tmp_path: Path
) -> None:
    settings = tiny_settings(strategy="two_stage", store_refresh="never")
    instances = build_instances(Cohort.load(cohort_folder), find_task("readmission"))
    prepared = prepare_training(instances, settings, cache=None)
    state = prepared.state
    state.store.values.fill_(1.0)
    state.keep_as_best()
    state.store.values.fill_(2.0)
    state.save(tmp_path / "checkpoint.safetensors")
    again = TrainingState(state.model, settings, state.store)
    again.load(tmp_path / "checkpoint.safetensors")
    assert torch.equal(again.store.values, torch.full_like(state.store.values, 2.0))
    again.return_to_best()
    assert torch.equal(again.store.values, torch.full_like(state.store.values, 1.0))
    assert state.store.values.shape[1] == state.model.backbone.width != settings.embedding_width
