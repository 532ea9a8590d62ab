"""Visits that are in order already take a shorter way: it leads to what sorting leads to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from patients_like_me.records.readers.meds import _by_id_or_time, _one_for_one
from patients_like_me.records.source_files import SourceFolder, one_ahead
from patients_like_me.records.visit_order import is_in_order, ordered_visits, with_next_admission

_START = datetime(2150, 1, 1)


def _visits(*, ties: bool = False, undated: bool = False) -> pl.DataFrame:
    """Return six visits of each of five patients, of which some begin at once or have no time."""
    rows = [
        {
            "subject_id": f"p{patient}",
            "visit_id": f"v{patient}{visit}",
            "order": None,
            "admission_time": None if undated and visit == 2 else _START + timedelta(days=visit // (2 if ties else 1)),
            "discharge_time": _START + timedelta(days=10 - visit),
        }
        for patient in range(5)
        for visit in range(6)
    ]
    schema = {"order": pl.Int64, "admission_time": pl.Datetime("us"), "discharge_time": pl.Datetime("us")}
    return pl.DataFrame(rows, schema_overrides=schema)


@pytest.mark.parametrize("odd", [{}, {"ties": True}, {"undated": True}])
def test_the_order_of_the_rows_does_not_matter(odd: dict[str, bool]) -> None:
    visits = _visits(**odd)
    assert is_in_order(visits) is not bool(odd)
    wanted = ordered_visits(with_next_admission(visits.reverse()))
    for given in (visits, visits.sample(fraction=1, shuffle=True, seed=3), visits.sort("admission_time")):
        assert ordered_visits(with_next_admission(given)).equals(wanted)


def test_a_given_order_goes_before_the_times() -> None:
    visits = _visits().with_columns(order=pl.lit(9) - pl.col("visit_id").str.tail(1).cast(pl.Int64))
    assert ordered_visits(visits)["visit_id"].head(6).to_list() == ["v05", "v04", "v03", "v02", "v01", "v00"]


def test_one_admission_and_one_discharge_of_an_id_are_paired_as_any_others_are(tmp_path: Path) -> None:
    numbers = pl.int_range(6, eager=True)
    admissions = pl.DataFrame({"subject_id": numbers // 2, "time": numbers, "given_id": numbers + 70})
    discharges = admissions.with_columns(pl.col("time") + 1, died=pl.col("time") == 3).reverse()
    source = SourceFolder((tmp_path,), "MEDS")
    paired = _one_for_one(admissions, discharges)
    assert paired is not None
    assert paired.equals(_by_id_or_time(admissions, discharges, source).select(paired.columns))
    other = pl.col("given_id") == 72
    for odd in (
        discharges.head(5),
        discharges.with_columns(given_id=pl.when(other).then(71).otherwise("given_id")),
        discharges.with_columns(subject_id=pl.when(other).then(0).otherwise("subject_id")),
        discharges.with_columns(given_id=pl.when(~other).then("given_id")),
    ):
        assert _one_for_one(admissions, odd) is None


def test_what_fails_a_piece_ahead_fails_where_the_piece_is_wanted() -> None:
    def pieces() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("the third is damaged")

    coming = one_ahead(pieces())
    assert [next(coming), next(coming)] == [1, 2]
    with pytest.raises(ValueError, match="third"):
        next(coming)
