"""The patients that a server knows: those of today's cohort, and the new ones that were typed in or sent.

Each has a pseudonym: P1, P2, ... in the order of today's cohort, N1, N2, ... as they came. New patients live in memory
alone; when there are too many, the oldest leaves. Nothing here is ever written.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl

from patients_like_me.records.cohort import KINDS, Cohort
from patients_like_me.serve.problems import HttpProblem

MOST_NEW: Final = 1000
#: As in the API; a number of thousands of digits is not even read.
_OF_TODAY: Final = re.compile(r"P[1-9][0-9]{0,6}")


@dataclass(frozen=True, eq=False)
class KeptPatient:
    """One patient with the whole record; ``notes`` say what was left out of it."""

    pseudonym: str
    cohort: Cohort
    notes: tuple[str, ...] = ()
    is_new: bool = False

    @property
    def number(self) -> int:
        """The number in the pseudonym."""
        return int(self.pseudonym[1:])

    @property
    def subject_id(self) -> str:
        """The patient's own id, for who may see it."""
        return str(self.cohort.patients["subject_id"][0])


def one_patient(cohort: Cohort, subject: int) -> Cohort:
    """Return one patient of a cohort as a cohort of its own.

    >>> from patients_like_me.records.newcomers import cohort_of_newcomers
    >>> both = cohort_of_newcomers([{"id": name, "visits": [{"diagnoses": ["I10"]}]} for name in ("a", "b")])
    >>> one_patient(both, 1).patients["subject_id"].to_list(), one_patient(both, 1).visits["visit"].to_list()
    (['b'], [0])
    """
    subjects = cohort.visits["subject"].to_numpy()
    first, last = np.searchsorted(subjects, [subject, subject + 1])
    visits = cohort.visits.slice(int(first), int(last - first)).with_columns(
        (pl.col("visit") - int(first)).cast(pl.UInt32), pl.lit(0, dtype=pl.UInt32).alias("subject")
    )
    inside = pl.col("visit").is_between(int(first), int(last) - 1)
    renumbered = (pl.col("visit") - int(first)).cast(pl.UInt32)
    return replace(
        cohort,
        patients=cohort.patients.slice(subject, 1).with_columns(pl.lit(0, dtype=pl.UInt32).alias("subject")),
        visits=visits,
        codes={kind: cohort.codes[kind].filter(inside).with_columns(renumbered) for kind in KINDS},
        labels=cohort.labels.clear(),
        known_hash="",
        folder=None,
    )


def some_patients(cohort: Cohort, subjects: Sequence[int]) -> Cohort:
    """Return some patients of a cohort, in its order, as a cohort of their own.

    >>> from patients_like_me.records.newcomers import cohort_of_newcomers
    >>> three = cohort_of_newcomers([{"id": name, "visits": [{"diagnoses": ["I10"]}]} for name in "abc"])
    >>> some_patients(three, [0, 2]).visits.select("visit", "subject").rows()
    [(0, 0), (1, 1)]
    """
    chosen = pl.DataFrame({"subject": sorted(subjects)}, schema={"subject": pl.UInt32}).with_row_index("new subject")
    visits = cohort.visits.join(chosen, on="subject", how="inner", maintain_order="left").with_row_index("new visit")
    moved = visits.select("visit", "new visit")
    renamed = {"new visit": "visit", "new subject": "subject"}
    return replace(
        cohort,
        patients=cohort.patients.join(chosen, on="subject", how="inner", maintain_order="left")
        .drop("subject")
        .rename({"new subject": "subject"})
        .select(cohort.patients.columns),
        visits=visits.drop("visit", "subject").rename(renamed).select(cohort.visits.columns),
        codes={
            kind: table.join(moved, on="visit", how="inner", maintain_order="left")
            .drop("visit")
            .rename({"new visit": "visit"})
            .select(table.columns)
            for kind, table in cohort.codes.items()
        },
        labels=cohort.labels.clear(),
        known_hash="",
        folder=None,
    )


class PatientStore:
    """Patients by pseudonym."""

    def __init__(self, today: Cohort | None = None, subjects: Sequence[int] | None = None) -> None:
        self.today = today
        everyone = range(today.patients.height) if today is not None else range(0)
        self._subjects = list(everyone if subjects is None else subjects)
        self._new: OrderedDict[str, KeptPatient] = OrderedDict()
        self._number = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._subjects) + len(self._new)

    def listed(self) -> Cohort | None:
        """Return today's patients that are on the list, as one cohort; None where there are none."""
        if self.today is None or not self._subjects:
            return None
        if len(self._subjects) == self.today.patients.height:
            return self.today
        return some_patients(self.today, self._subjects)

    def names(self) -> Iterator[str]:
        """Return all pseudonyms, the new patients first: a list that is cut must not lose who was just added."""
        with self._lock:
            new = list(self._new)
        yield from new
        yield from (f"P{number}" for number in range(1, len(self._subjects) + 1))

    def get(self, pseudonym: str) -> KeptPatient:
        """Return a patient; an unknown pseudonym is a problem."""
        kept = self._new.get(pseudonym)
        if kept is not None:
            return kept
        number = int(pseudonym[1:]) if _OF_TODAY.fullmatch(pseudonym) else 0
        if self.today is None or not 1 <= number <= len(self._subjects):
            raise HttpProblem(404, "there is no patient with this pseudonym")
        return KeptPatient(pseudonym, one_patient(self.today, self._subjects[number - 1]))

    def add(self, cohort: Cohort, notes: Sequence[tuple[str, ...]] | None = None) -> tuple[str, ...]:
        """Keep every patient of a cohort as new, each with notes of their own; return their pseudonyms."""
        of_each: Sequence[tuple[str, ...]] = [()] * cohort.patients.height if notes is None else notes
        parts = [cohort] if cohort.patients.height == 1 else [
            one_patient(cohort, subject) for subject in range(cohort.patients.height)
        ]  # fmt: skip
        names = []
        with self._lock:
            for part, own in zip(parts, of_each, strict=True):
                self._number += 1
                name = f"N{self._number}"
                self._new[name] = KeptPatient(name, part, own, is_new=True)
                names.append(name)
            while len(self._new) > MOST_NEW:
                self._new.popitem(last=False)
        return tuple(names)

    def forget(self, pseudonym: str) -> None:
        """Remove a new patient; those of today's cohort stay."""
        with self._lock:
            if self._new.pop(pseudonym, None) is None:
                raise HttpProblem(404, "there is no new patient with this pseudonym")
