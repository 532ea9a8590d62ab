"""The record of how much a code map covered."""

from __future__ import annotations

import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patients_like_me.codes.coverage import MapCoverage, measure_coverage
from patients_like_me.errors import PlmError

WAYS = ("ndc_rxnorm", "ndc_table", "name", "not_a_medicine", "unmapped")
MAPPED = pl.DataFrame(
    {
        "drug": ["a", "b", "c", "d", "d", None],
        "way": ["ndc_rxnorm", "name", "not_a_medicine", "unmapped", "unmapped", "unmapped"],
        "rows": [50, 30, 12, 3, 1, 4],
    }
)


def test_ways_are_counted_and_what_is_no_medicine_is_set_apart() -> None:
    coverage = measure_coverage("drug -> ATC-3", MAPPED, code="drug", set_apart={"not_a_medicine"})
    assert coverage.rows == 100
    assert coverage.mapped_by_way == {"name": 30, "ndc_rxnorm": 50}
    assert coverage.set_apart == {"not_a_medicine": 12}
    assert coverage.unmapped == (("(blank)", 4), ("d", 4))
    assert coverage.share == 80 / 88


def test_json_keeps_counts_and_the_most_frequent_only() -> None:
    codes = [f"c{number:03}" for number in range(50)]
    frame = pl.DataFrame({"code": codes, "way": "unmapped", "rows": range(1, 51)})
    coverage = measure_coverage("ICD -> CCS", frame, code="code")
    content = json.loads(json.dumps(coverage.as_json()))
    assert content["codes_unmapped"] == 50
    assert len(content["most_frequent_unmapped"]) == 20
    assert content["most_frequent_unmapped"][0] == {"code": "c049", "rows": 50}
    assert content["share"] == 0
    assert len(coverage.unmapped) == 50
    assert sum(rows for _, rows in coverage.unmapped) == coverage.rows_unmapped == content["rows_unmapped"]


def test_no_rows_have_no_share() -> None:
    empty = measure_coverage("ICD -> CCS", MAPPED.clear(), code="drug")
    assert (empty.rows, empty.share, empty.as_json()["share"]) == (0, None, None)
    assert empty.unmapped == ()


def test_counts_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ValueError, match="8 rows are accounted for, but there are 9"):
        MapCoverage("x", 9, {"table": 8})


def test_a_frame_that_was_not_mapped_is_named() -> None:
    with pytest.raises(PlmError, match="needs the columns way; map the codes first"):
        measure_coverage("x", MAPPED.drop("way"), code="drug")


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(WAYS), st.integers(1, 1000)), max_size=30))
def test_every_row_is_counted_once(rows: list[tuple[str, str, int]]) -> None:
    frame = pl.DataFrame(rows, schema={"code": pl.String, "way": pl.String, "rows": pl.Int64}, orient="row")
    coverage = measure_coverage("any", frame, code="code")
    apart = sum(coverage.set_apart.values())
    assert coverage.rows_mapped + coverage.rows_unmapped + apart == coverage.rows == sum(row[2] for row in rows)
    counts = [count for _, count in coverage.unmapped]
    assert counts == sorted(counts, reverse=True)
