"""Admissions, discharges and demographics of a MEDS dataset by their role, and what they say about each subject.

There are several such events for each visit. What their codes mean is asked once per code, and a role's events are
taken by their row numbers, so that no text is compared row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.plain_text import counted
from patients_like_me.records.cohort import DEMOGRAPHICS
from patients_like_me.records.event_rows import Numbers, run_starts
from patients_like_me.records.meds_events import KeptRows
from patients_like_me.records.source_files import SourceFolder
from patients_like_me.records.values import by_distinct_values, letter_of_sex

_TEXT: Final = pl.String()
#: Tells file and row of the first of some events.
PlaceOf = Callable[[pl.DataFrame], str]


class Skeleton:
    """The events that are no diagnosis, procedure or medication: those of a role in the order of its rules."""

    def __init__(self, kept: KeptRows) -> None:
        if not kept.skeleton:
            raise PlmError(
                f"the dialect '{kept.dialect.name}' finds no admissions in this dataset",
                remedy="look at the codes with --describe, and give another dialect with --set dialect=NAME or FILE",
            )
        self._rows = pl.concat(kept.skeleton, rechunk=True)
        self._rules = kept.dialect.rules
        rules = self._rows["rule"].to_numpy()
        # Small numbers are sorted by counting them.
        self._order = np.argsort(rules.astype(np.min_scalar_type(len(self._rules))), kind="stable")
        self._ends = np.searchsorted(rules[self._order], np.arange(len(self._rules)), side="right")
        stripped = pl.col("value").str.strip_chars()
        values = pl.DataFrame({"value": kept.parts.alias("value").replace({"": None})})
        unknown = list(kept.dialect.unknown)
        self._values = values.select(pl.when(~stripped.is_in(unknown)).then(stripped).alias("value"))["value"]

    @property
    def columns(self) -> list[str]:
        """The columns of events that were kept."""
        return self._rows.columns

    def of(self, role: str, *columns: str) -> pl.DataFrame:
        """Return subject, time, number of the code and ``value`` of a role's events, with ``died`` and more columns."""
        mine = [number for number, rule in enumerate(self._rules) if rule.role == role]
        starts = np.append(0, self._ends)
        rows = np.concatenate([np.empty(0, np.int64), *(self._order[starts[n] : self._ends[n]] for n in mine)])
        names = dict.fromkeys(("subject_id", "time", "code", *columns))
        events = self._rows.select(list(names))[rows]
        died = np.repeat(
            np.array([self._rules[n].died for n in mine], dtype=np.bool_),
            np.array([self._ends[n] - starts[n] for n in mine], dtype=np.int64),
        )
        value = self._values.gather(events["code"].cast(pl.UInt32))
        return events.with_columns(value, pl.Series("died", died))

    def subjects(self) -> pl.DataFrame:
        """Return the distinct subjects in the order of their numbers."""
        ids: Numbers = self._rows["subject_id"].to_numpy()
        # The events of a subject are mostly next to each other.
        return pl.DataFrame({"subject_id": np.unique(ids[run_starts(ids)])})


def subjects_of(skeleton: Skeleton, place_of: PlaceOf, source: SourceFolder) -> pl.DataFrame:
    """Return one row per subject: birth, death, sex, age and demographics; two sexes or births are refused."""
    subjects = skeleton.subjects()
    for role, column in (("birth", "time"), ("death", "time"), ("sex", "value")):
        of_role = skeleton.of(role)
        if role == "sex":
            of_role = of_role.with_columns(by_distinct_values(of_role["value"], letter_of_sex("value")))
        given = of_role.filter(pl.col(column).is_not_null()) if of_role[column].null_count() else of_role
        if column == "time" and (lost := of_role.height - given.height):
            source.notes.append(f"{counted(lost, 'event')} of a {role} without a time: not read")
        name = {"birth": "birth_time", "death": "death_time", "sex": "sex"}[role]
        first = given.select("subject_id", pl.col(column).alias(name))
        if not _each_once(given["subject_id"]):
            second = given.filter(pl.col(column) != pl.col(column).first().over("subject_id"))
            if several := second["subject_id"].n_unique():
                raise PlmError(
                    f"{place_of(second)}: {counted(several, 'subject has', 'subjects have')} more than one {role}",
                    remedy="keep the right event: two subjects may share one id",
                )
            first = first.unique("subject_id", keep="first")
        subjects = _with_values(subjects, first)
    for role in ("age", *DEMOGRAPHICS):
        given = skeleton.of(role).filter(pl.col("value").is_not_null())
        last = given.sort("time").group_by("subject_id").agg(pl.col("value").last().alias(role))
        subjects = _with_values(subjects, last)
    return subjects


def _each_once(ids: pl.Series) -> bool:
    """Tell whether no id is there twice; ids in ascending order, as in most datasets, are not searched."""
    numbers = ids.to_numpy()
    return bool((numbers[1:] > numbers[:-1]).all()) or ids.n_unique() == len(ids)


def _with_values(subjects: pl.DataFrame, given: pl.DataFrame) -> pl.DataFrame:
    """Add a column that has at most one value for each subject."""
    if given["subject_id"].equals(subjects["subject_id"]):
        return subjects.with_columns(given.drop("subject_id"))
    if given.is_empty():
        return subjects.with_columns(
            pl.lit(None, dtype=kind).alias(name) for name, kind in given.drop("subject_id").schema.items()
        )
    return subjects.join(given, on="subject_id", how="left", maintain_order="left")
