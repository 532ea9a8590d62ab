"""Likely drugs against references: who received what, what the patient had before, and which of them interact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl

from patients_like_me.codes.interactions import Interactions
from patients_like_me.explanation.decision import Decision
from patients_like_me.explanation.references import Reference
from patients_like_me.explanation.scene import Scene
from patients_like_me.plain_text import printable
from patients_like_me.tasks.kinds import Probabilities


@dataclass(frozen=True)
class DrugRow:
    """One likely drug: its probability, whether the patient had it at the last visit, and who received it."""

    label: str
    name: str
    probability: float
    at_last_visit: bool
    received: tuple[bool | None, ...]


@dataclass(frozen=True)
class DrugMatrix:
    """The likely drugs by references; ``received`` is None where the outcomes of references are not known.

    ``others`` are drugs that a reference received beside the likely ones, by its name. ``has_last_visit`` tells whether
    there is an earlier visit with drugs. ``interactions`` are pairs of likely drugs that are known to interact,
    ``unknown`` the number of pairs of which the table knows nothing, both None where no table is installed. ``names``
    are the readable names of all these codes that have one.
    """

    references: tuple[str, ...]
    rows: tuple[DrugRow, ...]
    others: dict[str, tuple[str, ...]]
    has_last_visit: bool
    interactions: tuple[tuple[str, str], ...] | None = None
    unknown: int | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def named(self, code: str) -> str:
        """Return the name of a drug, or its code where it has none."""
        return self.names.get(code, code)

    @property
    def interactions_by_drug(self) -> dict[str, tuple[str, ...]]:
        """The known interactions in names: each drug with those it interacts with, every pair once.

        >>> pairs = (("A10A", "C07A"), ("A10A", "H02A"))
        >>> DrugMatrix((), (), {}, False, pairs, names={"A10A": "Insulins"}).interactions_by_drug
        {'Insulins': ('C07A', 'H02A')}
        """
        found: dict[str, list[str]] = {}
        for first, second in self.interactions or ():
            found.setdefault(self.named(first), []).append(self.named(second))
        return {drug: tuple(others) for drug, others in found.items()}


def drug_matrix(
    scene: Scene, row: int, named: Mapping[str, Reference], decision: Decision, probabilities: Probabilities
) -> DrugMatrix:
    """Return the matrix of a multi-label prediction, the most probable drug first."""
    decided = list(decision.key(probabilities)) if decision.is_set else [decision.label or 0]
    decided.sort(key=lambda label: (-float(probabilities[label]), label))
    before = _codes_of_last_visit(scene, row)
    labels: Any = scene.instances.labels
    outcomes = {name: labels[reference.row] for name, reference in named.items()} if scene.outcomes_known else {}
    rows = tuple(
        DrugRow(
            decision.labels[label],
            decision.names.get(decision.labels[label], decision.labels[label]),
            float(probabilities[label]),
            decision.labels[label] in before,
            tuple(bool(outcomes[name][label]) if name in outcomes else None for name in named),
        )
        for label in decided
    )
    others = {
        name: tuple(decision.labels[label] for label in np.flatnonzero(outcome).tolist() if label not in decided)
        for name, outcome in outcomes.items()
    }
    codes = {*(row.label for row in rows), *(code for received in others.values() for code in received)}
    names = {code: decision.names[code] for code in sorted(codes) if code in decision.names}
    found = DrugMatrix(tuple(named), rows, others, bool(before), names=names)
    table = Interactions.installed() if scene.task.label_codes == "medication" else None
    return found if table is None else with_interactions(found, table)


def with_interactions(matrix: DrugMatrix, table: Interactions) -> DrugMatrix:
    """Add the known interactions among the likely drugs.

    >>> rows = tuple(DrugRow(code, code, 0.5, False, ()) for code in ("A01A", "B03B", "C07A"))
    >>> table = Interactions(frozenset({("A01A", "B03B")}), frozenset({"A01A", "B03B"}))
    >>> found = with_interactions(DrugMatrix((), rows, {}, False), table)
    >>> found.interactions, found.unknown
    ((('A01A', 'B03B'),), 2)
    """
    codes = sorted(row.label for row in matrix.rows)
    pairs = list(combinations(codes, 2))
    return replace(
        matrix,
        interactions=tuple(pair for pair in pairs if pair in table.pairs),
        unknown=sum(not set(pair) <= table.covered for pair in pairs),
    )


def _codes_of_last_visit(scene: Scene, row: int) -> set[str]:
    """Return the label codes of the last visit before the current one that has any."""
    instances = scene.instances
    if instances.task.label_codes is None:
        return set()
    earlier = instances.history.filter(pl.col("instance") == row)["visit"]
    seen = instances.inputs(instances.task.label_codes).filter(
        (pl.col("instance") == row) & pl.col("visit").is_in(earlier.implode())
    )
    if seen.is_empty():
        return set()
    last = seen["visit"].max()
    return {printable(code) for code in seen.filter(pl.col("visit") == last)["code"].to_list()}
