"""What one batch does under each strategy: the loss that it goes down, and whom it trains.

==============  =====================================================  ==============================  ================
strategy        the language model follows                             the graph network follows       gradient between
==============  =====================================================  ==============================  ================
``lm_only``     the labels, through its own head                       (none)                          no
``two_stage``   the labels, through its own head, to the end           the labels, on fixed O          no
``alternating`` the labels and the graph's soft labels                 the labels and the head's       no
``end_to_end``  the labels, through the graph, in the same step        the same loss, the same step    yes
``vem``         the labels, through the frozen graph (E-step)          the labels, on frozen O         yes
==============  =====================================================  ==============================  ================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from patients_like_me.model.heads import loss_per_instance
from patients_like_me.model.randomness import mixed_seed
from patients_like_me.training.data import TrainingData
from patients_like_me.training.state import TrainingState
from patients_like_me.training.vem import GraphSignal, e_step, e_step_loss


@dataclass
class EpochMemory:
    """What batches of one epoch share: the graph's last answer, and the soft labels of the epoch."""

    signal: GraphSignal | None = None
    soft_labels: Tensor | None = None


@dataclass(frozen=True)
class BatchLoss:
    """The loss to go down, and what to report: the losses of the own head and through the graph."""

    objective: Tensor
    language: float
    graph: float | None = None


#: (state, data, the batch's live embeddings, their rows in the store, the epoch's memory) -> loss
BatchRule = Callable[[TrainingState, TrainingData, Tensor, Tensor, EpochMemory], BatchLoss]


def head_rule(state: TrainingState, data: TrainingData, live: Tensor, rows: Tensor, memory: EpochMemory) -> BatchLoss:
    """Follow the labels through the language model's own head, and a share of soft labels where there are any."""
    state.store.write(rows, live)
    logits = state.model.language_logits(live)
    hard = loss_per_instance(data.kind, logits, data.train_labels[rows].to(live.device)).mean()
    objective = hard
    if memory.soft_labels is not None:
        share = state.settings.distillation
        soft = loss_per_instance(data.kind, logits, memory.soft_labels[rows].to(live.device)).mean()
        objective = (1 - share) * hard + share * soft
    return BatchLoss(objective, float(hard.detach()))


def e_step_rule(state: TrainingState, data: TrainingData, live: Tensor, rows: Tensor, memory: EpochMemory) -> BatchLoss:
    """Follow the labels through the frozen graph network; see ``vem``."""
    if state.batch % state.settings.graph_refresh == 0:
        memory.signal = None
    labels = data.train_labels
    seed = mixed_seed(state.settings.seed, 5, state.step)
    graph = data.graphs["train"].propagation
    objective, memory.signal = e_step(
        state.model, state.store, live, rows, memory.signal, graph, labels, data.kind, state.settings, seed=seed
    )
    return BatchLoss(objective, _head_loss(state, data, live, rows), memory.signal.loss)


def joint_rule(state: TrainingState, data: TrainingData, live: Tensor, rows: Tensor, memory: EpochMemory) -> BatchLoss:
    """Train both parts in one step: the same store and the same loss as the E-step, with nothing frozen."""
    del memory
    labels = data.train_labels
    everyone = state.store.with_live_rows(rows, live)
    state.store.write(rows, live)
    logits = state.model.graph_logits(everyone, data.graphs["train"].propagation)
    per_node = loss_per_instance(data.kind, logits, labels)
    objective = state.settings.graph_loss * per_node.sum() / len(rows)
    # The own head gets its term as in the E-step, without the graph's answer.
    objective = objective + e_step_loss(
        state.model, live, rows, None, labels, data.kind, state.settings, seed=state.step
    )
    return BatchLoss(objective, _head_loss(state, data, live, rows), float(per_node.detach().mean()))


def rule_of(state: TrainingState) -> tuple[BatchRule, bool]:
    """Return the rule of the present epoch, and whether the graph network is trained in the same step."""
    strategy = state.settings.strategy
    warming_up = state.epoch < state.settings.warm_up_epochs
    if strategy == "vem" and not warming_up:
        return e_step_rule, False
    if strategy == "end_to_end" and not warming_up:
        return joint_rule, True
    return head_rule, False


@torch.no_grad()
def _head_loss(state: TrainingState, data: TrainingData, live: Tensor, rows: Tensor) -> float:
    logits = state.model.language_logits(live.detach())
    return float(loss_per_instance(data.kind, logits, data.train_labels[rows].to(live.device)).mean())
