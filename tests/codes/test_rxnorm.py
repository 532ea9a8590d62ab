"""RxNorm releases and two-column tables: NDC to RxCUI to ATC-3."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patients_like_me.codes.drug_tables import normalised_ndc, parse_drug_table
from patients_like_me.codes.rxnorm import atc3_by_name, find_release, read_release
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError

Writer = Callable[..., Path]


def atc3_of(store: CodeStore, ndc: str) -> list[str]:
    to_rxcui, to_atc3 = store.table("ndc_rxcui"), store.table("rxcui_atc3")
    assert to_rxcui is not None
    assert to_atc3 is not None
    return sorted(to_rxcui.filter(pl.col("ndc") == ndc).join(to_atc3, on="rxcui")["atc3"])


EXPECTED = {
    "00406055201": ["N02A"],
    "63481062370": ["N02A", "N02B"],
    "00186109005": ["C07A"],
    "00093008901": ["J01E"],
    "63323016501": ["H02A", "S01B"],
    "00054817425": ["H02A", "N02A", "N02B", "S01B"],
    "11111222233": [],
}


def test_release_folder_leads_from_ndc_to_the_atc_of_the_ingredients(
    tmp_path: Path, store: CodeStore, write_release: Writer
) -> None:
    report = store.add(write_release(tmp_path / "RxNorm_full"))
    assert {ndc: atc3_of(store, ndc) for ndc in EXPECTED} == EXPECTED
    assert [part.table for part in report.added] == ["ndc_rxcui", "rxcui_atc3"]
    assert store.entries("ndc_rxcui") == 7  # the row of the source VANDF is not taken


def test_release_zip_is_the_same_and_the_prescribable_copy_is_left(
    tmp_path: Path, store: CodeStore, write_release: Writer, zip_release: Writer
) -> None:
    folder = write_release(tmp_path / "release")
    store.add(zip_release(folder, tmp_path / "RxNorm_full_01012026.zip"))
    other = CodeStore(tmp_path / "other")
    other.add(folder)
    for table in ("ndc_rxcui", "rxcui_atc3"):
        first, second = store.table(table), other.table(table)
        assert first is not None
        assert first.equals(second)  # type: ignore[arg-type]


def test_combination_with_codes_of_its_own_takes_only_those(tmp_path: Path, write_release: Writer) -> None:
    release = read_release(find_release(write_release(tmp_path / "release")))
    codes = release.tables[1].frame
    assert codes.filter(pl.col("rxcui") == "198335")["atc3"].to_list() == ["J01E"]


def test_no_way_leads_through_a_brand_name(tmp_path: Path, write_release: Writer) -> None:
    # The brand 42844 is also a trade name of dexamethasone; the product must not inherit that.
    codes = read_release(find_release(write_release(tmp_path / "release"))).tables[1].frame
    assert codes.filter(pl.col("rxcui") == "1049640")["atc3"].to_list() == ["N02A", "N02B"]
    assert codes.filter(pl.col("rxcui") == "42844")["atc3"].to_list() == ["H02A", "N02B", "S01B"]


def test_without_relations_the_names_lead_to_the_ingredients(
    tmp_path: Path, store: CodeStore, write_release: Writer
) -> None:
    report = store.add(write_release(tmp_path / "release", relations=False))
    # The pack's oxycodone is only in the relation: its name has dexamethasone and acetaminophen.
    by_name = EXPECTED | {"00054817425": ["H02A", "N02B", "S01B"]}
    assert {ndc: atc3_of(store, ndc) for ndc in EXPECTED} == by_name
    assert any("no RXNREL.RRF" in note for note in report.notes)


def test_prescribable_release_gives_ndcs_and_says_that_atc_is_missing(
    tmp_path: Path, store: CodeStore, write_release: Writer
) -> None:
    report = store.add(write_release(tmp_path / "release", atc=False))
    assert store.table("rxcui_atc3") is None
    assert store.entries("ndc_rxcui") == 7
    assert any("no ATC codes" in note for note in report.notes)


def test_release_without_ndcs_says_so(tmp_path: Path, store: CodeStore, write_release: Writer) -> None:
    report = store.add(write_release(tmp_path / "release", ndcs=False))
    assert [part.table for part in report.added] == ["rxcui_atc3"]
    assert any("no NDC" in note for note in report.notes)


def test_release_with_neither_is_refused(tmp_path: Path, store: CodeStore, write_release: Writer) -> None:
    folder = write_release(tmp_path / "release", ndcs=False, atc=False)
    with pytest.raises(PlmError, match="neither NDCs nor ATC codes; give the full monthly release"):
        store.add(folder)
    assert not store.folder.exists()


def test_file_with_other_columns_is_one_sentence(tmp_path: Path, store: CodeStore, write_release: Writer) -> None:
    folder = write_release(tmp_path / "release")
    (folder / "rrf" / "RXNSAT.RRF").write_text("a|b|c\n")
    with pytest.raises(PlmError, match=r"RXNSAT.RRF' is not the table RXNSAT.RRF as NLM writes it"):
        store.add(folder)
    assert not store.folder.exists()


@pytest.mark.parametrize(
    ("product", "found"),
    [
        ("0.4 ML enoxaparin sodium 100 MG/ML Prefilled Syringe [Lovenox]", {"B01A"}),
        ("potassium chloride 20 MEQ Extended Release Oral Tablet", {"A12B"}),
        ("insulin, regular, human 100 UNT/ML Injectable Solution", {"A10A"}),
        ("nothing known 5 MG", set()),
        ("", set()),
        ("500 MG", set()),
    ],
)
def test_ingredients_in_product_names(product: str, found: set[str]) -> None:
    names = {
        "enoxaparin": frozenset({"B01A"}),
        "potassium": frozenset({"XXXX"}),
        "potassium chloride": frozenset({"A12B"}),
        "insulin, regular, human": frozenset({"A10A"}),
    }
    assert atc3_by_name(product, names) == found


def write_table(path: Path, text: str) -> Path:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif path.suffix == ".parquet":
        pl.read_csv(text.encode(), infer_schema=False).write_parquet(path)
    else:
        path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("file", "text", "table", "rows"),
    [
        ("a.csv", "ndc11,rxcui\n00002322930,207882\n", "ndc_rxcui", [("00002322930", "207882")]),
        (
            "a.csv.gz",
            "RxCUI,ATC4\n207882,N06BA\n207882,C02A\n",
            "rxcui_atc3",
            [("207882", "C02A"), ("207882", "N06B")],
        ),
        (
            "a.tsv",
            "NDC\tATC\n0002-3229-30\tN06BA09;C02AC\n",
            "ndc_atc3",
            [("00002322930", "C02A"), ("00002322930", "N06B")],
        ),
        ("a.parquet", "name,ndc,atc3\nx,00002322930,N06B\n", "ndc_atc3", [("00002322930", "N06B")]),
        (
            "a.txt",
            "\ufeffNDC;RXNORM\r\n00002322930;0207882\r\n0;1\r\n",
            "ndc_rxcui",
            [("00002322930", "207882")],
        ),
        (
            "a.csv",
            '"ndc","atc3"\n"00002322930","N06B|C02A"\n',
            "ndc_atc3",
            [("00002322930", "C02A"), ("00002322930", "N06B")],
        ),
    ],
)
def test_two_column_tables_are_recognised_by_their_header(
    tmp_path: Path, store: CodeStore, file: str, text: str, table: str, rows: list[tuple[str, str]]
) -> None:
    store.add(write_table(tmp_path / file, text))
    frame = store.table(table)
    assert frame is not None
    assert frame.rows() == rows


def test_three_columns_say_two_things_of_each_ndc(tmp_path: Path, store: CodeStore) -> None:
    path = write_table(tmp_path / "own.csv", "ndc,rxcui,atc3\n00002322930,207882,N06B\n00002322931,5,\n")
    report = store.add(path)
    assert [(part.table, part.rows, part.rows_without_value) for part in report.added] == [
        ("ndc_rxcui", 2, 0),
        ("ndc_atc3", 1, 1),
    ]
    assert store.table("rxcui_atc3") is None
    store.add(path, table="rxcui_atc3")
    assert store.table("rxcui_atc3").rows() == [("207882", "N06B")]  # type: ignore[union-attr]


def test_numbers_in_parquet_get_their_leading_zeros_back(tmp_path: Path, store: CodeStore) -> None:
    path = tmp_path / "own.parquet"
    pl.DataFrame({"ndc": [2322930], "atc3": [["N06BA", "C02A"]]}).write_parquet(path)
    store.add(path)
    assert store.table("ndc_atc3").rows() == [("00002322930", "C02A"), ("00002322930", "N06B")]  # type: ignore[union-attr]


def test_table_without_usable_rows_is_refused() -> None:
    raw = pl.DataFrame({"ndc": ["0", "abc"], "atc": ["N06B", "N06B"]})
    with pytest.raises(PlmError, match="no row with a usable value in both 'ndc' and 'atc'"):
        parse_drug_table(raw, source=Path("own.csv"))


def test_asking_for_a_table_whose_columns_are_not_there_names_them() -> None:
    with pytest.raises(PlmError, match=r"no column for rxcui; it has ndc, atc3; name the columns ndc and rxcui"):
        parse_drug_table(pl.DataFrame({"ndc": [], "atc3": []}), source=Path("own.csv"), table="ndc_rxcui")


def normal(ndc: str | None) -> str | None:
    frame = pl.DataFrame({"ndc": [ndc]}, schema={"ndc": pl.String})
    value: str | None = frame.select(normalised_ndc(pl.col("ndc"))).item()
    return value


@pytest.mark.parametrize(
    ("given_ndc", "expected"),
    [
        ("12345-6789-01", "12345678901"),
        ("1234-5678-90", "01234567890"),
        ("12345-678-90", "12345067890"),
        ("12345-6789-0", "12345678900"),
        ("12345-678-9", None),
        ("12345-6789", None),
        (" 12345678901 ", "12345678901"),
        ("012345678901", "12345678901"),
        ("112345678901", None),
        ("1234567890", None),
        ("12345678901.0", "12345678901"),
        ("00000000000", None),
        ("0.0", None),
        ("-", None),
        (None, None),
    ],
)
def test_ndc_formats(given_ndc: str | None, expected: str | None) -> None:
    assert normal(given_ndc) == expected


@given(st.from_regex(r"[0-9]{11}", fullmatch=True))
def test_dashes_never_change_an_ndc(ndc: str) -> None:
    expected = ndc if ndc.strip("0") else None
    assert normal(ndc) == normal(f"{ndc[:5]}-{ndc[5:9]}-{ndc[9:]}") == expected
    if ndc[0] == "0" and expected:
        assert normal(f"{ndc[1:5]}-{ndc[5:9]}-{ndc[9:]}") == expected
