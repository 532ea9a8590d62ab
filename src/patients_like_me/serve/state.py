"""Everything a page or the API asks for, in one object: predictions, explanations, what-if, codes, the bank.

Safe to use from several threads: models are read only, patients have a lock, and how many requests compute at once is
limited, so that a crowd waits in order instead of slowing everybody down.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from pydantic import ValidationError
from starlette.requests import Request

from patients_like_me import __version__
from patients_like_me.errors import PlmError
from patients_like_me.evaluation.predictions import read_predictions
from patients_like_me.explanation.explanation import Explanation, Option
from patients_like_me.explanation.pseudonyms import age_in_words, sex_in_words
from patients_like_me.explanation.risk import one_in
from patients_like_me.explanation.support import Support
from patients_like_me.explanation.what_if import Change
from patients_like_me.plain_text import counted, printable
from patients_like_me.records.cohort import Cohort, Kind
from patients_like_me.records.newcomers import cohort_of_newcomers
from patients_like_me.records.newcomers_at_once import QuickReader, checked_newcomers
from patients_like_me.serve.access import Access
from patients_like_me.serve.access_log import AccessLog
from patients_like_me.serve.bank_summary import BankSummary, bank_summary
from patients_like_me.serve.code_search import CodeSearch, FoundCode
from patients_like_me.serve.guard import described
from patients_like_me.serve.model_state import ModelState, OpenedModel
from patients_like_me.serve.patients import KeptPatient, PatientStore, one_patient
from patients_like_me.serve.problems import FieldProblems, Problem, fields_of
from patients_like_me.serve.shapes import PatientIn, check_limits
from patients_like_me.serve.uploads import cohort_of_files, newcomer_of_text
from patients_like_me.serve.worklist import Ranges, WorklistRow, chosen_rows, outcome_bits
from patients_like_me.tasks.kinds import Probabilities
from patients_like_me.tasks.splits import split_of_patients

if TYPE_CHECKING:
    from patients_like_me.report.run_report import RunReport

LOG: Final = logging.getLogger("patients_like_me.serve")
#: What reading something that is no record can end in.
UNREADABLE: Final = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError),
    pl.exceptions.PolarsError,
)
#: Patients of the worklist that are looked at in full; a longer list is cut, and says so.
MOST_LISTED: Final = 2000


@dataclass(frozen=True)
class RunAbout:
    """What a page says about the run."""

    name: str
    title: str
    task: str
    question: str
    system: str
    kind: str
    labels: tuple[str, ...]
    has_references: bool
    sees: tuple[Kind, ...]
    tau: int | None
    version: str
    bank_version: str
    cohort: bool
    shows_ids: bool
    note: str = ""

    @property
    def explains(self) -> bool:
        """Tell whether predictions can be explained."""
        return self.has_references


@dataclass(frozen=True)
class PlainPrediction:
    """A prediction alone."""

    answer: str
    probability: float | None
    about: str
    options: tuple[Option, ...]
    probabilities: dict[str, float]
    references: int | None
    words: str


@dataclass(frozen=True)
class PatientView:
    """One patient: the prediction, and the explanation where the system has references."""

    pseudonym: str
    prediction: PlainPrediction
    explanation: Explanation | None
    row: WorklistRow | None
    is_new: bool
    notes: tuple[str, ...] = ()


class Work:
    """Lets some requests compute at once and some wait; more are sent away with the advice to come again."""

    def __init__(self, at_once: int, waiting: int) -> None:
        self._slots = threading.BoundedSemaphore(at_once)
        self._most = at_once + waiting
        self._present = 0
        self._lock = threading.Lock()

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Wait for a turn; too many waiting is a problem."""
        with self._lock:
            if self._present >= self._most:
                raise Problem(503, "too many requests at once; try again in a second", headers={"retry-after": "1"})
            self._present += 1
        try:
            with self._slots:
                yield
        finally:
            with self._lock:
                self._present -= 1


class ServeState:
    """A run that is served, and the patients it is asked about."""

    def __init__(
        self,
        run: Path,
        *,
        cohort: Path | Cohort | None = None,
        trained_on: Path | None = None,
        access_log: AccessLog | None = None,
        show_ids: bool = False,
        at_once: int = 2,
        waiting: int = 32,
    ) -> None:
        self.model = ModelState(run, trained_on)
        self.log = access_log or AccessLog(None)
        self.show_ids = show_ids
        self.work = Work(at_once, waiting)
        self._note = ""
        self.patients = self._store(cohort)
        self._rows: dict[tuple[str, str], WorklistRow] = {}
        self._lock = threading.Lock()
        self._report: RunReport | None = None
        self._reporting = threading.Lock()

    def _store(self, cohort: Path | Cohort | None) -> PatientStore:
        if cohort is None:
            return PatientStore()
        today = cohort if isinstance(cohort, Cohort) else Cohort.load(cohort)
        run = self.model.current.run
        if today.hash != run.identity.cohort:
            return PatientStore(today)
        # The run's own cohort: the patients that it learned from are its references, not its questions.
        splits = split_of_patients(today.patients["subject_id"].to_list(), run.task_settings)
        self._note = "the test patients of the run's own cohort, each predicted as if new"
        return PatientStore(today, [number for number, split in enumerate(splits) if split == "test"])

    @property
    def about(self) -> RunAbout:
        """What there is to say about the run."""
        model = self.model.current
        run = model.run
        return RunAbout(
            name=run.folder.name,
            title=run.task.title,
            task=run.identity.task,
            question=run.task.words.about,
            system=run.identity.system,
            kind=run.task.kind.name,
            labels=run.output_labels,
            has_references=model.has_references,
            sees=run.task.inputs_of_current_visit(run.task_settings),
            tau=run.graph_settings.tau if run.has_patient_graph else None,
            version=__version__,
            bank_version=model.version,
            cohort=self.patients.today is not None,
            shows_ids=self.show_ids,
            note=self._note,
        )

    # ---- predictions ---------------------------------------------------------------------------------------------

    def predict(self, cohort: Cohort) -> list[PlainPrediction]:
        """Predict the last visit of each patient of a cohort, in its order."""
        model = self.model.current
        with self.work.slot():
            probabilities, references = model.answering.predict(model.instances_of(cohort))
        return [
            self._plain(model, row, None if references is None else int(references[place]))
            for place, row in enumerate(probabilities)
        ]

    def _plain(self, model: OpenedModel, probabilities: Probabilities, references: int | None) -> PlainPrediction:
        decision = model.decision()
        decided = decision.key(probabilities)
        labels = model.run.output_labels
        probability = decision.probability(probabilities)
        options = []
        if decision.kind.dimensions > 1:
            for place in np.argsort(-probabilities, kind="stable").tolist():
                if place in decided or decision.kind.adds_up:
                    code = decision.labels[place]
                    name = decision.names.get(code, code)
                    options.append(Option(code, name, float(probabilities[place]), place in decided))
        return PlainPrediction(
            answer=decision.in_words(probabilities),
            probability=probability,
            about=decision.event(decided) if probability is not None else "",
            options=tuple(options),
            probabilities={label: float(value) for label, value in zip(labels, probabilities, strict=True)},
            references=references,
            words="" if probability is None else one_in(probability),
        )

    def explain_cohort(
        self, cohort: Cohort, change: Change | None = None, drug: str | None = None, threshold: float | None = None
    ) -> Explanation:
        """Explain the last visit of the one patient of a cohort."""
        model = self.model.current
        decision = model.decision(drug, threshold)
        with self.work.slot():
            return model.answering.explain(model.instances_of(cohort), decision, change)

    def patient(self, pseudonym: str, drug: str | None = None, threshold: float | None = None) -> PatientView:
        """Return a patient of the list with the prediction and what it leans on."""
        return self._view(self.patients.get(pseudonym), None, drug, threshold)

    def what_if(
        self, pseudonym: str, change: Change, drug: str | None = None, threshold: float | None = None
    ) -> PatientView:
        """Return the same after a change; the explanation holds both."""
        if not change:
            raise PlmError("a what-if needs a change", remedy="drop a reference, move tau, add or remove a code")
        return self._view(self.patients.get(pseudonym), change, drug, threshold)

    def _view(self, kept: KeptPatient, change: Change | None, drug: str | None, threshold: float | None) -> PatientView:
        explanation = None
        model = self.model.current
        plain = self.predict(kept.cohort)[0]
        if model.has_references or change is not None or drug is not None:
            explanation = self.explain_cohort(kept.cohort, change, drug, threshold)
            explanation = replace(explanation, example=self._number(kept))
        row = self._row_of(kept, plain, explanation if change is None and drug is None else None)
        return PatientView(kept.pseudonym, plain, explanation, row, kept.is_new, kept.notes)

    @staticmethod
    def _number(kept: KeptPatient) -> int:
        return int(kept.pseudonym[1:])

    def static_page(self, pseudonym: str, change: Change | None = None) -> str:
        """Return the page of a patient as one file to keep."""
        from patients_like_me.report.patient_page import patient_page

        kept = self.patients.get(pseudonym)
        found = self.explain_cohort(kept.cohort, change)
        return patient_page(replace(found, example=self._number(kept)))

    # ---- the worklist --------------------------------------------------------------------------------------------

    def worklist(
        self, sort: str = "risk", descending: bool = True, search: str = "", flag: str | None = None
    ) -> list[WorklistRow]:
        """Return today's patients and the new ones; what is computed for one is kept until the bank changes."""
        rows = []
        for place, name in enumerate(self.patients.names()):
            if place >= MOST_LISTED:
                break
            try:
                rows.append(self.row(name))
            except Problem as problem:
                if problem.status != 404:
                    raise
        return chosen_rows(rows, sort=sort, descending=descending, search=search, flag=flag)

    def prepare_worklist(self) -> None:
        """Compute the lines of today's list before somebody asks for them; what goes wrong is said to who asks."""
        for name in list(self.patients.names())[:MOST_LISTED]:
            try:
                self.row(name)
            except (Problem, PlmError):
                continue

    def row(self, pseudonym: str) -> WorklistRow:
        """Return one line of the list."""
        model = self.model.current
        known = self._rows.get((model.version, pseudonym))
        if known is not None:
            return known
        return self._row_of(self.patients.get(pseudonym), None, None)

    def _row_of(self, kept: KeptPatient, plain: PlainPrediction | None, explanation: Explanation | None) -> WorklistRow:
        """Return the line of a patient; what was computed for a page already is used."""
        model = self.model.current
        key = (model.version, kept.pseudonym)
        known = self._rows.get(key)
        if known is not None:
            return known
        support: Support | None = None
        outcomes: tuple[bool | None, ...] = ()
        if explanation is not None:
            support, outcomes = explanation.support, outcome_bits(explanation)
        elif model.has_references:
            try:
                with self.work.slot():
                    instances = model.instances_of(kept.cohort)
                    found, support, outcomes = model.answering.glance(instances, model.decision())
                plain = plain or self._plain(model, found, None)
            except PlmError:
                # Without the cohort of the run the patient can be predicted; the page says why it is not explained.
                LOG.info("a line of the list has no references: the records of the bank are not there")
        plain = plain or self.predict(kept.cohort)[0]
        spread = self.ranges.around(plain.probability) if self.ranges and plain.probability is not None else None
        flags: list[str] = []
        if support is not None and support.word != "well supported":
            flags.append(support.word)
        if self._is_outside(model, kept.cohort):
            flags.append("outside the bank's range")
        if kept.notes:
            flags.append("codes left out")
        row = WorklistRow(
            pseudonym=kept.pseudonym,
            about=about_patient(kept.cohort),
            answer=plain.answer,
            probability=plain.probability,
            about_in_words=plain.words,
            range_in_words="" if spread is None else spread[2],
            low=None if spread is None else spread[0],
            high=None if spread is None else spread[1],
            support=None if support is None else support.word,
            flags=tuple(flags),
            outcomes=None if support is None or support.had is None else (support.had, support.references),
            outcome_bits=outcomes,
            is_new=kept.is_new,
            subject_id=printable(kept.subject_id) if self.show_ids else None,
        )
        with self._lock:
            # Lines of an older bank, and of patients that left, are not kept.
            if len(self._rows) > 2 * MOST_LISTED:
                self._rows = {old: value for old, value in self._rows.items() if old[0] == model.version}
            if len(self._rows) > 2 * MOST_LISTED:
                self._rows.clear()
            self._rows[key] = row
        return row

    def _is_outside(self, model: OpenedModel, cohort: Cohort) -> bool:
        """Tell whether most of a patient's diagnoses are codes that no patient of the bank has."""
        seen = model.instances_of(cohort).inputs("diagnosis")["code"].unique().to_list()
        if not seen:
            return False
        known = self.search.known["diagnosis"]
        return bool(known) and sum(code not in known for code in seen) > len(seen) / 2

    @cached_property
    def ranges(self) -> Ranges | None:
        """What happened to validation patients by their predictions; only a yes-or-no task has one event for all."""
        run = self.model.current.run
        if run.task.kind.name != "binary":
            return None
        found = read_predictions(run, newcomers=True).of_split("validation")
        return Ranges.of(found.probabilities, found.labels, run.label_vocabulary[-1])

    # ---- new patients --------------------------------------------------------------------------------------------

    def read_patients(self, given: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> tuple[Cohort, tuple[str, ...]]:
        """Return patients in the form of docs/own-tables.md or a FHIR Bundle as a cohort, with what was left out."""
        with self.work.slot():
            people = None
            if not (isinstance(given, Mapping) and "resourceType" in given):
                people = checked_newcomers([given] if isinstance(given, Mapping) else given)
            quick = None if people is None else self.reader.cohort_of(people)
            if quick is not None:
                return quick
            try:
                with noted() as notes:
                    cohort = cohort_of_newcomers(given)
            except UNREADABLE as error:
                # Anything can be sent; what no reader foresaw is a fault of the record, and said without its text.
                LOG.warning("records could not be read: %s", described(error))
                raise PlmError(
                    "these records cannot be read", remedy="send them in the form of docs/own-tables.md or FHIR R4"
                ) from None
            return cohort, tuple(notes)

    def add_patients(self, given: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """Keep new patients; return their pseudonyms. More than the limits of the API is refused as there."""
        check_limits(given)
        cohort, notes = self.read_patients(given)
        return self.patients.add(cohort, notes)

    def add_patient(self, given: Mapping[str, Any]) -> str:
        """Keep one new patient; return the pseudonym."""
        names = self.add_patients(given)
        return names[0]

    def add_tables(self, contents: Mapping[str, bytes], names: Mapping[str, str]) -> tuple[str, ...]:
        """Keep the patients of own tables; ``names`` are the names of the files."""
        with self.work.slot():
            cohort, notes = cohort_of_files(contents, names)
        return self.patients.add(cohort, notes)

    def add_text_table(self, text: str) -> tuple[str, ...]:
        """Keep one patient from rows that were pasted from a spreadsheet."""
        given = newcomer_of_text(text)
        try:
            person = PatientIn.model_validate(given)
        except ValidationError as error:
            raise FieldProblems(fields_of(error.errors())) from None
        return self.add_patients([person.model_dump(exclude_none=True, exclude_defaults=True)])

    def forget(self, pseudonym: str) -> None:
        """Remove a new patient."""
        self.patients.forget(pseudonym)
        with self._lock:
            self._rows = {key: row for key, row in self._rows.items() if key[1] != pseudonym}

    def notes(self, pseudonym: str) -> tuple[str, ...]:
        """Return what was left out of a patient's record."""
        return self.patients.get(pseudonym).notes

    # ---- codes, bank, report ---------------------------------------------------------------------------------------

    @cached_property
    def reader(self) -> QuickReader:
        """Makes cohorts of the patients that are sent."""
        return QuickReader()

    @cached_property
    def search(self) -> CodeSearch:
        """The codes of the run."""
        try:
            vocabulary = self.model.current.cohort.vocabulary
        except PlmError:
            from patients_like_me.records.cohort import VOCABULARY_COLUMNS

            vocabulary = pl.DataFrame(schema=VOCABULARY_COLUMNS)
        return CodeSearch(vocabulary)

    def search_codes(self, query: str, kind: Kind = "diagnosis", limit: int = 20) -> list[FoundCode]:
        """Return the codes that a query means: a name, a synonym, an ICD code, a drug."""
        return self.search.search(query, kind, limit)

    def bank(self) -> BankSummary:
        """Return the bank in words."""
        model = self.model.current
        counts: list[int | None] = []
        today = self.patients.listed()
        if today is not None:
            with self.work.slot():
                _, references = model.answering.predict(model.instances_of(today))
            counts = [] if references is None else [int(number) for number in references]
        return bank_summary(model, today, counts)

    def run_report(self) -> RunReport:
        """Return the report on the run; it is made once."""
        from patients_like_me.report.run_page import report_run

        with self._reporting:
            if self._report is None:
                run = self.model.current.run
                self._report = report_run(run.folder, cohort=run.moved_cohort)
            return self._report

    def run_report_html(self) -> str:
        """Return the report on the run as a page."""
        return self.run_report().html()

    # ---- access ----------------------------------------------------------------------------------------------------

    def looked_at(self, request: Request, pseudonym: str | None, what: str, status: int = 200) -> None:
        """Note in the access log who looked at whom."""
        access: Access | None = getattr(request.state, "access", None)
        self.log.add("nobody" if access is None else access.name, what, pseudonym, status)


def about_patient(cohort: Cohort) -> str:
    """Return sex, age and number of visits of the one patient of a cohort, as a page may show them."""
    age = cohort.visits["age"][-1]
    sex = sex_in_words(cohort.patients["sex"][0])
    return f"{sex}, {age_in_words(age)}, {counted(cohort.visits.height, 'visit')}"


@contextmanager
def noted() -> Iterator[list[str]]:
    """Collect the warnings of a block as sentences; each thread has its own."""
    found: list[str] = []
    with _WARNINGS, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield found
    found += [printable(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]


#: Python keeps one list of warning filters for all threads.
_WARNINGS: Final = threading.Lock()

__all__ = ["PatientView", "PlainPrediction", "RunAbout", "ServeState", "one_patient"]
