"""What a page may say about a person: a pseudonym, an age group and day offsets, never an id or a date unless asked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from patients_like_me.evaluation.strata import AGES, banded
from patients_like_me.explanation.scene import Scene
from patients_like_me.plain_text import counted, printable
from patients_like_me.tasks.instances import Instances

OLDEST_SHOWN_AGE = 89
#: A reference that is farther in age is marked.
FAR_IN_YEARS = 10


@dataclass(frozen=True)
class VisitOnTimeline:
    """One visit, its days counted from the admission of the person's own current visit.

    ``day`` and ``stay`` are None where the source has no dates; ``number`` counts the visits from 1.
    """

    number: int
    day: int | None
    stay: int | None
    current: bool


@dataclass(frozen=True)
class Person:
    """A patient under a pseudonym; the ids are there only where the user asked for them."""

    name: str
    age: str
    sex: str
    visits: tuple[VisitOnTimeline, ...]
    instance_id: str | None = None
    subject_id: str | None = None

    @property
    def title(self) -> str:
        """The name, with the ids where they were asked for."""
        if self.instance_id is None:
            return self.name
        return f"{self.name} (patient {self.subject_id}, visit {self.instance_id})"

    @property
    def about(self) -> str:
        """Sex, age and number of visits in one line."""
        return f"{self.sex}, {self.age}, {counted(len(self.visits), 'visit')}"


def age_in_words(age: int | None) -> str:
    """Return an age as it may be shown: those over 89 are one group.

    >>> age_in_words(89), age_in_words(91), age_in_words(None)
    ('89 years', '90 or older', 'age not recorded')
    """
    if age is None:
        return "age not recorded"
    return "90 or older" if age > OLDEST_SHOWN_AGE else f"{age} years"


def sex_in_words(sex: str | None) -> str:
    """Return the recorded sex as a word; anything but the usual letters is left out, whatever it holds.

    >>> sex_in_words("F"), sex_in_words(None)
    ('female', 'sex not recorded')
    """
    known = {"f": "female", "female": "female", "m": "male", "male": "male"}
    return known.get((sex or "").strip().lower(), "sex not recorded")


def about_history(instances: Instances, row: int) -> str:
    """Return sex, age band and number of visits of whom an instance row is about: no more than a stratum says."""
    place = instances.frame.row(row, named=True)
    age = instances.cohort.visits["age"][int(place["visit"])]
    band = banded(np.array([np.nan if age is None else float(age)]), AGES)[0]
    words = f"age {band}" if band != "not recorded" else "age not recorded"
    visits = int(place["visit"]) - int(place["first_visit"]) + 1
    sex = instances.cohort.patients["sex"][int(place["subject"])]
    return f"{sex_in_words(sex)}, {words}, {counted(visits, 'visit')}"


def differences_of(scene: Scene, row: int, other: int) -> tuple[str, ...]:
    """Say in what another person differs so much that a reader must know: sex, and more than ten years of age."""
    cohort, frame = scene.cohort, scene.instances.frame
    sexes = [sex_in_words(cohort.patients["sex"][int(frame["subject"][each])]) for each in (row, other)]
    ages = [cohort.visits["age"][int(frame["visit"][each])] for each in (row, other)]
    found = []
    if len(set(sexes)) > 1 and sex_in_words(None) not in sexes:
        found.append("another sex")
    if None not in ages and abs(ages[1] - ages[0]) > FAR_IN_YEARS:
        found.append(f"more than {FAR_IN_YEARS} years {'older' if ages[1] > ages[0] else 'younger'}")
    return tuple(found)


def person_of(scene: Scene, row: int, name: str, *, show_ids: bool = False) -> Person:
    """Return what may be said about the person behind an instance row: the visits that the instance may see."""
    instances, cohort = scene.instances, scene.cohort
    place = instances.frame.row(row, named=True)
    earlier = instances.history.filter(pl.col("instance") == row)["visit"].to_list()
    numbers = [*earlier, place["visit"]]
    visits = cohort.visits.select("visit", "admission_time", "discharge_time", "age")[numbers]
    admitted = visits["admission_time"].to_list()
    left = visits["discharge_time"].to_list()
    current = admitted[-1]
    # Where times of two visits cannot be compared, a number of days between them would be made up.
    timeless = bool(cohort.unordered) and len(numbers) > 1
    shown = tuple(
        VisitOnTimeline(
            number=number,
            day=None if start is None or current is None or timeless else (start.date() - current.date()).days,
            # The end of the current visit is after some predictions: only earlier stays are shown.
            stay=None if start is None or end is None or number == len(numbers) else max((end - start).days, 0),
            current=number == len(numbers),
        )
        for number, (start, end) in enumerate(zip(admitted, left, strict=True), start=1)
    )
    patient = cohort.patients.row(place["subject"], named=True)
    return Person(
        name=name,
        age=age_in_words(visits["age"][-1]),
        sex=sex_in_words(patient["sex"]),
        visits=shown,
        instance_id=printable(place["instance_id"]) if show_ids else None,
        subject_id=printable(patient["subject_id"]) if show_ids else None,
    )
