"""One run in a process of its own: train it, report progress to the parent, and end when the parent is gone."""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Literal

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments.jobs import Job
from patients_like_me.files import atomic_file
from patients_like_me.records.cohort import Cohort
from patients_like_me.runs.watching import Watched, Watcher
from patients_like_me.systems.train import train
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task

Purpose = Literal["train", "warm", "tune"]
#: What a child reports: its progress (share, words), that it is done, or why it failed.
Message = tuple[Literal["progress", "done", "failed"], float, str]
_SECONDS_BETWEEN_MESSAGES: Final = 0.3


class ProgressSender:
    """Sends the progress of a training to the parent, a few times a second at most."""

    def __init__(self, send: Callable[[Message], None], *, seconds_between: float = _SECONDS_BETWEEN_MESSAGES) -> None:
        self.send = send
        self.seconds_between = seconds_between
        self.sent = 0.0
        self.share = 0.0

    def report(self, line: str) -> None:
        """Pass on what is being done before and after the epochs."""
        self._send_progress(line, always=not line.startswith("frozen layers:"))

    def batch_done(self, state: Watched, batches: int) -> None:
        """Say how much of the training is done."""
        self.share = (state.epoch + state.batch / batches) / state.settings.epochs
        self._send_progress(f"epoch {state.epoch + 1} of {state.settings.epochs}")

    def epoch_done(self, record: dict[str, Any]) -> None:
        """Say that an epoch is done."""
        self._send_progress(f"epoch {record['epoch']} done", always=True)

    def _send_progress(self, words: str, *, always: bool = False) -> None:
        now = time.monotonic()
        if always or now - self.sent > self.seconds_between:
            self.sent = now
            self.send(("progress", self.share, words))


def train_job(
    job: Job,
    cache: Path | None,
    *,
    watcher: Watcher | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> None:
    """Train the run of a job in this process; a finished one is left as it is, an unfinished one is continued."""
    train(
        job.cohort_folder,
        job.task,
        job.folder,
        system=job.variant.system,
        settings=job.settings,
        task_settings=job.task_settings,
        cache=cache,
        watcher=watcher,
        report=report,
    )


def warm(job: Job, cache: Path | None, *, report: Callable[[str], None] = lambda _: None) -> None:
    """Compute the frozen layers of a job's prompts, so that runs that start together need not each do it."""
    from patients_like_me.training.preparation import prepare_training

    cohort = Cohort.load(job.cohort_folder)
    instances = build_instances(cohort, find_task(job.task, cohort), job.task_settings)
    prepare_training(instances, job.settings.model_copy(update={"strategy": "lm_only"}), cache=cache, report=report)


def do_job(job: Job, purpose: Purpose, cache: Path | None, sender: ProgressSender) -> None:
    """Do one job in this process: warm the cache, or train; then, for ``tune``, choose tau."""
    if purpose == "warm":
        warm(job, cache, report=sender.report)
    else:
        train_job(job, cache, watcher=sender, report=sender.report)
    if purpose == "tune":
        from patients_like_me.evaluation.experiments.tau_choice import write_choice

        sender.report("choosing tau on validation")
        write_choice(job)


def work(job: Job, purpose: Purpose, cache: Path | None, threads: int, channel: Connection, log: Path) -> None:
    """The child process: do one job and report how it ended; a full traceback goes to ``log``."""
    import torch

    # Ctrl-C reaches the parent too, which then ends its children; a normal exit removes half-written files.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    torch.set_num_threads(threads)

    def send(message: Message) -> None:
        try:
            channel.send(message)
        except OSError:
            # The parent is gone: what was saved stays, and the next call continues from it.
            sys.exit(1)

    sender = ProgressSender(send)
    try:
        do_job(job, purpose, cache, sender)
    except PlmError as error:
        send(("failed", sender.share, str(error)))
    except Exception as error:
        with atomic_file(log) as temporary:
            temporary.write_text(traceback.format_exc(), encoding="utf-8")
        send(("failed", sender.share, f"{type(error).__name__}: {error} (full message: {log})"))
    else:
        send(("done", 1.0, ""))
