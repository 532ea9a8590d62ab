"""Several runs at once, each in a fresh process: one that fails or is killed takes no other with it."""

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


class Onlooker(Protocol):
    """Who looks on: a progress display, or nobody."""

    def started(self, job: Job, purpose: Purpose) -> None:
        """Take note that a process begins."""
        ...

    def progressed(self, job: Job, share: float, words: str) -> None:
        """Take note of how far a job is."""
        ...

    def ended(self, job: Job, purpose: Purpose, problem: str | None) -> None:
        """Take note that a job is done, or why it failed."""
        ...


class NoOnlooker:
    """An onlooker that looks away."""

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
    onlooker: Onlooker | None = None,
) -> dict[Job, str]:
    """Do jobs, at most ``workers`` at a time with ``threads`` each; return those that failed, with the reason.

    Ctrl-C ends the children before it goes on upwards; what they saved is taken up by the next call.
    """
    onlooker = onlooker or NoOnlooker()
    waiting = deque(jobs)
    running: dict[Connection, _Child] = {}
    failed: dict[Job, str] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.popleft()
                onlooker.started(job, purpose)
                channel, process = _start(job, purpose, cache, threads, logs)
                running[channel] = _Child(job, process)
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                child = running[ready]
                if _hear(ready, child, onlooker):
                    continue
                del running[ready]
                ready.close()
                child.process.join()
                problem = child.outcome if child.outcome or child.is_done else _death(child.process.exitcode)
                if problem is not None:
                    failed[child.job] = problem
                onlooker.ended(child.job, purpose, problem)
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
    # A child that is still importing must not answer Ctrl-C with a traceback: it inherits the deaf ear.
    earlier = signal.signal(signal.SIGINT, signal.SIG_IGN) if in_main else None
    try:
        process.start()
    finally:
        if in_main:
            signal.signal(signal.SIGINT, earlier)
    sending.close()
    return receiving, process


def _hear(channel: Connection, child: _Child, onlooker: Onlooker) -> bool:
    """Take a child's message; tell whether it still lives."""
    try:
        kind, share, words = channel.recv()
    except (EOFError, OSError):
        return False
    if kind == "progress":
        onlooker.progressed(child.job, share, words)
    elif kind == "failed":
        child.outcome = words
    else:
        child.is_done = True
    return True


def _death(code: int | None) -> str:
    """Say how a process ended that said nothing itself.

    >>> _death(-9)
    'its process was killed (signal 9: often too little memory; fewer --workers need less)'
    """
    if code is not None and code < 0:
        hint = ": often too little memory; fewer --workers need less" if code == -signal.SIGKILL else ""
        return f"its process was killed (signal {-code}{hint})"
    return f"its process ended with exit code {code} and no word"


def _end(children: Sequence[_Child]) -> None:
    for child in children:
        child.process.terminate()
    for child in children:
        with suppress(KeyboardInterrupt):
            child.process.join(_SECONDS_TO_END)
        if child.process.is_alive():
            child.process.kill()
            child.process.join()
