"""Where tables come from: parts, several folders, NDJSON, and which reader a folder is for."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from tiny_hospital import TABLES

from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.prepare import prepare
from patients_like_me.records.registry import all_readers, readers_that_fit
from patients_like_me.records.source_files import SourceFolder, open_table

Write = Callable[..., Path]


@pytest.fixture
def plain(write_hospital: Write, store: CodeStore, tmp_path: Path) -> Cohort:
    return Cohort.load(prepare("mimic4", write_hospital(), tmp_path / "plain", store=store).folder)


def loaded(folder: Path | list[Path], store: CodeStore, out: Path) -> Cohort:
    return Cohort.load(prepare("mimic4", folder, out, store=store).folder)


def rows_of(lines: list[str]) -> list[dict[str, str]]:
    names = lines[0].split(",")
    return [dict(zip(names, line.split(","), strict=True)) for line in lines[1:]]


@pytest.mark.parametrize("ending", [".ndjson", ".ndjson.gz", ".jsonl"])
def test_json_lines_give_the_same_cohort(store: CodeStore, tmp_path: Path, plain: Cohort, ending: str) -> None:
    folder = tmp_path / "json"
    folder.mkdir()
    for name, lines in TABLES.items():
        objects = [{key: value for key, value in row.items() if value} for row in rows_of(lines)]
        for row in objects:
            row.update({key: int(row[key]) for key in ("subject_id", "hadm_id", "icd_version") if key in row})  # type: ignore[misc]
        content = "".join(json.dumps(row) + "\n" for row in objects).encode()
        (folder / f"{name}{ending}").write_bytes(gzip.compress(content) if ending.endswith(".gz") else content)
    assert loaded(folder, store, tmp_path / "second").hash == plain.hash


@pytest.mark.parametrize("form", ["numbered", "folder"])
@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet"])
def test_tables_in_parts_give_the_same_cohort(
    store: CodeStore, tmp_path: Path, plain: Cohort, form: str, ending: str
) -> None:
    folder = tmp_path / "parts"
    for name, lines in TABLES.items():
        for number in range(2):
            part = [lines[0], *lines[1 + number :: 2]]
            stem = f"{name}-{number:04}-of-0002" if form == "numbered" else f"{name}/data_{number}"
            path = folder / f"{stem}{ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            text = ("\n".join(part) + "\n").encode()
            if ending == ".parquet":
                pl.read_csv(text, infer_schema=False).write_parquet(path)
            else:
                path.write_bytes(gzip.compress(text) if ending.endswith(".gz") else text)
    second = loaded(folder, store, tmp_path / "second")
    assert second.hash == plain.hash
    assert len(second.about["identity"]["files"]) == 2 * len(TABLES)


def test_several_folders_are_joined(write_hospital: Write, store: CodeStore, tmp_path: Path, plain: Cohort) -> None:
    halves = []
    for number in range(2):
        changed = {name: [lines[0], *lines[1 + number :: 2]] for name, lines in TABLES.items()}
        halves.append(write_hospital(f"half{number}", **changed))
    assert loaded(halves, store, tmp_path / "second").hash == plain.hash


def test_an_error_names_the_part_and_its_row(write_hospital: Write, store: CodeStore, tmp_path: Path) -> None:
    lines = TABLES["admissions"]
    first = write_hospital("first", admissions=lines[:2])
    wrong = [lines[0], lines[3], lines[2].replace("2150-01-02", "2149-01-02")]
    second = write_hospital("second", admissions=wrong, patients=TABLES["patients"][:1])
    with pytest.raises(PlmError, match=r"second/hosp/admissions\.csv', row 3: dischtime is before admittime"):
        loaded([first, second], store, tmp_path / "cohort")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"visit_id": "a"}\n{"visit_id": }\n', r"events\.ndjson', row 2: not a JSON object"),
        (
            '{"visit_id": "a"}\n{"visit_id": "b", "age": "old"}\n',
            r"events\.ndjson', row 2: a value of the form 'xxx' is not a whole number",
        ),
        ('{"visit_id": "a", "time": "noon"}\n', r"events\.ndjson', row 1: a value of the form 'xxxx' is not a time"),
        ('{"other": 1}\n', r"has no column 'visit_id'"),
    ],
)
def test_bad_json_lines_are_named(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "events.ndjson"
    path.write_text(content)
    columns = {"visit_id": pl.String, "age": pl.Int32, "time": pl.Datetime("us")}
    with pytest.raises(PlmError, match=sentence):
        open_table(path, columns, optional=("age", "time")).collect()


def test_nested_json_is_read_in_the_shape_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "Condition.ndjson"
    path.write_text('{"code": {"coding": [{"system": "icd", "code": "I509"}]}, "id": "x"}\n{"id": "y"}\n')
    coding = pl.Struct({"coding": pl.List(pl.Struct({"system": pl.String, "code": pl.String}))})
    frame = open_table(path, {"id": pl.String, "code": coding}).collect()
    assert frame["code"].to_list() == [{"coding": [{"system": "icd", "code": "I509"}]}, None]


def test_a_folder_is_recognised(write_hospital: Write, tmp_path: Path) -> None:
    def fits(folder: Path) -> list[str]:
        return [reader.name for reader in readers_that_fit(SourceFolder((folder,), "any"))]

    own = tmp_path / "own"
    own.mkdir()
    (own / "visits.csv").write_text("subject_id,visit_id\np,v\n")
    (own / "events.csv").write_text("visit_id,kind,code\nv,diagnosis,I10\n")
    assert fits(write_hospital()) == ["mimic4"]
    assert fits(own) == ["tables"]
    assert fits(tmp_path / "own" / "..") == ["mimic4", "tables"]
    assert {"mimic3", "mimic4", "tables"} <= set(all_readers())


def test_a_wrong_reader_is_answered_with_the_right_one(write_hospital: Write, store: CodeStore, tmp_path: Path) -> None:
    folder = write_hospital()
    with pytest.raises(PlmError, match="no reader 'mimic5', but this folder looks like MIMIC-IV; use 'mimic4'"):
        prepare("mimic5", folder, tmp_path / "cohort", store=store)
    with pytest.raises(PlmError, match=r"cannot be read as own tables .*no table 'visits'.* looks like MIMIC-IV; use"):
        prepare("tables", folder, tmp_path / "cohort", store=store)
    with pytest.raises(PlmError, match=r"cannot be read as MIMIC-III .*no column 'dob'.* looks like MIMIC-IV; use"):
        prepare("mimic3", folder, tmp_path / "cohort", store=store)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PlmError, match="no reader 'mimic5'; choose one of"):
        prepare("mimic5", tmp_path / "empty", tmp_path / "cohort", store=store)


def test_an_unknown_setting_of_a_reader_is_refused(write_hospital: Write, store: CodeStore, tmp_path: Path) -> None:
    with pytest.raises(PlmError, match="there is no setting 'visit'"):
        prepare("mimic4", write_hospital(), tmp_path / "cohort", reading={"visit": "unit"}, store=store)


def test_an_empty_optional_table_is_a_note(tmp_path: Path, store: CodeStore) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "visits.csv").write_text("subject_id,visit_id\np,v\n")
    (folder / "events.csv").write_text("visit_id,kind,code\nv,diagnosis,I10\n")
    (folder / "labels.csv").write_text("")
    about = prepare("tables", folder, tmp_path / "cohort", store=store).about
    assert about["notes"] == ["the optional table 'names' is not there", "the optional table 'labels' is empty"]
