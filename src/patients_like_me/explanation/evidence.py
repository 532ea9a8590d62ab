"""Clinical evidence: which diagnoses of a pair of patients are worth showing first, and which are tied to the outcome.

A diagnosis that few training instances have says more about a similarity than one that most have: shared diagnoses are
shown by rarity. A diagnosis is *tied* to an outcome (a drug that is given, a readmission) if training instances with it
have the outcome clearly more often than all training instances do. The ratio of the two rates is the lift. Only the
training split is counted, so nothing of an evaluated patient's answer is in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.explanation.decision import Decision
from patients_like_me.explanation.scene import Scene
from patients_like_me.plain_text import printable, tells_a_small_count
from patients_like_me.records.cohort import KINDS, Kind

#: When a diagnosis counts as tied to an outcome.
FEWEST_INSTANCES = 11
#: The names of rest classes: what a classification could not place says nothing about likeness.
_RESIDUAL = re.compile(r"\b(residual codes?|unclassified)\b", re.IGNORECASE)
SMALLEST_LIFT = 1.2
MOST_TIED = 10


@dataclass(frozen=True)
class Code:
    """A code as a page shows it."""

    code: str
    name: str
    tied: bool = False

    @property
    def label(self) -> str:
        """The code with its name, where it has one of its own."""
        return self.code if self.name == self.code else f"{self.code}: {self.name}"

    @property
    def plain(self) -> str:
        """The name alone, as a clinician reads it."""
        return self.name

    @property
    def is_residual(self) -> bool:
        """Tell whether the code is a rest class, which two patients can share without being alike.

        >>> Code("259", "Residual codes; unclassified").is_residual, Code("108", "Heart failure").is_residual
        (True, False)
        """
        return _RESIDUAL.search(self.name) is not None


@dataclass(frozen=True)
class TiedDiagnosis:
    """A diagnosis tied to the outcome: the outcome's rate with it, and how many times the rate of all training."""

    code: str
    name: str
    instances: int
    rate: float
    lift: float


@dataclass(frozen=True)
class CodeComparison:
    """The codes of one kind of two people: those of both, and those that one of them has alone."""

    shared: tuple[Code, ...]
    only_target: tuple[Code, ...]
    only_reference: tuple[Code, ...]


@dataclass(frozen=True, eq=False)
class Evidence:
    """The names, rarity and ties of the codes of a scene."""

    scene: Scene
    tied: tuple[TiedDiagnosis, ...] = ()
    event: str = ""
    base_rate: float | None = None

    @cached_property
    def names(self) -> dict[Kind, dict[str, str]]:
        """The readable names of the codes of each kind."""
        return {kind: self.scene.cohort.names(kind) for kind in KINDS}

    @cached_property
    def frequencies(self) -> dict[Kind, dict[str, int]]:
        """How many training instances have each code."""
        rows = pl.Series(self.scene.training_rows)
        found: dict[Kind, dict[str, int]] = {}
        for kind in KINDS:
            seen = self.scene.codes_seen[kind].filter(pl.col("instance").is_in(rows.implode()))
            found[kind] = dict(seen.group_by("code").len().iter_rows())
        return found

    @cached_property
    def tied_codes(self) -> dict[str, int]:
        """The codes of the tied diagnoses with their places: the highest lift first."""
        return {found.code: place for place, found in enumerate(self.tied)}

    def ordered(self, kind: Kind, codes: set[str]) -> tuple[Code, ...]:
        """Return codes with their names: tied ones first, by lift, then the rarest."""
        tied = self.tied_codes if kind == "diagnosis" else {}
        counts = self.frequencies[kind]
        places = sorted(codes, key=lambda code: (tied.get(code, MOST_TIED), counts.get(code, 0), code))
        found = [Code(printable(code), printable(self.names[kind].get(code) or code), code in tied) for code in places]
        # A rest class is listed last, and never shown as evidence.
        return tuple(sorted(found, key=lambda code: code.is_residual))

    def compare(self, target: int, reference: int) -> dict[Kind, CodeComparison]:
        """Set the codes that two instance rows may see side by side."""
        found: dict[Kind, CodeComparison] = {}
        for kind in KINDS:
            first, second = set(self.scene.codes_of(target, kind)), set(self.scene.codes_of(reference, kind))
            found[kind] = CodeComparison(
                self.ordered(kind, first & second),
                self.ordered(kind, first - second),
                self.ordered(kind, second - first),
            )
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the tied diagnoses and the rule by which they were found; a rate that tells a small count is None."""
        total = len(self.scene.training_labels)
        hidden = self.base_rate is not None and tells_a_small_count(round(self.base_rate * total), total)
        return {
            "event": self.event,
            "rate_in_training": None if hidden else self.base_rate,
            "rule": tie_rule(),
            "diagnoses": [_without_small_counts(item, hidden) for item in self.tied],
        }


def _without_small_counts(tie: TiedDiagnosis, base_hidden: bool) -> dict[str, Any]:
    """Return a tie as plain data; from a rate and the lift, the rate of all could be worked out."""
    found = asdict(tie)
    if tells_a_small_count(round(tie.rate * tie.instances), tie.instances):
        return found | {"rate": None, "lift": None}
    return found | {"lift": None} if base_hidden else found


def shown_as_evidence(codes: Sequence[Code]) -> tuple[Code, ...]:
    """Return shared codes without rest classes."""
    return tuple(code for code in codes if not code.is_residual)


def tie_rule() -> str:
    """Return in words when a diagnosis counts as tied to the outcome."""
    return (
        f"at least {FEWEST_INSTANCES} training instances have the diagnosis, the outcome is at least {SMALLEST_LIFT:g} "
        f"times as frequent among them as among all training instances (lift), and the lower end of the 95 % interval "
        f"of their rate (Wilson) is above the rate of all; the {MOST_TIED} with the highest lift are kept"
    )


def gather_evidence(scene: Scene, decision: Decision, decided: tuple[int, ...]) -> Evidence:
    """Return the evidence of a scene, with the diagnoses tied to what the decision is about."""
    rows = scene.training_rows
    happened = decision.happened(scene.training_labels, decided)
    if happened is None:
        return Evidence(scene)
    names = scene.cohort.names("diagnosis")
    seen = scene.codes_seen["diagnosis"]
    outcomes = pl.DataFrame({"instance": rows, "happened": happened}, schema_overrides={"instance": pl.UInt32})
    tied = tied_diagnoses(seen.join(outcomes, on="instance", how="inner"), happened, names)
    return Evidence(scene, tied, decision.event(decided), float(happened.mean()))


def tied_diagnoses(
    seen: pl.DataFrame, happened: npt.NDArray[np.bool_], names: dict[str, str]
) -> tuple[TiedDiagnosis, ...]:
    """Find the tied diagnoses from rows of (instance, code, happened) and the outcome of every training instance.

    >>> outcome = np.repeat([True, False], 20)
    >>> rows = [(n, "50", bool(outcome[n])) for n in range(22)] + [(n, "98", bool(outcome[n])) for n in range(40)]
    >>> seen = pl.DataFrame(rows, schema=["instance", "code", "happened"], orient="row")
    >>> [(tie.code, round(tie.lift, 2)) for tie in tied_diagnoses(seen, outcome, {})]
    [('50', 1.82)]
    """
    base = float(happened.mean()) if len(happened) else 0.0
    counts = seen.group_by("code").agg(pl.len().alias("instances"), pl.col("happened").sum().alias("with_outcome"))
    return tied_from_counts(counts, base, names)


def tied_from_counts(counts: pl.DataFrame, base: float, names: dict[str, str]) -> tuple[TiedDiagnosis, ...]:
    """Find the tied diagnoses from rows of (code, instances, with_outcome) and the rate of all training instances."""
    if base == 0.0:
        return ()
    found = []
    for code, total, positive in counts.select("code", "instances", "with_outcome").iter_rows():
        rate = positive / total
        if Code(code, names.get(code) or code).is_residual:
            continue
        if total >= FEWEST_INSTANCES and rate >= SMALLEST_LIFT * base and wilson(positive, total)[0] > base:
            found.append(TiedDiagnosis(code, printable(names.get(code) or code), total, rate, rate / base))
    return tuple(sorted(found, key=lambda tie: (-tie.lift, tie.code))[:MOST_TIED])


def wilson(positive: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a rate.

    >>> [round(end, 3) for end in wilson(8, 10)]
    [0.49, 0.943]
    """
    from scipy.stats import binomtest

    found = binomtest(positive, total).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)
