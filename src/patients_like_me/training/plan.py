"""``plm plan``: what a training would cost, from a few measured batches and plain counting."""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path

import numpy as np
import torch

from patients_like_me.model.batching import shuffled_batches
from patients_like_me.model.heads import loss_per_instance
from patients_like_me.model.hidden_state_cache import HiddenStateCache
from patients_like_me.model.randomness import seeded
from patients_like_me.records.cohort import Cohort
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task
from patients_like_me.tasks.task import TaskSettings
from patients_like_me.training.data import Rows, TrainingData
from patients_like_me.training.memory import peak_gib
from patients_like_me.training.preparation import prepare_training
from patients_like_me.training.settings import TrainingSettings
from patients_like_me.training.state import TrainingState
from patients_like_me.training.vem import graph_signal

_MEASURED_BATCHES = 4


def plan_training(
    cohort_folder: Path, task_name: str, settings: TrainingSettings, task_settings: TaskSettings
) -> dict[str, str]:
    """Return estimates in words: instances, tokens, time per epoch and in all, memory, disk."""
    cohort = Cohort.load(cohort_folder)
    instances = build_instances(cohort, find_task(task_name, cohort), task_settings)
    prepared = prepare_training(instances, settings, cache=None)
    data, model = prepared.data, prepared.state.model
    train, lengths = data.train_rows, data.inputs.lengths
    batches = shuffled_batches(lengths[train], settings.batch_size, np.random.default_rng(0))
    seconds_per_token = _seconds_per_token(
        prepared.state, data, [train[batch] for batch in batches[: _MEASURED_BATCHES + 1]]
    )
    epoch = seconds_per_token * float(lengths[train].sum())
    reading = seconds_per_token / 3 * float(lengths[data.splits["validation"]].sum())
    graph_call = 0.0
    if settings.uses_graph:
        started = time.perf_counter()
        graph_signal(model, prepared.state.store.values, data.graphs["train"].propagation, data.train_labels, data.kind)
        graph_call = time.perf_counter() - started
    graph = graph_call * (len(batches) / settings.graph_refresh * (settings.strategy == "vem") + settings.graph_steps)
    backbone = model.backbone
    kept = HiddenStateCache(Path(), dtype=settings.cache_format)
    disk = kept.bytes_for(backbone, data.inputs.prompts) if backbone.level != "tokens" else 0
    free = shutil.disk_usage(cohort_folder).free
    total = (epoch + reading + graph) * settings.epochs
    return {
        "instances": ", ".join(f"{len(rows):,} {split}" for split, rows in data.splits.items()),
        "tokens per epoch": f"{int(lengths[train].sum()):,} (prompts of {lengths.mean():.0f} on average)",
        "steps per epoch": f"{math.ceil(len(batches) / settings.accumulation):,} of {settings.batch_size} prompts",
        "language model per epoch": _duration(epoch + reading),
        "graph per epoch": _duration(graph) if settings.uses_graph else "none",
        f"at most {settings.epochs} epochs": _duration(total),
        "memory so far": f"{peak_gib():.2f} GiB peak while measuring",
        "disk for frozen layers": f"{disk / 2**30:.2f} GiB of {free / 2**30:.0f} GiB free" if disk else "none",
        "note": data.inputs.note,
    }


def _seconds_per_token(state: TrainingState, data: TrainingData, batches: list[Rows]) -> float:
    """Time a few training batches; the first one warms up."""
    tokens = spent = 0.0
    for number, rows in enumerate(batches):
        started = time.perf_counter()
        state.model.set_training(language=True, graph=False)
        with seeded(0, number):
            live = state.model.embed(data.inputs.batch(rows, device=state.model.device))
            logits = state.model.language_logits(live)
            loss_per_instance(data.kind, logits, data.labels[torch.from_numpy(rows)]).mean().backward()  # type: ignore[no-untyped-call]
        state.model.zero_grad(set_to_none=True)
        if number or len(batches) == 1:
            spent += time.perf_counter() - started
            tokens += float(data.inputs.lengths[rows].sum())
    return spent / max(tokens, 1.0)


def _duration(seconds: float) -> str:
    """Write a time span as a person says it.

    >>> _duration(42), _duration(600), _duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
