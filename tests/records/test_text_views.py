"""Rows that share a text in memory have one number, and no two texts do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from patients_like_me.records import text_numbers
from patients_like_me.records.source_files import open_table
from patients_like_me.records.text_numbers import NULL, TextNumbers
from patients_like_me.records.text_views import places_of

LONG = "a text of more than twelve signs, number "


def texts_of(kind: str) -> pl.Series:
    """Return many rows: few short and long texts, some that differ in their last sign, missing ones, or all different."""
    rows = np.random.default_rng(0).integers(0, 50, 60_000)
    few = pl.Series(["", "x", "123456789012", "1234567890123", *(f"{LONG}{number}" for number in range(46))])
    return {
        "few": few.gather(rows),
        "part": few.gather(rows)[7:-9],
        "pieces": pl.concat([few.gather(rows[:30_000]), few.gather(rows[30_000:])], rechunk=False),
        "missing": pl.select(pl.when(pl.Series(rows) > 3).then(few.gather(rows))).to_series(),
        "different": pl.Series([f"{LONG}{number}" for number in range(60_000)]),
    }[kind]


@pytest.mark.parametrize("kind", ["few", "part", "pieces", "missing", "different"])
def test_numbers_are_those_of_the_hashes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, by_place, by_hash = texts_of(kind), TextNumbers(), TextNumbers()
    numbers = by_place.of(given)
    monkeypatch.setattr(text_numbers, "places_of", lambda _: None)
    assert numbers.tolist() == by_hash.of(given).tolist()
    assert by_place.texts.to_list() == by_hash.texts.to_list()
    missing = given.is_null().to_numpy()
    assert (numbers[missing] == NULL).all()
    assert (numbers[~missing] != NULL).all()


def test_few_rows_many_places_and_missing_texts_are_left_to_the_hashes() -> None:
    assert places_of(texts_of("few").head(100)) is None
    assert places_of(texts_of("different")) is None
    assert places_of(texts_of("missing")) is None


@pytest.mark.parametrize("group", [500, 7_000, 60_000])
def test_pieces_of_parquet_are_of_even_size_and_in_order(tmp_path: Path, group: int) -> None:
    path = tmp_path / "rows.parquet"
    pl.DataFrame({"row": np.arange(60_000)}).write_parquet(path, row_group_size=group)
    pieces = list(open_table(path, {"row": pl.Int64}).batches(rows=16_000))
    assert pl.concat(pieces)["row"].to_list() == list(range(60_000))
    assert all(4_000 <= piece.height <= 16_000 for piece in pieces[:-1])
