"""Exports of other systems with something odd in one place: FHIR resources, MEDS events."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
from tiny_forms import EVENTS, RESOURCES, write_fhir, write_meds

from attack.outcome import Counts, judge, plm

Draw = random.Random
ODD: list[Any] = [
    None, "", " ", "x", 0, -1, 1.5, True, [], {}, [None], [[]], {"reference": "Patient/zz"}, {"reference": 7}, "Patient/zz",
    "2050-13-01", "2050-01-01T25:00:00Z", "2050-01-01T10:00:00Z", "2050", "9999-12-31T23:59:59-05:00", "0001-01-01",
    {"coding": []}, {"coding": [{}]}, {"coding": [{"system": 5}]}, {"text": None}, "\u0000", "\u202ex", "x" * 5000,
]  # fmt: skip
CODES = [
    "", "//", "DIAGNOSIS//ICD//10//", "DIAGNOSIS//ICD//11//X", "GENDER//", "GENDER//X", "MEDS_BIRTH", "MEDS_DEATH",
    "HOSPITAL_ADMISSION//", "HOSPITAL_DISCHARGE//", "x" * 3000, "\x1b[31m", "ANCHOR_AGE//x",
]  # fmt: skip
TIMES = [None, "0001-01-01 00:00", "9999-12-31 23:59", "2150-01-01 10:00", "2149-01-01 00:00"]


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to every element of nested lists and objects."""
    found = [path] if path else []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in inside:
        found += places_in(entry, (*path, key))
    return found


def odd_resource(resources: dict[str, list[dict[str, Any]]], draw: Draw) -> str:
    """Change, remove or add one element of one resource; return what was done."""
    kind = draw.choice(sorted(resources))
    row = draw.randrange(len(resources[kind]))
    if draw.random() < 0.15:
        resources[kind].append(copy.deepcopy(draw.choice(resources[draw.choice(sorted(resources))])))
        return f"a resource more in {kind}"
    *way, last = draw.choice(places_in(resources[kind][row]))
    place: Any = resources[kind][row]
    for step in way:
        place = place[step]
    if draw.random() < 0.2:
        del place[last]
        return f"{kind} {row}: no {last}"
    place[last] = draw.choice(ODD)
    return f"{kind} {row}: {last}={str(place[last])[:40]!r}"


def odd_bytes(folder: Path, ending: str, draw: Draw) -> str:
    """Damage one file as a bad copy would."""
    path = draw.choice(sorted(folder.rglob(f"*{ending}")))
    raw = bytearray(path.read_bytes())
    at = draw.randrange(len(raw))
    how = draw.choice(["cut", "flip", "noise", "empty"])
    if how == "flip":
        raw[at] ^= 1 << draw.randrange(8)
    elif how == "noise":
        raw[at:at] = draw.randbytes(5)
    else:
        del raw[at if how == "cut" else 0 :]
    path.write_bytes(raw)
    return f"{how} in {path.name}"


class FormAttack:
    """Write a small export with one odd thing in it, prepare and audit it: no traceback, no leftover."""

    def __init__(self, room: Path) -> None:
        self.room = room
        self.forms: dict[str, Callable[[Path, Draw], str]] = {"fhir": self._fhir, "meds": self._meds}

    def attack(self, seed: int, counts: Counts) -> str:
        """Draw a form and a change; return whether it was accepted."""
        draw = Draw(seed)
        form = draw.choice(sorted(self.forms))
        shutil.rmtree(self.room, ignore_errors=True)
        done = self.forms[form](self.room / "source", draw)
        story = f"forms seed {seed}: {form}: {done}"
        counts.inputs += 1
        out = self.room / "cohort"
        given = ["--set", "dialect=mimic4"] if form == "meds" else []
        told = plm("prepare", form, self.room / "source", "--out", out, *given)
        judge(counts, told, story, folder=self.room)
        if told.code:
            if out.exists():
                counts.blame("leftovers", f"{story}: a refused cohort is there")
            return "refused"
        judge(counts, plm("audit", out, "--task", "length_of_stay"), f"{story}: audit", folder=self.room)
        return "accepted"

    def _fhir(self, folder: Path, draw: Draw) -> str:
        resources = copy.deepcopy(RESOURCES)
        done = [odd_resource(resources, draw) for _ in range(draw.choice([0, 1, 1, 1, 2]))]
        write_fhir(folder, {kind: rows for kind, rows in resources.items() if rows})
        if not done:
            done.append(odd_bytes(folder, ".ndjson", draw))
        return json.dumps(done)

    def _meds(self, folder: Path, draw: Draw) -> str:
        events, row = list(EVENTS), draw.randrange(len(EVENTS))
        subject, time, code = events[row]
        how = draw.choice(["code", "time", "subject", "twice", "less", "bytes", "columns"])
        events[row] = {
            "code": (subject, time, draw.choice(CODES)),
            "time": (subject, draw.choice(TIMES), code),
            "subject": (draw.choice([-1, 0, 3, 2**60]), time, code),
        }.get(how, events[row])
        if how == "twice":
            events.append(events[row])
        elif how == "less":
            del events[row]
        write_meds(folder, events)
        if how == "bytes":
            return odd_bytes(folder, ".parquet", draw)
        if how == "columns":
            path = draw.choice(sorted(folder.rglob("*.parquet")))
            column, kind = draw.choice(["subject_id", "time", "code"]), draw.choice([pl.String, pl.Int8, pl.Null])
            frame = pl.read_parquet(path)
            frame.with_columns(pl.lit(None, dtype=kind).alias(column)).write_parquet(path)
            return f"{column} of the type {kind.__name__}"
        return f"{how} in row {row}"
