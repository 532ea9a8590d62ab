"""The progress of a training on the terminal: losses, validation score, time left and memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from rich.status import Status

    from patients_like_me.runs.watching import Watched


#: In a log file.
_SECONDS_BETWEEN_COUNTS: Final = 30.0


class TrainingDisplay:
    """Shows a training under way; on a terminal as a bar, in a log file as one line per epoch."""

    def __init__(self, epochs: int, task: str) -> None:
        self.console = Console(stderr=True)
        self.epochs, self.task = epochs, task
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.bar: TaskID | None = None
        self.counting: TaskID | None = None
        self.counted = time.monotonic()

    def __enter__(self) -> TrainingDisplay:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def report(self, line: str) -> None:
        """Show what is being done before and after the epochs; a running count replaces the one before.

        A log cannot replace a line: there a count is written every half minute.
        """
        counts = line.startswith("frozen layers:")
        if counts and self.console.is_terminal:
            if self.counting is None:
                self.counting = self.progress.add_task(line, total=None)
            self.progress.update(self.counting, description=line)
            return
        if self.counting is not None:
            self.progress.remove_task(self.counting)
            self.counting = None
        if counts and time.monotonic() - self.counted < _SECONDS_BETWEEN_COUNTS:
            return
        self.counted = time.monotonic()
        self.progress.console.print(line, style="dim", markup=False)

    def batch_done(self, state: Watched, batches: int) -> None:
        """Move the bar, with the running means of the losses."""
        total = batches * self.epochs
        if self.bar is None:
            self.bar = self.progress.add_task(self.task, total=total)
        losses = ", ".join(f"{name} loss {value:.4f}" for name, value in state.losses.items())
        self.progress.update(
            self.bar, completed=state.epoch * batches + state.batch, description=f"epoch {state.epoch + 1}: {losses}"
        )

    def epoch_done(self, record: dict[str, Any]) -> None:
        """Print the line of a finished epoch."""
        scores = ", ".join(
            f"{name.removeprefix('validation_')} {'n/a' if value is None else f'{value:.4f}'}"
            for name, value in record.items()
            if name.startswith("validation_")
        )
        losses = ", ".join(
            f"{name.removesuffix('_loss')} loss {value:.4f}" if name != "loss" else f"loss {value:.4f}"
            for name, value in record.items()
            if name.endswith("loss") and value is not None
        )
        self.progress.console.print(
            f"epoch {record['epoch']}: {losses}; validation {scores}; {record['seconds']:.1f} s, "
            f"{record['peak_gib']:.2f} GiB"
        )


def shown_in(status: Status) -> Callable[[str], None]:
    """Return a function that shows a line in a status, as it is: names of tables and folders are not markup."""
    from rich.markup import escape

    from patients_like_me.plain_text import printable

    return lambda line: status.update(escape(printable(line)))
