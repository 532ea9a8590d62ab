"""Prescriptions to ATC-3: which way answers, and how far each chain reaches on real records."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest

from patients_like_me.codes.registry import CodeColumns, map_codes
from patients_like_me.codes.store import CodeStore
from patients_like_me.codes.systems.ndc import map_ndcs

NDC_THEN_NAME: CodeColumns = {"ndc": "ndc", "drug": "name"}
WAYS = ("ndc_rxnorm", "ndc_table", "name", "not_a_medicine", "unmapped")
MIT_TABLES = ("ndc11_to_rxcui_gamenet", "rxcui_to_atc3_graphcare")
PRESCRIPTIONS = {
    "MIMIC-III": "mimic3_demo/PRESCRIPTIONS.csv.gz",
    "MIMIC-IV": "mimic4_demo/hosp/prescriptions.csv.gz",
}


@dataclass(frozen=True)
class NameMatch:
    """What the table of names would answer."""

    kind: str
    atc3: tuple[str, ...] = ()


@pytest.fixture
def known_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a table of two names in the place of the real one, which has tests of its own."""
    answers = {
        "Insulin": NameMatch("medicine", ("A10A",)),
        "Metoprolol": NameMatch("medicine", ("C07A",)),
        "Percocet": NameMatch("medicine", ("N02B", "N02A")),
        "Syringe": NameMatch("not_a_medicine"),
    }

    def match_drug_names(names: Sequence[str]) -> list[NameMatch]:
        return [answers.get(name, NameMatch("unknown")) for name in names]

    module = ModuleType("patients_like_me.codes.drug_names")
    module.match_drug_names = match_drug_names  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "patients_like_me.codes.drug_names", module)


@pytest.fixture
def filled_store(store: CodeStore, tmp_path: Path) -> CodeStore:
    tables = {
        "a.csv": "ndc,rxcui\n00000000011,1\n00000000011,2\n00000000022,3\n",
        "b.csv": "rxcui,atc3\n1,C07A\n2,C07A\n2,C07B\n",
        "c.csv": "ndc,atc3\n00000000022,B01A\n00000000011,Z99Z\n",
    }
    for name, text in tables.items():
        (tmp_path / name).write_text(text)
        store.add(tmp_path / name)
    return store


def map_medications(frame: pl.DataFrame, store: CodeStore, *, use_names: bool = True) -> pl.DataFrame:
    return map_codes("medication", frame, NDC_THEN_NAME if use_names else {"ndc": "ndc"}, store)


def pairs(*rows: tuple[str | None, str | None]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"ndc": pl.String, "drug": pl.String}, orient="row")


@pytest.mark.usefixtures("known_names")
def test_the_first_way_that_answers_decides_alone(filled_store: CodeStore) -> None:
    frame = pairs(
        ("00000000011", "Metoprolol"),  # both RxCUIs united; neither the direct table nor the name is asked
        ("00000000022", "Insulin"),  # its RxCUI has no code: the direct table answers
        ("0", "Insulin"),
        ("99999999999", "Percocet"),
        (None, "Syringe"),
        ("", "Mystery"),
        (None, None),
    )
    mapped = map_medications(frame, filled_store)
    assert mapped.select("ndc", "drug").equals(frame)
    assert mapped.select("codes", "way").rows() == [
        (["C07A", "C07B"], "ndc_rxnorm"),
        (["B01A"], "ndc_table"),
        (["A10A"], "name"),
        (["N02A", "N02B"], "name"),
        ([], "not_a_medicine"),
        ([], "unmapped"),
        ([], "unmapped"),
    ]
    assert set(mapped["way"]) <= set(WAYS)


@pytest.mark.usefixtures("known_names")
def test_an_empty_store_leaves_everything_to_the_names(store: CodeStore) -> None:
    mapped = map_medications(pairs(("00000000011", "Metoprolol"), ("00000000011", "Mystery")), store)
    assert mapped["way"].to_list() == ["name", "unmapped"]


def test_without_names_only_the_ndc_is_asked(filled_store: CodeStore) -> None:
    mapped = map_medications(pairs(("0", "Insulin"), ("00000000022", "Insulin")), filled_store, use_names=False)
    assert mapped["way"].to_list() == ["unmapped", "ndc_table"]


def test_columns_beside_the_pair_stay(filled_store: CodeStore) -> None:
    frame = pairs(("00000000022", "x")).with_columns(rows=pl.lit(7))
    assert map_medications(frame, filled_store, use_names=False).columns == [
        "ndc",
        "drug",
        "rows",
        "codes",
        "way",
        "map",
    ]


def test_empty_pairs_give_an_empty_table_of_the_same_shape(filled_store: CodeStore) -> None:
    mapped = map_medications(pairs(), filled_store, use_names=False)
    assert mapped.height == 0
    assert mapped.schema["codes"] == pl.List(pl.String)


def prescribed_ndcs(shared_data: Path, source: str) -> pl.Series:
    frame = pl.read_csv(shared_data / PRESCRIPTIONS[source], infer_schema=False)
    return frame["ndc"].filter(frame["ndc"].fill_null("0") != "0")


@pytest.mark.parametrize(
    ("source", "rows", "mit", "mit_and_fda"),
    [("MIMIC-III", 8920, 89.2, 90.0), ("MIMIC-IV", 15456, 69.8, 87.1)],
)
def test_golden_coverage_of_the_ndc_chains(
    shared_data: Path, store: CodeStore, source: str, rows: int, mit: float, mit_and_fda: float
) -> None:
    ndcs = prescribed_ndcs(shared_data, source)
    assert ndcs.len() == rows

    def covered() -> float:
        answered = map_ndcs(ndcs.unique(), store)
        return round(100 * ndcs.is_in(answered["ndc"].to_list()).sum() / rows, 1)

    for table in MIT_TABLES:
        store.add(shared_data / "codes" / f"{table}.csv.gz")
    assert covered() == mit
    store.add(shared_data / "codes" / "ndc11_to_atc3_mit.csv.gz")
    assert covered() == mit  # the third MIT table answers no further NDC
    store.add(shared_data / "codes" / "fda_ndc11_rxcui_atc3_2020.csv.gz")
    assert covered() == mit_and_fda


def test_shared_tables_keep_several_codes_per_rxcui(shared_data: Path, store: CodeStore) -> None:
    store.add(shared_data / "codes" / "rxcui_to_atc3_graphcare.csv.gz")
    table = store.table("rxcui_atc3")
    assert table is not None
    per_key = table.group_by("rxcui").len()
    assert (per_key.height, per_key.filter(pl.col("len") > 1).height) == (119_026, 28_610)


@pytest.mark.parametrize(("source", "rows"), [("MIMIC-III", 201), ("MIMIC-IV", 99)])
def test_insulin_without_an_ndc_is_mapped_by_its_name(
    shared_data: Path, store: CodeStore, source: str, rows: int
) -> None:
    frame = pl.read_csv(shared_data / PRESCRIPTIONS[source], infer_schema=False)
    insulin = frame.filter((pl.col("ndc") == "0") & pl.col("drug").str.contains("(?i)insulin"))
    assert insulin.height == rows
    mapped = map_medications(insulin.select("ndc", "drug"), store)
    assert mapped.select("codes", "way").unique().rows() == [(["A10A"], "name")]
