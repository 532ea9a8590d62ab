"""The loop: epochs of the language model, M-steps of the graph network, validation, early stopping, checkpoints.

What differs between strategies is asked of the strategy object; see ``strategies``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.model.batching import shuffled_batches
from patients_like_me.model.randomness import mixed_seed, seeded
from patients_like_me.runs.watching import Nobody, Watcher
from patients_like_me.tasks.instances import Rows
from patients_like_me.training.data import TrainingData
from patients_like_me.training.evaluation import embed_rows, pool_rows, split_logits, stored_embeddings
from patients_like_me.training.optimisation import linear_share, set_rates
from patients_like_me.training.state import TrainingState
from patients_like_me.training.strategies import EpochMemory, em_problem
from patients_like_me.training.vem import GraphFit, LiveRows, m_step, start_from_head
from patients_like_me.workers import peak_gib


def run_training(
    state: TrainingState,
    data: TrainingData,
    *,
    save: Callable[[], None] = lambda: None,
    save_every: float = 600.0,
    watcher: Watcher | None = None,
) -> None:
    """Train until the validation score stops rising or all epochs are done, then restore the best weights.

    ``save`` writes a checkpoint: after every epoch, and every ``save_every`` seconds within one. A training that
    continues from a checkpoint ends with the same weights as one that was never stopped: every random number is
    derived from the seed, the epoch and the batch.
    """
    watcher = watcher or Nobody()
    while not state.finished:
        started = time.perf_counter()
        if state.settings.uses_graph and not state.settings.warm_up_epochs and not (state.epoch or state.batch):
            # Without a warm-up the first batch would run the graph on zeros.
            state.store.refresh(pool_rows(state, data, data.train_rows))
        if state.stage == "language":
            language_epoch(state, data, save=save, save_every=save_every, watcher=watcher)
        language_seconds = time.perf_counter() - started
        own = embed_rows(state.model, data, data.splits["validation"], state.settings, ranks=state.ranks)
        refresh_store(state, data)
        # Where several processes train together, one of them fits the graph network and validates for all.
        record = state.ranks.once(partial(fit_and_validate, state, data, own), state.model.graph_network.parameters)
        record |= {
            "seconds": time.perf_counter() - started,
            "language_seconds": language_seconds,
            "peak_gib": peak_gib(),
        }
        state.seconds += time.perf_counter() - started
        state.epochs.append(record)
        _judge(state, record[f"validation_{data.metrics[0]}"])
        state.epoch, state.batch, state.losses = state.epoch + 1, 0, {}
        _next_stage(state)
        watcher.epoch_done(record)
        save()
    state.return_to_best()


def language_epoch(
    state: TrainingState,
    data: TrainingData,
    *,
    save: Callable[[], None] = lambda: None,
    save_every: float = math.inf,
    watcher: Watcher | None = None,
) -> None:
    """Go through all training prompts once, starting at ``state.batch``."""
    watcher = watcher or Nobody()
    strategy, batches = state.settings.chosen_strategy, epoch_batches(state, data)
    memory = EpochMemory(soft_labels=_soft_labels_of_graph(state, data) if strategy.learns_soft_labels(state) else None)
    saved = time.perf_counter()
    while state.batch < len(batches):
        train_batch(state, data, batches, memory)
        watcher.batch_done(state, len(batches))
        if time.perf_counter() - saved > save_every and strategy.can_pause(state):
            save()
            saved = time.perf_counter()


def epoch_batches(state: TrainingState, data: TrainingData) -> list[Rows]:
    """Return the batches of the current epoch, as places in the training split, in an order from seed and epoch."""
    order = np.random.default_rng(mixed_seed(state.settings.seed, 4, state.epoch))
    return shuffled_batches(data.inputs.lengths[data.train_rows], state.settings.batch_size, order)


def train_batch(state: TrainingState, data: TrainingData, batches: list[Rows], memory: EpochMemory) -> None:
    """Apply the strategy's rule to one batch: live embeddings, loss, gradient, and a step where one is due."""
    settings, model = state.settings, state.model
    rule, trains_graph = settings.chosen_strategy.rule_of(state)
    places = batches[state.batch]
    model.set_training(language=True, graph=trains_graph)
    with seeded(settings.seed, 2, state.epoch, state.batch):
        pooled = state.ranks.pool(model, data.inputs, data.train_rows[places], settings.precision)
        loss = rule(state, data, LiveRows.of(model, pooled, torch.from_numpy(places)), memory)
        _refuse_nonsense(loss.objective, state)
        state.ranks.backward(loss.objective / settings.accumulation)
    _note(state, "language", loss.language)
    _note(state, "graph", loss.graph)
    state.batch += 1
    if state.batch % settings.accumulation == 0 or state.batch == len(batches):
        state.ranks.add_gradients(model)
        total = settings.epochs * math.ceil(len(batches) / settings.accumulation)
        for optimizer in [state.language_optimizer, *([state.graph_optimizer] if trains_graph else [])]:
            set_rates(optimizer, linear_share(state.step, total, settings.warmup))
            optimizer.step()
        model.zero_grad(set_to_none=True)
        state.step += 1


def fit_and_validate(state: TrainingState, data: TrainingData, own: Tensor) -> dict[str, Any]:
    """Run the M-step where there is one, and score the validation split; return the record of the epoch."""
    started = time.perf_counter()
    graph_fit = graph_epoch(state, data, own)
    graph_seconds = time.perf_counter() - started
    through_graph = state.settings.chosen_strategy.validates_through_graph(state)
    scores = data.scores("validation", _validation_logits(state, data, own, through_graph=through_graph))
    return {
        "epoch": state.epoch + 1,
        "stage": state.stage,
        "language_loss": state.losses.get("language"),
        "graph_loss": state.losses.get("graph") if graph_fit is None else graph_fit.loss,
        "graph_steps": None if graph_fit is None else graph_fit.steps,
        **{f"validation_{name}": value for name, value in scores.items()},
        "graph_seconds": graph_seconds,
    }


def graph_epoch(state: TrainingState, data: TrainingData, own: Tensor) -> GraphFit | None:
    """Run the M-step that follows an epoch of the language model, where the strategy has one."""
    settings, model = state.settings, state.model
    strategy = settings.chosen_strategy
    if not strategy.m_step(state):
        return None
    embeddings = stored_embeddings(state)
    soft = None
    if strategy.swaps_soft_labels:
        with torch.no_grad():
            soft = data.kind.tensor_probabilities(model.language_logits(embeddings))

    labels = data.labels_of("validation")

    def validate() -> float:
        # The likelihood judges single steps more steadily than a metric over few patients.
        logits = split_logits(model, data, "validation", own, through_graph=True, bank=embeddings)
        return -float(data.kind.loss(logits, labels).mean())

    if settings.graph_start == "head":
        start_from_head(model, validate)
    # A stage of its own has the steps that the other strategies spread over their epochs.
    steps = settings.graph_steps * (settings.epochs if state.stage == "graph" else 1)
    return m_step(em_problem(state, data), embeddings, validate, epoch=state.epoch, steps=steps, soft_labels=soft)


def refresh_store(state: TrainingState, data: TrainingData) -> None:
    """Read the training instances again where the settings say so; the same for all strategies."""
    if state.settings.refreshes_store:
        state.store.refresh(pool_rows(state, data, data.train_rows))


def _validation_logits(state: TrainingState, data: TrainingData, own: Tensor, *, through_graph: bool) -> Tensor:
    bank = stored_embeddings(state) if through_graph else None
    return split_logits(state.model, data, "validation", own, through_graph=through_graph, bank=bank)


def _soft_labels_of_graph(state: TrainingState, data: TrainingData) -> Tensor:
    state.model.set_training(language=False, graph=False)
    with torch.no_grad():
        logits = state.model.graph_logits(stored_embeddings(state), data.graphs["train"].propagation)
    return data.kind.tensor_probabilities(logits)


def _judge(state: TrainingState, score: float | None) -> None:
    """Keep the weights if they are the best so far; count the epochs since."""
    better = score is None or state.best_score is None or score > state.best_score
    # A second stage is judged on its own: its predictions come from another part.
    if better or state.stage == "graph":
        state.best_score, state.best_epoch, state.waited = score, state.epoch, 0
        state.keep_as_best()
    else:
        state.waited += 1


def _next_stage(state: TrainingState) -> None:
    settings = state.settings
    ended = state.stage == "graph" or state.epoch >= settings.epochs or state.waited >= settings.patience
    if not ended:
        return
    following = settings.chosen_strategy.next_stage(state)
    if following is None:
        state.finished = True
    else:
        state.return_to_best()
        state.stage = following


def _note(state: TrainingState, name: str, value: float | None) -> None:
    """Keep the running mean of a loss over the epoch."""
    if value is not None:
        state.losses[name] = state.losses.get(name, value) + (value - state.losses.get(name, value)) / (state.batch + 1)


def _refuse_nonsense(loss: Tensor, state: TrainingState) -> None:
    if not bool(torch.isfinite(loss)):
        raise PlmError(
            f"the loss is no longer a number (epoch {state.epoch + 1}, batch {state.batch + 1})",
            remedy="lower backbone_rate or rate, or use precision float32; what was saved before is kept",
        )
