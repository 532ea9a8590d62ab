"""Everything a page or the API asks for, in one object: predictions, explanations, what-if, codes, the bank.

Safe to use from several threads: models are read only, patients have a lock, and how many requests compute at once is
limited, so that a crowd waits in order instead of slowing everybody down.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from pydantic import ValidationError
from starlette.requests import Request

from patients_like_me import __version__
from patients_like_me.errors import PlmError
from patients_like_me.explanation.explanation import Explanation
from patients_like_me.explanation.what_if import Change
from patients_like_me.records.cohort import Cohort, Kind
from patients_like_me.serve.access import Access
from patients_like_me.serve.access_log import AccessLog
from patients_like_me.serve.bank_view import BankView, BankViews
from patients_like_me.serve.code_search import CodeSearch, FoundCode
from patients_like_me.serve.listing import Listing
from patients_like_me.serve.model_state import ModelState, OpenedModel
from patients_like_me.serve.patients import KeptPatient, PatientStore
from patients_like_me.serve.problems import FieldProblems, fields_of
from patients_like_me.serve.reading import Given, Notes, RecordReader
from patients_like_me.serve.shapes import PatientIn, check_limits
from patients_like_me.serve.turns import Work
from patients_like_me.serve.uploads import cohort_of_files, in_rows, pasted_newcomer
from patients_like_me.serve.views import PatientView, PlainPrediction, RunAbout, happened_in_words, plain_prediction
from patients_like_me.serve.worklist import WorklistRow, chosen_rows
from patients_like_me.tasks.splits import split_of_patients

if TYPE_CHECKING:
    from patients_like_me.report.run_report import RunReport


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
        if not is_utf8(run.resolve().name):
            raise PlmError(
                "the name of the run folder is not written in UTF-8, so no page could show it",
                remedy="rename the folder",
            )
        self.model = ModelState(run, trained_on)
        self.log = access_log or AccessLog(None)
        self.show_ids = show_ids
        self.work = Work(at_once, waiting)
        self._note = ""
        self.patients = self._store(cohort)
        if self.patients.today is not None:
            self.log.cohort = self.patients.today.hash[:12]
        self.listing = Listing(self)
        self._banks = BankViews(self.patients.listed)
        self._report: tuple[str, RunReport] | None = None
        self._search: tuple[str, CodeSearch] | None = None
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
        return self.about_of(self.model.current)

    def about_of(self, model: OpenedModel) -> RunAbout:
        """Return the same of one version."""
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
            happened=happened_in_words(run.task),
            note=self._note,
        )

    # ---- predictions ---------------------------------------------------------------------------------------------

    def predict(self, cohort: Cohort, model: OpenedModel | None = None) -> list[PlainPrediction]:
        """Predict the last visit of each patient of a cohort, in its order.

        The bank can be replaced at any moment: who asks several questions asks them of one ``model``.
        """
        model = model or self.model.current
        with self.work.slot():
            probabilities, references = model.answering.predict(model.instances_of(cohort))
        return [
            plain_prediction(model, row, None if references is None else int(references[place]))
            for place, row in enumerate(probabilities)
        ]

    def explain_cohort(
        self,
        cohort: Cohort,
        change: Change | None = None,
        drug: str | None = None,
        threshold: float | None = None,
        model: OpenedModel | None = None,
    ) -> Explanation:
        """Explain the last visit of the one patient of a cohort."""
        model = model or self.model.current
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
        plain = self.predict(kept.cohort, model)[0]
        if model.has_references or change is not None or drug is not None:
            explanation = self.explain_cohort(kept.cohort, change, drug, threshold, model)
            explanation = replace(explanation, example=kept.number)
        usual = explanation if change is None and drug is None else None
        row = self.listing.row_of(kept, model, plain, usual)
        can_add = () if explanation is None else model.kinds_to_add(kept.cohort)
        about = self.about_of(model)
        return PatientView(kept.pseudonym, plain, explanation, row, kept.is_new, about, kept.notes, can_add)

    def static_page(self, pseudonym: str, change: Change | None = None, drug: str | None = None) -> str:
        """Return the page of a patient as one file to keep; with a change it shows the what-if first."""
        from patients_like_me.report.patient_page import patient_page

        kept = self.patients.get(pseudonym)
        found = self.explain_cohort(kept.cohort, change or None, drug)
        return patient_page(replace(found, example=kept.number))

    # ---- the worklist --------------------------------------------------------------------------------------------

    def worklist(
        self,
        sort: str = "risk",
        descending: bool = True,
        search: str = "",
        flag: str | None = None,
        within: float | None = None,
    ) -> list[WorklistRow]:
        """Return today's patients and the new ones; what is computed for one is kept until the bank changes.

        With ``within`` those are left out for whom so many seconds were not enough.
        """
        return chosen_rows(self.listing.rows(within), sort=sort, descending=descending, search=search, flag=flag)

    def prepare(self) -> None:
        """Do beside the first requests what pages would wait for: templates, the search, the list, the bank."""
        from patients_like_me.serve.pages.rendering import warm

        warm()
        _ = self.search.known
        self.listing.prepare()
        if self.model.current.has_references:
            self.bank()

    # ---- new patients --------------------------------------------------------------------------------------------

    def read_patients(self, given: Given) -> tuple[Cohort, Notes]:
        """Return patients in the form of docs/own-tables.md or a FHIR Bundle as a cohort; of each what was left out."""
        with self.work.slot():
            return self.reader.read(given)

    def add_patients(self, given: Given) -> tuple[str, ...]:
        """Keep new patients; return their pseudonyms. More than the limits of the API is refused as there."""
        check_limits(given)
        cohort, notes = self.read_patients(given)
        return self.patients.add(cohort, notes)

    def add_tables(self, contents: Mapping[str, bytes], names: Mapping[str, str]) -> tuple[str, ...]:
        """Keep the patients of own tables; ``names`` are the names of the files."""
        with self.work.slot():
            cohort, notes = cohort_of_files(contents, names)
        return self.patients.add(cohort, notes)

    def add_text_table(self, text: str) -> tuple[str, ...]:
        """Keep one patient from rows that were pasted from a spreadsheet."""
        given, rows = pasted_newcomer(text)
        try:
            person = PatientIn.model_validate(given)
        except ValidationError as error:
            raise FieldProblems(list(dict.fromkeys(in_rows(fields_of(error.errors()), rows)))) from None
        return self.add_patients([person.model_dump(exclude_none=True, exclude_defaults=True)])

    def forget(self, pseudonym: str) -> None:
        """Remove a new patient."""
        self.patients.forget(pseudonym)
        self.listing.forget(pseudonym)

    def notes(self, pseudonym: str) -> tuple[str, ...]:
        """Return what was left out of a patient's record."""
        return self.patients.get(pseudonym).notes

    # ---- codes, bank, report -------------------------------------------------------------------------------------

    @cached_property
    def reader(self) -> RecordReader:
        """Makes cohorts of the patients that are sent."""
        return RecordReader()

    @property
    def search(self) -> CodeSearch:
        """The codes of the run, also of what was added to its bank."""
        model, found = self.model.current, self._search
        if found is None or found[0] != model.version:
            found = self._search = (model.version, CodeSearch(_vocabulary_of(model)))
        return found[1]

    def search_codes(self, query: str, kind: Kind = "diagnosis", limit: int = 20) -> list[FoundCode]:
        """Return the codes that a query means: a name, a synonym, an ICD code, a drug."""
        return self.search.search(query, kind, limit)

    def bank(self, *, wait: bool = False) -> BankView:
        """Return the bank in words; with ``wait`` only when it has been compared with today's patients."""
        return self._banks.of(self.model.current, wait=wait)

    def run_report(self) -> RunReport:
        """Return the report on the run; it is made once for each version of its bank."""
        from patients_like_me.report.run_page import report_run

        with self._reporting:
            model = self.model.current
            if self._report is None or self._report[0] != model.version:
                run = model.run
                self._report = (model.version, report_run(run.folder, cohort=run.moved_cohort))
            return self._report[1]

    # ---- access --------------------------------------------------------------------------------------------------

    def looked_at(self, request: Request, pseudonym: str | None, what: str, status: int = 200) -> None:
        """Note in the access log who looked at whom."""
        access: Access | None = getattr(request.state, "access", None)
        self.log.add("nobody" if access is None else access.name, what, pseudonym, status)


def is_utf8(name: str) -> bool:
    r"""Tell whether the name of a file is text; on disk it can be any bytes.

    >>> is_utf8("run-1"), is_utf8("caf\udce9")
    (True, False)
    """
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _vocabulary_of(model: OpenedModel) -> pl.DataFrame:
    """Return the codes of the run's cohort and of the records added to its bank; none where they are not there."""
    try:
        return model.run.everyone.cohort.vocabulary if model.run.additions else model.cohort.vocabulary
    except PlmError:
        from patients_like_me.records.cohort import VOCABULARY_COLUMNS

        return pl.DataFrame(schema=VOCABULARY_COLUMNS)
