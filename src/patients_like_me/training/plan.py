"""What a training of the joint model would cost, from a sample of prompts, a few small batches and plain counting.

Neither all prompts are written nor a batch of full size computed: time and memory grow with the tokens of a batch, so a
few hundred tokens tell them. What the graph costs is in ``graph_plan``.
"""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from patients_like_me.model.backbone import Batch
from patients_like_me.model.batching import TokenizedPrompts
from patients_like_me.model.hidden_state_cache import SEGMENT_BYTES, HiddenStateCache
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.randomness import seeded
from patients_like_me.plain_text import duration_in_words
from patients_like_me.runs.run import default_cache
from patients_like_me.tasks.instances import Instances, Rows
from patients_like_me.tasks.prompts import write_prompts
from patients_like_me.tasks.task import SPLITS
from patients_like_me.training.graph_plan import chosen_refresh, graph_cost, sampled_entries
from patients_like_me.training.preparation import model_settings, place_backbone
from patients_like_me.training.settings import TrainingSettings
from patients_like_me.workers import keep_few_compiled_layers, peak_gib

#: Training instances whose prompts are written; the others are assumed to be like them.
_SAMPLE = 96
_MEASURED_BATCHES = 2
_TOKENS_PER_BATCH = 1024


@dataclass(frozen=True)
class TrainingPlan:
    """What a training would cost: the seconds of its parts, its memory, and all of it in words.

    ``graph_refresh`` is the one with which the graph adds at most 4 % to an epoch.
    """

    language_seconds_per_epoch: float
    graph_seconds_per_epoch: float
    memory_gib: float
    words: dict[str, str]
    graph_refresh: int = 1


@dataclass(frozen=True)
class _PerToken:
    """Seconds of the frozen and of the trained part, and bytes that a training step keeps, for one token."""

    frozen: float
    trained: float
    kept_bytes: float


def estimate_training(instances: Instances, settings: TrainingSettings) -> TrainingPlan:
    """Estimate instances, tokens, time per epoch and in all, memory and disk."""
    keep_few_compiled_layers()
    splits = {split: instances.rows_of(split) for split in SPLITS}
    train = splits["train"]
    cache = default_cache()
    entries = sampled_entries(instances, settings, cache)
    model = PatientsLikeMeModel.build(model_settings(instances, settings), seed=settings.seed)
    place_backbone(model, settings)
    cost = graph_cost(instances, settings, model, cache, entries) if settings.uses_graph else None
    prompts, sampled = _sampled_prompts(instances, model, settings, train)
    per_token = _measure(model, instances, settings, prompts, sampled)
    mean_tokens = float(prompts.lengths.mean())
    tokens = {split: mean_tokens * len(rows) for split, rows in splits.items()}
    batches = math.ceil(len(train) / settings.batch_size)
    keeps = model.backbone.level == "hidden"
    once = per_token.frozen * sum(tokens.values()) if keeps else 0.0
    below = 0.0 if keeps else per_token.frozen
    epoch = (per_token.trained + below) * tokens["train"]
    # Reading without a gradient is about a third of training.
    read = tokens["validation"] + (tokens["train"] if settings.refreshes_store else 0.0)
    reading = (per_token.trained / 3 + below) * read
    strategy, answer = settings.chosen_strategy, 0.0 if cost is None else cost.answer_seconds
    m_step = answer * settings.graph_steps
    graph_seconds = answer * strategy.graph_calls(batches, settings) + m_step
    sample_disk = (
        HiddenStateCache(cache, dtype=settings.cache_format).bytes_for(model.backbone, prompts) if keeps else 0
    )
    disk = sample_disk / len(prompts) * len(instances)
    free = shutil.disk_usage(cache).free
    weights = 4 * sum(value.numel() for value in model.theta_parameters().values())
    longest = float(np.sort(prompts.lengths)[-max(1, len(prompts) // 20) :].mean()) * settings.batch_size
    # Gradients and the two moments of AdamW; what a batch of long prompts keeps for its backward pass, and as much for
    # the gradients of that; and a segment of frozen states while it is written, twice.
    of_batch = 2 * per_token.kept_bytes * longest
    of_graph = 0.0 if cost is None else cost.memory_bytes
    more = 3 * weights + of_batch + of_graph + 2 * min(SEGMENT_BYTES, sample_disk / len(prompts) * len(instances))
    memory = peak_gib() + more / 2**30
    total = once + (epoch + reading + graph_seconds) * settings.epochs
    words = {
        "instances": ", ".join(f"{len(rows):,} {split}" for split, rows in splits.items()),
        "tokens per epoch": f"about {int(tokens['train']):,} (a sample of {len(prompts)} prompts has {mean_tokens:.0f} "
        "on average)",
        "steps per epoch": f"{math.ceil(batches / settings.accumulation):,} of {settings.batch_size} prompts",
        "frozen layers, once": duration_in_words(once) if keeps else "none are kept",
        "language model per epoch": duration_in_words(epoch + reading),
        "graph per epoch": duration_in_words(graph_seconds) if settings.uses_graph else "none",
        f"at most {settings.epochs} epochs": duration_in_words(total),
        "memory": f"about {memory:.2f} GiB with batches of {settings.batch_size} long prompts and the optimiser",
        "disk for frozen layers": f"{disk / 2**30:.2f} GiB of {free / 2**30:.0f} GiB free" if disk else "none more",
        "disk for the run": f"about {5 * weights / 2**30:.2f} GiB while it runs",
    }
    if cost is None:
        return TrainingPlan(epoch + reading, 0.0, memory, words)
    words |= cost.words
    refresh = settings.graph_refresh
    if every := answer * strategy.graph_calls(batches, settings.model_copy(update={"graph_refresh": 1})):
        if strategy.trains_both:
            share = 100 * every / max(epoch + reading, 1e-9)
            words["what the graph adds"] = f"adds {share:.1f} % to an epoch: both parts learn at every batch"
        else:
            choice = chosen_refresh(
                answer, m_step, epoch + reading, batches=batches, refresh=refresh, steps=settings.graph_steps
            )
            words["what the graph adds"], refresh = choice.words, choice.graph_refresh
    return TrainingPlan(epoch + reading, graph_seconds, memory, words, refresh)


def _sampled_prompts(
    instances: Instances, model: PatientsLikeMeModel, settings: TrainingSettings, train: Rows
) -> tuple[TokenizedPrompts, Rows]:
    """Write the prompts of some training instances; return them with their rows."""
    backbone = model.backbone
    budget = min(settings.max_tokens, backbone.max_tokens)
    chosen = np.random.default_rng(0).permutation(train)[:_SAMPLE]
    texts = write_prompts(instances, backbone.count_tokens, budget=budget, rows=chosen.tolist()).texts
    return TokenizedPrompts.from_lists(backbone.token_ids(texts, max_tokens=budget)), chosen


def _measure(
    model: PatientsLikeMeModel,
    instances: Instances,
    settings: TrainingSettings,
    prompts: TokenizedPrompts,
    sampled: Rows,
) -> _PerToken:
    """Time small training batches, and count what they keep for the backward pass; the first batch warms up."""
    backbone = model.backbone
    size = max(1, _TOKENS_PER_BATCH // max(1, int(prompts.lengths.mean())))
    tokens = frozen = trained = kept = 0.0
    for number in range(_MEASURED_BATCHES + 1):
        rows = np.arange(number * size, (number + 1) * size) % len(prompts)
        ids, mask = (part.to(backbone.device) for part in prompts.padded(rows))
        started = time.perf_counter()
        hidden = backbone.lower(ids, mask)
        below = time.perf_counter()
        model.set_training(language=True, graph=False)
        sizes: dict[int, int] = {}

        def note(value: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            sizes[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
            return value

        with seeded(0, number), torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
            pooled = model.pool(Batch("hidden", hidden, mask, torch.from_numpy(rows)), settings.precision)
            live = model.project(pooled)
            labels = torch.from_numpy(instances.labels[sampled[rows]])
            loss = instances.task.kind.loss(model.language_logits(live), labels).mean()
            loss.backward()  # type: ignore[no-untyped-call]
        model.zero_grad(set_to_none=True)
        if number:
            frozen += below - started
            trained += time.perf_counter() - below
            tokens += float(prompts.lengths[rows].sum())
            weights = {value.untyped_storage().data_ptr() for value in model.parameters()}
            kept += float(sum(nbytes for place, nbytes in sizes.items() if place not in weights))
    model.set_training(language=False, graph=False)
    return _PerToken(frozen / tokens, trained / tokens, kept / tokens)
