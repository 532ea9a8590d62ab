"""Several runs at once, each in a fresh process: one that fails or is killed does not affect the others."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Final, Protocol

from patients_like_me.evaluation.experiments.jobs import Job
from patients_like_me.evaluation.experiments.worker import Purpose, work

_SECONDS_TO_END: Final = 20.0


class JobListener(Protocol):
    """Is told about the progress of jobs: a display, for example."""

    def started(self, job: Job, purpose: Purpose) -> None:
        """A process begins."""
        ...

    def progressed(self, job: Job, share: float, words: str) -> None:
        """A job has progressed to a share of its work."""
        ...

    def ended(self, job: Job, purpose: Purpose, problem: str | None) -> None:
        """A job is done, or has failed with a reason."""
        ...


class IgnoringListener:
    """A listener that ignores everything."""

    def started(self, job: Job, purpose: Purpose) -> None:
        """Ignore it."""

    def progressed(self, job: Job, share: float, words: str) -> None:
        """Ignore it."""

    def ended(self, job: Job, purpose: Purpose, problem: str | None) -> None:
        """Ignore it."""


@dataclass
class _Child:
    job: Job
    process: SpawnProcess
    outcome: str | None = None
    is_done: bool = False


def run_jobs(
    jobs: Sequence[Job],
    *,
    workers: int,
    threads: int,
    cache: Path | None,
    logs: Path,
    purpose: Purpose = "train",
    listener: JobListener | None = None,
) -> dict[Job, str]:
    """Do jobs, at most ``workers`` at a time with ``threads`` each; return those that failed, with the reason.

    Ctrl-C ends the children before it is raised; the next call continues from what they saved.
    """
    listener = listener or IgnoringListener()
    waiting = deque(jobs)
    running: dict[Connection, _Child] = {}
    failed: dict[Job, str] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.popleft()
                listener.started(job, purpose)
                channel, process = _start(job, purpose, cache, threads, logs)
                running[channel] = _Child(job, process)
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                child = running[ready]
                if _receive(ready, child, listener):
                    continue
                del running[ready]
                ready.close()
                child.process.join()
                problem = child.outcome if child.outcome or child.is_done else _unexpected_end(child.process.exitcode)
                if problem is not None:
                    failed[child.job] = problem
                listener.ended(child.job, purpose, problem)
    finally:
        _end(list(running.values()))
        for channel in running:
            channel.close()
    return failed


def _start(job: Job, purpose: Purpose, cache: Path | None, threads: int, logs: Path) -> tuple[Connection, SpawnProcess]:
    context = get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    log = logs / f"{job.task}-{job.folder.name}.txt"
    process = context.Process(target=work, args=(job, purpose, cache, threads, sending, log), daemon=True)
    in_main = threading.current_thread() is threading.main_thread()
    # A child that is still importing must not answer Ctrl-C with a traceback: it inherits the ignored signal.
    earlier = signal.signal(signal.SIGINT, signal.SIG_IGN) if in_main else None
    try:
        process.start()
    finally:
        if in_main:
            signal.signal(signal.SIGINT, earlier)
    sending.close()
    return receiving, process


def _receive(channel: Connection, child: _Child, listener: JobListener) -> bool:
    """Handle one message of a child; tell whether it is still running."""
    try:
        kind, share, words = channel.recv()
    except (EOFError, OSError):
        return False
    if kind == "progress":
        listener.progressed(child.job, share, words)
    elif kind == "failed":
        child.outcome = words
    else:
        child.is_done = True
    return True


def _unexpected_end(code: int | None) -> str:
    """Describe how a process ended that sent no message about it.

    >>> _unexpected_end(-9)
    'its process was killed (signal 9: often too little memory; fewer --workers need less)'
    """
    if code is not None and code < 0:
        hint = ": often too little memory; fewer --workers need less" if code == -signal.SIGKILL else ""
        return f"its process was killed (signal {-code}{hint})"
    return f"its process ended with exit code {code} and no message"


def _end(children: Sequence[_Child]) -> None:
    for child in children:
        child.process.terminate()
    for child in children:
        with suppress(KeyboardInterrupt):
            child.process.join(_SECONDS_TO_END)
        if child.process.is_alive():
            child.process.kill()
            child.process.join()
