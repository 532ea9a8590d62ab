"""The visit of each event of a MEDS dataset: the one that it names, else the one in whose time it falls."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import polars as pl

from patients_like_me.records.dialects.meds import Rule
from patients_like_me.records.event_rows import Numbers
from patients_like_me.records.event_visits import VisitClock


class VisitFinder:
    """Finds visits, which are numbered by their rows; a visit of another subject is never taken.

    ``is_of_others`` tells, after :meth:`named_rows`, which of the named visits are of another subject.
    """

    def __init__(self, visits: pl.DataFrame) -> None:
        self._visits = visits
        self._named = (
            visits.with_row_index("row")
            .filter(pl.col("given_id").is_not_null())
            .unique("given_id", keep="first", maintain_order=True)
            .select("given_id", pl.col("row").cast(pl.Int64), pl.col("subject_id").alias("of"))
        )
        self.is_of_others = np.zeros(0, dtype=np.bool_)

    def named_rows(self, subjects: Numbers, ids: Numbers, written: pl.Series | None) -> Numbers:
        """Return the rows of visits that are named by subject and id, or -1; ``written`` are the texts of ids."""
        given = pl.Series(ids) if written is None else written.gather(ids)
        given = given.cast(self._named["given_id"].dtype, strict=False)
        named = pl.DataFrame({"given_id": given, "subject": subjects}).join(
            self._named, on="given_id", how="left", maintain_order="left"
        )
        mine = named.select((pl.col("of") == pl.col("subject")).fill_null(False)).to_series().to_numpy()
        self.is_of_others = named["row"].is_not_null().to_numpy() & ~mine
        return np.where(mine, named["row"].fill_null(-1).to_numpy(), -1)

    @cached_property
    def _clock(self) -> VisitClock:
        return VisitClock.of(self._visits)

    def by_time(self, subjects: Numbers, times: Numbers, rule: Rule) -> Numbers:
        """Return the rows of the visits in whose time events fall, or -1; the rule says what a time means."""
        return self._clock.find(subjects, times, dated=rule.dated, hours_before=rule.hours_before)
