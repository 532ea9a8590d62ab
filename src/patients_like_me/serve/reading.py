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
from patients_like_me.records.newcomers import cohort_of_newcomers
from patients_like_me.records.newcomers_at_once import QuickReader, checked_newcomers
from patients_like_me.serve.guard import described

LOG: Final = logging.getLogger("patients_like_me.serve")
#: What reading something that is no record can end in.
UNREADABLE: Final = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError),
    pl.exceptions.PolarsError,
)
#: One patient, several, or a Bundle.
Given = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class RecordReader:
    """Makes cohorts of the patients that are sent; the maps of codes are opened once."""

    def __init__(self) -> None:
        self._quick = QuickReader()

    def read(self, given: Given) -> tuple[Cohort, tuple[str, ...]]:
        """Return patients as a cohort, with what was left out."""
        people = None
        if not (isinstance(given, Mapping) and "resourceType" in given):
            people = checked_newcomers([given] if isinstance(given, Mapping) else given)
        quick = None if people is None else self._quick.cohort_of(people)
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
