"""The five strategies, one object each: what a batch does, when there is an M-step, what validates, its stages.

==============  =====================================================  ==============================  ================
strategy        the language model learns from                         the graph network learns from   gradient between
==============  =====================================================  ==============================  ================
``lm_only``     the labels, through its own head                       (none)                          no
``two_stage``   the labels, through its own head, to the end           the labels, on fixed O          no
``alternating`` the labels and the graph's soft labels                 the labels and the head's       no
``end_to_end``  the labels, through the graph, in the same step        the same loss, the same step    yes
``vem``         the labels, through the frozen graph (E-step)          the labels, on frozen O         yes
==============  =====================================================  ==============================  ================

The loop asks the object and never looks at its name. Torch is imported where it is used, so that settings load fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from patients_like_me.training.data import TrainingData
    from patients_like_me.training.settings import TrainingSettings
    from patients_like_me.training.state import TrainingState
    from patients_like_me.training.vem import EmProblem, GraphSignal, LiveRows

StrategyName = Literal["vem", "alternating", "end_to_end", "two_stage", "lm_only"]
Stage = Literal["language", "graph"]


@dataclass
class EpochMemory:
    """What the batches of one epoch share: the graph's last signal, and the soft labels of the epoch."""

    signal: GraphSignal | None = None
    soft_labels: Tensor | None = None


@dataclass(frozen=True)
class BatchLoss:
    """The loss to minimise, and what to report: the losses of the own head and through the graph."""

    objective: Tensor
    language: float
    graph: float | None = None


#: (state, data, the batch's live embeddings, the epoch's memory) -> loss
BatchRule = Callable[["TrainingState", "TrainingData", "LiveRows", EpochMemory], BatchLoss]


def head_rule(state: TrainingState, data: TrainingData, live: LiveRows, memory: EpochMemory) -> BatchLoss:
    """Learn the labels through the language model's own head, and a share of soft labels where there are any."""
    embeddings, rows = live.embeddings, live.rows
    if state.settings.uses_graph:
        state.store.write(rows, live.pooled)
    logits = state.model.language_logits(embeddings)
    hard = data.kind.loss(logits, data.train_labels[rows].to(embeddings.device)).mean()
    objective = hard
    if memory.soft_labels is not None:
        share = state.settings.distillation
        soft = data.kind.loss(logits, memory.soft_labels[rows].to(embeddings.device)).mean()
        objective = (1 - share) * hard + share * soft
    return BatchLoss(objective, float(hard.detach()))


def e_step_rule(state: TrainingState, data: TrainingData, live: LiveRows, memory: EpochMemory) -> BatchLoss:
    """Learn the labels through the frozen graph network; see ``vem``."""
    from patients_like_me.model.randomness import mixed_seed
    from patients_like_me.training.vem import e_step

    if state.batch % state.settings.graph_refresh == 0:
        memory.signal = None
    seed = mixed_seed(state.settings.seed, 5, state.step)
    problem, ranks = em_problem(state, data), state.ranks
    objective, memory.signal = e_step(problem, state.store, live, memory.signal, seed=seed, ranks=ranks)
    return BatchLoss(objective, _head_loss(state, data, live), _graph_loss(memory.signal))


def joint_rule(state: TrainingState, data: TrainingData, live: LiveRows, memory: EpochMemory) -> BatchLoss:
    """Train both parts in one step: the same store and the same loss as the E-step, with nothing frozen."""
    from patients_like_me.model.randomness import mixed_seed
    from patients_like_me.training.vem import e_step_loss, graph_signal, signal_on_all

    del memory
    problem = em_problem(state, data)
    state.store.write(live.rows, live.pooled)
    signal = graph_signal(problem, state.store.values, train_graph=True) if state.ranks.is_first else None
    of_batch = signal_on_all(problem, live, signal, state.ranks, train_graph=True)
    objective = e_step_loss(problem, live, of_batch, seed=mixed_seed(state.settings.seed, 5, state.step))
    return BatchLoss(objective, _head_loss(state, data, live), _graph_loss(signal))


def em_problem(state: TrainingState, data: TrainingData) -> EmProblem:
    """Return what E-step and M-step of a training work on."""
    from patients_like_me.training.vem import EmProblem

    return EmProblem(state.model, data.graphs["train"].propagation, data.train_labels, data.kind, state.settings)


def _graph_loss(signal: GraphSignal | None) -> float | None:
    """Return the loss through the graph; of several processes the first one knows it."""
    return None if signal is None else signal.loss


def _head_loss(state: TrainingState, data: TrainingData, live: LiveRows) -> float:
    import torch

    with torch.no_grad():
        logits = state.model.language_logits(live.embeddings.detach())
        return float(data.kind.loss(logits, data.train_labels[live.rows].to(logits.device)).mean())


def _never(state: TrainingState) -> bool:
    del state
    return False


def _after_every_epoch(state: TrainingState) -> bool:
    del state
    return True


def _while_warming_up(state: TrainingState) -> bool:
    return state.epoch < state.settings.warm_up_epochs


def _in_the_graph_stage(state: TrainingState) -> bool:
    return state.stage == "graph"


@dataclass(frozen=True)
class Strategy:
    """How language model and graph network are trained.

    ``rule`` is what a batch does after the warm-up, during which every strategy follows its own head; ``trains_both``
    says that such a batch also steps the graph network. ``m_step`` tells whether an M-step follows an epoch.
    ``stages`` are trained one after the other, each judged by its own predictions. ``swaps_soft_labels``: each part
    also learns the other's predictions of the epoch.
    """

    name: StrategyName
    description: str
    rule: BatchRule
    m_step: Callable[[TrainingState], bool]
    stages: tuple[Stage, ...] = ("language",)
    uses_graph: bool = True
    trains_both: bool = False
    swaps_soft_labels: bool = False
    needs_e_step_loss: bool = False
    #: How often the batches of an epoch run the graph over all training instances, from their number.
    graph_calls: Callable[[int, TrainingSettings], float] = lambda batches, settings: 0.0

    def rule_of(self, state: TrainingState) -> tuple[BatchRule, bool]:
        """Return the rule of the current epoch, and whether its batches step the graph network too."""
        if _while_warming_up(state):
            return head_rule, False
        return self.rule, self.trains_both

    def learns_soft_labels(self, state: TrainingState) -> bool:
        """Tell whether the language model learns the graph's soft labels in the current epoch."""
        return self.swaps_soft_labels and not _while_warming_up(state)

    def validates_through_graph(self, state: TrainingState) -> bool:
        """Tell whether the validation score comes from the graph network, or from the language model's own head."""
        return self.uses_graph and state.stage == self.stages[-1]

    def next_stage(self, state: TrainingState) -> Stage | None:
        """Return the stage after the current one; None after the last."""
        following = self.stages.index(state.stage) + 1
        return self.stages[following] if following < len(self.stages) else None

    def can_pause(self, state: TrainingState) -> bool:
        """Tell whether a checkpoint here leads to the same result: nothing computed earlier is still in use."""
        settings = state.settings
        return (
            # Soft labels are computed at the start of an epoch and used to its end.
            not self.swaps_soft_labels
            and state.batch % settings.accumulation == 0
            and state.batch % settings.graph_refresh == 0
        )


STRATEGIES: Final[Mapping[StrategyName, Strategy]] = {
    strategy.name: strategy
    for strategy in (
        Strategy(
            "vem",
            "variational EM: the language model learns through the frozen graph, the graph on frozen embeddings",
            e_step_rule,
            _after_every_epoch,
            needs_e_step_loss=True,
            graph_calls=lambda batches, settings: float(-(-batches // settings.graph_refresh)),
        ),
        Strategy(
            "alternating",
            "each part also learns the other's soft labels; no gradient between them",
            head_rule,
            _after_every_epoch,
            swaps_soft_labels=True,
        ),
        Strategy(
            "end_to_end",
            "both parts learn from one loss in the same step",
            joint_rule,
            _while_warming_up,
            trains_both=True,
            needs_e_step_loss=True,
            graph_calls=lambda batches, settings: float(batches),
        ),
        Strategy(
            "two_stage",
            "first the language model, then the graph network on its fixed embeddings",
            head_rule,
            _in_the_graph_stage,
            stages=("language", "graph"),
        ),
        Strategy("lm_only", "the language model alone, without a graph", head_rule, _never, uses_graph=False),
    )
}
