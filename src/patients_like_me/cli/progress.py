"""Progress on the terminal: of a training (losses, validation score, time left, memory) and of an experiment's runs."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from patients_like_me.evaluation.experiments.jobs import Job
    from patients_like_me.evaluation.experiments.worker import Purpose
    from patients_like_me.runs.watching import Watched


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
        self.reported = 0.0

    def __enter__(self) -> TrainingDisplay:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def report(self, line: str) -> None:
        """Show what is being done before and after the epochs; running counts at most twice a second."""
        counts = line.startswith("frozen layers:")
        if not counts or time.monotonic() - self.reported > 0.5:
            self.progress.console.print(line, style="dim", markup=False)
            self.reported = time.monotonic() if counts else self.reported

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


class ExperimentDisplay:
    """Shows the runs of an experiment: how many are done, the time left, and what each worker does now."""

    def __init__(self, console: Console, runs: int) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
        )
        self.console, self.runs = console, runs
        self.whole: TaskID | None = None
        self.bars: dict[Job, TaskID] = {}
        self.begun: dict[Job, float] = {}
        self.shares: dict[Job, float] = {}
        self.done = 0

    def __enter__(self) -> ExperimentDisplay:
        self.progress.start()
        if self.runs:
            self.whole = self.progress.add_task("runs", total=self.runs)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for bar in self.bars.values():
            self.progress.remove_task(bar)
        self.progress.stop()

    def started(self, job: Job, purpose: Purpose) -> None:
        """Add a bar for a run."""
        words = "frozen layers" if purpose == "warm" else job.title
        self.bars[job] = self.progress.add_task(f"  {words}", total=100)
        self.begun[job] = time.monotonic()

    def progressed(self, job: Job, share: float, words: str) -> None:
        """Move the bar of a run, and the whole by its share."""
        self.progress.update(self.bars[job], completed=int(100 * share), description=f"  {job.title}: {words}")
        self.shares[job] = share
        self._move()

    def ended(self, job: Job, purpose: Purpose, problem: str | None) -> None:
        """Remove the bar of a run and say how it ended."""
        self.progress.remove_task(self.bars.pop(job))
        self.shares.pop(job, None)
        took = f"{time.monotonic() - self.begun.pop(job):.0f} s"
        if purpose == "warm":
            self.console.print(f"frozen layers of {job.task}: {problem or took}", style="dim", markup=False)
            return
        self.done += 1
        self._move()
        line = f"{self.done} of {self.runs}: {job.experiment}, {job.title}: "
        self.console.print(line + (took if problem is None else f"FAILED: {problem}"), markup=False, highlight=False)

    def _move(self) -> None:
        """Move the bar of all runs; those under way count by their share, so that the time left is known early."""
        if self.whole is not None:
            self.progress.update(self.whole, completed=self.done + sum(self.shares.values()))
