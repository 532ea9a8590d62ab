"""The state of a training: everything that changes while it runs, and what its checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.model.embedding_store import EmbeddingStore
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.ranks import Ranks
from patients_like_me.training.checkpoints import read_checkpoint, write_checkpoint
from patients_like_me.training.optimisation import (
    graph_optimizer,
    language_optimizer,
    optimizer_tensors,
    parameter_tensors,
    restore_optimizer,
    restore_parameters,
)
from patients_like_me.training.settings import TrainingSettings
from patients_like_me.training.strategies import Stage

#: The rows of the store that belong to the best weights.
_BEST_STORE = "best.store"


@dataclass
class TrainingState:
    """What a checkpoint holds: weights, optimisers, the store, the best weights so far and the counters.

    ``epoch`` is the current one, ``batch`` the next batch in it, ``step`` counts the steps of the language model over
    all epochs. ``stage`` is one of the strategy's stages. ``ranks`` are the processes that train together; the state
    is the same on all of them, and no part of it depends on their number.
    """

    model: PatientsLikeMeModel
    settings: TrainingSettings
    store: EmbeddingStore
    stage: Stage = "language"
    epoch: int = 0
    batch: int = 0
    step: int = 0
    best_score: float | None = None
    best_epoch: int = -1
    waited: int = 0
    finished: bool = False
    losses: dict[str, float] = field(default_factory=dict)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    best: dict[str, Tensor] = field(default_factory=dict)
    ranks: Ranks = field(default_factory=Ranks)

    def __post_init__(self) -> None:
        self.language_optimizer = language_optimizer(self.model, self.settings)
        self.graph_optimizer = graph_optimizer(self.model, self.settings)

    def keep_as_best(self) -> None:
        """Remember the current weights as the best ones, and the store of a stage that another one follows."""
        self.best = self._weights("best")
        if self.settings.chosen_strategy.next_stage(self) is not None:
            self.best[_BEST_STORE] = self.store.values.clone()

    def return_to_best(self) -> None:
        """Put the best weights back into the model, and the rows that were read with them into the store."""
        if self.best:
            self._restore_weights(self.best, "best")
        if _BEST_STORE in self.best:
            self.store.refresh(self.best[_BEST_STORE])

    def _weights(self, prefix: str) -> dict[str, Tensor]:
        theta, phi = self.model.theta_parameters(), self.model.phi_parameters()
        return parameter_tensors(theta, f"{prefix}.theta") | parameter_tensors(phi, f"{prefix}.phi")

    def _restore_weights(self, tensors: Mapping[str, Tensor], prefix: str) -> None:
        restore_parameters(self.model.theta_parameters(), tensors, f"{prefix}.theta")
        restore_parameters(self.model.phi_parameters(), tensors, f"{prefix}.phi")

    def save(self, path: Path) -> None:
        """Write the whole state, atomically."""
        write_checkpoint(path, self.tensors(), self.facts())

    def load(self, path: Path) -> None:
        """Continue from what :meth:`save` wrote."""
        self.take_over(*read_checkpoint(path), source=f"checkpoint '{path}'")

    def tensors(self) -> dict[str, Tensor]:
        """Return weights, optimisers and store by name, on the CPU."""
        return {
            **self._weights("now"),
            **self.best,
            **optimizer_tensors(self.language_optimizer, "language_optimizer"),
            **optimizer_tensors(self.graph_optimizer, "graph_optimizer"),
            "store": self.store.values,
        }

    def facts(self) -> dict[str, Any]:
        """Return the counters, and the hash of the backbone that the weights belong to."""
        return {**self._counters(), "backbone": self.model.backbone.weights_sha256}

    def take_over(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], *, source: str) -> None:
        """Become the state that :meth:`tensors` and :meth:`facts` describe; ``source`` says whose it is."""
        counters = dict(facts)
        if counters.pop("backbone", None) != self.model.backbone.weights_sha256:
            raise PlmError(
                f"the {source} was made with other weights of the backbone",
                remedy="restore the earlier weights, or choose another --out",
            )
        self._restore_weights(tensors, "now")
        self.best = {name: value for name, value in tensors.items() if name.startswith("best.")}
        restore_optimizer(self.language_optimizer, tensors, "language_optimizer")
        restore_optimizer(self.graph_optimizer, tensors, "graph_optimizer")
        self.store = EmbeddingStore(tensors["store"])
        for name, value in counters.items():
            setattr(self, name, value)

    def _counters(self) -> dict[str, Any]:
        names = (
            "stage",
            "epoch",
            "batch",
            "step",
            "best_score",
            "best_epoch",
            "waited",
            "finished",
            "losses",
            "epochs",
            "seconds",
        )
        return {name: getattr(self, name) for name in names}


def empty_store(rows: int, width: int) -> EmbeddingStore:
    """Return a store into which no batch has written yet."""
    return EmbeddingStore(torch.zeros(rows, width))
