"""Texts and codes as numbers: nothing is mixed up, and a file holds what a frame would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tiny_forms import write_meds

from patients_like_me.codes.store import CodeStore
from patients_like_me.records import code_table, text_numbers
from patients_like_me.records.code_table import CodeTable
from patients_like_me.records.cohort import CODE_COLUMNS, Cohort
from patients_like_me.records.event_rows import NO_VISIT
from patients_like_me.records.meds_rows import CodedRows
from patients_like_me.records.prepare import prepare
from patients_like_me.records.source_files import SourceTable
from patients_like_me.records.text_numbers import NULL, TextNumbers


def test_two_texts_of_one_hash_are_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first two hashes, one is the same for all texts, the other for texts of one length."""

    def poor(texts: pl.Series, seed: int) -> np.ndarray:
        if seed == 0:
            return np.zeros(len(texts), dtype=np.uint64)
        if seed == 1:
            return texts.str.len_bytes().cast(pl.UInt64).to_numpy()
        return np.ascontiguousarray(texts.hash(seed).to_numpy())

    monkeypatch.setattr(text_numbers, "hashes_of", poor)
    numbers = TextNumbers()
    first = numbers.of(pl.Series(["a", "a", None]))
    assert first.tolist() == [0, 0, NULL]
    assert numbers.of(pl.Series(["a", "bb", "a"])).tolist() == [0, 1, 0]
    assert numbers.of(pl.Series(["cc", "bb", "dd", "a"])).tolist() == [2, 1, 3, 0]
    assert numbers.texts.to_list() == ["a", "bb", "cc", "dd"]


def test_many_texts_keep_their_numbers_while_the_table_grows() -> None:
    texts = pl.Series([f"text {number % 30_000}" for number in range(50_000)])
    numbers = TextNumbers()
    given = np.concatenate([numbers.of(texts[start : start + 7_000]) for start in range(0, len(texts), 7_000)])
    assert given.tolist() == [number % 30_000 for number in range(50_000)]
    assert numbers.texts.gather(given).equals(texts)


@pytest.mark.parametrize("some_time", [True, False])
def test_a_large_table_is_written_as_a_small_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, some_time: bool
) -> None:
    times = [5, None, 7] if some_time else [None] * 3
    given = pl.DataFrame(
        {"visit": [0, 2, 2], "code": ["ä", "108", "49"], "time": pl.Series(times, dtype=pl.Int64)}
    ).cast(CODE_COLUMNS)
    table = CodeTable.of(given)
    table.write(tmp_path / "small.parquet")
    monkeypatch.setattr(code_table, "_MANY", 0)
    table.write(tmp_path / "large.parquet")
    table.moved(np.array([-1, -1, 0])).write(tmp_path / "moved.parquet")
    for name in ("small", "large"):
        assert_frame_equal(pl.read_parquet(tmp_path / f"{name}.parquet"), given)
    moved = pl.read_parquet(tmp_path / "moved.parquet")
    assert_frame_equal(moved, given[1:].with_columns(visit=pl.lit(0, pl.UInt32)))
    CodeTable.of(given.clear()).write(tmp_path / "none.parquet")
    assert_frame_equal(pl.read_parquet(tmp_path / "none.parquet"), given.clear())


def test_events_of_meds_in_any_pieces_give_the_same_cohort(
    tmp_path: Path, store: CodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_meds(tmp_path / "meds")
    whole = prepare("meds", folder, tmp_path / "whole", store=store)
    batches = SourceTable.batches

    def small(self: SourceTable, rows: int = 2) -> Iterator[pl.DataFrame]:
        return batches(self, rows)

    monkeypatch.setattr(SourceTable, "batches", small)
    pieces = prepare("meds", folder, tmp_path / "pieces", store=store)
    assert pieces.about["hash"] == whole.about["hash"]
    assert pieces.about["rows_read"] == whole.about["rows_read"]
    assert Cohort.load(pieces.folder).codes["medication"].height > 0


@pytest.mark.parametrize("texts", [0, 1, 2, 3, 5])
def test_keys_of_any_number_of_texts_are_told_apart(texts: int) -> None:
    """Against a plain loop: a key is the code and those texts that the code uses."""
    generator = np.random.default_rng(texts)
    rows = 3_000
    codes = generator.integers(0, 6, rows).astype(np.uint32)
    columns = [generator.integers(0, 3, rows).astype(np.uint32) for _ in range(texts)]
    uses = generator.integers(0, 2, (6, texts)).astype(np.uint8)
    what = np.array([2, 2, 2, 2, 1, 0], dtype=np.int8)
    gathered = CodedRows(texts)
    subjects, times = np.zeros(rows, dtype=np.int64), np.arange(rows)
    ids = np.where(generator.random(rows) < 0.2, NO_VISIT, generator.integers(0, 40, rows))
    apart = gathered.add(subjects, ids, times, codes, columns, what, uses)
    assert apart.tolist() == np.flatnonzero(codes == 4).tolist()
    counts: dict[tuple[int, ...], int] = {}
    for row in np.flatnonzero(codes < 4):
        used = uses[codes[row]]
        key = (codes[row], *(column[row] if use else NULL for column, use in zip(columns, used, strict=True)))
        counts[key] = counts.get(key, 0) + 1
    assert [tuple(key) for key in gathered.keys().tolist()] == [tuple(map(int, key)) for key in counts]
    assert gathered.rows_of_key.tolist() == list(counts.values())
    _, _, rows_of_pairs = gathered.pairs()
    assert int(rows_of_pairs.sum()) + len(gathered.loose()[0]) == sum(counts.values())
