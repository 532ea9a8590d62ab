"""The patient's own record as a page shows it first: codes by name, and one line per visit with what changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from patients_like_me.explanation.evidence import Code, Evidence
from patients_like_me.explanation.pseudonyms import Person
from patients_like_me.explanation.scene import Scene
from patients_like_me.records.cohort import KINDS, Kind


@dataclass(frozen=True)
class VisitLine:
    """One visit: its day and stay, its codes of each kind that the prediction may see, and the diagnoses new in it.

    ``codes`` is None for a kind that the task does not see of the current visit. ``risk`` is what was predicted at this
    visit, where it was predicted in the same split.
    """

    number: int
    day: int | None
    stay: int | None
    current: bool
    codes: dict[Kind, int | None]
    new_diagnoses: int
    risk: float | None


@dataclass(frozen=True)
class OwnRecord:
    """What the prediction saw of the patient; ``missing`` says why a kind of code is not in any record."""

    codes: dict[Kind, tuple[Code, ...]]
    visits: tuple[VisitLine, ...]
    missing: dict[Kind, str] = field(default_factory=dict)

    @property
    def has_trend(self) -> bool:
        """Tell whether there is more than one visit to compare."""
        return len(self.visits) > 1


def own_record(
    scene: Scene, row: int, person: Person, evidence: Evidence, risk_of: Callable[[int], float | None]
) -> OwnRecord:
    """Return the record of an instance row; ``risk_of`` gives the shown probability of a node of the scene."""
    instances = scene.instances
    numbers = [*instances.history.filter(pl.col("instance") == row)["visit"].to_list(), instances.frame["visit"][row]]
    allowed = instances.task.inputs_of_current_visit(instances.settings)
    by_visit: dict[Kind, dict[int, list[str]]] = {}
    for kind in KINDS:
        seen = instances.inputs(kind).filter(pl.col("instance") == row)
        by_visit[kind] = {int(visit): codes for visit, codes in seen.group_by("visit").agg("code").iter_rows()}
    rows = _rows_of_visits(scene, numbers)
    lines, known = [], set[str]()
    for place, (visit, number) in enumerate(zip(person.visits, numbers, strict=True)):
        counts: dict[Kind, int | None] = {
            kind: None if visit.current and kind not in allowed else len(set(by_visit[kind].get(number, [])))
            for kind in KINDS
        }
        diagnoses = set(by_visit["diagnosis"].get(number, []))
        risk = None if number not in rows else risk_of(scene.node_of_row(rows[number]))
        new = len(diagnoses - known) if place else 0
        lines.append(VisitLine(visit.number, visit.day, visit.stay, visit.current, counts, new, risk))
        known |= diagnoses
    codes = {
        kind: evidence.ordered(kind, {code for each in by_visit[kind].values() for code in each}) for kind in KINDS
    }
    return OwnRecord(codes, tuple(lines), {kind: why for kind, why in scene.missing_kinds.items() if not codes[kind]})


def _rows_of_visits(scene: Scene, visits: list[Any]) -> dict[int, int]:
    """Return the instance rows of the split whose current visits are among these, by visit."""
    own = scene.instances.frame.select("visit").with_row_index("row")[scene.own_rows.tolist()]
    return {int(visit): int(row) for row, visit in own.filter(pl.col("visit").is_in(visits)).iter_rows()}
