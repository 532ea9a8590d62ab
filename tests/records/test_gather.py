"""Gathering codes batch by batch equals a plain loop over the rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from patients_like_me.codes import registry
from patients_like_me.codes.registry import CodeSystem, Kind
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.records.events import EventStream, gather_codes
from patients_like_me.records.source_files import SourceTable, open_table


def codes_of_key(key: str | None) -> list[str]:
    """Map a key to no, one or two codes, as drugs do."""
    if key is None or key.endswith("0"):
        return []
    number = int(key.removeprefix("key "))
    return sorted({f"C{number % 7}", f"C{number % 3}"})


def map_keys(kind: Kind, keys: pl.Series, store: CodeStore) -> pl.DataFrame:
    codes = [codes_of_key(key) for key in keys.to_list()]
    ways = ["unmapped" if not entry else "table" for entry in codes]
    return pl.DataFrame({"codes": pl.Series(codes, dtype=pl.List(pl.String)), "way": ways})


@pytest.fixture(autouse=True)
def a_system_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    system = CodeSystem("keys", {"diagnosis": "keys"}, map_keys, target="letters")
    monkeypatch.setattr(registry, "all_code_systems", lambda: {"keys": system})


def stream_of(path: Path, visit_type: type[pl.DataType]) -> EventStream:
    table = open_table(path, {"visit_id": visit_type, "time": pl.String, "code": pl.String})
    return EventStream("diagnosis", table, {"code": "keys"})


@pytest.mark.parametrize("visit_type", [pl.Int64, pl.String])
@pytest.mark.parametrize("in_runs", [True, False])
def test_many_batches_equal_a_plain_loop(
    tmp_path: Path, store: CodeStore, monkeypatch: pytest.MonkeyPatch, visit_type: type[pl.DataType], in_runs: bool
) -> None:
    generator = np.random.default_rng(3)
    visits = generator.integers(0, 60, 3_000)
    visits = np.sort(visits) if in_runs else visits
    keys = [None if n == 0 else f"key {n}" for n in generator.integers(0, 200, 3_000)]
    start = datetime(2150, 1, 1)
    times = [None if n % 9 == 0 else start + timedelta(minutes=int(n)) for n in generator.integers(0, 10_000, 3_000)]
    lines = [f"{1_000 + visit},{time or ''},{key or ''}" for visit, time, key in zip(visits, times, keys, strict=True)]
    path = tmp_path / "events.csv"
    path.write_text("\n".join(["visit_id,time,code", *lines]) + "\n")
    plain: dict[tuple[int, str], datetime | None] = {}
    for visit, time, key in zip(visits.tolist(), times, keys, strict=True):
        for code in codes_of_key(key) if visit < 50 else []:
            known = plain.get((visit, code))
            plain[visit, code] = time if known is None else known if time is None else min(known, time)
    index = pl.DataFrame({"visit_id": [1_000 + n for n in range(50)], "visit": range(50)}).cast(
        {"visit_id": visit_type, "visit": pl.UInt32}
    )
    whole = SourceTable.batches

    def small(self: SourceTable, rows: int = 170) -> Iterator[pl.DataFrame]:
        return whole(self, rows)

    monkeypatch.setattr(SourceTable, "batches", small)
    gathered = gather_codes(stream_of(path, visit_type), index.sample(fraction=1, shuffle=True, seed=1), store)
    assert gathered.codes.frame().rows() == [(visit, code, plain[visit, code]) for visit, code in sorted(plain)]
    assert gathered.rows == 3_000
    assert gathered.rows_without_visit == int((visits >= 50).sum())
    assert gathered.coverage[0].rows == 3_000 - gathered.rows_without_visit


def test_an_event_time_of_another_form_is_refused(tmp_path: Path, store: CodeStore) -> None:
    """Taken for missing it would count as known at any time, so it must not pass."""
    path = tmp_path / "events.csv"
    path.write_text("visit_id,time,code\n1,2150-01-01 10:00:00,key 1\n1,01/02/2150,key 2\n")
    index = pl.DataFrame({"visit_id": [1], "visit": [0]}, schema_overrides={"visit": pl.UInt32})
    with pytest.raises(PlmError, match=r"events\.csv'.*99/99/9999.* is not a time"):
        gather_codes(stream_of(path, pl.Int64), index, store)
