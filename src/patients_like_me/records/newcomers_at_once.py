"""Newcomers given as dicts, made into a cohort without files: the way of a server, where each request counts.

:func:`~patients_like_me.records.newcomers.cohort_of_newcomers` writes tables and prepares them as ``plm prepare`` does,
which takes a fifth of a second however small they are. Here the cohort's frames are filled at once. The result is the
same, and a test holds both against each other. Whatever is out of the ordinary (ids that must be normalised, a
discharge before the admission, an unknown code system) is left to the long way, which has the right words for it.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import polars as pl

from patients_like_me.codes.coverage import UNMAPPED
from patients_like_me.codes.registry import find_code_system, map_codes, systems_of
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import (
    CODE_COLUMNS,
    DEMOGRAPHICS,
    KINDS,
    PATIENT_COLUMNS,
    PLACES,
    VISIT_COLUMNS,
    VOCABULARY_COLUMNS,
    Cohort,
    Kind,
)
from patients_like_me.records.ids import MISSING, look_alike_key
from patients_like_me.records.newcomers import Newcomer, NewVisit, note_on_unknown
from patients_like_me.records.values import notes_on_ages

#: An id that needs no normal form, and a word that needs no cleaning.
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9_#-][A-Za-z0-9_/#-]{0,199}")
_PLAIN_WORD: Final = re.compile(r"[!-~]+(?: [!-~]+)*")
_MOST_KEPT: Final = 100_000
_LETTERS: Final = {"f": "F", "female": "F", "m": "M", "male": "M"}


class QuickReader:
    """Makes cohorts of newcomers; every code is mapped once, and its answer kept."""

    def __init__(self, store: CodeStore | None = None) -> None:
        self.store = store or CodeStore.default()
        self._mapped: dict[tuple[Kind, str, str], tuple[tuple[str, ...], str]] = {}
        self._lock = threading.Lock()

    def cohort_of(self, people: Sequence[Newcomer]) -> tuple[Cohort, tuple[str, ...]] | None:
        """Return newcomers as a cohort, and the codes that no map knows; None where the long way must be taken."""
        if len(people) != 1:
            return None
        person = people[0]
        subject = person.id or "newcomer-1"
        visits = _in_plain_order(person.visits)
        if visits is None or not _is_plain_id(subject):
            return None
        ids = [visit.id or f"newcomer-1/visit-{place}" for place, visit in enumerate(visits, start=1)]
        words = [person.sex, *(getattr(person, name) for name in DEMOGRAPHICS)]
        if not all(word is None or (_PLAIN_WORD.fullmatch(word) and word.lower() not in MISSING) for word in words):
            return None
        if any(visit.id for visit in visits) and not (
            all(_is_plain_id(name) for name in ids) and len({look_alike_key(name) for name in ids}) == len(ids)
        ):
            return None
        wanted = self._wanted(visits)
        if wanted is None:
            return None
        answers = self._answers({key for _, key in wanted})
        codes: dict[Kind, set[tuple[int, str]]] = {kind: set() for kind in KINDS}
        unknown: dict[str, None] = {}
        for place, key in wanted:
            found, way = answers[key]
            codes[key[0]].update((place, code) for code in found)
            if way == UNMAPPED:
                unknown.setdefault(key[2])
        cohort = self._cohort(person, visits, subject, ids, codes, {key[:2] for _, key in wanted})
        return cohort, (*note_on_unknown(list(unknown)), *_notes_on_ages(cohort.visits["age"]))

    def unknown_codes(self, person: Newcomer) -> list[str] | None:
        """Return the codes of one newcomer that no map knows; None where the long way alone can tell."""
        wanted = self._wanted(person.visits)
        if wanted is None:
            return None
        answers = self._answers({key for _, key in wanted})
        return list(dict.fromkeys(key[2] for _, key in wanted if answers[key][1] == UNMAPPED))

    def _wanted(self, visits: Sequence[NewVisit]) -> list[tuple[int, tuple[Kind, str, str]]] | None:
        """Return visit, kind, system and code of everything that is given."""
        found: list[tuple[int, tuple[Kind, str, str]]] = []
        for place, visit in enumerate(visits):
            for kind in KINDS:
                for written in visit.codes(kind):
                    system, colon, code = written.partition(":")
                    system, code = (system.strip().lower(), code.strip()) if colon else ("", written.strip())
                    name = self._systems[kind].get(system)
                    if name is None or not code or not code.isprintable():
                        return None
                    found.append((place, (kind, name, code)))
        return found

    @cached_property
    def _systems(self) -> dict[Kind, dict[str, str]]:
        """The code systems of each kind by what is written for them; the first is meant where nothing is."""
        found: dict[Kind, dict[str, str]] = {}
        for kind in KINDS:
            names = [system.name for system in systems_of(kind)]
            found[kind] = {"": names[0], **{name: name for name in names}}
        return found

    def _answers(self, keys: set[tuple[Kind, str, str]]) -> Mapping[tuple[Kind, str, str], tuple[tuple[str, ...], str]]:
        known = self._mapped
        if keys <= known.keys():
            return known
        with self._lock:
            # Another thread can have started with nothing meanwhile: what is missing is what is missing now.
            if len(self._mapped) > _MOST_KEPT:
                self._mapped = {}
            missing: dict[tuple[Kind, str], list[str]] = {}
            for kind, system, code in sorted(keys - self._mapped.keys()):
                missing.setdefault((kind, system), []).append(code)
            for (kind, system), codes in missing.items():
                self._mapped.update(self._asked(kind, system, codes))
            return self._mapped

    def _asked(self, kind: Kind, system: str, codes: list[str]) -> dict[Any, tuple[tuple[str, ...], str]]:
        mapped = map_codes(kind, pl.DataFrame({"code": codes}), {"code": system}, self.store)
        return {
            (kind, system, code): (tuple(found or ()), way)
            for code, found, way in mapped.select("code", "codes", "way").iter_rows()
        }

    @cached_property
    def _names(self) -> dict[tuple[Kind, str], dict[str, tuple[str, str | None]]]:
        return {}

    def _names_of(self, kind: Kind, system: str) -> dict[str, tuple[str, str | None]]:
        """Return name and chapter of the codes that a system maps to."""
        key = (kind, system)
        if key not in self._names:
            names = find_code_system(kind, system).names
            rows = [] if names is None else names(kind).select("code", "name", "chapter").rows()
            self._names[key] = {code: (name, chapter) for code, name, chapter in rows}
        return self._names[key]

    def _cohort(
        self,
        person: Newcomer,
        visits: Sequence[NewVisit],
        subject: str,
        ids: Sequence[str],
        codes: Mapping[Kind, set[tuple[int, str]]],
        systems: set[tuple[Kind, str]],
    ) -> Cohort:
        number = len(visits)
        came = [_as_time(visit.admission) for visit in visits]
        left = [_as_time(visit.discharge) for visit in visits]
        ages = [visit.age for visit in visits]
        if ages[-1] is None:
            ages[-1] = person.age
        columns: dict[str, list[Any]] = {
            "visit": list(range(number)),
            "visit_id": list(ids),
            "subject": [0] * number,
            "position": list(range(number)),
            "sequence": list(range(number)),
            "admission_time": came,
            "discharge_time": left,
            "next_admission_time": _next(came, left, ids),
            "age": ages,
            "died": [False] * number,
            **{name: [getattr(person, name, None)] * number for name in DEMOGRAPHICS},
            **{name: [None] * number for name in PLACES},
        }
        sex = None if person.sex is None else _LETTERS.get(person.sex.lower(), person.sex)
        tables, vocabulary = {}, []
        for kind in KINDS:
            rows = sorted(codes[kind])
            tables[kind] = pl.DataFrame(
                {
                    "visit": [place for place, _ in rows],
                    "code": [code for _, code in rows],
                    "time": [None] * len(rows),
                },
                schema=CODE_COLUMNS,
            )
            named = [self._names_of(*each) for each in sorted(systems) if each[0] == kind]
            for code in sorted({code for _, code in rows}):
                name, chapter = next((names[code] for names in named if code in names), (code, None))
                vocabulary.append((kind, code, name, chapter))
        vocabulary.sort(key=lambda row: (row[0], row[1]))
        content = repr((subject, columns, sex, [table.rows() for table in tables.values()]))
        return Cohort(
            patients=pl.DataFrame(
                {"subject": [0], "subject_id": [subject], "sex": [sex], "death_time": [None]}, schema=PATIENT_COLUMNS
            ),
            visits=pl.DataFrame(columns, schema=VISIT_COLUMNS),
            codes=tables,
            vocabulary=pl.DataFrame(vocabulary, schema=VOCABULARY_COLUMNS, orient="row"),
            source="tables",
            known_hash=hashlib.sha256(content.encode()).hexdigest(),
        )


def _notes_on_ages(ages: pl.Series) -> list[str]:
    """Say that the patient becomes younger, as the long way says it."""
    known = ages.drop_nulls()
    return [] if known.is_sorted() else notes_on_ages(pl.DataFrame({"subject_id": [0] * len(ages), "age": ages}))


def _in_plain_order(visits: Sequence[NewVisit]) -> list[NewVisit] | None:
    """Return the visits oldest first; None where their times are anything but plain."""
    for visit in visits:
        times = [time for time in (visit.admission, visit.discharge) if time is not None]
        if any((isinstance(time, datetime) and time.tzinfo is not None) or time.year < 1700 for time in times):
            return None
        if any(time.year > 2261 for time in times):
            return None
        if len(times) == 2 and (_as_time(visit.discharge) or datetime.max) < (
            _as_time(visit.admission) or datetime.min
        ):
            return None
    known = [came for visit in visits if (came := _as_time(visit.admission)) is not None]
    if len(known) == len(visits):
        return [visits[place] for place in sorted(range(len(visits)), key=lambda place: known[place])]
    return list(visits) if known == sorted(known) else None


def _as_time(time: datetime | date | None) -> datetime | None:
    """Return a time to the second, as tables write it."""
    if time is None:
        return None
    if isinstance(time, datetime):
        return time.replace(microsecond=0)
    return datetime(time.year, time.month, time.day)


def _next(
    came: Sequence[datetime | None], left: Sequence[datetime | None], ids: Sequence[str]
) -> list[datetime | None]:
    """Return when the patient was admitted after each visit."""
    far = datetime.max
    order = sorted(range(len(came)), key=lambda place: (came[place] or far, left[place] or far, ids[place]))
    found: list[datetime | None] = [None] * len(came)
    for place, after in pairwise(order):
        found[place] = came[after]
    return found


def _is_plain_id(name: str) -> bool:
    """Tell whether an id needs no normal form and is none that the long way refuses."""
    return _PLAIN_ID.fullmatch(name) is not None and name.lower() not in MISSING


def checked_newcomers(given: Sequence[Mapping[str, Any]]) -> list[Newcomer] | None:
    """Return dicts as newcomers; None where one is not in order, which the long way says in words."""
    from pydantic import ValidationError

    try:
        return [Newcomer.model_validate(dict(person)) for person in given]
    except (ValidationError, PlmError, TypeError, ValueError):
        return None
