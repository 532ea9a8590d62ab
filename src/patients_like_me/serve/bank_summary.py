"""The bank in words: how many references, from when to when, what became of them, who is a hub, and what drifted.

Counts of people under 11 are not shown.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.plain_text import is_small, percent, printable, shown_count
from patients_like_me.records.cohort import Cohort

if TYPE_CHECKING:
    from patients_like_me.serve.model_state import OpenedModel

_MOST_LINES = 8
#: A code's rate has drifted when it differs by this many points, and by more than chance explains.
_POINTS = 5.0


@dataclass(frozen=True)
class DriftLine:
    """One thing that may have changed between the bank and today's patients."""

    what: str
    bank: str
    today: str
    verdict: str


@dataclass(frozen=True)
class BankSummary:
    """The bank as a page shows it."""

    version: str
    size: str
    patients: str
    first: str | None
    last: str | None
    outcomes: tuple[tuple[str, str], ...]
    hubs: tuple[tuple[str, str], ...]
    drift: tuple[DriftLine, ...]
    without_references: str | None
    calibration: tuple[str, ...] | None
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the summary as plain data."""
        return asdict(self)


def bank_summary(model: OpenedModel, today: Cohort | None, counts: list[int | None]) -> BankSummary:
    """Describe the bank of a run; ``counts`` are the numbers of references of today's patients."""
    run = model.run
    if not run.capabilities.references:
        raise PlmError(
            f"the system '{run.identity.system}' has no bank of references", remedy="serve a run of another system"
        )
    ids, subjects, labels = _bank_of(model)
    notes: list[str] = []
    first = last = None
    try:
        times = _admissions(model.cohort, ids)
        if times is not None:
            first, last = times
    except PlmError:
        notes.append("the cohort of the run is not there, so its dates are not known")
    known = [count for count in counts if count is not None]
    without = None
    if known:
        lonely = sum(count == 0 for count in known)
        hidden = is_small(lonely) or is_small(len(known) - lonely)
        without = "hidden: fewer than 11 on one side" if hidden else percent(lonely / len(known), 1)
    return BankSummary(
        version=model.version,
        size=shown_count(len(ids)),
        patients=shown_count(len(set(subjects))),
        first=first,
        last=last,
        outcomes=_outcomes(model, labels),
        hubs=_hubs(model),
        drift=_drift(model, today, ids),
        without_references=without,
        calibration=None,
        notes=tuple(notes),
    )


def _bank_of(model: OpenedModel) -> tuple[list[str], list[str], list[list[int]]]:
    """Return the instances, patients and labels of the bank."""
    if model.run.has_patient_graph:
        frame = model.predictor.fitted.state.bank.instances
        return frame["instance_id"].to_list(), frame["subject_id"].to_list(), frame["label"].to_list()
    bank = model.predictor.fitted.state.bank
    if model.run.task.kind == "binary":
        labels = [[int(row[0])] for row in bank.targets]
    else:
        labels = [np.flatnonzero(row).tolist() for row in bank.targets]
    return list(bank.instance_ids), list(bank.described.subjects), labels


def _outcomes(model: OpenedModel, labels: list[list[int]]) -> tuple[tuple[str, str], ...]:
    run, total = model.run, max(len(labels), 1)
    counts = np.bincount([number for row in labels for number in row], minlength=len(run.label_vocabulary))
    found = []
    for number in np.argsort(-counts, kind="stable")[:_MOST_LINES].tolist():
        count = int(counts[number])
        code = run.label_vocabulary[number]
        name = printable(model.label_names.get(code, code))
        share = "hidden" if is_small(count) or is_small(total - count) else percent(count / total, 1)
        found.append((name, share))
    return tuple(found)


def _hubs(model: OpenedModel) -> tuple[tuple[str, str], ...]:
    """Return how often the most used references are used, within the bank."""
    if not model.run.has_patient_graph:
        return ()
    graph = model.predictor.fitted.state.bank.graph
    used = np.bincount(graph.neighbors, minlength=len(graph))
    found = []
    for place, node in enumerate(np.argsort(-used, kind="stable")[:5].tolist(), start=1):
        if used[node] and not is_small(int(used[node])):
            share = percent(used[node] / max(len(graph), 1), 1)
            found.append((f"hub {place}", f"neighbour of {int(used[node]):,} instances ({share})"))
    return tuple(found)


def _admissions(cohort: Cohort, ids: list[str]) -> tuple[str, str] | None:
    times = cohort.visits.filter(pl.col("visit_id").is_in(ids))["admission_time"].drop_nulls()
    if times.is_empty():
        return None
    return times.min().strftime("%Y-%m"), times.max().strftime("%Y-%m")  # type: ignore[union-attr]


def _drift(model: OpenedModel, today: Cohort | None, ids: list[str]) -> tuple[DriftLine, ...]:
    """Compare the rates of diagnoses of today's last visits with those of the bank's visits."""
    if today is None or is_small(today.patients.height) or not today.patients.height:
        return ()
    try:
        known = model.cohort
    except PlmError:
        return ()
    of_bank = known.visits.filter(pl.col("visit_id").is_in(ids))["visit"]
    last = today.visits.filter(pl.col("visit") == pl.col("visit").max().over("subject"))["visit"]
    rates = {}
    for name, cohort, visits in (("bank", known, of_bank), ("today", today, last)):
        codes = cohort.codes["diagnosis"].filter(pl.col("visit").is_in(visits.implode())).select("visit", "code")
        rates[name] = dict(codes.unique().group_by("code").len().iter_rows())
    names = {**today.names("diagnosis"), **known.names("diagnosis")}
    lines = []
    before, now = max(len(of_bank), 1), max(len(last), 1)
    for code in set(rates["bank"]) | set(rates["today"]):
        old, new = rates["bank"].get(code, 0), rates["today"].get(code, 0)
        if is_small(old) or is_small(new):
            continue
        first, second = old / before, new / now
        pooled = (old + new) / (before + now)
        error = float(np.sqrt(pooled * (1 - pooled) * (1 / before + 1 / now)))
        if abs(second - first) * 100 >= _POINTS and error and abs(second - first) / error > 3:
            lines.append((abs(second - first), code, first, second))
    lines.sort(key=lambda line: (-line[0], line[1]))
    return tuple(
        DriftLine(
            f"diagnosis: {printable(names.get(code) or code)}",
            percent(first, 1),
            percent(second, 1),
            "more frequent today" if second > first else "rarer today",
        )
        for _, code, first, second in lines[:_MOST_LINES]
    )
