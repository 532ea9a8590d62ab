"""Bytes that change on a disk or on the way.

In cohorts, finished runs with their models, banks of references, unfinished runs with their checkpoints, kept hidden
states, and installed code tables.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import polars as pl
from tiny_mimic3 import TABLES as MIMIC3

from attack.outcome import Counts, Told, judge, plm
from attack.prepared import said_about
from attack.stage import Stage
from attack.tables import write_source
from patients_like_me.records.cohort import Cohort

Draw = random.Random


def _flip(path: Path, draw: Draw) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def _zero(path: Path, draw: Draw) -> None:
    content = bytearray(path.read_bytes())
    first = draw.randrange(len(content) + 1)
    last = min(len(content), first + draw.randrange(1, 600))
    content[first:last] = bytes(last - first)
    path.write_bytes(content)


def _cut(path: Path, draw: Draw) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(len(content) + 1)])


def _append(path: Path, draw: Draw) -> None:
    path.write_bytes(path.read_bytes() + draw.randbytes(draw.randrange(1, 40)))


def _other_number(path: Path, draw: Draw) -> None:
    """Change a digit of a text, so that it stays readable."""
    content = bytearray(path.read_bytes())
    digits = [n for n, byte in enumerate(content) if 48 <= byte <= 57]
    if digits:
        place = draw.choice(digits)
        content[place] = 48 + (content[place] - 48 + draw.randrange(1, 10)) % 10
    path.write_bytes(content)


#: Procedures of the small MIMIC-III source, and others.
PROCEDURES = ("3995", "3893", "0101", "0331", *(f"{number:04d}" for number in range(4000, 4200)))
DAMAGES: dict[str, Callable[[Path, Draw], None]] = {
    "flipped bit": _flip,
    "zeroes": _zero,
    "cut": _cut,
    "more bytes": _append,
    "another digit": _other_number,
    "missing": lambda path, draw: path.unlink(),
    "empty": lambda path, draw: path.write_bytes(b"") and None,
}


@dataclass(frozen=True)
class Prepared:
    """A cohort that was prepared with damaged code tables: its tables, and what was said about it."""

    tables: object
    said: Counter[tuple[str, ...]] = field(compare=False)


class FlipAttack:
    """Damage one file of a copy, use the copy, and compare with what the whole one gives."""

    def __init__(self, stage: Stage, *, trainings: bool = True) -> None:
        self.stage = stage
        self.clean: dict[str, object] = {}
        #: A prepared cohort; finished runs of a plain model, of references and of the package's own system; a run
        #: whose bank grew (its bank alone is damaged); installed code tables; an unfinished run; kept hidden states.
        self.targets = ["cohort", "cohort", "logistic", "references", "plm", "plm", "bank", "codes"]
        self.targets += ["checkpoint", "cache"] if trainings else []

    def attack(self, seed: int, counts: Counts, target: str = "") -> str:
        """Draw a target, a file of it and a damage; return what came of it."""
        draw = Draw(seed)
        target = target or draw.choice(self.targets)
        use = draw.choice(self._uses(target))
        key = f"{target} {use}"
        if key not in self.clean:
            told, self.clean[key] = self._used(self._copy(target), target, use)
            assert not told.error, told.error
            assert self.clean[key] is not None, told.output
        copy = self._copy(target)
        # What is written for people alone is no part of a result.
        whole = copy / "bank" if target == "bank" else copy
        files = sorted(path for path in whole.rglob("*") if path.is_file() and path.name != "README.md")
        file, damage = draw.choice(files), draw.choice(sorted(DAMAGES))
        DAMAGES[damage](file, draw)
        story = f"flips seed {seed}: {target}, {use}: {damage} in {file.relative_to(copy)}"
        counts.flips += 1
        told, found = self._used(copy, target, use)
        judge(counts, told, story)
        if told.error:
            return "traceback"
        if found is None:
            return "refused"
        if isinstance(found, Prepared) and isinstance(clean := self.clean[key], Prepared) and found.said - clean.said:
            # Without its table, a code is told to be unmapped.
            return "said"
        if found != self.clean[key]:
            counts.blame("silent_changes", story)
            return "silent"
        return "equal"

    def _uses(self, target: str) -> list[str]:
        if target == "cohort":
            return ["load", "audit"]
        if target == "codes":
            return ["prepare"]
        if target in ("checkpoint", "cache"):
            return ["train"]
        return ["predict", "predict", "evaluate", *(["explain"] if target != "logistic" else [])]

    def _copy(self, target: str) -> Path:
        copy = self.stage.room / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        if target == "checkpoint":
            self._unfinished(copy)
            return copy
        if target in ("bank", "codes"):
            shutil.copytree(self._grown_bank() if target == "bank" else self._codes(), copy)
            return copy
        if target == "cache":
            self.stage.run("patients_like_me", "vem")
            shutil.copytree(self.stage.room / "cache", copy)
            return copy
        source = {
            "cohort": self.stage.cohort,
            "logistic": lambda: self.stage.run("logistic"),
            "references": lambda: self.stage.run("references"),
            "plm": lambda: self.stage.run("patients_like_me", "vem"),
        }[target]
        shutil.copytree(source() if callable(source) else source, copy)
        return copy

    def _grown_bank(self) -> Path:
        """Return a run to whose bank newcomers were added."""
        kept = self.stage.room / "grown-bank"
        if not kept.is_dir():
            told = plm("bank", "add", self.stage.run("references"), self.stage.newcomers, "--out", kept)
            assert told.code == 0, told
        return kept

    def _codes(self) -> Path:
        """Return a folder of installed code tables, which the procedures of a source need."""
        kept = self.stage.room / "installed-codes"
        if not kept.is_dir():
            write_source(self.stage.room / "mimic3-tables", MIMIC3)
            table = self.stage.room / "procedures.csv"
            table.write_text("icd9proc,ccs\n" + "".join(f"{code},{n}\n" for n, code in enumerate(PROCEDURES, 1)))
            with mock.patch.dict("os.environ", {"PLM_CODES": str(kept)}):
                told = plm("codes", "add", table)
            assert told.code == 0, told
        return kept

    def _unfinished(self, copy: Path) -> None:
        """Put a run there that was stopped after its first epoch."""
        kept = self.stage.room / "unfinished"
        if not kept.is_dir():
            told = self._trained(kept, stop_after_checkpoint=True)
            assert (kept / "checkpoint.safetensors").is_file(), told
        shutil.copytree(kept, copy)

    def _trained(self, out: Path, *, cache: Path | None = None, stop_after_checkpoint: bool = False) -> Told:
        words = self.stage.training(out, cache=cache or self.stage.room / "cache")
        if not stop_after_checkpoint:
            return plm(*words)
        from patients_like_me.training.state import TrainingState

        whole = TrainingState.save

        def save_and_stop(*arguments: object, **options: object) -> None:
            whole(*arguments, **options)  # type: ignore[arg-type]
            raise KeyboardInterrupt

        with mock.patch.object(TrainingState, "save", save_and_stop):
            return plm(*words)

    def _used(self, copy: Path, target: str, use: str) -> tuple[Told, object]:
        """Use a folder; return what was told and what came out, None where it was refused."""
        out = self.stage.room / "used"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        if use == "load":
            return self._loaded(copy)
        if use == "prepare":
            with mock.patch.dict("os.environ", {"PLM_CODES": str(copy)}):
                told = plm("prepare", "mimic3", self.stage.room / "mimic3-tables", "--out", out / "cohort")
            if told.code:
                return told, None
            return told, Prepared(self._loaded(out / "cohort")[1], said_about(out / "cohort"))
        if use == "train":
            run = copy if target == "checkpoint" else out / "run"
            told = self._trained(run, cache=copy if target == "cache" else None)
            return told, None if told.code else predictions_of(run)
        commands = {
            "audit": ["audit", copy, "--task", "readmission", "--page", out / "page.html"],
            "predict": ["predict", copy, self.stage.newcomers, "--out", out / "p.parquet"],
            "evaluate": ["evaluate", copy, "--out", out, "--replicates", "20"],
            "explain": ["explain", copy, "--example", "1", "--out", out / "page.json"],
        }
        told = plm(*commands[use])
        if told.code not in (0, 1) or told.error:
            return told, None
        return told, {path.name: _comparable(path) for path in sorted(out.rglob("*")) if path.is_file()}

    def _loaded(self, copy: Path) -> tuple[Told, object]:
        from patients_like_me.errors import PlmError

        try:
            tables = Cohort.load(copy).tables()
        except PlmError as error:
            return Told(2, str(error)), None
        except Exception as error:
            return Told(1, "", repr(error)), None
        return Told(0, ""), {name: table.to_dict(as_series=False) for name, table in tables.items()}


def predictions_of(run: Path) -> object:
    return pl.read_parquet(run / "predictions.parquet").sort("instance_id").to_dict(as_series=False)


def _comparable(path: Path) -> object:
    if path.suffix == ".parquet":
        return pl.read_parquet(path).to_dict(as_series=False)
    if path.suffix in (".png", ".pdf", ".svg"):
        return None
    text = path.read_text(encoding="utf-8", errors="replace").replace(os.fspath(path.parent), "")
    if path.suffix == ".json":
        text = json.dumps(json.loads(text), sort_keys=True)
    # How long something took is no part of a result.
    return re.sub(r'"seconds": [\d.e-]+', "", text)
