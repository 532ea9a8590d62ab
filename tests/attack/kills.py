"""Commands that are killed, interrupted, or run out of disk at any moment, and are then given again."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from attack.flips import predictions_of
from attack.outcome import Counts, leftovers_below
from attack.stage import PLAIN, STRATEGIES, Stage
from patients_like_me.files import read_json
from patients_like_me.records.cohort import Cohort


@dataclass(frozen=True)
class Job:
    """A command that writes to ``out``, and how to read what it wrote."""

    words: Callable[[Path], list[str]]
    result: Callable[[Path], object]
    #: Where it is disturbed: only when it changes something below this folder; anywhere without one.
    below: Path | None = None


def _tables_of(out: Path) -> object:
    return {name: table.to_dict(as_series=False) for name, table in Cohort.load(out).tables().items()}


def _parquet(out: Path) -> object:
    labels = read_json(out.with_suffix(".labels.json"), what="labels")
    return labels, pl.read_parquet(out).to_dict(as_series=False)


def _experiment(out: Path) -> object:
    """Return what an experiment found: its tables are there, and the predictions of its runs."""
    assert next(out.rglob("numbers.json")).is_file()
    return {run.parent.name: predictions_of(run.parent) for run in sorted(out.rglob("run.json"))}


class KillAttack:
    """Start commands, end them somewhere, give them again: the result must be that of the undisturbed command."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.room = stage.room / "kills"
        self.room.mkdir(exist_ok=True)
        self.clean: dict[str, tuple[float, int, object]] = {}
        self.server: subprocess.Popen[str] | None = None
        self.jobs = self._jobs()

    def _jobs(self) -> dict[str, Job]:
        stage, cache = self.stage, self.room / "cache"
        tables = stage.room / "cohort-tables"

        def training(system: str, strategy: str = "") -> Job:
            return Job(lambda out: stage.training(out, system=system, strategy=strategy, cache=cache), predictions_of)

        jobs = {f"train {strategy}": training("patients_like_me", strategy) for strategy in STRATEGIES}
        jobs |= {f"train {system}": training(system) for system in (*PLAIN, "retain", "deepr")}
        jobs["hidden-state cache"] = replace(jobs["train lm_only"], below=cache)
        jobs["prepare"] = Job(lambda out: ["prepare", "tables", str(tables), "--out", str(out)], _tables_of)
        jobs["prepare again"] = Job(
            lambda out: ["prepare", "tables", str(tables), "--out", str(out), "--replace"], _tables_of
        )
        jobs["bank add"] = Job(
            lambda out: ["bank", "add", str(stage.run("references")), str(stage.newcomers), "--out", str(out)],
            predictions_of,
        )
        jobs["predict"] = Job(
            lambda out: ["predict", str(stage.run("logistic")), str(stage.newcomers), "--out", str(out)], _parquet
        )
        jobs["experiment"] = self._experiment_of("logistic,frequency")
        jobs["experiment of one row"] = self._experiment_of("frequency")
        return jobs

    def _experiment_of(self, systems: str) -> Job:
        return Job(
            lambda out: [
                "experiment", "records", str(self.stage.cohort), "--task", "readmission", "--rows", systems,
                "--systems", systems, "--workers", "1", "--seeds", "1", "--yes", "--out", str(out),
                "--backbone", str(self.stage.backbone), "--cache", str(self.room / "cache"),
            ],
            _experiment,
        )  # fmt: skip

    @contextmanager
    def serving(self) -> Any:
        """Keep the process from which commands are forked."""
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "300",
            "PLM_CODES": str(self.stage.room / "codes"), "PYTHONWARNINGS": "ignore",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        command = [sys.executable, "-m", "attack.fork_server"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as self.server:
            assert self.server.stdout is not None
            assert self.server.stdout.readline().strip() == "ready"
            yield self
            # Without further requests the server ends.

    def _ask(self, words: list[str], **what: object) -> tuple[dict[str, Any], str]:
        request = {"words": words, **what}
        assert self.server is not None
        self.server.stdin.write(json.dumps(request) + "\n")  # type: ignore[union-attr]
        self.server.stdin.flush()  # type: ignore[union-attr]
        answer = json.loads(self.server.stdout.readline())  # type: ignore[union-attr]
        return answer, answer["printed"]

    def _fresh(self, name: str) -> Path:
        for path in self.room.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        out = self.room / ("out.parquet" if name == "predict" else "out")
        if name == "prepare again":
            shutil.copytree(self.stage.cohort, out)
        return out

    def clean_of(self, name: str) -> tuple[float, int, object]:
        """Return seconds, events and result of the undisturbed command."""
        if name not in self.clean:
            out = self._fresh(name)
            below = self.jobs[name].below
            answer, told = self._ask(self.jobs[name].words(out), **({"below": str(below)} if below else {}))
            assert answer["code"] == 0, (name, answer, told)
            self.clean[name] = (answer["seconds"], answer["events"], self.jobs[name].result(out))
        return self.clean[name]

    def attack(self, seed: int, counts: Counts, name: str = "") -> str:
        """Draw a command and a moment; return how it ended."""
        draw = random.Random(seed)
        name = name or draw.choice(sorted(self.jobs))
        seconds, events, expected = self.clean_of(name)
        job, out = self.jobs[name], self._fresh(name)
        how = draw.choice(["kill", "kill", "interrupt", "disk"])
        sign = signal.SIGINT if how == "interrupt" else draw.choice([signal.SIGKILL, signal.SIGTERM])
        what: dict[str, object] = {"signal": int(sign)}
        if job.below:
            assert events, f"{name} writes nothing there"
            how = "kill" if how == "disk" else how
            what |= {"below": str(job.below), "event": draw.randrange(1, events + 1)}
        elif how == "disk":
            what["largest"] = int(2 ** draw.uniform(4, 17))
        elif draw.random() < 0.6 and events:
            what["event"] = draw.randrange(1, events + 1)
        else:
            what["seconds"] = draw.uniform(0, seconds)
        story = f"kills seed {seed}: {name}, {how} {what}"
        counts.kills += 1
        answer, told = self._ask(job.words(out), **what)
        if "Traceback (most recent call last)" in told:
            counts.blame("tracebacks", f"{story}\n{told[-1500:]}")
        # An experiment goes on with its other rows and ends with 1.
        if how == "disk" and answer["code"] not in (0, 2, *((1,) if name.startswith("experiment") else ())):
            counts.blame("tracebacks", f"{story}: ended with {answer['code']}\n{told[-500:]}")
        # What was ended politely leaves nothing but what the next attempt needs.
        if how in ("disk", "interrupt") and (left := leftovers_below(self.room)):
            counts.blame("leftovers", f"{story}: {left}")
        again, words = self._ask(job.words(out))
        if again["code"] == 2 and "exists already" in words and job.result(out) == expected:
            # The signal came after the last step: the first attempt had done its work.
            return how
        if again["code"] != 0:
            kind = "tracebacks" if "Traceback" in words else "leftovers"
            counts.blame(kind, f"{story}: the second attempt ended with {again['code']}\n{words[-900:]}")
            return "stuck"
        if job.result(out) != expected:
            counts.blame("silent_changes", story)
        if left := leftovers_below(self.room):
            counts.blame("leftovers", f"{story}, after the second attempt: {left}")
        return how
