"""Two processes of one training: how tests start them, and the programs that they run.

To load torch and transformers takes each process many seconds. One process loads them and runs nothing; those of the
trainings are forks of it. Each is told who it is by the variables that launchers set, runs a program of this file, and
ends as any Python does.
"""

from __future__ import annotations

import importlib
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


def environment() -> dict[str, str]:
    """Return the environment of a process that uses one thread and finds what this one finds."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


class Starter:
    """``with Starter() as starter:`` gives a process that has loaded everything, of which processes are forked."""

    def __enter__(self) -> Starter:
        self.process = subprocess.Popen(
            [sys.executable, __file__], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._ask() == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        # Without further requests it ends.
        self.process.communicate(timeout=_SECONDS_TO_NOTICE)

    def _ask(self, **request: object) -> Any:
        """Send a request, if any, and read the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if request:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def two(self, program: str, *words: object, seconds_to_answer: int = _SECONDS) -> list[Ended]:
        """Start a program twice, with the variables that launchers set but without a launcher, and wait for both."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with tempfile.TemporaryDirectory() as folder:
            outputs = [Path(folder, f"said-{rank}") for rank in range(2)]
            started = [
                self._ask(
                    start=[program, *map(str, words)],
                    output=str(outputs[rank]),
                    environment={
                        "RANK": str(rank),
                        "LOCAL_RANK": str(rank),
                        "WORLD_SIZE": "2",
                        "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": str(port),
                        "PLM_RANK_TIMEOUT": str(seconds_to_answer),
                    },
                )
                for rank in range(2)
            ]
            processes = [psutil.Process(number) for number in started]
            try:
                _wait_for(processes)
            finally:
                for process in processes:
                    process.kill()
            codes = [self._ask(end=number) for number in started]
            return [Ended(code, output.read_text()) for code, output in zip(codes, outputs, strict=True)]


def _wait_for(processes: list[psutil.Process]) -> None:
    """Wait until all have ended, or one has and the other is stopped, or does not notice."""
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        # Who has ended is kept as a zombie until its exit code is asked for.
        states = [process.status() for process in processes]
        alive = [state for state in states if state != psutil.STATUS_ZOMBIE]
        if not alive:
            return
        if len(alive) < len(processes):
            deadline = min(deadline, time.monotonic() + _SECONDS_TO_NOTICE)
            if all(state == psutil.STATUS_STOPPED for state in alive):
                return
        time.sleep(0.05)


def _load() -> None:
    """Import what the programs below need; nothing may start a thread, which a fork would not have."""
    for name in (
        "peft",
        "torch.distributed",
        "transformers.models.auto",
        "transformers.models.bert.modeling_bert",
        "transformers.models.llama.modeling_llama",
        "patients_like_me.cli",
        "patients_like_me.systems.train",
        "patients_like_me.training.preparation",
        "patients_like_me.training.strategies",
    ):
        importlib.import_module(name)


def _start_others() -> list[str]:
    """Answer requests; return in each fork, with the words that it shall run."""
    _load()
    _answer("ready")
    for line in sys.stdin:
        request = json.loads(line)
        if "end" in request:
            _answer(os.waitstatus_to_exitcode(os.waitpid(request["end"], 0)[1]))
            continue
        number = os.fork()
        if number == 0:
            nothing = os.open(os.devnull, os.O_RDONLY)
            output = os.open(request["output"], os.O_WRONLY | os.O_CREAT)
            for stream, handle in enumerate((nothing, output, output)):
                os.dup2(handle, stream)
            os.environ.update(request["environment"])
            words: list[str] = request["start"]
            return words
        _answer(number)
    return []


def _answer(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def train_all(described: str) -> None:
    """Train what a JSON file describes, one after the other: the first process writes, the other takes part."""
    from patients_like_me.systems.train import train, train_along
    from patients_like_me.tasks.task import TaskSettings
    from patients_like_me.training import vem
    from patients_like_me.training.settings import TrainingSettings

    with launched_ranks() as ranks:
        if not ranks.is_first:
            vem.graph_signal = _refused
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


def _refused(*_: object, **__: object) -> Any:
    raise AssertionError("the graph's answer is computed by the first process, and shared")


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


if __name__ == "__main__" and (chosen := _start_others()):
    {"train_all": train_all, "plm": plm, "add_up": add_up}[chosen[0]](*chosen[1:])
