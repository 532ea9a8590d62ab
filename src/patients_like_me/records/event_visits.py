"""Visits of sources that have events and no visits: rebuilt from admissions and discharges, and found by time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.records.code_table import NO_TIME
from patients_like_me.records.event_rows import Numbers, run_starts

_SECOND: Final = 1_000_000
_DAY: Final = 86_400
#: Seconds are counted from here, so that the seconds of any year between 1 and 4100 are positive and of 37 bits.
_ORIGIN: Final = 1 << 36
_BITS: Final = 37


def paired_visits(openings: pl.DataFrame, closings: pl.DataFrame) -> pl.DataFrame:
    """Give each admission its discharge: ``subject_id, time`` of both become ``admission_time, discharge_time``.

    The first admission of a patient goes with the first discharge and so on, where each discharge falls between two
    admissions. For other patients an admission is paired with a discharge that directly follows it in time; the rest
    of the admissions have no discharge. Other columns are kept, ``died`` is that of the discharge.

    >>> from datetime import datetime
    >>> one = pl.DataFrame({"subject_id": [1, 1], "time": [datetime(2100, 1, 1), datetime(2100, 2, 1)]})
    >>> two = pl.DataFrame({"subject_id": [1], "time": [datetime(2100, 2, 3)], "died": [False]})
    >>> paired_visits(one, two)["discharge_time"].to_list()
    [None, datetime.datetime(2100, 2, 3, 0, 0)]
    """
    opened = openings.sort("subject_id", "time", maintain_order=True).with_columns(
        pl.int_range(pl.len()).over("subject_id").alias("place"), pl.len().over("subject_id").alias("of")
    )
    closed = closings.sort("subject_id", "time", maintain_order=True).select(
        "subject_id",
        pl.col("time").alias("discharge_time"),
        "died",
        pl.int_range(pl.len()).over("subject_id").alias("place"),
        pl.len().over("subject_id").alias("ends"),
    )
    by_place = opened.join(closed, on=["subject_id", "place"], how="left", maintain_order="left")
    following = pl.col("time").shift(-1).over("subject_id")
    fits = (
        (pl.col("of") == pl.col("ends"))
        & (pl.col("time") <= pl.col("discharge_time"))
        & (pl.col("discharge_time") <= following).fill_null(True)
    )
    by_place = by_place.with_columns(fits.fill_null(False).all().over("subject_id").alias("fits"))
    clean = by_place.filter("fits")
    others = opened.join(clean.select("subject_id").unique(), on="subject_id", how="anti", maintain_order="left")
    odd = _followed(others, closed.join(clean.select("subject_id").unique(), on="subject_id", how="anti"))
    kept = [*openings.columns, "discharge_time", "died"]
    return (
        pl.concat([clean.select(kept), odd.select(kept)])
        .rename({"time": "admission_time"})
        .with_columns(pl.col("died").fill_null(False))
        .sort("subject_id", "admission_time", maintain_order=True)
    )


def _followed(opened: pl.DataFrame, closed: pl.DataFrame) -> pl.DataFrame:
    """Pair each admission with the discharge that comes next, unless another admission comes before it."""
    events = pl.concat(
        [
            opened.with_columns(pl.lit(True).alias("opens")),
            closed.select(
                "subject_id",
                pl.col("discharge_time").alias("time"),
                "discharge_time",
                "died",
                pl.lit(False).alias("opens"),
            ),
        ],
        how="diagonal",
    ).sort("subject_id", "time", "opens", maintain_order=True)
    mine = (pl.col("subject_id") == pl.col("subject_id").shift(-1)) & ~pl.col("opens").shift(-1)
    return events.with_columns(
        pl.when(mine).then(pl.col("discharge_time").shift(-1)).alias("discharge_time"),
        pl.when(mine).then(pl.col("died").shift(-1)).alias("died"),
    ).filter("opens")


@dataclass(frozen=True)
class VisitClock:
    """Finds the visit of an event by patient and time, to the second; visits are numbered by their rows.

    >>> from datetime import datetime
    >>> days = {"admission_time": [datetime(2100, 1, 3, 8)], "discharge_time": [datetime(2100, 1, 5)]}
    >>> clock = VisitClock.of(pl.DataFrame({"subject_id": [7], **days}))
    >>> times = pl.Series([datetime(2100, 1, 3), datetime(2100, 1, 4), datetime(2100, 1, 6)]).cast(pl.Int64).to_numpy()
    >>> clock.find(np.array([7, 7, 7]), times).tolist(), clock.find(np.array([7, 7, 7]), times, dated="day").tolist()
    ([-1, 0, -1], [0, 0, -1])
    """

    subjects: Numbers
    keys: Numbers
    begins: Numbers
    ends: Numbers
    rows: Numbers
    #: For powers of two, the visit so many steps out; a step leads to the nearest earlier one that ends later.
    outer: tuple[Numbers, ...]

    @classmethod
    def of(cls, visits: pl.DataFrame) -> VisitClock:
        """Take the times of visits; one without a discharge lasts until the next admission, or for ever."""
        ordered = visits.with_row_index("row").sort("subject_id", "admission_time", "discharge_time")
        following = pl.col("admission_time").shift(-1).over("subject_id")
        ordered = ordered.with_columns(pl.coalesce("discharge_time", following).alias("end"))
        subjects = ordered["subject_id"].unique().sort().to_numpy()
        begins = _seconds(ordered["admission_time"].cast(pl.Int64).to_numpy())
        rank = np.searchsorted(subjects, ordered["subject_id"].to_numpy())
        ends = _seconds(ordered["end"].cast(pl.Int64).fill_null(NO_TIME).to_numpy())
        return cls(
            subjects=subjects,
            keys=(rank << _BITS) | (begins + _ORIGIN),
            begins=begins,
            ends=ends,
            rows=ordered["row"].to_numpy().astype(np.int64),
            outer=_outer_visits(rank, ends),
        )

    def find(self, subjects: Numbers, times: Numbers, *, dated: str = "moment", hours_before: int = 0) -> Numbers:
        """Return the row of each event's visit, or -1; times are microseconds, NO_TIME where missing.

        An event belongs to the last visit that has begun by then and not ended: after a visit that lies within another
        one it belongs to the outer one again. ``dated`` says what a time means: a ``moment``; a whole ``day`` where the
        time is midnight; or the ``discharge``, which goes to the visit that ends at that second even if another begins
        then. ``hours_before`` lets an event between two visits
        belong to the next one.
        """
        if not len(self.rows) or not len(subjects):
            return np.full(len(subjects), -1, dtype=np.int64)
        starts = run_starts(subjects)
        heads = subjects[starts]
        place = np.minimum(np.searchsorted(self.subjects, heads), len(self.subjects) - 1)
        place[self.subjects[place] != heads] = -1
        rank = np.repeat(place, np.diff(np.append(starts, len(subjects))))
        seconds = _seconds(times)
        timed = (rank >= 0) & (times != NO_TIME)
        found = self._within(rank, seconds, seconds, timed)
        if dated == "discharge":
            begun_now = (found > 0) & (self.begins[found] == seconds)
            earlier = self._open_at(np.where(begun_now, found - 1, -1), seconds)
            same = (self.keys[earlier] >> _BITS) == rank
            ended_now = (earlier >= 0) & same & (self.ends[earlier] == seconds)
            found = np.where(ended_now, earlier, found)
        if dated == "day":
            open_ones = timed & (found < 0) & (seconds % _DAY == 0)
            found = np.where(open_ones, self._within(rank, seconds + _DAY - 1, seconds, open_ones), found)
        if hours_before:
            open_ones = timed & (found < 0)
            found = np.where(open_ones, self._within(rank, seconds + 3600 * hours_before, None, open_ones), found)
            # The visit that has begun by then must begin after the event.
            found = np.where(open_ones & (found >= 0) & (self.begins[found] < seconds), -1, found)
        return np.where(found >= 0, self.rows[found], -1)

    def _within(self, rank: Numbers, until: Numbers, since: Numbers | None, wanted: npt.NDArray[np.bool_]) -> Numbers:
        """Return the last visit that begins by ``until`` and does not end before ``since``; -1 where there is none."""
        found = np.full(len(rank), -1, dtype=np.int64)
        place = np.flatnonzero(wanted)
        keys = (rank[place] << _BITS) | (until[place] + _ORIGIN)
        heads = run_starts(keys)
        last = np.searchsorted(self.keys, keys[heads], side="right") - 1
        last = np.repeat(last, np.diff(np.append(heads, len(keys))))
        last[(last >= 0) & ((self.keys[last] >> _BITS) != rank[place])] = -1
        found[place] = last if since is None else self._open_at(last, since[place])
        return found

    def _open_at(self, visits: Numbers, since: Numbers) -> Numbers:
        """Return the visits, or the nearest outer one of each, that do not end before ``since``; -1 where none does."""
        current = visits.copy()
        ended = np.flatnonzero((visits >= 0) & (self.ends[visits] < since))
        at, since = visits[ended], since[ended]
        # Ends grow with every step: the last visit that ended too early is found bit by bit, and one more step is good.
        for steps in reversed(self.outer):
            further = steps[at]
            at = np.where((further >= 0) & (self.ends[further] < since), further, at)
        current[ended] = self.outer[0][at] if self.outer else -1
        return current


def _outer_visits(rank: Numbers, ends: Numbers) -> tuple[Numbers, ...]:
    """Return for steps of 1, 2, 4 ... the visit of the patient that is reached by going to earlier ones that end later.

    >>> [steps.tolist() for steps in _outer_visits(np.array([0, 0, 0, 1]), np.array([9, 5, 3, 2]))]
    [[-1, 0, 1, -1], [-1, -1, 0, -1]]
    """
    latest = pl.DataFrame({"rank": rank, "end": ends}).select(pl.col("end").cum_max().over("rank"))["end"].to_numpy()
    inner = np.flatnonzero(latest > ends)
    if not len(inner):
        return ()
    above, end = [-1] * len(ends), ends.tolist()
    for visit in inner.tolist():
        outer = visit - 1
        while end[outer] <= end[visit]:
            outer = above[outer]
        above[visit] = outer
    steps = [np.array(above, dtype=np.int64)]
    while True:
        further = np.where(steps[-1] >= 0, steps[-1][steps[-1]], -1)
        if (further < 0).all():
            return tuple(steps)
        steps.append(further)


def _seconds(times: Numbers) -> Numbers:
    return np.asarray(times) // _SECOND
