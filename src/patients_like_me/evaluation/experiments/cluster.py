"""The runs of an experiment on the workers of a cluster.

A worker gets a job, which names folders and settings, trains its run in the shared folder and answers in one word. What
it is doing is written next to the runs, a few words that hold no data of patients. A worker that is lost costs what its
run had not saved: the job is given to another, which continues from the last checkpoint. A run on which somebody else
is working, such as a second coordinator of the same study, is waited for and then found finished.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from patients_like_me.errors import BusyError, PlmError
from patients_like_me.evaluation.experiments.jobs import Job
from patients_like_me.evaluation.experiments.runner import IgnoringListener, JobListener
from patients_like_me.evaluation.experiments.worker import Message, ProgressSender, Purpose, do_job
from patients_like_me.files import atomic_file, read_json, write_json
from patients_like_me.workers import (
    Workers,
    executor_for,
    is_lost_worker,
    number_of_threads,
    submitted,
    threads_on_worker,
)

#: How a job ended on its worker, and a reason in words.
Ending = tuple[Literal["done", "failed", "busy"], str]
_SECONDS_BETWEEN_LOOKS: Final = 0.3
_SECONDS_UNTIL_ASKED_AGAIN: Final = 2.0
_MOST_LOSSES: Final = 10


@dataclass
class _Waiting:
    """A job that is to be given to a worker, not before ``not_before``; ``losses`` counts the workers it has lost."""

    job: Job
    not_before: float = 0.0
    losses: int = 0
    is_started: bool = False
    told: float = -1.0


def run_jobs_on_cluster(
    jobs: Sequence[Job],
    *,
    workers: Workers,
    cache: Path | None,
    logs: Path,
    purpose: Purpose = "train",
    listener: JobListener | None = None,
) -> dict[Job, str]:
    """Do jobs on a cluster, or any executor; return those that failed, with the reason.

    After Ctrl-C the workers finish the runs they are at; the same command takes them up.
    """
    listener = listener or IgnoringListener()
    for job in jobs:
        _refuse_relative_backbone(job)
    progress = logs.absolute().parent / "progress"
    waiting = deque(_Waiting(job) for job in jobs)
    running: dict[Future[Ending], _Waiting] = {}
    failed: dict[Job, str] = {}
    with executor_for(workers) as executor:
        while waiting or running:
            for _ in range(len(waiting)):
                each = waiting.popleft()
                if time.monotonic() < each.not_before:
                    waiting.append(each)
                    continue
                place = progress / _name_of(each.job, ".json")
                log = logs.absolute() / _name_of(each.job, ".txt")
                future = submitted(executor, work_on_cluster, _shared(each.job), purpose, cache, log, place)
                running[future] = each
            finished, _ = wait(list(running), timeout=_SECONDS_BETWEEN_LOOKS, return_when=FIRST_COMPLETED)
            if not running:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            for each in running.values():
                _look_at(each, progress / _name_of(each.job, ".json"), purpose, listener)
            for future in finished:
                each = running.pop(future)
                kind, words = _ending_of(future, each)
                if kind == "busy":
                    each.not_before = time.monotonic() + _SECONDS_UNTIL_ASKED_AGAIN
                    waiting.append(each)
                    continue
                if not each.is_started:
                    listener.started(each.job, purpose)
                if kind == "failed":
                    failed[each.job] = words
                listener.ended(each.job, purpose, words if kind == "failed" else None)
    # Another coordinator of the study may still be at work: what its workers say stays.
    with suppress(OSError):
        for job in jobs:
            (progress / _name_of(job, ".json")).unlink(missing_ok=True)
        progress.rmdir()
    return failed


def work_on_cluster(job: Job, purpose: Purpose, cache: Path | None, log: Path, progress: Path) -> Ending:
    """Do one job and say how it ended; what a worker runs. No error leaves it: a scheduler would log its text."""
    if job.has_epochs:
        import torch

        # A nanny of Dask sets the number of threads of its worker; without one, all cores are taken.
        torch.set_num_threads(threads_on_worker(otherwise=number_of_threads()))

    def send(message: Message) -> None:
        # Progress is shown and nothing else: a folder that somebody removes must not end a run.
        with suppress(OSError):
            write_json(progress, {"share": message[1], "words": message[2], "time": time.time()})

    sender = ProgressSender(send, seconds_between=1.0)
    try:
        sender.report("starting")
        do_job(job, purpose, cache, sender)
    except BusyError as error:
        return "busy", str(error)
    except PlmError as error:
        return "failed", str(error)
    except Exception as error:
        with atomic_file(log) as temporary:
            temporary.write_text(traceback.format_exc(), encoding="utf-8")
        return "failed", f"{type(error).__name__} (full message: {log})"
    finally:
        with suppress(OSError):
            progress.unlink(missing_ok=True)
    return "done", ""


def _ending_of(future: Future[Ending], each: _Waiting) -> Ending:
    """Return how a job ended; a job whose worker was lost is given out again, unless that happens too often."""
    try:
        return future.result()
    except Exception as error:
        if not is_lost_worker(error):
            # Such as a worker that runs another version and cannot read the job.
            return "failed", f"no worker could take it ({type(error).__name__}: {error})"
        each.losses += 1
        if each.losses < _MOST_LOSSES:
            return "busy", "its worker was lost"
        return "failed", f"{each.losses} times its workers were lost: often too little memory on them"


def _look_at(each: _Waiting, place: Path, purpose: Purpose, listener: JobListener) -> None:
    """Pass on what a worker has written about its progress."""
    try:
        content = read_json(place, what="progress of a job")
    except PlmError:
        return
    if not each.is_started:
        each.is_started = True
        listener.started(each.job, purpose)
    if content["time"] > each.told:
        each.told = content["time"]
        listener.progressed(each.job, float(content["share"]), str(content["words"]))


def _name_of(job: Job, ending: str) -> str:
    return f"{job.task}-{job.folder.name}{ending}"


def _shared(job: Job) -> Job:
    """Return the job with folders that mean the same on every machine."""
    return replace(job, cohort_folder=job.cohort_folder.absolute(), folder=job.folder.absolute())


def _refuse_relative_backbone(job: Job) -> None:
    name = getattr(getattr(job.settings, "backbone", None), "name", "")
    if name and Path(name).exists() and not Path(name).is_absolute():
        raise PlmError(
            f"the backbone '{name}' is a folder relative to this machine's, which no worker knows",
            remedy="give its full path, on a disk that all workers share",
        )
