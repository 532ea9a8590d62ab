"""The bank as a page shows it: what it holds, its history, how today's patients differ, and what became known since.

Everything is said by the run's own bank (:class:`~patients_like_me.evaluation.run_bank.RunBank`), as ``plm bank check``
says it. A check reads hundreds of records, so it is made once for each version of the bank, beside the requests.
Counts of people under 11 are not shown.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.bank_check import SHARES
from patients_like_me.evaluation.run_bank import BankSummary, RunBank
from patients_like_me.explanation.scene import set_scene
from patients_like_me.plain_text import FEW, about_count, is_small, percent, printable, shown_count
from patients_like_me.report.run_sections.reference_use import reference_use
from patients_like_me.serve.problems import is_end_of_work

if TYPE_CHECKING:
    from patients_like_me.evaluation.bank_check import BankCheck, BankFinding
    from patients_like_me.records.cohort import Cohort
    from patients_like_me.serve.model_state import OpenedModel

LOG: Final = logging.getLogger("patients_like_me.serve")
_MOST_LINES: Final = 8
_MOST_HUBS: Final = 5
#: Hubs are looked for beside the requests; of more test patients that would take minutes.
MOST_COUNTED: Final = 20_000


@dataclass(frozen=True)
class CheckLine:
    """One finding of a check in words."""

    what: str
    usual: str
    now: str
    limit: str
    beyond: bool


@dataclass(frozen=True)
class CodeLine:
    """A code whose rate has moved."""

    what: str
    bank: str
    now: str
    verdict: str


@dataclass(frozen=True)
class CheckView:
    """A check of the bank in words: drift, calibration, and the verdict with its reason."""

    about: str
    verdict: str
    sentence: str
    drift: tuple[CheckLine, ...]
    calibration: tuple[CheckLine, ...]
    codes: tuple[CodeLine, ...]
    codes_left_out: int = 0


@dataclass(frozen=True)
class BankView:
    """The bank as a page shows it; ``today`` and ``since`` are None where there is nothing to compare, or not yet.

    ``no_calendar`` says why the references have no dates to speak of; what is ``left_out`` of a long list is counted.
    """

    version: str
    number: int
    size: str
    patients: str | None
    added: str
    first: str | None
    last: str | None
    outcomes: tuple[tuple[str, str], ...]
    hubs: tuple[tuple[str, str], ...]
    history: tuple[str, ...]
    today: CheckView | None = None
    since: CheckView | None = None
    checking: bool = False
    notes: tuple[str, ...] = ()
    no_calendar: str = ""
    outcomes_left_out: int = 0
    hubs_note: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the view as plain data."""
        return asdict(self)


class BankViews:
    """Hands out the view of the bank that is in use; its checks are made in a thread of their own."""

    def __init__(self, today: Callable[[], Cohort | None]) -> None:
        self._today = today
        self._lock = threading.Lock()
        self._view: BankView | None = None
        self._checking: threading.Thread | None = None

    def of(self, model: OpenedModel, *, wait: bool = False) -> BankView:
        """Return the view of a model's bank; with ``wait`` only when its checks are done."""
        with self._lock:
            if self._view is None or self._view.version != model.version:
                self._view = replace(described(model), checking=True)
                self._checking = threading.Thread(target=self._check, args=(model, self._view), daemon=True)
                self._checking.start()
            view, checking = self._view, self._checking
        if wait and view.checking and checking is not None:
            checking.join()
            return self.of(model)
        return view

    def _check(self, model: OpenedModel, view: BankView) -> None:
        try:
            done = checked(model, view, self._today())
        except BaseException as error:
            if is_end_of_work(error):
                raise
            # A thread has nobody who would hear of it; the page says that there is no comparison.
            LOG.warning("the bank could not be checked: %s", type(error).__name__)
            done = replace(view, checking=False, notes=(*view.notes, "the bank could not be compared"))
        with self._lock:
            if self._view is view:
                self._view = done


def described(model: OpenedModel) -> BankView:
    """Return what a bank holds, without any check; a system without references is refused."""
    run = model.run
    if not run.capabilities.references:
        raise PlmError(
            f"the system '{run.identity.system}' has no bank of references", remedy="serve a run of another system"
        )
    bank = RunBank(run)
    changes = list(bank.history().iter_rows(named=True))
    # From exact totals, a change that is hidden could be worked out.
    total = about_count if any(is_small(row["instances"]) for row in changes) else shown_count
    history = tuple(_change_in_words(row, total) for row in changes)
    try:
        summary = bank.summary()
    except PlmError as error:
        size, notes = total(len(bank)), (printable(error.problem),)
        return BankView(model.version, bank.version, size, None, "0", None, None, (), (), history, notes=notes)
    return BankView(
        version=model.version,
        number=bank.version,
        size=total(summary.references),
        patients=shown_count(summary.patients),
        added=total(summary.added) if summary.added else "0",
        first=None if summary.first is None else summary.first.strftime("%Y-%m"),
        last=None if summary.last is None else summary.last.strftime("%Y-%m"),
        outcomes=_outcomes(model, summary),
        hubs=(),
        history=history,
        no_calendar=printable(summary.no_calendar),
        outcomes_left_out=0 if model.run.task.ordered else max(len(summary.outcomes) - _MOST_LINES, 0),
    )


def checked(model: OpenedModel, view: BankView, today: Cohort | None) -> BankView:
    """Return the view with today's patients compared, and with what became known since the training."""
    bank, notes = RunBank(model.run), list(view.notes)
    found: dict[str, CheckView] = {}
    wanted: list[tuple[str, str, Callable[[], BankCheck]]] = []
    if today is not None:
        wanted.append(("today", "today's patients", lambda: bank.check(today, last_visits=True)))
    if bank.additions:
        wanted.append(("since", "what was added", bank.check))
    for name, whose, check in wanted:
        try:
            found[name] = in_words(check())
        except PlmError as error:
            notes.append(f"{whose} could not be compared: {printable(error.problem)}")
    found_hubs, hubs_note = hubs(model)
    return replace(
        view,
        today=found.get("today"),
        since=found.get("since"),
        hubs=found_hubs,
        hubs_note=hubs_note,
        checking=False,
        notes=tuple(notes),
    )


def in_words(check: BankCheck) -> CheckView:
    """Return a check as a page writes it."""
    about = f"{shown_count(check.instances)} visits of {shown_count(check.patients)} patients"
    drift = tuple(_line(each) for each in check.findings if each.name in SHARES)
    calibration = tuple(_line(each) for each in check.findings if each.name not in SHARES)
    codes = tuple(
        CodeLine(
            f"{shift.kind}: {printable(shift.name or shift.code)}",
            "hidden" if shift.in_bank is None else percent(shift.in_bank, 1),
            "hidden" if shift.now is None else percent(shift.now, 1),
            _moved(shift.in_bank, shift.now),
        )
        for shift in check.codes[:_MOST_LINES]
    )
    left_out = len(check.codes) - len(codes)
    return CheckView(about, check.verdict, printable(check.sentence), drift, calibration, codes, left_out)


def _moved(before: float | None, now: float | None) -> str:
    if before is None or now is None:
        return "moved"
    return "more frequent now" if now > before else "rarer now"


def _line(finding: BankFinding) -> CheckLine:
    def written(value: float | None) -> str:
        if value is None:
            return "not known"
        return percent(value, 1) if finding.name in SHARES else f"{value:.2f}"

    now = f"{FEW} patients on one side" if finding.hidden else written(finding.now)
    if finding.interval is not None:
        now += f" ({written(finding.interval.low)} to {written(finding.interval.high)})"
    return CheckLine(finding.title, written(finding.usual), now, finding.limit, finding.beyond)


def _outcomes(model: OpenedModel, summary: BankSummary) -> tuple[tuple[str, str], ...]:
    """Return the most frequent outcomes; those that too few had, or had not, come last and are hidden.

    Classes with an order, such as days of a stay, are listed in it, and all of them.
    """
    rates = sorted(summary.outcomes, key=lambda each: -1.0 if each.rate is None else each.rate, reverse=True)
    return tuple(
        (
            _named(model, each.outcome),
            "hidden" if each.rate is None else percent(each.rate, 1),
        )
        for each in (summary.outcomes if model.run.task.ordered else rates[:_MOST_LINES])
    )


def _named(model: OpenedModel, outcome: str) -> str:
    """Return an outcome in words; of a label that is a mere 1 the name of its task."""
    task = model.run.task
    words = task.name.replace("_", " ") if task.kind.name == "binary" and outcome == "1" else outcome
    return printable(model.label_names.get(outcome, words))


def _change_in_words(row: dict[str, Any], total: Callable[[int], str] = shown_count) -> str:
    joined = "joined" if row["action"] == "add" else "left"
    words = f"{row['made']:%Y-%m-%d}: {shown_count(row['instances'])} visits {joined}"
    remark = f" ({printable(row['remark'])})" if row["remark"] and row["action"] == "add" else ""
    return f"{words}{remark}; {total(row['references'])} since then"


def hubs(model: OpenedModel) -> tuple[tuple[tuple[str, str], ...], str]:
    """Return the patients of the bank who are shown to most test patients, as the report on the run counts them.

    The second value says why nobody is counted, where that is so.
    """
    run, find = model.run, model.predictor.system.additive_references
    references = None if find is None else find(model.predictor.fitted)
    if not run.uses_graph and (references is None or not references.uses_references):
        return (), "no prediction of this run uses a similar patient"
    if run.has_patient_graph and run.graph_settings.references != "bank":
        return (), "the test patients of this run were compared with one another and not with the bank"
    if len(run.rows_of("test")) > MOST_COUNTED:
        return (), f"they are counted for at most {MOST_COUNTED:,} test patients; see plm report"
    try:
        scene = set_scene(run)
    except PlmError as error:
        return (), printable(error.problem)
    use = reference_use(scene)
    everyone = len(np.unique(use.patients[len(use.patients) - len(use.neighbors) :]))
    return tuple(
        (f"hub {place}", f"shown to {count:,} of {everyone:,} test patients ({percent(count / everyone, 1)})")
        for place, count in enumerate(list(use.audiences.values())[:_MOST_HUBS], start=1)
        if not is_small(count)
    ), ""
