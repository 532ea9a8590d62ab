"""Exports of other systems with something odd in one place: FHIR resources, MEDS events.

A change is knowable where the standard itself says that something is wrong: a value of another type, a time that is
none, a word that a required list does not have, a reference that leads nowhere. What is only missing is not.
"""

from __future__ import annotations

import copy
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from tiny_forms import EVENTS, RESOURCES, write_fhir, write_meds

from attack.outcome import Counts, judge
from attack.prepared import CleanOutcomes, prepared, verdict

Draw = random.Random
#: How often a change is drawn until one changes something.
TRIES = 50
ODD: list[Any] = [
    None, "", " ", "x", 0, -1, 1.5, True, [], {}, [None], [[]], {"reference": "Patient/zz"}, {"reference": 7}, "Patient/zz",
    "2050-13-01", "2050-01-01T25:00:00Z", "2050-01-01T10:00:00Z", "2050", "9999-12-31T23:59:59-05:00", "0001-01-01",
    {"coding": []}, {"coding": [{}]}, {"coding": [{"system": 5}]}, {"text": None}, "\u0000", "\u202ex", "x" * 5000,
]  # fmt: skip
CODES = [
    "", "//", "DIAGNOSIS//ICD//10//", "DIAGNOSIS//ICD//11//X", "GENDER//", "GENDER//X", "MEDS_BIRTH", "MEDS_DEATH",
    "HOSPITAL_ADMISSION//", "HOSPITAL_DISCHARGE//", "x" * 3000, "\x1b[31m", "ANCHOR_AGE//x",
]  # fmt: skip
#: Codes that are wrong by themselves; what is merely unknown is no concern of this package.
WRONG_CODES = ("", "DIAGNOSIS//ICD//10//", "DIAGNOSIS//ICD//11//X")
TIMES = [None, "0001-01-01 00:00", "9999-12-31 23:59", "2150-01-01 10:00", "2149-01-01 00:00"]
#: FHIR's date or dateTime.
A_DATE = re.compile(
    r"\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01])(T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?(Z|[+-]\d\d:\d\d))?)?)?"
)
DATES = ("birthDate", "deceasedDateTime", "start", "end", "recordedDate", "performedDateTime", "authoredOn")
#: Elements whose text another resource, a list or a code table must know.
CHECKED = ("resourceType", "id", "reference", "status", "gender", "system", "code")


@dataclass(frozen=True)
class Done:
    """What was changed, and whether a careful reader can see from the export that something is odd."""

    what: str
    knowable: bool = False


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to every element of nested lists and objects."""
    found = [path] if path else []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in inside:
        found += places_in(entry, (*path, key))
    return found


def is_wrong(way: list[Any], last: Any, old: Any, new: Any) -> bool:
    """Tell whether FHIR forbids the new value of an element."""
    if new is None:
        return False
    if type(old) is not type(new):
        return True
    if isinstance(new, dict):
        return "reference" in old and "reference" in new
    if last in DATES:
        return not A_DATE.fullmatch(new)
    # Where a patient went has no list of words that all must use.
    return last in CHECKED and "dischargeDisposition" not in way


def odd_resource(resources: dict[str, list[dict[str, Any]]], draw: Draw) -> Done:
    """Change, remove or add one element of one resource; return what was done."""
    kind = draw.choice(sorted(resources))
    row = draw.randrange(len(resources[kind]))
    if draw.random() < 0.15:
        other = draw.choice(sorted(resources))
        resources[kind].append(copy.deepcopy(draw.choice(resources[other])))
        return Done(f"a {other} more in {kind}", other != kind)
    *way, last = draw.choice(places_in(resources[kind][row]))
    place: Any = resources[kind][row]
    for step in way:
        place = place[step]
    name = ".".join(map(str, (*way, last)))
    if draw.random() < 0.2:
        del place[last]
        return Done(f"{kind} {row}: no {name}", last == "resourceType")
    old, place[last] = place[last], draw.choice(ODD)
    return Done(f"{kind} {row}: {name}={str(place[last])[:40]!r}", is_wrong(way, last, old, place[last]))


def odd_bytes(folder: Path, ending: str, draw: Draw) -> Done:
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
    return Done(f"{how} in {path.name}")


def odd_fhir(folder: Path, draw: Draw) -> list[Done]:
    """Write resources of which one or two are odd, or a file is damaged."""
    resources = copy.deepcopy(RESOURCES)
    done = [odd_resource(resources, draw) for _ in range(draw.choice([0, 1, 1, 1, 2]))]
    write_fhir(folder, {kind: rows for kind, rows in resources.items() if rows})
    return done or [odd_bytes(folder, ".ndjson", draw)]


def odd_meds(folder: Path, draw: Draw) -> list[Done]:
    """Write events of which one is odd, or a file is damaged."""
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
        return [odd_bytes(folder, ".parquet", draw)]
    if how == "columns":
        path = draw.choice(sorted(folder.rglob("*.parquet")))
        column, kind = draw.choice(["subject_id", "time", "code"]), draw.choice([pl.String, pl.Int8, pl.Null])
        frame = pl.read_parquet(path)
        frame.with_columns(pl.lit(None, dtype=kind).alias(column)).write_parquet(path)
        return [Done(f"{column} of the type {kind.__name__}", knowable=True)]
    if how in ("twice", "less"):
        return [Done(f"{how} in row {row}")]
    new = events[row]
    wrong = (how == "code" and new[2] in WRONG_CODES) or (how == "time" and new[1] in TIMES[:3])
    return [Done(f"{how} in row {row}: {events[row]} for {EVENTS[row]}", wrong)]


class FormAttack:
    """Write a small export with something odd in it, prepare and audit it: no traceback, no leftover, nothing silent."""

    def __init__(self, room: Path) -> None:
        self.room = room
        self.forms: dict[str, Callable[[Path, Draw], list[Done]]] = {"fhir": odd_fhir, "meds": odd_meds}
        untouched = {"fhir": write_fhir, "meds": write_meds}
        self.clean = CleanOutcomes(room, lambda form, folder: untouched[form](folder))

    def attack(self, seed: int, counts: Counts) -> str:
        """Draw a form and a change; return what came of it."""
        draw = Draw(seed)
        form = draw.choice(sorted(self.forms))
        clean = self.clean.of(form)
        folder, out = self.room / "source", self.room / "cohort"
        untouched = files_below(self.room / f"clean-{form}")
        for _ in range(TRIES):
            shutil.rmtree(folder, ignore_errors=True)
            done = self.forms[form](folder, draw)
            if files_below(folder) != untouched:
                break
        else:
            return "unchanged"
        shutil.rmtree(out, ignore_errors=True)
        story = f"forms seed {seed}: {form}: {'; '.join(one.what for one in done)}"
        counts.inputs += 1
        told = prepared(form, folder, out)
        judge(counts, told, story, folder=self.room)
        found = verdict(told, out, clean)
        if found == "silent" and all(one.knowable for one in done):
            counts.blame("silent_changes", story)
        return found


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
