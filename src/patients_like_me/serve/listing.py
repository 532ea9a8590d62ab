"""The lines of today's list: each is computed once for each version of the bank."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from patients_like_me.errors import PlmError
from patients_like_me.explanation.explanation import Explanation
from patients_like_me.explanation.support import Support
from patients_like_me.plain_text import printable
from patients_like_me.serve.patients import KeptPatient
from patients_like_me.serve.problems import HttpProblem, is_end_of_work
from patients_like_me.serve.views import WITHOUT_CODES, PlainPrediction, about_patient, plain_prediction
from patients_like_me.serve.worklist import WorklistRow, outcome_bits

if TYPE_CHECKING:
    from patients_like_me.serve.model_state import OpenedModel
    from patients_like_me.serve.state import ServeState

LOG: Final = logging.getLogger("patients_like_me.serve")
#: Patients of the worklist that are looked at in full; a longer list is cut, and says so.
MOST_LISTED: Final = 2000


class Listing:
    """The lines of the patients of a state, by pseudonym."""

    def __init__(self, state: ServeState) -> None:
        self.state = state
        self._rows: dict[tuple[str, str], WorklistRow] = {}
        self._lock = threading.Lock()
        self._preparing: threading.Thread | None = None

    def rows(self, within: float | None = None) -> list[WorklistRow]:
        """Return the lines of the patients, the new ones first; a list that would be too long is cut.

        Those that ``within`` seconds are not enough for are computed beside the request, and left out meanwhile.
        """
        until = None if within is None else time.monotonic() + within
        model, found, missing = self.state.model.current, [], False
        for name in self._names():
            known = self._rows.get((model.version, name))
            if known is None and until is not None and time.monotonic() > until:
                missing = True
                continue
            try:
                found.append(known or self.row(name, model))
            except HttpProblem as problem:
                # A new patient can be forgotten while the list is written.
                if problem.status != 404:
                    raise
        if missing:
            self.prepare_beside()
        return found

    def waiting(self, rows: Sequence[WorklistRow]) -> int:
        """Return how many patients are not among some rows yet."""
        return max(len(self._names()) - len(rows), 0)

    @property
    def not_listed(self) -> int:
        """How many patients the list is too long for."""
        return max(len(self.state.patients) - MOST_LISTED, 0)

    def _names(self) -> list[str]:
        return list(islice(self.state.patients.names(), MOST_LISTED))

    def prepare_beside(self) -> None:
        """Let a thread compute all lines, where none does so already."""
        with self._lock:
            if self._preparing is None or not self._preparing.is_alive():
                self._preparing = threading.Thread(target=self.prepare, daemon=True)
                self._preparing.start()

    def prepare(self) -> None:
        """Compute all lines before somebody asks for them; what goes wrong is said to who asks."""
        for name in self._names():
            try:
                self.row(name)
            except (HttpProblem, PlmError):
                continue
            except BaseException as error:
                # A thread has nobody who would hear of it; who asks for this patient is told.
                if is_end_of_work(error):
                    raise
                LOG.warning("the line of a patient could not be computed: %s", type(error).__name__)

    def row(self, pseudonym: str, model: OpenedModel | None = None) -> WorklistRow:
        """Return one line."""
        model = model or self.state.model.current
        known = self._rows.get((model.version, pseudonym))
        return known if known is not None else self.row_of(self.state.patients.get(pseudonym), model)

    def row_of(
        self,
        kept: KeptPatient,
        model: OpenedModel,
        plain: PlainPrediction | None = None,
        explanation: Explanation | None = None,
    ) -> WorklistRow:
        """Return the line of a patient; what was computed for a page already is used."""
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
                with self.state.work.slot():
                    instances = model.instances_of(kept.cohort)
                    found, support, outcomes = model.answering.glance(instances, model.decision())
                plain = plain or plain_prediction(model, found, None)
            except PlmError:
                # Without the cohort of the run the patient can be predicted; the page says why it is not explained.
                LOG.info("a line of the list has no references: the records of the bank are not there")
        plain = plain or self.state.predict(kept.cohort, model)[0]
        row = self._written(model, kept, plain, support, outcomes)
        with self._lock:
            # Lines of an older bank, and of patients that left, are not kept.
            if len(self._rows) > 2 * MOST_LISTED:
                self._rows = {old: value for old, value in self._rows.items() if old[0] == model.version}
            if len(self._rows) > 2 * MOST_LISTED:
                self._rows.clear()
            self._rows[key] = row
        return row

    def _written(
        self,
        model: OpenedModel,
        kept: KeptPatient,
        plain: PlainPrediction,
        support: Support | None,
        outcomes: tuple[bool | None, ...],
    ) -> WorklistRow:
        ranges = model.ranges
        spread = ranges.around(plain.probability) if ranges and plain.probability is not None else None
        flags: list[str] = []
        if support is not None and support.word != "well supported":
            flags.append(support.word)
        seen = model.codes_seen(kept.cohort)
        if not any(seen.values()):
            flags.append(WITHOUT_CODES)
        age = kept.cohort.visits["age"][-1]
        outside = "" if model.reach is None else model.reach.left_by(seen["diagnosis"], age)
        if outside:
            flags.append("outside the bank's range")
        if kept.notes:
            flags.append("codes left out")
        return WorklistRow(
            pseudonym=kept.pseudonym,
            about=about_patient(kept.cohort),
            answer=plain.answer,
            risk=plain.risk,
            probability=plain.probability,
            about_in_words=plain.words,
            range_in_words="" if spread is None else spread[2],
            low=None if spread is None else spread[0],
            high=None if spread is None else spread[1],
            support=None if support is None else support.word,
            flags=tuple(flags),
            outcomes=(sum(known), len(known)) if (known := [bit for bit in outcomes if bit is not None]) else None,
            outcome_bits=outcomes,
            is_new=kept.is_new,
            outside=outside,
            subject_id=printable(kept.subject_id) if self.state.show_ids else None,
        )

    def forget(self, pseudonym: str) -> None:
        """Remove the line of a patient."""
        with self._lock:
            self._rows = {key: row for key, row in self._rows.items() if key[1] != pseudonym}
