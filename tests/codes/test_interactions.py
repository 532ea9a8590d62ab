"""Tables of drug interactions: recognised, installed, named by the status, and read back."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from patients_like_me.codes.interactions import Interactions, parse_interactions
from patients_like_me.codes.status import status
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError


@pytest.fixture
def store(tmp_path: Path) -> CodeStore:
    return CodeStore(tmp_path / "codes")


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_pairs_and_covered_codes_are_installed(store: CodeStore, tmp_path: Path) -> None:
    assert Interactions.installed(store) is None
    pairs = write(
        tmp_path, "pairs.csv", "atc3_a,atc3_b,sources\nB03B,A01A,x\nA01A,B03B,y\nC07AB02,C09C,x\nA01A,A01A,x\nx,y,z\n"
    )
    report = store.add(pairs)
    assert [(part.table, part.entries, part.rows_without_value) for part in report.added] == [
        ("atc3_interactions", 2, 2)
    ]
    found = Interactions.installed(store)
    assert found is not None
    assert found.pairs == {("A01A", "B03B"), ("C07A", "C09C")}
    assert found.covered == {"A01A", "B03B", "C07A", "C09C"}
    store.add(write(tmp_path, "covered.json", '["seperator", "N02B", "A01A"]'))
    wider = Interactions.installed(store)
    assert wider is not None
    assert wider.covered == found.covered | {"N02B"}
    store.add(write(tmp_path, "covered.csv", "atc3\nZ99Z\nV03A\n"))
    assert store.entries("atc3_covered") == 4


def test_status_names_both_tables(store: CodeStore, tmp_path: Path) -> None:
    missing = {row.table: row for row in status(store)}
    assert not missing["atc3_interactions"].installed
    assert "atc3_a,atc3_b" in missing["atc3_interactions"].how_to_get
    assert "interaction" in missing["atc3_covered"].how_to_get
    store.add(write(tmp_path, "pairs.csv", "atc3_a,atc3_b\nA01A,B03B\n"))
    rows = {row.table: row for row in status(store)}
    assert rows["atc3_interactions"].installed
    assert rows["atc3_interactions"].entries == 1
    assert "pairs.csv" in rows["atc3_interactions"].source


def test_a_column_of_codes_beside_others_is_not_taken_for_covered_codes(store: CodeStore, tmp_path: Path) -> None:
    table = write(tmp_path, "other.csv", "atc3,price\nA01A,5\n")
    with pytest.raises(PlmError, match="not a code table that plm knows"):
        store.add(table)
    store.add(table, table="atc3_covered")
    assert store.entries("atc3_covered") == 1


def test_other_tables_are_still_what_they_were(store: CodeStore, tmp_path: Path) -> None:
    store.add(write(tmp_path, "ndc.csv", "ndc,atc3\n00002322930,N06BA\n"))
    assert store.entries("ndc_atc3") == 1
    assert store.entries("atc3_covered") == 0


@pytest.mark.parametrize(
    ("text", "table", "words"),
    [
        ("atc3_a,atc3_b\nx,y\n", None, "no row with a usable value"),
        ("a,b\n1,2\n", "atc3_interactions", "has no column for atc3_a and atc3_b"),
        ("[1, 2]", None, "other things than codes"),
        ('["N02B"', None, "not readable JSON"),
    ],
)
def test_useless_tables_are_refused(store: CodeStore, tmp_path: Path, text: str, table: str | None, words: str) -> None:
    with pytest.raises(PlmError, match=words):
        store.add(write(tmp_path, "table.csv", text), table=table)
    assert Interactions.installed(store) is None


def test_parquet_is_read_too(store: CodeStore, tmp_path: Path) -> None:
    pl.DataFrame({"atc3_a": ["A01A"], "atc3_b": ["B03B"]}).write_parquet(tmp_path / "pairs.parquet")
    store.add(tmp_path / "pairs.parquet")
    assert store.entries("atc3_interactions") == 1
    assert parse_interactions(pl.DataFrame({"x": ["A01A"]}), source=Path("x")) is None


def test_the_public_table_is_read(store: CodeStore, shared_data: Path) -> None:
    store.add(shared_data / "codes" / "atc3_ddi_pairs.csv")
    store.add(shared_data / "codes" / "gamenet_atc_vocab.json")
    found = Interactions.installed(store)
    assert found is not None
    assert len(found.pairs) == 467
    assert {"A01A", "N02B"} <= found.covered
    assert "seperator" not in found.covered
