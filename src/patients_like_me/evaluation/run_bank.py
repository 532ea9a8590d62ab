"""The bank of a run as one object: what it holds, what was added and dropped, and whether it still serves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from patients_like_me.evaluation.bank_check import BankCheck, check_bank
from patients_like_me.plain_text import is_small
from patients_like_me.records.calendar import why_no_calendar
from patients_like_me.records.cohort import Cohort
from patients_like_me.runs.bank_versions import AdditionRecord, VersionRecord, current_number, history
from patients_like_me.runs.predictions import ids_of
from patients_like_me.runs.run import Run, load_run
from patients_like_me.systems.growing import BankChange, add_to_bank, drop_from_bank
from patients_like_me.systems.problem import outputs_of

Report = Callable[[str], None]


@dataclass(frozen=True)
class OutcomeRate:
    """How frequent an outcome is among the references; None where too few patients had it, or too few had it not."""

    outcome: str
    rate: float | None


@dataclass(frozen=True)
class BankSummary:
    """What a bank holds: counts, times and outcome rates, without any patient's data.

    ``first`` and ``last`` are None where the references have no dates of a calendar; ``no_calendar`` says why.
    """

    version: int
    references: int
    patients: int
    trained: int
    added: int
    first: datetime | None
    last: datetime | None
    outcomes: tuple[OutcomeRate, ...]
    additions: tuple[AdditionRecord, ...]
    no_calendar: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the summary as plain data."""
        plain = asdict(self)
        plain["additions"] = [each.model_dump(mode="json", exclude={"digests"}) for each in self.additions]
        plain |= {name: None if plain[name] is None else plain[name].isoformat() for name in ("first", "last")}
        return plain


@dataclass(frozen=True)
class RunBank:
    """The bank of a run: ``load_run("runs/references").bank``.

    An open run stays with the bank it was opened with. What changes the bank returns a :class:`BankChange`, whose
    ``run`` is opened with the new one; every other reader keeps the old one until it opens the run again. ``as_opened``
    makes of a run what its user works with.
    """

    run: Run
    as_opened: Callable[[Run], Run] = lambda run: run

    def __len__(self) -> int:
        version = self.run.bank_version
        return self.run.results.instances["train"] if version is None else version.record.references

    def __repr__(self) -> str:
        return f"<bank of '{self.run.folder}': {len(self):,} references, version {self.version}>"

    @property
    def version(self) -> int:
        """The version that this run was opened with; 0: as it was trained."""
        return 0 if self.run.bank_version is None else self.run.bank_version.record.number

    @property
    def is_current(self) -> bool:
        """Tell whether the bank has not been replaced since the run was opened."""
        return current_number(self.run.folder) == self.version

    def reopened(self) -> Run:
        """Return the run, opened with the bank that is in use now."""
        return self.as_opened(load_run(self.run.folder, self.run.moved_cohort))

    def _changed(self, change: BankChange) -> BankChange:
        return replace(change, run=self.as_opened(change.run))

    @property
    def additions(self) -> tuple[AdditionRecord, ...]:
        """What was added since the training and is in the bank."""
        return () if self.run.bank_version is None else self.run.bank_version.record.additions

    def add(self, cohort: Cohort | Path | str, *, remark: str = "", report: Report = lambda _: None) -> BankChange:
        """Make the labelled instances of a cohort references, without training; the run folder changes in one step."""
        given = cohort if isinstance(cohort, Cohort) else Path(cohort)
        return self._changed(add_to_bank(self.run, given, remark=remark, report=report))

    def drop(
        self,
        additions: int | Sequence[int] = (),
        *,
        added_before: date | str | None = None,
        added_since: date | str | None = None,
        erase: bool = False,
        report: Report = lambda _: None,
    ) -> BankChange:
        """Take additions out of the bank: by their numbers, or by the day on which they were added."""
        numbers = (additions,) if isinstance(additions, int) else tuple(additions)
        return self._changed(
            drop_from_bank(
                self.run,
                numbers,
                added_before=added_before,
                added_since=added_since,
                erase_records=erase,
                report=report,
            )
        )

    def history(self) -> pl.DataFrame:
        """Return every change of the bank, the first one first: a row each."""
        schema: dict[str, Any] = {
            "version": pl.Int64,
            "made": pl.Datetime("us", "UTC"),
            "action": pl.String,
            "additions": pl.List(pl.Int64),
            "instances": pl.Int64,
            "references": pl.Int64,
            "remark": pl.String,
            "notes": pl.List(pl.String),
        }
        versions, rows = self.versions(), []
        known = {each.number: each for version in versions for each in version.additions}
        for version in versions:
            changed = [known[number] for number in version.changed]
            rows.append(
                {
                    "version": version.number,
                    "made": version.made,
                    "action": version.action,
                    "additions": list(version.changed),
                    "instances": sum(each.instances for each in changed),
                    "references": version.references,
                    "remark": "; ".join(each.remark for each in changed if each.remark),
                    "notes": [note for each in changed for note in each.notes] if version.action == "add" else [],
                }
            )
        return pl.DataFrame(rows, schema=schema)

    def versions(self) -> tuple[VersionRecord, ...]:
        """Return the records behind :meth:`history`."""
        return history(self.run.folder)

    def check(
        self,
        cohort: Cohort | Path | str | None = None,
        report: Report = lambda _: None,
        *,
        last_visits: bool = False,
    ) -> BankCheck:
        """Compare the latest addition, or a cohort, with the bank: drift, calibration, and a verdict."""
        given = Cohort.load(cohort) if isinstance(cohort, Path | str) else cohort
        return check_bank(self.run, given, report, last_visits=last_visits)

    def summary(self) -> BankSummary:
        """Return how many references there are, from when to when, and how frequent their outcomes are."""
        self.run.require_references()
        references = self.run.reference_instances
        subjects = ids_of(references)["subject_id"]
        no_calendar = why_no_calendar(references.cohort)
        times = references.prediction_times["prediction_time"].drop_nulls()
        if no_calendar:
            times = times.clear()
        trained = self.run.results.instances["train"]
        return BankSummary(
            version=self.version,
            references=len(references),
            patients=subjects.n_unique(),
            trained=trained,
            added=len(references) - trained,
            first=times.min() if len(times) else None,  # type: ignore[arg-type]
            last=times.max() if len(times) else None,  # type: ignore[arg-type]
            outcomes=tuple(_outcome_rates(self.run)),
            additions=self.additions,
            no_calendar=no_calendar,
        )


def _outcome_rates(run: Run) -> list[OutcomeRate]:
    references = run.reference_instances
    targets = references.task.kind.targets(references.labels, outputs_of(references))
    _, people = np.unique(ids_of(references)["subject_id"].to_numpy().astype(str), return_inverse=True)
    found = []
    for name, column in zip(run.output_labels, targets.T, strict=True):
        having = len(np.unique(people[column > 0]))
        small = is_small(having) or is_small(len(np.unique(people[column == 0])))
        found.append(OutcomeRate(name, None if small else float(column.mean())))
    return found
