"""What a training of the joint model would cost, from a few measured batches and plain counting."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import dataclass

import numpy as np
import torch

from patients_like_me.model.backbone import Batch
from patients_like_me.model.batching import shuffled_batches
from patients_like_me.model.hidden_state_cache import HiddenStateCache
from patients_like_me.model.randomness import seeded
from patients_like_me.plain_text import duration_in_words
from patients_like_me.runs.run import default_cache
from patients_like_me.tasks.instances import Instances
from patients_like_me.training.data import Rows, TrainingData
from patients_like_me.training.preparation import prepare_training
from patients_like_me.training.settings import TrainingSettings
from patients_like_me.training.state import TrainingState
from patients_like_me.training.strategies import em_problem
from patients_like_me.training.vem import graph_signal
from patients_like_me.workers import peak_gib

_MEASURED_BATCHES = 4


@dataclass(frozen=True)
class TrainingPlan:
    """What a training would cost: the seconds of its parts, and all of it in words."""

    frozen_seconds: float
    language_seconds_per_epoch: float
    graph_seconds_per_epoch: float
    words: dict[str, str]


def estimate_training(instances: Instances, settings: TrainingSettings) -> TrainingPlan:
    """Estimate instances, tokens, time per epoch and in all, memory and disk."""
    prepared = prepare_training(instances, settings, cache=None)
    data, model = prepared.data, prepared.state.model
    train, lengths = data.train_rows, data.inputs.lengths
    batches = shuffled_batches(lengths[train], settings.batch_size, np.random.default_rng(0))
    measured = [train[batch] for batch in batches[: _MEASURED_BATCHES + 1]]
    frozen, trained = _seconds_per_token(prepared.state, data, measured)
    keeps = model.backbone.level == "hidden"
    once = frozen * float(lengths.sum()) if keeps else 0.0
    epoch = (trained + (0.0 if keeps else frozen)) * float(lengths[train].sum())
    # Reading without a gradient is about a third of training.
    reading = (trained / 3 + (0.0 if keeps else frozen)) * float(lengths[data.splits["validation"]].sum())
    graph_call = 0.0
    if settings.uses_graph:
        # The first call loads compiled code and warms up; the second is what every further one takes.
        for _ in range(2):
            started = time.perf_counter()
            graph_signal(em_problem(prepared.state, data), prepared.state.store.values)
            graph_call = time.perf_counter() - started
    graph = graph_call * (settings.chosen_strategy.graph_calls(len(batches), settings) + settings.graph_steps)
    backbone = model.backbone
    cache = default_cache()
    disk = HiddenStateCache(cache, dtype=settings.cache_format).bytes_for(backbone, data.inputs.prompts) if keeps else 0
    free = shutil.disk_usage(cache).free
    weights = 4 * sum(value.numel() for value in model.theta_parameters().values())
    total = once + (epoch + reading + graph) * settings.epochs
    words = {
        "instances": ", ".join(f"{len(rows):,} {split}" for split, rows in data.splits.items()),
        "tokens per epoch": f"{int(lengths[train].sum()):,} (prompts of {lengths.mean():.0f} on average)",
        "steps per epoch": f"{math.ceil(len(batches) / settings.accumulation):,} of {settings.batch_size} prompts",
        "frozen layers, once": duration_in_words(once) if keeps else "none are kept",
        "language model per epoch": duration_in_words(epoch + reading),
        "graph per epoch": duration_in_words(graph) if settings.uses_graph else "none",
        f"at most {settings.epochs} epochs": duration_in_words(total),
        "memory": f"about {peak_gib() + 2 * weights / 2**30:.2f} GiB (peak while measuring, and the optimiser)",
        "disk for frozen layers": f"{disk / 2**30:.2f} GiB of {free / 2**30:.0f} GiB free" if disk else "none more",
        "disk for the run": f"about {5 * weights / 2**30:.2f} GiB while it runs",
    }
    return TrainingPlan(once, epoch + reading, graph, words)


def _seconds_per_token(state: TrainingState, data: TrainingData, batches: list[Rows]) -> tuple[float, float]:
    """Time a few training batches: the frozen part and the trained part; the first batch warms up."""
    model, backbone = state.model, state.model.backbone
    tokens = frozen = trained = 0.0
    for number, rows in enumerate(batches):
        ids, mask = data.inputs.prompts.padded(rows)
        started = time.perf_counter()
        hidden = backbone.lower(ids.to(backbone.device), mask.to(backbone.device))
        below = time.perf_counter()
        model.set_training(language=True, graph=False)
        with seeded(0, number):
            live = model.embed(Batch("hidden", hidden, mask.to(backbone.device), torch.from_numpy(rows)))
            loss = data.kind.loss(model.language_logits(live), data.labels[torch.from_numpy(rows)]).mean()
            loss.backward()  # type: ignore[no-untyped-call]
        model.zero_grad(set_to_none=True)
        if number or len(batches) == 1:
            frozen += below - started
            trained += time.perf_counter() - below
            tokens += float(data.inputs.lengths[rows].sum())
    return frozen / max(tokens, 1.0), trained / max(tokens, 1.0)
