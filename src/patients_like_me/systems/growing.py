"""A bank that grows: newly labelled records become references of a finished run, without training.

What was fitted stays: the own path or the language model, the relations, the gates. New references bring their
outcomes, so predictions follow what has become of recent patients. A new bank is written beside the old one, opened and
used for the predictions of validation and test, and only then put into use
(:mod:`patients_like_me.runs.bank_versions`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import numpy as np

from patients_like_me.errors import PlmError
from patients_like_me.files import LOCK, atomic_folder, copy_folder, digests_below
from patients_like_me.records.cohort import Cohort
from patients_like_me.runs.added_records import kept_part, write_added
from patients_like_me.runs.bank_versions import (
    AdditionRecord,
    BankVersion,
    VersionRecord,
    addition_folder,
    current_number,
    drafted,
    erase,
    left_the_bank,
    next_addition,
    now,
    publish,
    tidy,
    write_record,
)
from patients_like_me.runs.card import model_card
from patients_like_me.runs.run import Run, load_run, writing_run
from patients_like_me.systems.contract import Arrays, System
from patients_like_me.systems.joining_checks import joining_instances
from patients_like_me.systems.keeping import load_fitted
from patients_like_me.systems.problem import only, problem_of
from patients_like_me.systems.registry import find_system
from patients_like_me.systems.returned_checks import checked_logits
from patients_like_me.systems.train import write_scored_predictions
from patients_like_me.tasks.instances import Instances

Report = Callable[[str], None]


@dataclass(frozen=True)
class BankChange:
    """A bank that was replaced: ``run`` is opened with the new one; those who opened it before keep the old one."""

    run: Run
    version: VersionRecord
    before: int
    notes: tuple[str, ...] = ()
    #: The bank stayed as it was: only records of what had left it before were erased.
    only_erased: tuple[int, ...] = ()

    @property
    def after(self) -> int:
        """How many references the bank has now."""
        return self.version.references

    @property
    def words(self) -> str:
        """What happened, in one sentence."""
        if self.only_erased:
            named = "addition" if len(self.only_erased) == 1 else "additions"
            numbers = ", ".join(str(number) for number in self.only_erased)
            return f"{named} {numbers} had left the bank before, and the records are erased now"
        change = abs(self.after - self.before)
        grew = "grew" if self.version.action == "add" else "shrank"
        return f"the bank {grew} by {change:,} to {self.after:,} references, without training"


def add_to_bank(
    run: Run | Path, cohort: Cohort | Path, *, remark: str = "", report: Report = lambda _: None
) -> BankChange:
    """Add the labelled instances of a cohort to the bank of a run, in place.

    The old bank stays in use until the new one is whole. What may not join is left out and said; where nothing may,
    the cohort is refused and the bank stays as it is.
    """
    run = run if isinstance(run, Run) else load_run(run)
    system = growing_system(run)
    assert system.growth is not None
    with writing_run(run.folder):
        tidy(run.folder)
        # Opened now, under the lock: another process may have replaced the bank since.
        run = load_run(run.folder, run.moved_cohort)
        report("reading the run and the new records")
        cohort = cohort if isinstance(cohort, Cohort) else Cohort.load(cohort)
        added, notes = joining_instances(run, cohort)
        report(f"describing {len(added):,} labelled instances as references")
        joining = system.growth.join(load_fitted(system, run), added)
        predicted = run.calibrated(run.task.kind.probabilities(joining.logits), newcomers=True)
        kept = kept_part(added)
        number = next_addition(run.folder)
        with atomic_folder(addition_folder(run.folder, number)) as folder:
            then: Arrays = {
                "predicted": predicted.astype(np.float32),
                "linked": joining.linked,
                "nearest": joining.nearest,
            }
            write_added(folder, kept, {**joining.arrays, **then})
            record = _addition_record(number, added, remark, notes, digests_below(folder))
        before = [] if run.bank_version is None else list(run.bank_version.record.additions)
        return _replace_bank(system, run, "add", (number,), [*before, record], notes, report)


def drop_from_bank(
    run: Run | Path,
    additions: Sequence[int] = (),
    *,
    added_before: date | str | None = None,
    added_since: date | str | None = None,
    erase_records: bool = False,
    report: Report = lambda _: None,
) -> BankChange:
    """Take additions out of the bank of a run: by their numbers, or by the day on which they were added.

    With ``erase_records`` their records are removed from the run folder; else they stay there, out of use. Those of
    additions that left the bank before can still be erased, so a call that was killed in between can be repeated.
    """
    run = run if isinstance(run, Run) else load_run(run)
    system = growing_system(run)
    before, since = as_day(added_before), as_day(added_since)
    if not additions and before is None and since is None:
        raise PlmError(
            "nothing was chosen that is to leave the bank",
            remedy="give numbers of additions (plm bank history) or a day",
        )
    with writing_run(run.folder):
        tidy(run.folder)
        run = load_run(run.folder, run.moved_cohort)
        there = () if run.bank_version is None else run.bank_version.record.additions
        earlier = left_the_bank(run.folder)
        absent = sorted(set(additions) - {each.number for each in there})
        if unknown := sorted(set(absent) - {each.number for each in earlier}):
            raise PlmError(
                f"the bank has no addition {unknown[0]}",
                remedy="the additions are listed by plm bank history; those of the training cannot leave it",
            )
        if absent and not erase_records:
            raise PlmError(
                f"addition {absent[0]} has left the bank already", remedy="give --erase to remove its records"
            )
        gone = [each.number for each in there if _is_chosen(each, additions, before, since)]
        gone_before: tuple[int, ...] = ()
        if erase_records:
            gone_before = tuple(each.number for each in earlier if _is_chosen(each, additions, before, since))
        if gone_before:
            erase(run.folder, gone_before)
        if not gone and gone_before:
            assert run.bank_version is not None
            current = run.bank_version.record
            return BankChange(run, current, current.references, only_erased=gone_before)
        if not gone:
            raise PlmError("no addition is of these days", remedy="see plm bank history")
        left = [each for each in there if each.number not in gone]
        change = _replace_bank(system, run, "drop", tuple(gone), left, (), report)
        if erase_records:
            erase(run.folder, tuple(gone))
    return change


def grow_bank(
    run: Run | Path, cohort_folder: Path, out: Path, *, remark: str = "", report: Report = lambda _: None
) -> Run:
    """Write a copy of a run with a larger bank as a run of its own; see :func:`add_to_bank`."""
    run = run if isinstance(run, Run) else load_run(run)
    growing_system(run)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise PlmError(f"'{out}' exists already", remedy="choose another --out")
    # Refused before anything is copied.
    joining_instances(run, Cohort.load(cohort_folder))
    # Whole or not at all: a half-written run would be in the way of the next attempt.
    with atomic_folder(out, replace=out.exists()) as folder:
        report("copying the run")
        with writing_run(run.folder):
            copy_folder(run.folder, folder, without=(LOCK,))
        add_to_bank(load_run(folder, run.moved_cohort), cohort_folder, remark=remark, report=report)
    return load_run(out, run.moved_cohort)


def growing_system(run: Run) -> System:
    """Return the system of a finished run; one whose bank does not grow without training is refused."""
    _ = run.results
    system = find_system(run.identity.system)
    if system.growth is None:
        raise PlmError(
            f"the system '{system.name}' has no bank that grows without training", remedy="train the run again"
        )
    if reason := system.growth.unfit(run) if system.growth.unfit is not None else "":
        raise PlmError(
            f"the bank of the run '{run.folder}' cannot grow: {reason}",
            remedy="train a run whose references come from the bank",
        )
    return system


def as_day(given: date | str | None) -> date | None:
    """Return a day; other text than YYYY-MM-DD is refused.

    >>> as_day("2026-03-01")
    datetime.date(2026, 3, 1)
    """
    if given is None or isinstance(given, date):
        return given
    try:
        return date.fromisoformat(given)
    except ValueError:
        raise PlmError(f"'{given}' is not a day", remedy="write it as 2026-03-01") from None


def _is_chosen(record: AdditionRecord, numbers: Sequence[int], before: date | None, since: date | None) -> bool:
    if record.number in numbers:
        return True
    if before is None and since is None:
        return False
    day = record.added.date()
    return (before is None or day < before) and (since is None or day >= since)


def _addition_record(
    number: int, added: Instances, remark: str, notes: Sequence[str], digests: dict[str, str]
) -> AdditionRecord:
    times = added.prediction_times["prediction_time"].drop_nulls()
    return AdditionRecord(
        number=number,
        added=now(),
        instances=len(added),
        patients=added.frame["subject"].n_unique(),
        cohort=added.cohort.hash,
        source=added.cohort.source,
        unordered=added.cohort.unordered,
        first=times.min() if len(times) else None,
        last=times.max() if len(times) else None,
        remark=remark,
        notes=tuple(notes),
        digests=digests,
    )


def _replace_bank(
    system: System,
    run: Run,
    action: str,
    changed: tuple[int, ...],
    additions: Sequence[AdditionRecord],
    notes: Sequence[str],
    report: Report,
) -> BankChange:
    """Write the version of the bank with these additions, use it once, and put it into use."""
    assert system.growth is not None
    trained = run.results.instances["train"]
    current = run.bank_version
    number = current_number(run.folder) + 1
    record = VersionRecord(
        number=number,
        made=now(),
        action="add" if action == "add" else "drop",
        changed=changed,
        references=trained + sum(each.instances for each in additions),
        trained=trained,
        additions=tuple(additions),
        scores={},
    )
    assert run.record.results is not None
    scores = run.record.results.scores
    with drafted(BankVersion(run.folder, record)) as draft:
        if additions:
            report("predicting validation and test with the new bank")
            # Opened as a reader will open it: what cannot be read does not come into use.
            candidate = Run(run.folder, run.record, run.moved_cohort, {"bank version": draft})
            fitted, problem = load_fitted(system, candidate), problem_of(run.instances)
            logits = (
                system.predict(fitted, only(problem.instances, problem.evaluated))
                if system.growth.evaluated is None
                else system.growth.evaluated(fitted, run, problem)
            )
            logits = checked_logits(system, logits, problem.kind, len(problem.evaluated), problem.outputs)
            calibration = run.calibration_for(newcomers=True)
            scores = write_scored_predictions(draft.place, run.instances, problem, logits, calibration=calibration)
            if system.growth.save is not None:
                system.growth.save(fitted, draft.place)
            (draft.place / "README.md").write_text(_card(run, draft, scores), encoding="utf-8")
        write_record(draft, scores)
    report("putting the new bank into use")
    version = publish(run.folder, number)
    opened = load_run(run.folder, run.moved_cohort)
    return BankChange(opened, version.record, trained if current is None else current.record.references, tuple(notes))


def _card(run: Run, draft: BankVersion, scores: dict[str, dict[str, float | None]]) -> str:
    scored = draft.record.model_copy(update={"scores": scores})
    grown = Run(run.folder, run.record, run.moved_cohort, {"bank version": replace(draft, record=scored)})
    system = run.record.system.model_copy(update={"title": grown.name})
    record = run.record.model_copy(update={"system": system})
    return model_card(record.finished(grown.results, run.record.digests), run.instances)
