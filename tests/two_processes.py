"""Two processes of one training: how tests start them, and the programs that they run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from patients_like_me.errors import PlmError
from patients_like_me.model.ranks import SeveralRanks
from patients_like_me.training.launching import launched_ranks

#: No test takes as long; processes that hang are ended.
_SECONDS = 120
#: How long a process may live on when the other has ended: it is to notice that.
_SECONDS_TO_NOTICE = 20


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it said."""

    code: int
    said: str


def environment(**more: object) -> dict[str, str]:
    """Return the environment of a process that uses one thread and finds what this one finds."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": paths,
        **{key: str(value) for key, value in more.items()},
    }


def start_two(program: str, *words: object, seconds_to_answer: int = _SECONDS) -> list[Ended]:
    """Start a program twice, with the variables that launchers set but without a launcher, and wait for both."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    outputs = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115 - closed below
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, program, *map(str, words)],
            env=environment(
                RANK=rank,
                LOCAL_RANK=rank,
                WORLD_SIZE=2,
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                PLM_RANK_TIMEOUT=seconds_to_answer,
            ),
            stdout=outputs[rank],
            stderr=outputs[rank],
        )
        for rank in range(2)
    ]
    try:
        _wait_for(processes)
    finally:
        for process in processes:
            process.kill()
    ended = []
    for process, output in zip(processes, outputs, strict=True):
        code = process.wait()
        output.seek(0)
        ended.append(Ended(code, output.read()))
        output.close()
    return ended


def _wait_for(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait until all have ended, or one has and the other is stopped, or does not notice."""
    deadline = time.monotonic() + _SECONDS
    while (alive := [process for process in processes if process.poll() is None]) and time.monotonic() < deadline:
        if len(alive) < len(processes):
            deadline = min(deadline, time.monotonic() + _SECONDS_TO_NOTICE)
            if all(psutil.Process(process.pid).status() == psutil.STATUS_STOPPED for process in alive):
                return
        time.sleep(0.05)


def train_all(described: str) -> None:
    """Train what a JSON file describes, one after the other: the first process writes, the other takes part."""
    from patients_like_me.systems.train import train, train_along
    from patients_like_me.tasks.task import TaskSettings
    from patients_like_me.training.settings import TrainingSettings

    with launched_ranks() as ranks:
        for training in json.loads(Path(described).read_text()):
            asked: dict[str, Any] = {
                "settings": TrainingSettings.model_validate(training["settings"]),
                "task_settings": TaskSettings(),
                "cache": Path(training["cache"]),
                "threads": 1,
                "ranks": ranks,
            }
            cohort, task = Path(training["cohort"]), training["task"]
            if ranks.is_first:
                train(cohort, task, Path(training["out"]), **asked)
            else:
                train_along(cohort, task, **asked)


def plm(rank: str, batch: str, name: str, *words: str) -> None:
    """Be the command ``plm``, in which one of the processes is sent a signal before one of its batches."""
    from patients_like_me.cli import main

    SeveralRanks.pool = _signalled(SeveralRanks.pool, int(rank), int(batch), name)  # type: ignore[method-assign]
    sys.argv = ["plm", *words]
    main()


def add_up(rank: str, turn: str, name: str) -> None:
    """Add up numbers without end, until one of the processes is sent a signal; end as ``plm`` does."""
    import torch

    SeveralRanks.added = _signalled(SeveralRanks.added, int(rank), int(turn), name)  # type: ignore[method-assign]
    try:
        with launched_ranks() as ranks:
            while True:
                ranks.added(torch.ones(3))
                time.sleep(0.01)
    except PlmError as error:
        sys.exit(f"plm: {error}")


def _signalled(method: Callable[..., Any], rank: int, turn: int, name: str) -> Callable[..., Any]:
    turns = 0

    def counting(ranks: SeveralRanks, *arguments: Any) -> Any:
        nonlocal turns
        turns += 1
        if ranks.number == rank and turns == turn:
            os.kill(os.getpid(), signal.Signals[name])
        return method(ranks, *arguments)

    return counting


if __name__ == "__main__":
    {"train_all": train_all, "plm": plm, "add_up": add_up}[sys.argv[1]](*sys.argv[2:])
