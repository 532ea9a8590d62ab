"""Two histories on one axis: days before the current admission of each person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from patients_like_me.explanation.pseudonyms import Person, VisitOnTimeline


@dataclass(frozen=True)
class Bar:
    """A visit as a bar: where it starts and how wide it is, in percent of the axis."""

    left: float
    width: float
    words: str
    current: bool


@dataclass(frozen=True)
class Timeline:
    """The bars of two people under each other; without dates there are words only."""

    rows: tuple[tuple[str, tuple[Bar, ...], str], ...]
    first_day: int
    has_dates: bool


def timeline_of(patient: Person, reference: Person) -> Timeline:
    """Align two people at their own current admissions (day 0)."""
    people = (patient, reference)
    days = [visit.day for person in people for visit in person.visits if visit.day is not None]
    has_dates = bool(days) and all(visit.day is not None for person in people for visit in person.visits)
    first = min(days, default=0)
    return Timeline(
        rows=tuple(
            (person.name, _bars(person.visits, first) if has_dates else (), visits_in_words(person.visits))
            for person in people
        ),
        first_day=first,
        has_dates=has_dates,
    )


def _bars(visits: Sequence[VisitOnTimeline], first: int) -> tuple[Bar, ...]:
    # The axis ends a little after day 0, so that the current visit has a place of its own.
    length = max(-first, 1) * 1.08
    return tuple(
        Bar(
            left=round(100 * ((visit.day or 0) - first) / length, 2),
            width=round(max(100 * (visit.stay or 0) / length, 1.2), 2),
            words=visit_in_words(visit),
            current=visit.current,
        )
        for visit in visits
    )


def visit_in_words(visit: VisitOnTimeline) -> str:
    """Write one visit.

    >>> visit_in_words(VisitOnTimeline(1, -30, 4, False)), visit_in_words(VisitOnTimeline(2, 0, None, True))
    ('day −30, 4 days', 'day 0 (current)')
    """
    if visit.day is None:
        return f"visit {visit.number}{' (current)' if visit.current else ''}"
    stay = "" if visit.stay is None else f", {visit.stay} day{'' if visit.stay == 1 else 's'}"
    return f"day {visit.day}{stay}{' (current)' if visit.current else ''}".replace("-", "−")


def visits_in_words(visits: Sequence[VisitOnTimeline]) -> str:
    """Write all visits of a person in one line."""
    return "; ".join(visit_in_words(visit) for visit in visits)
