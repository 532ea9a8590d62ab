"""A changed byte anywhere in a cohort is found when the cohort is loaded."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.prepare import prepare

TABLES = ["patients", "visits", "diagnoses", "procedures", "medications", "vocabulary", "labels"]


@pytest.fixture
def folder(write_hospital: Callable[..., Path], store: CodeStore, tmp_path: Path) -> Path:
    return prepare("mimic4", write_hospital(), tmp_path / "cohort", store=store).folder


def flip(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


@pytest.mark.parametrize("table", TABLES)
def test_a_flipped_bit_in_a_table_is_found(folder: Path, table: str) -> None:
    path, draw = folder / f"{table}.parquet", random.Random(table)
    whole = path.read_bytes()
    for _ in range(20):
        flip(path, draw)
        with pytest.raises(PlmError, match=rf"'.*{table}\.parquet' is damaged"):
            Cohort.load(folder)
        path.write_bytes(whole)
    path.write_bytes(whole[:-1])
    with pytest.raises(PlmError, match=rf"'.*{table}\.parquet' is damaged"):
        Cohort.load(folder)
    path.unlink()
    with pytest.raises(PlmError, match=rf"lacks its file '{table}\.parquet'"):
        Cohort.load(folder)


@pytest.mark.parametrize("name", ["flow.json", "coverage.json", "flow.svg", "unmapped.parquet"])
def test_a_flipped_bit_beside_the_tables_is_found(folder: Path, name: str) -> None:
    flip(folder / name, random.Random(name))
    with pytest.raises(PlmError, match=rf"'.*{name}' is damaged"):
        Cohort.load(folder)


def test_a_flipped_bit_in_the_description_is_found(folder: Path) -> None:
    path, draw = folder / "cohort.json", random.Random(0)
    whole, loaded = path.read_bytes(), Cohort.load(folder)
    for _ in range(100):
        flip(path, draw)
        try:
            # A changed blank outside any text leaves the content as it was.
            assert Cohort.load(folder).about == loaded.about
        except PlmError as error:
            assert "cohort.json" in str(error) or "has format" in str(error)  # noqa: PT017
        path.write_bytes(whole)


def test_a_damaged_cohort_is_not_reused(
    folder: Path, write_hospital: Callable[..., Path], store: CodeStore, tmp_path: Path
) -> None:
    again = write_hospital("again")
    assert prepare("mimic4", again, folder, store=store).reused
    flip(folder / "visits.parquet", random.Random(1))
    with pytest.raises(PlmError, match=r"visits\.parquet' is damaged: .* --replace"):
        prepare("mimic4", again, folder, store=store)
    assert not prepare("mimic4", again, folder, store=store, replace=True).reused
    assert Cohort.load(folder).visits.height == 3
