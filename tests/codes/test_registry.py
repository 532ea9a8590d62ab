"""Code systems by name: what each does with a code, and how several of them answer together."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from patients_like_me.codes import registry
from patients_like_me.codes.registry import (
    KINDS,
    CodeSystem,
    Kind,
    SystemColumn,
    all_code_systems,
    find_code_system,
    map_codes,
    systems_of,
)
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.parts import LeftOutWarning


@pytest.mark.parametrize(
    ("kind", "system", "code", "codes", "way", "name"),
    [
        ("diagnosis", "icd9", "428.0", ["108"], "table", "diagnosis ICD-9-CM to CCS"),
        ("diagnosis", "icd10", "I50.9", ["108"], "table", "diagnosis ICD-10-CM to CCS"),
        ("diagnosis", "icd", "428.0, I50.9", ["108"], "table", "diagnosis ICD-9 or ICD-10 by form to CCS"),
        ("diagnosis", "ccs", "49", ["49"], "as given", "diagnosis ccs as given"),
        ("diagnosis", "ccs", "9999", [], "unmapped", "diagnosis ccs as given"),
        ("diagnosis", "own", "E1", ["E1"], "as given", "diagnosis own as given"),
        ("procedure", "icd9", "3995", [], "unmapped", "procedure ICD-9 procedures to CCS"),
        ("procedure", "icd10", "5A1D70Z", ["58"], "table", "procedure ICD-10-PCS to CCS"),
        ("medication", "name", "Furosemide 40 mg", ["C03C"], "name", "medication name to ATC-3"),
        ("medication", "name", "Sterile Water", [], "not_a_medicine", "medication name to ATC-3"),
        ("medication", "atc", "a10ab01", ["A10A"], "as given", "medication atc as given"),
        ("medication", "ndc", "0002-3229-30", ["N06B"], "ndc_table", "medication NDC to ATC-3"),
        ("medication", "rxnorm", "0197361", ["C07A", "C07B"], "rxnorm", "medication RxNorm to ATC-3"),
        ("medication", "own", " x ", ["x"], "as given", "medication own as given"),
    ],
)
def test_each_system_maps_its_codes(
    tmp_path: Path, store: CodeStore, kind: Kind, system: str, code: str, codes: list[str], way: str, name: str
) -> None:
    for number, text in enumerate(("ndc,atc3\n00002322930,N06B\n", "rxcui,atc3\n197361,C07B\n197361,C07A\n")):
        (tmp_path / f"{number}.csv").write_text(text)
        store.add(tmp_path / f"{number}.csv")
    keys = pl.DataFrame({"code": [code, None, "", code]})
    mapped = map_codes(kind, keys, {"code": system}, store)
    assert mapped.select("codes", "way").rows() == [(codes, way), ([], "unmapped"), ([], "unmapped"), (codes, way)]
    assert mapped["map"].unique().to_list() == [name]


def test_every_system_answers_no_codes_and_nonsense_alike(store: CodeStore) -> None:
    for kind in KINDS:
        for system in systems_of(kind):
            assert (
                map_codes(
                    kind, pl.DataFrame({"code": []}, schema={"code": pl.String}), {"code": system.name}, store
                ).height
                == 0
            )
            nonsense = map_codes(kind, pl.DataFrame({"code": ["?!", "\u2603"]}), {"code": system.name}, store)
            assert nonsense["way"].is_in(["unmapped", "as given"]).all()


def test_the_default_system_of_a_kind_comes_first() -> None:
    assert [systems_of(kind)[0].name for kind in KINDS] == ["icd10", "icd10", "name"]


def test_an_unknown_system_is_refused_with_those_of_the_kind() -> None:
    with pytest.raises(PlmError, match="no code system 'snomed' for a procedure; choose one of icd10, ccs, "):
        find_code_system("procedure", "snomed")
    with pytest.raises(PlmError, match="no code system 'ndc' for a diagnosis"):
        find_code_system("diagnosis", "ndc")


def test_a_column_names_the_system_row_by_row(store: CodeStore) -> None:
    keys = pl.DataFrame({"version": [9, 10, 9, 7, None], "code": ["4280", "I509", "E9999", "x", "y"]})
    column = SystemColumn("version", {9: "icd9", 10: "icd10"}, title="ICD version", refuse=False)
    mapped = map_codes("diagnosis", keys, {"code": column}, store)
    assert mapped["codes"].to_list()[:2] == [["108"], ["108"]]
    assert mapped["map"].to_list()[2:] == [
        "diagnosis ICD-9-CM to CCS",
        "diagnosis ICD version 7",
        "diagnosis ICD version (blank)",
    ]
    assert mapped["way"].to_list()[3:] == ["unmapped", "unmapped"]


def test_a_system_added_by_one_object_serves_event_tables(store: CodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def map_letters(kind: Kind, codes: pl.Series, store: CodeStore) -> pl.DataFrame:
        return pl.DataFrame({"codes": [[code.upper()] for code in codes], "way": ["letters"] * len(codes)})

    letters = CodeSystem("letters", {"diagnosis": "letters"}, map_letters, target="capitals")
    known = {**all_code_systems(), "letters": letters}
    monkeypatch.setattr(registry, "all_code_systems", lambda: known)
    mapped = map_codes("diagnosis", pl.DataFrame({"code": ["a"]}), {"code": "letters"}, store)
    assert mapped.row(0) == ("a", ["A"], "letters", "diagnosis letters to capitals")


def test_a_mapper_that_loses_codes_is_named(store: CodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"codes": pl.List(pl.String), "way": pl.String}
    for answer, words in (
        (pl.DataFrame(), "does not answer with a frame of codes and way"),
        (None, "does not answer with a frame"),
        (pl.DataFrame(schema=columns), "answered 0 of 1 codes"),
        (pl.DataFrame({"codes": [[None]], "way": ["map"]}, schema=columns), "answered with missing codes"),
        (pl.DataFrame({"codes": [None], "way": ["map"]}, schema=columns), "answered with missing codes"),
        (pl.DataFrame({"codes": [[""]], "way": ["map"]}, schema=columns), "answered with a blank code"),
        (pl.DataFrame({"codes": ["a"], "way": ["map"]}), "'codes' that does not hold lists"),
        (pl.DataFrame({"codes": [[1]], "way": ["map"]}), "'codes' whose lists do not hold text"),
        (pl.DataFrame({"codes": [["a"]], "way": [1]}), "'way' that is not text"),
    ):
        wrong = CodeSystem("wrong", {"diagnosis": "wrong"}, lambda kind, codes, store, answer=answer: answer)  # type: ignore[misc]
        monkeypatch.setattr(registry, "all_code_systems", lambda wrong=wrong: {"wrong": wrong})
        with pytest.raises(PlmError, match=words):
            map_codes("diagnosis", pl.DataFrame({"code": ["a"]}), {"code": "wrong"}, store)


def test_a_mapper_that_fails_is_named(store: CodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = CodeSystem("wrong", {"diagnosis": "wrong"}, lambda kind, codes, store: {}["x"])
    monkeypatch.setattr(registry, "all_code_systems", lambda: {"wrong": wrong})
    with pytest.raises(PlmError, match=r"the code system 'wrong' cannot map the codes of a diagnosis .KeyError: 'x'."):
        map_codes("diagnosis", pl.DataFrame({"code": ["a"]}), {"code": "wrong"}, store)


def test_another_package_cannot_take_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = CodeSystem("aaa", {"diagnosis": "x"}, lambda kind, codes, store: None, default_for=("diagnosis",))  # type: ignore[arg-type,return-value]
    known = {**all_code_systems(), "aaa": theirs}
    monkeypatch.setattr(registry, "all_code_systems", lambda: known)
    with pytest.warns(LeftOutWarning, match="'aaa' wants to be the default for a diagnosis, which is 'icd10'"):
        found = systems_of("diagnosis")
    assert found[0].name == "icd10"
    assert theirs in found
