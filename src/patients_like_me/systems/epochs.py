"""The epoch loop of neural systems: a system's file writes its network, and its loss if it has one of its own.

Seeds, shuffled batches, the optimiser, early stopping on the problem's judge, checkpoints and progress are here. A
training that continues from a checkpoint ends with the same weights as one that was never stopped: every random number
comes from the seed, the epoch and the batch.

This loop knows one network, one loss and one optimiser. The strategies of ``patients_like_me`` train two parts in turn,
in stages, with a store of embeddings between them; their loop is :mod:`patients_like_me.training.loop`. Both write
their checkpoints in the same form (:mod:`patients_like_me.training.checkpoints`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from patients_like_me.errors import PlmError
from patients_like_me.systems.contract import Account, Arrays, RunContext, SystemSettings
from patients_like_me.systems.problem import Logits, Problem
from patients_like_me.tasks.instances import Rows
from patients_like_me.workers import peak_gib

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

#: (network, instance rows) -> logits [rows, outputs]
NetworkLogits = Callable[[Any, Rows], "Tensor"]
#: (network, instance rows, their 0/1 targets [rows, outputs], epoch from 0) -> the loss to minimise
NetworkLoss = Callable[[Any, Rows, "Tensor", int], "Tensor"]
OptimizerName = Literal["adamw", "adam", "adadelta", "rmsprop"]


class EpochSettings(SystemSettings):
    """What every system with epochs has."""

    epochs: int = Field(20, ge=1, description="most epochs")
    patience: int = Field(5, ge=1, description="epochs without a better validation score before stopping")
    batch_size: int = Field(32, ge=1, description="instances per step")
    optimizer: OptimizerName = Field("adamw", description="the rule that changes the weights")
    rate: float = Field(1e-3, gt=0, le=100, description="learning rate of the optimizer")
    weight_decay: float = Field(1e-2, ge=0, le=100, description="the optimizer's weight decay")
    gradient_clip: float | None = Field(None, gt=0, description="largest norm of the gradient; None: any")


@dataclass
class EpochState:
    """The counters of a training; a checkpoint holds them next to weights and optimiser."""

    settings: EpochSettings
    epoch: int = 0
    batch: int = 0
    losses: dict[str, float] = field(default_factory=dict)
    best_score: float | None = None
    best_epoch: int = -1
    waited: int = 0
    seconds: float = 0.0
    records: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        """Tell whether the epochs are used up or the score has stopped rising."""
        return self.epoch >= self.settings.epochs or self.waited >= self.settings.patience

    def counters(self) -> dict[str, Any]:
        """Return everything but the settings, as plain data."""
        return {name: value for name, value in asdict(self).items() if name != "settings"}


def train_network(
    problem: Problem,
    run: RunContext,
    build: Callable[[], nn.Module],
    logits: NetworkLogits,
    loss: NetworkLoss | None = None,
    *,
    refresh: Callable[[Any], None] = lambda _: None,
    is_judged: Callable[[int], bool] = lambda _: True,
    rate_share: Callable[[int, int], float] | None = None,
    rows_at_once: int | None = None,
) -> tuple[nn.Module, Account]:
    """Build a network and train it; it is returned with its best weights, in evaluation mode.

    ``build`` draws the first weights, ``logits`` predicts some rows, ``loss`` (by default the cross-entropy of the
    task) is minimised over batches of training rows. ``refresh`` changes what the network keeps besides its weights,
    before the first epoch and after each one. An epoch that is not judged, such as one of pre-training, is never the
    best one and no reason to stop. ``rate_share`` (step, steps of all epochs) gives the share of the learning rate.
    ``rows_at_once`` holds so many rows of a batch in memory with their gradients: for a loss that is a mean over rows
    they add up to those of the whole batch.
    """
    import torch

    from patients_like_me.model.randomness import mixed_seed, seeded

    state = EpochState(run.settings)
    with seeded(run.seed, 1):
        network = build()
    optimizer = _optimizer(network, state.settings)
    targets = torch.from_numpy(problem.targets).float()
    objective = loss or _cross_entropy(problem, logits)
    run.begin()
    if (kept := run.load_checkpoint()) is None:
        refresh(network)
        best = weights_of(network)
    else:
        best = _restore(network, optimizer, state, *kept)
        run.report(f"continuing after epoch {state.epoch}, batch {state.batch}")
    saved = time.perf_counter()
    while not state.is_finished:
        started = time.perf_counter()
        order = np.random.default_rng(mixed_seed(run.seed, 4, state.epoch)).permutation(len(problem.train))
        batches = [
            order[first : first + state.settings.batch_size]
            for first in range(0, len(order), state.settings.batch_size)
        ]
        network.train()
        while state.batch < len(batches):
            places = batches[state.batch]
            value = 0.0
            with seeded(run.seed, 2, state.epoch, state.batch):
                for part in _parts_of(places, rows_at_once):
                    mean = objective(network, problem.train[part], targets[torch.from_numpy(part)], state.epoch)
                    _refuse_nonsense(mean, state)
                    share = len(part) / len(places)
                    (share * mean).backward()  # type: ignore[no-untyped-call]
                    value += share * float(mean.detach())
            if state.settings.gradient_clip is not None:
                torch.nn.utils.clip_grad_norm_(network.parameters(), state.settings.gradient_clip)
            if rate_share is not None:
                step, total = state.epoch * len(batches) + state.batch, state.settings.epochs * len(batches)
                for group in optimizer.param_groups:
                    group["lr"] = state.settings.rate * rate_share(step, total)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            before = state.losses.get("training", value)
            state.losses["training"] = before + (value - before) / (state.batch + 1)
            state.batch += 1
            run.watcher.batch_done(state, len(batches))
            if time.perf_counter() - saved > run.save_every:
                _save(run, network, optimizer, best, state)
                saved = time.perf_counter()
        refresh(network)
        judged, score = is_judged(state.epoch), None
        if judged:
            score = problem.judge(problem.kind.probabilities(logits_in_batches(network, logits, problem.validation)))
        state.seconds += time.perf_counter() - started
        record = {
            "epoch": state.epoch + 1,
            "training_loss": state.losses["training"],
            f"validation_{problem.instances.task.metrics[0]}": score,
            "seconds": time.perf_counter() - started,
            "peak_gib": peak_gib(),
        }
        state.records.append(record)
        if judged and (score is None or state.best_score is None or score > state.best_score):
            state.best_score, state.best_epoch, state.waited, best = score, state.epoch, 0, weights_of(network)
        else:
            state.waited += judged
        state.epoch, state.batch, state.losses = state.epoch + 1, 0, {}
        run.watcher.epoch_done(record)
        _save(run, network, optimizer, best, state)
        run.write_epochs(state.records)
    load_weights(network, best)
    network.eval()
    return network, Account(
        epochs=state.records,
        best_epoch=state.best_epoch + 1,
        seconds=state.seconds,
        trained_weights=count_trained(network),
    )


def _parts_of(places: Rows, at_once: int | None) -> list[Rows]:
    """Cut a batch into parts of at most so many rows.

    >>> [part.tolist() for part in _parts_of(np.arange(5), 2)], len(_parts_of(np.arange(5), None))
    ([[0, 1], [2, 3], [4]], 1)
    """
    step = at_once or len(places)
    return [places[first : first + step] for first in range(0, len(places), step)]


def count_trained(*networks: nn.Module) -> int:
    """Return how many trained weights some networks have; what they keep besides, such as a graph, is none."""
    return sum(weight.numel() for network in networks for weight in network.parameters() if weight.requires_grad)


def logits_in_batches(network: nn.Module, logits: NetworkLogits, rows: Rows, *, batch_size: int = 256) -> Logits:
    """Return the logits of rows, without dropout and without a gradient, some rows at a time."""
    import torch

    network.eval()
    with torch.no_grad():
        parts = [
            logits(network, rows[first : first + batch_size]).double().cpu().numpy()
            for first in range(0, len(rows), batch_size)
        ]
    return np.concatenate(parts) if parts else np.zeros((0, 1))


def weights_of(network: nn.Module) -> dict[str, Any]:
    """Return copies of a network's weights as arrays, for ``Fitted.arrays``."""
    from patients_like_me.training.optimisation import as_array

    return {name: as_array(value) for name, value in network.state_dict().items()}


def network_with(build: Callable[[], nn.Module], arrays: Arrays) -> nn.Module:
    """Build a network and give it the weights that :func:`weights_of` returned; no global random number is drawn."""
    from patients_like_me.model.randomness import seeded

    with seeded(0):
        network = build()
    load_weights(network, arrays)
    network.eval()
    return network


def load_weights(network: nn.Module, arrays: Arrays) -> None:
    """Put back what :func:`weights_of` returned."""
    import torch

    network.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in arrays.items()})


def _optimizer(network: nn.Module, settings: EpochSettings) -> Optimizer:
    import torch

    rules: dict[OptimizerName, Callable[..., Optimizer]] = {
        "adamw": partial(torch.optim.AdamW, fused=True),
        "adam": partial(torch.optim.Adam, fused=True),
        # RETAIN and GRAM remember 0.95 of the squares; torch's own default is 0.9.
        "adadelta": partial(torch.optim.Adadelta, rho=0.95),
        "rmsprop": torch.optim.RMSprop,
    }
    return rules[settings.optimizer](network.parameters(), lr=settings.rate, weight_decay=settings.weight_decay)


def _cross_entropy(problem: Problem, logits: NetworkLogits) -> NetworkLoss:

    return lambda network, rows, targets, _: problem.kind.loss(logits(network, rows), targets).mean()


def _save(run: RunContext, network: nn.Module, optimizer: Optimizer, best: Arrays, state: EpochState) -> None:
    from patients_like_me.training.optimisation import as_array, optimizer_tensors

    arrays = {f"now.{name}": value for name, value in weights_of(network).items()}
    arrays |= {f"best.{name}": value for name, value in best.items()}
    arrays |= {name: as_array(value) for name, value in optimizer_tensors(optimizer, "optimizer").items()}
    run.save_checkpoint(arrays, state.counters())


def _restore(
    network: nn.Module, optimizer: Optimizer, state: EpochState, arrays: Arrays, counters: dict[str, Any]
) -> dict[str, Any]:
    """Continue from a checkpoint; return the best weights so far."""
    import torch

    from patients_like_me.training.optimisation import restore_optimizer

    load_weights(network, {name[4:]: value for name, value in arrays.items() if name.startswith("now.")})
    tensors = {
        name: torch.from_numpy(np.array(value)) for name, value in arrays.items() if name.startswith("optimizer.")
    }
    restore_optimizer(optimizer, tensors, "optimizer")
    for name, value in counters.items():
        setattr(state, name, value)
    return {name[5:]: value for name, value in arrays.items() if name.startswith("best.")}


def _refuse_nonsense(loss: Tensor, state: EpochState) -> None:
    if not bool(loss.isfinite()):
        raise PlmError(
            f"the loss is no longer a number (epoch {state.epoch + 1}, batch {state.batch + 1})",
            remedy="use a lower learning rate; what was saved before is kept",
        )
