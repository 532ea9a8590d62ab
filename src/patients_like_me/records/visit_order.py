"""Visits in the order of patients and time: numbered by it, and with the admission that follows each.

Most tables are in this order already, which costs a look at neighbouring rows; the others are sorted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl


def is_in_order(visits: pl.DataFrame, subject: str = "subject_id") -> bool:
    """Tell whether visits are by patient and admission already, no two of a patient at once."""
    patient, time = pl.col(subject), pl.col("admission_time")
    later = (patient > patient.shift(1)) | ((patient == patient.shift(1)) & (time > time.shift(1)))
    has_all = visits["admission_time"].null_count() == 0 and visits[subject].null_count() == 0
    return has_all and bool(visits.select(later.slice(1).all()).item())


def rows_in_order(visits: pl.DataFrame, keys: Sequence[str]) -> pl.Series:
    """Return the rows by keys, the first of which is the patient and the first time the admission; nulls go last.

    The visits of a patient are mostly in order: then sorting by patient is enough, and nothing ties.

    >>> from datetime import datetime
    >>> times = [datetime(2100, 1, 2), datetime(2100, 1, 1), datetime(2100, 1, 1)]
    >>> visits = pl.DataFrame({"subject_id": ["b", "a", "b"], "admission_time": times, "visit_id": [1, 2, 3]})
    >>> rows_in_order(visits, ["subject_id", "admission_time", "visit_id"]).to_list()
    [1, 2, 0]
    """
    subject = keys[0]
    by_patient = visits.select(subject, "admission_time").with_row_index("row").sort(subject, maintain_order=True)
    if is_in_order(by_patient, subject):
        return by_patient["row"]
    return visits.select(pl.arg_sort_by(keys, nulls_last=True)).to_series()


def with_next_admission(visits: pl.DataFrame) -> pl.DataFrame:
    """Add when each patient was admitted next, before any filter hides that visit.

    >>> from datetime import datetime
    >>> days = [datetime(2100, 1, 9), datetime(2100, 1, 1)]
    >>> visits = pl.DataFrame({"subject_id": ["a", "a"], "admission_time": days})
    >>> with_next_admission(visits)["next_admission_time"].to_list()
    [None, datetime.datetime(2100, 1, 9, 0, 0)]
    """
    if is_in_order(visits):
        return visits.with_columns(_next_of_patient())
    ties = [name for name in ("discharge_time", "visit_id") if name in visits.columns]
    order = ["subject_id", "admission_time", *ties]
    rows = rows_in_order(visits, order)
    # Of a wide table only two columns are put in order; a next row of the same patient needs no window.
    following = visits.select("subject_id", "admission_time")[rows].select(_next_of_patient()).to_series()
    back = np.empty(len(rows), dtype=np.int64)
    back[rows.to_numpy()] = np.arange(len(rows))
    return visits.with_columns(following.gather(back))


def _next_of_patient() -> pl.Expr:
    same = pl.col("subject_id") == pl.col("subject_id").shift(-1)
    return pl.when(same).then(pl.col("admission_time").shift(-1)).alias("next_admission_time")


def ordered_visits(visits: pl.DataFrame, *, ties_in_order: bool = False) -> pl.DataFrame:
    """Number the visits by patient and time; a given order goes first, equal times are ordered by visit id.

    ``sequence`` is the place in that order; with ``ties_in_order`` visits of the same given order share one.

    >>> from datetime import datetime
    >>> visits = pl.DataFrame(
    ...     {
    ...         "subject_id": ["b", "a", "a"],
    ...         "visit_id": ["1", "3", "2"],
    ...         "order": [None, None, None],
    ...         "admission_time": [datetime(2100, 1, 1)] * 3,
    ...         "discharge_time": [None, None, datetime(2100, 1, 2)],
    ...     }
    ... )
    >>> ordered_visits(visits).select("visit", "subject_id", "visit_id", "position").rows()
    [(0, 'a', '2', 0), (1, 'a', '3', 1), (2, 'b', '1', 0)]
    """
    keys = ["subject_id", "order", "admission_time", "discharge_time", "visit_id"]
    ordered = visits
    if visits["order"].null_count() < visits.height:
        ordered = visits[visits.select(pl.arg_sort_by(keys, nulls_last=True)).to_series()]
    elif not is_in_order(visits):
        ordered = visits[rows_in_order(visits, keys)]
    number = pl.int_range(pl.len(), dtype=pl.UInt32)
    is_first = (pl.col("subject_id") != pl.col("subject_id").shift(1)).fill_null(True)
    first = pl.when(is_first).then(number).forward_fill()
    numbered = ordered.with_columns(number.alias("visit"), (number - first).alias("position"))
    place = pl.col("position")
    return numbered.with_columns(
        (place.min().over("subject_id", "order") if ties_in_order else place).alias("sequence")
    )
