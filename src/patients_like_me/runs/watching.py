"""Progress of a training in epochs: what a display is told, whichever system trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class EpochLimit(Protocol):
    """Settings that say how many epochs there are at most."""

    @property
    def epochs(self) -> int:
        """The highest number of epochs."""
        ...


class Watched(Protocol):
    """The state of a training: the epoch under way, the next batch in it, and running means of its losses."""

    @property
    def epoch(self) -> int:
        """The epoch under way, from 0."""
        ...

    @property
    def batch(self) -> int:
        """The next batch of the epoch, from 0."""
        ...

    @property
    def losses(self) -> Mapping[str, float]:
        """Running means of the losses of the epoch, by name."""
        ...

    @property
    def settings(self) -> EpochLimit:
        """The settings of the training."""
        ...


class Watcher(Protocol):
    """Receives progress: a display, or :class:`Nobody`."""

    def batch_done(self, state: Watched, batches: int) -> None:
        """Take note of a finished batch; ``batches`` is the number of batches of the epoch."""
        ...

    def epoch_done(self, record: dict[str, Any]) -> None:
        """Take note of a finished epoch and its scores."""
        ...


class Nobody:
    """A watcher that ignores everything."""

    def batch_done(self, state: Watched, batches: int) -> None:
        """Ignore it."""

    def epoch_done(self, record: dict[str, Any]) -> None:
        """Ignore it."""
