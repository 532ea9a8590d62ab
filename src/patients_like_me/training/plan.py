"""What a training of the joint model would cost, from a sample of prompts, a few small batches and plain counting.

Neither all prompts are written nor a batch of full size computed: time and memory grow with the tokens of a batch, so a
few hundred tokens tell them. The graph is built as a whole: it is small, and whether it is empty must be known.
"""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.graph.coverage import coverage_notes, hub_notes
from patients_like_me.model.backbone import Batch
from patients_like_me.model.batching import TokenizedPrompts
from patients_like_me.model.hidden_state_cache import HiddenStateCache
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.propagation import LARGE
from patients_like_me.model.randomness import seeded
from patients_like_me.plain_text import duration_in_words
from patients_like_me.runs.run import default_cache
from patients_like_me.tasks.instances import Instances, Rows
from patients_like_me.tasks.prompts import write_prompts
from patients_like_me.tasks.task import SPLITS
from patients_like_me.training.data import split_graph
from patients_like_me.training.preparation import model_settings, patient_graph_of, place_backbone
from patients_like_me.training.settings import TrainingSettings
from patients_like_me.training.vem import EmProblem, graph_signal
from patients_like_me.workers import peak_gib

#: Training instances whose prompts are written; the others are assumed to be like them.
_SAMPLE = 96
_MEASURED_BATCHES = 2
_TOKENS_PER_BATCH = 1024
#: Rows of a graph of all pairs that tell its size.
_SAMPLED_ROWS = 400
#: What the graph may add to an epoch of the language model before a larger ``graph_refresh`` is advised.
MOST_GRAPH_SHARE = 0.04


@dataclass(frozen=True)
class TrainingPlan:
    """What a training would cost: the seconds of its parts, and all of it in words."""

    language_seconds_per_epoch: float
    graph_seconds_per_epoch: float
    words: dict[str, str]


@dataclass(frozen=True)
class _PerToken:
    """Seconds of the frozen and of the trained part, and bytes that a training step keeps, for one token."""

    frozen: float
    trained: float
    kept_bytes: float


def estimate_training(instances: Instances, settings: TrainingSettings) -> TrainingPlan:
    """Estimate instances, tokens, time per epoch and in all, memory and disk."""
    splits = {split: instances.rows_of(split) for split in SPLITS}
    train = splits["train"]
    if settings.uses_graph:
        refuse_what_memory_cannot_hold(instances, settings)
    graph = patient_graph_of(instances, settings) if settings.uses_graph else None
    model = PatientsLikeMeModel.build(model_settings(instances, settings), seed=settings.seed)
    place_backbone(model, settings)
    prompts, sampled = _sampled_prompts(instances, model, settings, train)
    per_token = _measure(model, instances, prompts, sampled)
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
    graph_call = 0.0
    if graph is not None:
        part = split_graph(graph, train, len(train))
        labels = torch.from_numpy(instances.labels[train])
        problem = EmProblem(model, part.propagation, labels, instances.task.kind, settings)
        # The first call loads compiled code and warms up; the second is what every further one takes.
        for _ in range(2):
            started = time.perf_counter()
            graph_signal(problem, torch.zeros(len(train), model.backbone.width))
            graph_call = time.perf_counter() - started
    graph_seconds = graph_call * (settings.chosen_strategy.graph_calls(batches, settings) + settings.graph_steps)
    # What the steps of an epoch wait for; the M-step's full-batch steps are apart.
    waited = graph_call * settings.chosen_strategy.graph_calls(batches, settings)
    cache = default_cache()
    sample_disk = (
        HiddenStateCache(cache, dtype=settings.cache_format).bytes_for(model.backbone, prompts) if keeps else 0
    )
    disk = sample_disk / len(prompts) * len(instances)
    free = shutil.disk_usage(cache).free
    weights = 4 * sum(value.numel() for value in model.theta_parameters().values())
    longest = float(np.sort(prompts.lengths)[-max(1, len(prompts) // 20) :].mean()) * settings.batch_size
    # Gradients and the two moments of AdamW, and what a batch of long prompts keeps for its backward pass.
    memory = peak_gib() + (3 * weights + per_token.kept_bytes * longest) / 2**30
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
    if graph is not None:
        words["patient graph"] = "; ".join([f"{graph.edges:,} edges", *coverage_notes(graph), *hub_notes(graph)])
        words["memory of the graph"] = f"{graph_gib(len(graph.neighbors)):.2f} GiB for {len(graph.neighbors):,} entries"
        if waited:
            words["graph in the E-step"] = refresh_advice(waited, epoch + reading, settings.graph_refresh)
    return TrainingPlan(epoch + reading, graph_seconds, words)


def refresh_advice(waited: float, language: float, refresh: int) -> str:
    """Say what share of an epoch the graph adds, and the ``graph_refresh`` that keeps it under 4 %.

    >>> refresh_advice(12.0, 100.0, refresh=1)
    'adds 12.0 % to an epoch; graph_refresh=3 would keep it under 4 %'
    """
    share = waited / max(language, 1e-9)
    if share <= MOST_GRAPH_SHARE:
        return f"adds {share:.1%} to an epoch with graph_refresh={refresh}".replace("%", " %")
    wanted = math.ceil(refresh * share / MOST_GRAPH_SHARE - 1e-9)
    return f"adds {100 * share:.1f} % to an epoch; graph_refresh={wanted} would keep it under 4 %"


def refuse_what_memory_cannot_hold(instances: Instances, settings: TrainingSettings) -> None:
    """Refuse, with its numbers, a graph of all pairs that would not fit this machine; a sample of rows tells its size.

    With ``max_neighbors`` a graph is small. Without it the number of entries grows with the square of the cohort.
    """
    import psutil

    from patients_like_me.graph.build import PartRows, parts_of

    graph, sets = settings.graph, instances.diagnosis_sets
    if graph.max_neighbors is not None or graph.compares_people or len(sets) < _SAMPLED_ROWS:
        return
    entries = 0
    for part in parts_of(sets, graph.references):
        if len(part.rows):
            wanted = max(20, _SAMPLED_ROWS * len(part.rows) // len(sets))
            sample = np.unique(np.linspace(0, len(part.rows) - 1, wanted).astype(np.int64))
            rows = PartRows(sets, part, graph)
            found = sum(len(rows.find(int(row), int(row) + 1, threads=1)[1]) for row in sample)
            entries += round(found / len(sample) * len(part.rows))
    needed, free = graph_gib(entries), psutil.virtual_memory().available / 2**30
    if needed > 0.8 * free:
        raise PlmError(
            f"the graph of {len(sets):,} instances at tau {graph.tau} without max_neighbors has about {entries:,} "
            f"entries, {needed:.1f} GiB in training, and {free:.1f} GiB of memory are free",
            remedy="set graph.max_neighbors=32, choose a larger graph.tau, or use a machine with more memory",
        )


def graph_gib(entries: int) -> float:
    """Return the memory of a training's graph: of all instances, of the splits, and Â of the splits, in GiB.

    >>> round(graph_gib(1_000_000_000), 1)
    9.3
    """
    # Small ones are kept as numbers too, large ones as the counts they are: see model/count_product.py.
    per_entry = 2 * 5 if entries >= LARGE else 2 * 5 + 20
    return entries * per_entry / 2**30


def _sampled_prompts(
    instances: Instances, model: PatientsLikeMeModel, settings: TrainingSettings, train: Rows
) -> tuple[TokenizedPrompts, Rows]:
    """Write the prompts of some training instances; return them with their rows."""
    backbone = model.backbone
    budget = min(settings.max_tokens, backbone.max_tokens)
    chosen = np.random.default_rng(0).permutation(train)[:_SAMPLE]
    texts = write_prompts(instances, backbone.count_tokens, budget=budget, rows=chosen.tolist()).texts
    return TokenizedPrompts.from_lists(backbone.token_ids(texts, max_tokens=budget)), chosen


def _measure(model: PatientsLikeMeModel, instances: Instances, prompts: TokenizedPrompts, sampled: Rows) -> _PerToken:
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
            live = model.embed(Batch("hidden", hidden, mask, torch.from_numpy(rows)))
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
