"""A hospital's own long tables: code systems, given order, labels, and errors that name the row."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.prepare import prepare
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task

VISITS = """subject_id,visit_id,age,insurance
p1,b,71,private
p1,a,72,private
p2,c,40,
"""
EVENTS = """subject_id,visit_id,time,kind,code
p1,b,,diagnosis/icd9,428
p1,b,,diagnosis,I50.9
p1,a,,diagnosis/ccs,49
p1,a,,diagnosis/ccs,9999
p1,a,,procedure/own,bronze-dust
p2,c,,medication,Furosemide 40 mg
p2,c,,medication/atc,A10AB01
p2,c,,diagnosis/own,E1
"""
LABELS = """visit_id,task,value
b,readmission,1
c,length_of_stay,3
b,outcome,well
a,outcome,ill
"""


def write(folder: Path, **tables: str) -> Path:
    folder.mkdir()
    for name, text in {"visits": VISITS, "events": EVENTS, "labels": LABELS, **tables}.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def load(folder: Path, store: CodeStore) -> Cohort:
    return Cohort.load(prepare("tables", folder, folder.parent / f"{folder.name}-cohort", store=store).folder)


def test_every_code_system_lands_in_its_vocabulary(tmp_path: Path, store: CodeStore) -> None:
    cohort = load(write(tmp_path / "own", names="kind,code,name\nprocedure/own,bronze-dust,Dusting\n"), store)
    found = {
        kind: cohort.codes[kind]
        .join(cohort.visits.select("visit", "visit_id"), on="visit")
        .select("visit_id", "code")
        .sort("visit_id", "code")
        .rows()
        for kind in cohort.codes
    }
    assert found["diagnosis"] == [("a", "49"), ("b", "108"), ("c", "E1")]
    assert found["procedure"] == [("a", "bronze-dust")]
    assert found["medication"] == [("c", "A10A"), ("c", "C03C")]
    assert cohort.names("procedure") == {"bronze-dust": "Dusting"}
    assert cohort.names("diagnosis")["E1"] == "E1"


def test_visits_without_dates_keep_the_order_of_the_file(tmp_path: Path, store: CodeStore) -> None:
    assert load(write(tmp_path / "own"), store).visits["visit_id"].to_list() == ["b", "a", "c"]


def test_a_given_order_goes_first(tmp_path: Path, store: CodeStore) -> None:
    visits = "subject_id,visit_id,order\np1,b,2\np1,a,1\np2,c,1\n"
    assert load(write(tmp_path / "own", visits=visits), store).visits["visit_id"].to_list() == ["a", "b", "c"]


def test_dates_order_the_visits(tmp_path: Path, store: CodeStore) -> None:
    visits = "subject_id,visit_id,admission_time,discharge_time\np1,b,2020-05-01,2020-05-03\np1,a,2020-04-01T08:30,2020-04-02 09:00:00\np2,c,2020-01-01,\n"
    cohort = load(write(tmp_path / "own", visits=visits), store)
    assert cohort.visits["visit_id"].to_list() == ["a", "b", "c"]
    assert cohort.visits["discharge_time"].null_count() == 1


def test_labels_make_tasks(tmp_path: Path, store: CodeStore) -> None:
    cohort = load(write(tmp_path / "own"), store)
    assert build_instances(cohort, find_task("readmission", cohort)).instance_ids == ["b"]
    assert build_instances(cohort, find_task("length_of_stay", cohort)).labels.tolist() == [3]
    assert find_task("outcome", cohort).kind == "multiclass"


def test_labels_of_standard_tasks_match_in_any_case_and_are_checked_by_the_task(
    tmp_path: Path, store: CodeStore
) -> None:
    cohort = load(write(tmp_path / "own", labels="visit_id,task,value\nc,Length_of_Stay,3\n"), store)
    assert build_instances(cohort, find_task("length_of_stay", cohort)).labels.tolist() == [3]
    wrong = load(write(tmp_path / "wrong", labels="visit_id,task,value\nc,length_of_stay,-3\n"), store)
    with pytest.raises(PlmError, match=r"labels table gives a value of the form '-9' for"):
        build_instances(wrong, find_task("length_of_stay", wrong))


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"events": EVENTS + "p1,a,,spirit,x\n"}, r"events\.csv', row 10: unknown kind of the form 'xxxxxx'"),
        ({"events": EVENTS + "p1,a,,diagnosis/snomed,x\n"}, r"row 10: unknown kind of the form 'diagnosis/xxxxxx'"),
        (
            {"labels": LABELS + "zz,outcome,ill\n"},
            r"labels\.csv', row 6: this visit_id is not in the visits table",
        ),
        ({"visits": VISITS + ",d,3,\n"}, r"visits\.csv', row 5: column 'subject_id' is blank"),
        ({"visits": "subject_id,visit\np,a\n"}, r"has no column 'visit_id'"),
        ({"events": EVENTS + "p2,a,,diagnosis,I10\n"}, r"events\.csv', row 10: this subject_id is not the patient"),
        (
            {"visits": "subject_id,visit_id,died\np1,b,0\np1,a,maybe\np2,c,1\n"},
            r"visits\.csv', row 3: 'died' must be one of",
        ),
        (
            {"visits": "subject_id,visit_id,age\np1,b,4\np1,a,400\np2,c,1\n"},
            r"visits\.csv', row 3: 'age' must be between",
        ),
        ({"labels": LABELS + "a,../evil,1\n"}, r"labels\.csv', row 6: the name of a task may have"),
        ({"labels": LABELS + "a,Outcome,ill\n"}, r"labels\.csv', row 6: the tasks 'outcome' and 'Outcome' differ only"),
    ],
)
def test_bad_tables_are_named(tmp_path: Path, store: CodeStore, tables: dict[str, str], sentence: str) -> None:
    with pytest.raises(PlmError, match=sentence):
        load(write(tmp_path / "own", **tables), store)


def test_parquet_tables_are_read(tmp_path: Path, store: CodeStore) -> None:
    plain = load(write(tmp_path / "own"), store)
    folder = write(tmp_path / "other")
    for path in list(folder.iterdir()):
        pl.read_csv(path, infer_schema=False).write_parquet(path.with_suffix(".parquet"))
        path.unlink()
    assert load(folder, store).hash == plain.hash


def test_quoted_blanks_are_blanks(tmp_path: Path, store: CodeStore) -> None:
    visits = '"subject_id","visit_id","admission_time"\n"p1","b","2020-05-01"\n"p1","a",""\n"p2","c","2020-01-01"\n'
    events = '"visit_id","time","kind","code"\n"b","","diagnosis","I10"\n"c","2020-01-01 10:00:00","diagnosis","I10"\n'
    cohort = load(write(tmp_path / "own", visits=visits, events=events, labels="visit_id,task,value\nb,x,1\n"), store)
    assert cohort.visits["visit_id"].to_list() == ["b", "c"]
    assert cohort.codes["diagnosis"]["time"].null_count() == 1


def test_times_of_two_zones_are_refused(tmp_path: Path, store: CodeStore) -> None:
    folder = write(tmp_path / "own")
    zoned = pl.Series("admission_time", [None] * 3, dtype=pl.Datetime("us", "America/New_York"))
    pl.read_csv(folder / "visits.csv", infer_schema=False).with_columns(zoned).write_parquet(folder / "visits.parquet")
    (folder / "visits.csv").unlink()
    with pytest.raises(PlmError, match="time zone 'America/New_York'"):
        load(folder, store)
