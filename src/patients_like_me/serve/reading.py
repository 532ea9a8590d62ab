"""Records that are sent, as JSON in the form of docs/own-tables.md or as a FHIR Bundle; mostly read without files."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.plain_text import printable
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.newcomers import (
    Newcomer,
    cohort_of_newcomers,
    is_on_unknown,
    names_in_order,
    note_on_unknown,
)
from patients_like_me.records.newcomers_at_once import QuickReader, checked_newcomers
from patients_like_me.serve.guard import described

LOG: Final = logging.getLogger("patients_like_me.serve")
#: What reading something that is no record can end in.
UNREADABLE: Final = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError),
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)
#: One patient, several, or a Bundle.
Given = Mapping[str, Any] | Sequence[Mapping[str, Any]]
#: What was left out of each patient's record, in the order of a cohort.
Notes = tuple[tuple[str, ...], ...]
#: Said to each of several patients where it is not known whose code it was: a page must not show another's record.
LEFT_OUT_OF_SOMEBODY: Final = (
    "codes that no map knows were left out of the records that were sent together, perhaps of this one; send this "
    "patient alone to see which"
)


class RecordReader:
    """Makes cohorts of the patients that are sent; the maps of codes are opened once."""

    def __init__(self) -> None:
        self._quick = QuickReader()

    def read(self, given: Given) -> tuple[Cohort, Notes]:
        """Return patients as a cohort, with what was left out of each."""
        people = None
        if not (isinstance(given, Mapping) and "resourceType" in given):
            people = checked_newcomers([given] if isinstance(given, Mapping) else given)
        quick = None if people is None else self._quick.cohort_of(people)
        if quick is not None:
            return quick[0], (quick[1],)
        try:
            with noted() as notes:
                cohort = cohort_of_newcomers(given)
        except UNREADABLE as error:
            # Anything can be sent; what no reader foresaw is a fault of the record, and said without its text.
            LOG.warning("records could not be read: %s", described(error))
            raise PlmError(
                "these records cannot be read", remedy="send them in the form of docs/own-tables.md or FHIR R4"
            ) from None
        if cohort.patients.height == 1 or not notes:
            return cohort, (tuple(notes),) * cohort.patients.height
        # What is said of the tables names no code, and nobody.
        of_all = tuple(note for note in notes if not is_on_unknown(note))
        if len(of_all) == len(notes):
            return cohort, (of_all,) * cohort.patients.height
        return cohort, tuple((*own, *of_all) for own in self._notes_of_each(cohort, given, people))

    def _notes_of_each(self, cohort: Cohort, given: Given, people: Sequence[Newcomer] | None) -> Notes:
        """Return the codes that were left out of each of several patients."""
        names = cohort.patients["subject_id"].to_list()
        in_order = None if people is None else names_in_order(given)
        if people is None or in_order is None:
            return ((LEFT_OUT_OF_SOMEBODY,),) * len(names)
        own: dict[str, tuple[str, ...]] = {}
        for name, person in zip(in_order, people, strict=True):
            unknown = self._quick.unknown_codes(person)
            own[name] = (LEFT_OUT_OF_SOMEBODY,) if unknown is None else note_on_unknown(unknown)
        return tuple(own.get(name, (LEFT_OUT_OF_SOMEBODY,)) for name in names)


def all_notes(notes: Notes) -> tuple[str, ...]:
    """Return what was left out of all patients, for who sent them.

    >>> all_notes((("a",), (), ("a", "b")))
    ('a', 'b')
    """
    return tuple(dict.fromkeys(note for own in notes for note in own))


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
