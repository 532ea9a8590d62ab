"""The progress display of ``plm experiment``."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from patients_like_me.evaluation.experiments.jobs import Job
    from patients_like_me.evaluation.experiments.worker import Purpose


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
        words = {"warm": "frozen layers", "tune": f"tau: {job.title}"}.get(purpose, job.title)
        self.bars[job] = self.progress.add_task(f"  {words}", total=100)
        self.begun[job] = time.monotonic()

    def progressed(self, job: Job, share: float, words: str) -> None:
        """Move the bar of a run, and the whole by its share."""
        self.progress.update(self.bars[job], completed=int(100 * share), description=f"  {job.title}: {words}")
        self.shares[job] = share
        self._move()

    def ended(self, job: Job, purpose: Purpose, problem: str | None) -> None:
        """Remove the bar of a run and print how it ended."""
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
        """Move the bar of all runs; unfinished ones count by their share, so that the time left is known early."""
        if self.whole is not None:
            self.progress.update(self.whole, completed=self.done + sum(self.shares.values()))
