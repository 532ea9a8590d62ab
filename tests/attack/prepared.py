"""A source that is prepared and audited, and how that compares with the untouched source: equal, refused, said, silent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from attack.outcome import Told, plm
from patients_like_me.files import read_json
from patients_like_me.records.cohort import Cohort

TASK_OF = {"tables": "outcome", "mimic4": "readmission", "mimic3": "readmission"}
GIVEN = {"meds": ("--set", "dialect=mimic4")}


@dataclass(frozen=True)
class Clean:
    """What an untouched source gives."""

    tables: dict[str, pl.DataFrame]
    said: Counter[tuple[str, ...]]


def content_of(folder: Path) -> dict[str, pl.DataFrame]:
    return Cohort.load(folder).tables()


def said_about(folder: Path) -> Counter[tuple[str, ...]]:
    """Return what was said beyond totals, and of how many rows.

    Notes, rows left out or without a visit, codes that no map has or that were set apart, alarms of the audit.
    """
    about = read_json(folder / "cohort.json", what="cohort")
    said: Counter[tuple[str, ...]] = Counter(("note", note) for note in about["notes"])
    for name, lost in about["rows_without_visit"].items():
        said["without a visit", name] += lost
    for step in about["flow"]:
        said["left out", step["name"]] += step["visits_left_out"]
    for row in read_json(folder / "coverage.json", what="coverage"):
        said["unmapped", row["map"]] += row["rows"] - sum(row["mapped_by_way"].values())
        if row["note"]:
            said["note", row["note"]] += 1
        for reason, rows in row["set_apart"].items():
            said["set apart", row["map"], reason] += rows
    for path in sorted((folder / "audit").glob("*.json")):
        for found in read_json(path, what="audit")["findings"]:
            if found["verdict"] in ("leak", "warning"):
                said["audit", path.name, found["check"], found["verdict"]] += 1
    return said


def prepared(source: str, folder: Path, out: Path) -> Told:
    """Prepare a source and audit it, as a person would; the first refusal ends it."""
    told = plm("prepare", source, folder, "--out", out, *GIVEN.get(source, ()))
    if told.code == 0:
        task = TASK_OF.get(source, "length_of_stay")
        audit = plm("audit", out, "--task", task, "--set", "task.inputs=retrospective")
        told = Told(audit.code, told.output + audit.output, audit.error)
    return told


class CleanOutcomes:
    """What the untouched sources give, each prepared when it is first asked for; ``room`` is a folder for them."""

    def __init__(self, room: Path, write: Callable[[str, Path], object]) -> None:
        self.room, self.write = room, write
        self.known: dict[str, Clean] = {}

    def of(self, source: str) -> Clean:
        if source not in self.known:
            folder, out = self.room / f"clean-{source}", self.room / f"cohort-{source}"
            self.write(source, folder)
            told = prepared(source, folder, out)
            assert told.code in (0, 1, 2), told
            assert not told.error, told.error
            assert (out / "cohort.json").is_file(), told.output
            self.known[source] = Clean(content_of(out), said_about(out))
        return self.known[source]


def verdict(told: Told, out: Path, clean: Clean) -> str:
    """Compare what came of a source with what the untouched one gives."""
    if told.error:
        return "traceback"
    if told.is_refused or not (out / "cohort.json").is_file():
        return "refused"
    tables = content_of(out)
    if all(tables[name].equals(clean.tables[name]) for name in tables):
        return "equal"
    # Only what is said now and was not said of the untouched source: an alarm that is gone warns nobody.
    return "said" if said_about(out) - clean.said else "silent"
