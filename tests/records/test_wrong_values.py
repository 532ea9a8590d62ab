"""Values that look almost right: each is accepted by a stated rule or refused with its row, never changed in silence."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from tiny_eicu import TABLES as EICU
from tiny_hospital import TABLES
from tiny_mimic3 import TABLES as MIMIC3

from patients_like_me.codes.ccs import map_icd
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.ids import normal_ids
from patients_like_me.records.newcomers import cohort_of_newcomers
from patients_like_me.records.prepare import prepare
from patients_like_me.records.row_shape import refuse_uneven_rows
from patients_like_me.records.source_files import open_table
from patients_like_me.records.values import notes_on_unread_columns
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task

Write = Callable[..., Path]

VISITS = ["subject_id,visit_id,age,died,insurance", "p1,v1,71,0,private", "p1,v2,72,0,private", "p2,v3,40,0,"]
EVENTS = [
    "subject_id,visit_id,time,kind,code",
    "p1,v1,,diagnosis,I50.9",
    "p1,v2,,diagnosis,I50.9",
    "p2,v3,,diagnosis,I10",
]


def own(folder: Path, **tables: list[str] | bytes) -> Path:
    folder.mkdir()
    for name, lines in {"visits": VISITS, "events": EVENTS, **tables}.items():
        (folder / f"{name}.csv").write_bytes(lines if isinstance(lines, bytes) else ("\n".join(lines) + "\n").encode())
    return folder


LABELS_WITH_BLANKS = ["visit_id,task,value", " v1,frail,1", "v2,frail,0", "v2,frail,1"]


def load(source: str, folder: Path, store: CodeStore) -> Cohort:
    return Cohort.load(prepare(source, folder, folder.parent / f"{folder.name}-cohort", store=store).folder)


def admissions(flag: str) -> list[str]:
    return [*TABLES["admissions"][:3], TABLES["admissions"][3].removesuffix("1") + flag]


@pytest.mark.parametrize("flag", ["1", "1.0", "True", "Y", " 1", "yes"])
def test_a_death_is_a_death_however_it_is_written(write_hospital: Write, store: CodeStore, flag: str) -> None:
    cohort = load("mimic4", write_hospital(admissions=admissions(flag)), store)
    assert cohort.visits["died"].to_list() == [False, False, True]


@pytest.mark.parametrize("flag", ["2", "dead", "-1", "", "x1"])
def test_another_flag_is_refused_with_its_row(write_hospital: Write, store: CodeStore, flag: str) -> None:
    with pytest.raises(PlmError, match=r"admissions\.csv', row 4: 'hospital_expire_flag' must be one of 1, true"):
        load("mimic4", write_hospital(admissions=admissions(flag)), store)


@pytest.mark.parametrize(
    ("age", "year", "sentence"),
    [
        ("150", "2150", r"patients\.csv', row 2: 'anchor_age' must be between 0 and 130"),
        ("-5", "2150", r"patients\.csv', row 2: 'anchor_age' must be between 0 and 130"),
        ("2147483647", "2150", r"patients\.csv', row 2: 'anchor_age' must be"),
        ("60", "20500101", r"admissions\.csv', row 2: the age at admission, from anchor_age and anchor_year, must be"),
        ("60", "1900", r"admissions\.csv', row 2: the age at admission"),
    ],
)
def test_ages_that_nobody_has_are_refused(
    write_hospital: Write, store: CodeStore, age: str, year: str, sentence: str
) -> None:
    patients = [TABLES["patients"][0], f"1,F,{age},{year},2011 - 2013,", TABLES["patients"][2]]
    with pytest.raises(PlmError, match=sentence):
        load("mimic4", write_hospital(patients=patients), store)


@pytest.mark.parametrize("age", ["150", "-1", "old", "1e3"])
def test_ages_of_own_tables_and_eicu_are_refused(tmp_path: Path, store: CodeStore, age: str) -> None:
    with pytest.raises(PlmError, match=r"visits\.csv', row 2: .*('age'|whole number)"):
        load("tables", own(tmp_path / "own", visits=[VISITS[0], f"p1,v1,{age},0,x", *VISITS[2:]]), store)
    folder = tmp_path / "eicu"
    folder.mkdir()
    for name, lines in EICU.items():
        (folder / f"{name}.csv").write_text("\n".join(lines).replace("> 89", age) + "\n")
    with pytest.raises(PlmError, match=r"patient\.csv', row 2: 'age'"):
        load("eicu", folder, store)


def test_a_patient_named_twice_is_refused_by_the_patients_table(write_hospital: Write, store: CodeStore) -> None:
    doubled = [*TABLES["patients"], TABLES["patients"][1]]
    with pytest.raises(PlmError, match=r"patients\.csv', row 4: this patient is in an earlier row too"):
        load("mimic4", write_hospital(patients=doubled), store)


def test_headers_that_differ_only_in_case_are_refused(tmp_path: Path, store: CodeStore) -> None:
    visits = [line + ("," + ("AGE" if n == 0 else "5")) for n, line in enumerate(VISITS)]
    with pytest.raises(PlmError, match="two columns of one name, 'age' and 'AGE'"):
        load("tables", own(tmp_path / "own", visits=visits), store)


@pytest.mark.parametrize("table", ["labels", "names"])
@pytest.mark.parametrize("form", ["link", "folder", "pipe"])
def test_an_optional_table_that_is_no_file_is_refused(tmp_path: Path, store: CodeStore, table: str, form: str) -> None:
    folder = own(tmp_path / "own")
    path = folder / f"{table}.csv"
    if form == "link":
        path.symlink_to(tmp_path / "nowhere")
    elif form == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    words = {"link": "a link to nothing", "folder": "a folder", "pipe": "a pipe or device"}
    with pytest.raises(PlmError, match=rf"{table}\.csv' is {words[form]}, not a file"):
        load("tables", folder, store)


def test_events_without_rows_are_refused_unless_they_are_wanted(tmp_path: Path, store: CodeStore) -> None:
    folder = own(tmp_path / "own", events=EVENTS[:1])
    with pytest.raises(PlmError, match=r"events\.csv' has no rows"):
        load("tables", folder, store)
    prepared = prepare("tables", folder, tmp_path / "none", store=store, reading={"without_events": True})
    assert Cohort.load(prepared.folder).codes["diagnosis"].is_empty()


@pytest.mark.parametrize("is_gzip", [False, True])
def test_a_file_cut_in_the_middle_of_a_row_is_refused(tmp_path: Path, store: CodeStore, is_gzip: bool) -> None:
    cut = ("\n".join(VISITS)[:-6]).encode()
    folder = own(tmp_path / "own", visits=cut)
    if is_gzip:
        (folder / "visits.csv").unlink()
        (folder / "visits.csv.gz").write_bytes(gzip.compress(cut))
    with pytest.raises(PlmError, match=r"row 4 has \d fields where the header has 5; the file may have been cut"):
        load("tables", folder, store)


def test_an_unquoted_comma_is_refused_and_a_quoted_one_is_not(tmp_path: Path, store: CodeStore) -> None:
    visits = ["subject_id,visit_id,note,age,other", 'p1,v1,"a, ""b""\nc",71,x', "p1,v2,b,72,y", "p2,v3,z,40,"]
    assert load("tables", own(tmp_path / "quoted", visits=visits), store).visits["age"].to_list() == [71, 72, 40]
    stray = tmp_path / "stray.csv"
    stray.write_text('a,b,c\n1,5" tube,x\n2,"q,r",y')
    refuse_uneven_rows(stray)
    # The wanted columns come before the extra field, so that the reader alone would not see it.
    shifted = ["subject_id,visit_id,age,note,other", "p1,v1,71,a,x", "p1,v2,72,b, c,y", "p2,v3,40,,"]
    with pytest.raises(PlmError, match=r"visits\.csv', row 3 has 6 fields .* look for an unquoted comma"):
        load("tables", own(tmp_path / "shifted", visits=shifted), store)


@pytest.mark.parametrize("part", ["events-0001.csv", "events.2.csv", "events/a.csv"])
def test_a_whole_table_beside_its_parts_is_refused(tmp_path: Path, store: CodeStore, part: str) -> None:
    folder = own(tmp_path / "own")
    (folder / part).parent.mkdir(exist_ok=True)
    (folder / part).write_text("\n".join(EVENTS) + "\n")
    with pytest.raises(
        PlmError, match=r"holds a part of the table 'events', '.*csv', and '.*events\.csv' is the whole"
    ):
        load("tables", folder, store)


@pytest.mark.parametrize("second", ["visits.csv.gz", "visits.parquet", "VISITS.CSV"])
def test_two_files_of_one_table_are_refused(tmp_path: Path, store: CodeStore, second: str) -> None:
    folder = own(tmp_path / "own")
    (folder / second).write_bytes(gzip.compress((folder / "visits.csv").read_bytes()))
    with pytest.raises(
        PlmError, match=r"'visits' is in .* more than once: '(visits|VISITS)\..*' and '(visits|VISITS)\."
    ) as caught:
        load("tables", folder, store)
    assert f"'{second}'" in str(caught.value)
    assert "'visits.csv'" in str(caught.value)


@pytest.mark.parametrize(("written", "becomes"), [("C03C", "C03C"), ("c03c", "C03C"), ("C03CA01", "C03C")])
def test_drug_labels_become_atc3(tmp_path: Path, store: CodeStore, written: str, becomes: str) -> None:
    labels = ["visit_id,task,value", *(f"v{n},drug_recommendation,{written}" for n in (1, 2, 3))]
    cohort = load("tables", own(tmp_path / "own", labels=labels), store)
    assert build_instances(cohort, find_task("drug_recommendation", cohort)).label_vocabulary == (becomes,)


@pytest.mark.parametrize("written", ["zzz", "C03", "Furosemide", "C03Z"])
def test_drug_labels_that_are_no_code_are_refused(tmp_path: Path, store: CodeStore, written: str) -> None:
    labels = ["visit_id,task,value", f"v1,drug_recommendation,{written}"]
    cohort = load("tables", own(tmp_path / "own", labels=labels), store)
    with pytest.raises(
        PlmError, match=r"gives a value of the form '.*' for the task 'drug_recommendation', which is neither"
    ):
        build_instances(cohort, find_task("drug_recommendation", cohort))


@pytest.mark.parametrize("ending", ["\r", "\r\n"])
def test_line_ends(tmp_path: Path, store: CodeStore, ending: str) -> None:
    folder = own(tmp_path / "own", visits=(ending.join(VISITS) + ending).encode())
    if ending == "\r\n":
        assert load("tables", folder, store).visits.height == 3
    else:
        with pytest.raises(PlmError, match="end in a carriage return alone"):
            load("tables", folder, store)


@pytest.mark.parametrize("separator", [",", "|", ";"])
def test_a_first_row_of_data_is_refused_and_not_shown(tmp_path: Path, store: CodeStore, separator: str) -> None:
    folder = own(tmp_path / "own", events=["p1,v1,2150-01-01,diagnosis,I10".replace(",", separator)])
    with pytest.raises(
        PlmError, match=r"the first row of '.*events\.csv' looks like data, not like a header"
    ) as caught:
        load("tables", folder, store)
    assert "p1" not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "form"),
    [("v1", "x9"), ("10000032", "99999999"), ("Mary Smith", "xxxx xxxxx"), ("123-45-6789", "999-99-9999")],
)
@pytest.mark.parametrize("column", ["time", "kind", "age"])
def test_a_value_in_the_wrong_place_is_shown_by_its_form_alone(
    tmp_path: Path, store: CodeStore, written: str, form: str, column: str
) -> None:
    """Where a row is shifted, what stands there may be a name or a number of insurance."""
    words = {"time": "is not a time", "kind": "unknown kind", "age": "is not a whole number"}[column]
    if column == "age":
        folder = own(tmp_path / "own", visits=[VISITS[0], f"p1,v1,{written},0,private", *VISITS[2:]])
        if written == "10000032":
            words, form = "'age' must be between", "'age'"
    else:
        cells = {"time": "", "kind": "diagnosis", column: written}
        folder = own(tmp_path / "own", events=[EVENTS[0], f"p1,v1,{cells['time']},{cells['kind']},I50.9"])
    with pytest.raises(PlmError, match=r"\.csv', row 2: ") as caught:
        load("tables", folder, store)
    said = str(caught.value).replace(str(tmp_path), "")
    assert words in said
    assert form in said
    assert written not in said


def test_a_table_of_names_must_fit(tmp_path: Path, store: CodeStore) -> None:
    events = [EVENTS[0], *(f"p{p},v{v},,diagnosis/own,c{v}" for p, v in ((1, 1), (1, 2), (2, 3)))]
    for names, sentence in (
        (["kind,code,name", "diagnose,c1,One"], r"names\.csv', row 2: 'kind' must be one of diagnosis, procedure"),
        (["kind,code,name", "diagnosis,,One"], r"names\.csv', row 2: column 'code' is blank"),
    ):
        with pytest.raises(PlmError, match=sentence):
            load("tables", own(tmp_path / sentence[-5:], events=events, names=names), store)
    names = ["kind,code,name", "diagnosis,c1,One", "diagnosis,c1,Eins", "diagnosis,c9,Nine", "diagnosis,c9,Nine"]
    unused = own(tmp_path / "unused", events=events, names=names)
    notes = load("tables", unused, store).about["notes"]
    assert "2 rows of the table 'names' name no code of the cohort" in notes
    assert "2 rows of the table 'names' name a code in several ways: the first name is taken" in notes
    assert "2 codes of the kind 'diagnosis' have no name in the table 'names', which has others" in notes
    bare = own(tmp_path / "bare", events=events, names=["kind,code,name"])
    assert "the optional table 'names' has no rows" in load("tables", bare, store).about["notes"]


def test_a_table_that_vanishes_while_it_is_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text("visit_id,code\n1,I509\n")
    table = open_table(path, {"visit_id": pl.String, "code": pl.String})
    path.unlink()
    with pytest.raises(PlmError, match=r"events.csv' vanished while it was read"):
        table.collect()


def test_a_very_long_cell_is_no_traceback(tmp_path: Path, store: CodeStore) -> None:
    folder = own(tmp_path / "own", visits=[VISITS[0], f"p1,v1,{'x' * 200_000},0,a", *VISITS[2:]])
    with pytest.raises(PlmError, match=r"visits\.csv', row 2: this value is not a whole number|is not a whole number"):
        load("tables", folder, store)


def test_a_cut_gzip_of_a_large_table_is_a_sentence(write_hospital: Write, store: CodeStore) -> None:
    folder = write_hospital()
    path = next(folder.rglob("prescriptions.csv"))
    packed = gzip.compress(path.read_bytes())
    path.unlink()
    path.with_name("prescriptions.csv.gz").write_bytes(packed[:-9])
    with pytest.raises(PlmError, match="ends too early or is not whole gzip data"):
        load("mimic4", folder, store)


LABELS = "visit_id,task,value"


@pytest.mark.parametrize(
    ("values", "becomes", "note"),
    [
        (("0", "0.0", "1"), ["0", "0", "1"], "1 label of the task 'moved' was brought into one form: 1 and 0"),
        (("0", "No", "1.0"), ["0", "0", "1"], "2 labels of the task 'moved' were brought into one form: 1 and 0"),
        (("yes", "no", "No"), ["1", "0", "0"], "3 labels of the task 'moved' were brought into one form: 1 and 0"),
        (("2", "2.0", "3"), ["2", "2", "3"], "1 label of the task 'moved' was brought into one form: whole numbers"),
        (("home", "ward", "2.5"), ["home", "ward", "2.5"], None),
        (("0", "1", "1"), ["0", "1", "1"], None),
    ],
)
def test_one_class_stays_one_however_it_is_written(
    tmp_path: Path, store: CodeStore, values: tuple[str, ...], becomes: list[str], note: str | None
) -> None:
    labels = [LABELS, *(f"v{number},moved,{value}" for number, value in enumerate(values, start=1))]
    cohort = load("tables", own(tmp_path / "own", labels=labels), store)
    assert cohort.labels["value"].to_list() == becomes
    said = [each for each in cohort.about["notes"] if "brought into one form" in each]
    assert (said == []) if note is None else said[0].startswith(note)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (("0", "No", "2"), r"labels\.csv', row 3: the value is a word for yes or no, but the task has numbers"),
        (("0", "NaN", "1"), r"labels\.csv', row 3: the value is a word for a missing value"),
    ],
)
def test_labels_that_can_mean_two_things_are_refused(
    tmp_path: Path, store: CodeStore, values: tuple[str, ...], sentence: str
) -> None:
    labels = [LABELS, *(f"v{number},moved,{value}" for number, value in enumerate(values, start=1))]
    with pytest.raises(PlmError, match=sentence):
        load("tables", own(tmp_path / "own", labels=labels), store)


def test_classes_that_differ_only_in_case_are_refused(tmp_path: Path, store: CodeStore) -> None:
    labels = [LABELS, "v1,moved,home", "v2,moved,Home", "v3,moved,ward"]
    cohort = load("tables", own(tmp_path / "own", labels=labels), store)
    with pytest.raises(
        PlmError, match=r"classes of the task 'moved' that differ only in upper and lower case \(1 such"
    ):
        find_task("moved", cohort)


def test_visits_without_any_code_are_said(tmp_path: Path, store: CodeStore) -> None:
    half = load("tables", own(tmp_path / "half", events=[*EVENTS[:2], EVENTS[3]]), store)
    assert "33% of the visits (1 of 3) have no code of any kind" in half.about["notes"]
    assert not [note for note in load("tables", own(tmp_path / "whole"), store).about["notes"] if "no code of" in note]


def test_conflicting_sexes_and_falling_ages_are_counted(tmp_path: Path, store: CodeStore) -> None:
    visits = ["subject_id,visit_id,admission_time,age,sex", "p1,v1,2150-01-01,71,F", "p1,v2,2150-02-01,17,male",
              "p2,v3,2150-01-01,40,m"]  # fmt: skip
    notes = load("tables", own(tmp_path / "own", visits=visits), store).about["notes"]
    assert "1 patient has visits with different sexes: the first one is taken" in notes
    assert "1 patient is younger at a visit than at an earlier one; ages are kept as given" in notes
    right = [line.replace("17,male", "71,female") for line in visits]
    notes = load("tables", own(tmp_path / "right", visits=right), store).about["notes"]
    assert not [note for note in notes if "different sexes" in note or "younger" in note]


@pytest.mark.parametrize(
    ("table", "right", "wrong"),
    [
        ("diagnoses_icd", "1,11,1,I509,10", "2,11,1,I509,10"),
        ("procedures_icd", "1,11,1,2150-03-02,5A1D70Z,10", "2,11,1,2150-03-02,5A1D70Z,10"),
        ("prescriptions", "1,11,2150-03-01 12:00:00,,MAIN,Insulin,", "2,11,2150-03-01 12:00:00,,MAIN,Insulin,"),
    ],
)
def test_mimic_events_of_another_patient_than_their_admission_are_left_out(
    write_hospital: Write, store: CodeStore, table: str, right: str, wrong: str
) -> None:
    said = f"1 row of '{table}.csv' names another patient than its visit does, and is left out"
    lines = [wrong if line == right else line for line in TABLES[table]]
    assert said in load("mimic4", write_hospital("wrong", **{table: lines}), store).about["notes"]
    assert said not in load("mimic4", write_hospital("right"), store).about["notes"]
    # A table that does not name the patient is read as before.
    bare = [line.partition(",")[2] for line in TABLES[table]]
    assert said not in load("mimic4", write_hospital("bare", **{table: bare}), store).about["notes"]


@pytest.mark.parametrize("blank", [False, True])
def test_mimic3_events_of_another_patient_are_left_out(tmp_path: Path, store: CodeStore, blank: bool) -> None:
    tables = {
        "PATIENTS": ["subject_id,gender,dob,dod", "1,F,2090-12-11,", "2,M,2080-10-11,"],
        "ADMISSIONS": [
            "subject_id,hadm_id,admittime,dischtime,insurance,language,religion,marital_status,ethnicity,hospital_expire_flag",
            "1,10,2150-11-11 10:00:00,2150-11-12 11:00:00,Medicare,,,,,0",
            "2,20,2150-11-11 10:00:00,2150-11-12 11:00:00,Medicare,,,,,0",
        ],
        "DIAGNOSES_ICD": ["subject_id,hadm_id,icd9_code", "1,10,4280", "1,20,25000", "2,20,4280"],
        "PROCEDURES_ICD": ["subject_id,hadm_id,icd9_code", "1,10,3995"],
        "PRESCRIPTIONS": ["subject_id,hadm_id,startdate,drug,ndc", "1,10,2150-11-11,Furosemide,0"],
    }
    folder = tmp_path / "three"
    folder.mkdir()
    for name, lines in tables.items():
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    if blank:
        text = (folder / "ADMISSIONS.csv").read_text()
        (folder / "ADMISSIONS.csv").write_text(text.replace("2,20,", "2,,"))
        with pytest.raises(PlmError, match=r"ADMISSIONS\.csv' has 1 row without the id of a visit"):
            load("mimic3", folder, store)
        return
    cohort = load("mimic3", folder, store)
    assert (
        "1 row of 'DIAGNOSES_ICD.csv' names another patient than its visit does, and is left out"
        in (cohort.about["notes"])
    )
    assert cohort.codes["diagnosis"]["code"].to_list() == ["108", "108"]


def test_mimic3_events_without_a_code_are_counted_as_unmapped(tmp_path: Path, store: CodeStore) -> None:
    lines = MIMIC3["DIAGNOSES_ICD"]
    blank = [*lines[:-1], lines[-1].rsplit(",", 1)[0] + ","]
    for name, rows in {**MIMIC3, "DIAGNOSES_ICD": blank}.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(rows) + "\n")
    coverage = json.loads((load("mimic3", tmp_path, store).folder / "coverage.json").read_text())[0]
    assert (coverage["rows"], coverage["rows_unmapped"]) == (len(lines) - 1, 1)
    assert coverage["most_frequent_unmapped"] == [{"code": "(blank)", "rows": 1}]


def test_rows_with_too_many_and_too_few_fields_do_not_make_up_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text('subject_id,visit_id,age,died,note\np1,v1,71,0,"a, b"\np1,v2,71,0,a, b, c\np2,v3,40\n')
    with pytest.raises(PlmError, match="row 3 has 7 fields where the header has 5"):
        refuse_uneven_rows(path)
    path.write_text('a,b\r\n1,"2\n""3"\r\n\r\n4,5')
    refuse_uneven_rows(path)


@pytest.mark.parametrize("sign", ["\ufe0f", "\U000e0041", "\u200b", "\u00ad"])
def test_signs_that_nobody_sees_make_no_second_patient(sign: str) -> None:
    assert normal_ids(pl.Series("subject_id", ["1001", f"10{sign}01"])).to_list() == ["1001", "1001"]


def test_columns_that_nobody_reads_are_named(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("subject_id,visit_id,discharge_date,Height\np1,v1,2020-01-01,170\n")
    columns = {"subject_id": pl.String, "visit_id": pl.String, "discharge_time": pl.String}
    notes = notes_on_unread_columns(open_table(path, columns, optional=("discharge_time",)), columns)
    assert notes == ["'visits.csv' has columns that are not read: 'discharge_date' (is it 'discharge_time'?), 'Height'"]


@pytest.mark.parametrize("code", ["J18.9;I50.9", "J18.9, I10", "38.9"])
def test_a_cell_that_is_not_one_code_is_unmapped(code: str, tmp_path: Path) -> None:
    version = 9 if code[0].isdigit() else 10
    codes = pl.DataFrame({"icd_version": [version], "icd_code": [code]})
    assert map_icd(codes, "diagnosis", CodeStore(tmp_path))["way"].to_list() == ["unmapped"]


@pytest.mark.parametrize("time", ["9999-12-31", "2999-01-01", "1900-01-01", "0001-01-01"])
def test_a_time_that_stands_for_a_missing_one_is_refused(tmp_path: Path, store: CodeStore, time: str) -> None:
    visits = ["subject_id,visit_id,admission_time,discharge_time", f"p1,v1,{min(time, '2150-01-01')},{time}"]
    with pytest.raises(PlmError, match=r"visits\.csv': 1 visit has a time before 1901 or after 2299"):
        load("tables", own(tmp_path / "own", visits=visits, events=EVENTS[:2]), store)
    with pytest.raises(PlmError, match="is not a year of a hospital stay"):
        cohort_of_newcomers([{"visits": [{"admission": time, "diagnoses": ["I10"]}]}])


@pytest.mark.parametrize(
    ("written", "becomes"), [("f", "F"), (" Female", "F"), ("male", "M"), ("NULL", None), ("?", None)]
)
def test_a_sex_is_one_however_mimic_writes_it(
    write_hospital: Write, store: CodeStore, written: str, becomes: str | None
) -> None:
    patients = [TABLES["patients"][0], TABLES["patients"][1].replace(",F,", f",{written},"), TABLES["patients"][2]]
    cohort = load("mimic4", write_hospital(patients=patients), store)
    assert cohort.patients["sex"][0] == becomes
    other = [patients[0], patients[1].replace(f",{written},", ",Woman,"), patients[2]]
    with pytest.raises(PlmError, match=r"patients\.csv', row 2: 'gender' must be F, Female, M"):
        load("mimic4", write_hospital("other", patients=other), store)
    said = "'sex' is a word for a missing value in 1 patient: taken as missing"
    assert (said in cohort.about["notes"]) == (becomes is None)


def test_an_order_against_the_times_is_refused_and_two_deaths_are_said(tmp_path: Path, store: CodeStore) -> None:
    visits = ["subject_id,visit_id,order,admission_time,death_time", "p1,v1,2,2150-01-01,2151-01-01",
              "p1,v2,1,2150-03-01,2151-01-02", "p2,v3,,2150-01-01,2151-01-01"]  # fmt: skip
    with pytest.raises(PlmError, match=r"visits\.csv', row 2: by 'order' this visit comes after one with a later admi"):
        load("tables", own(tmp_path / "against", visits=visits), store)
    visits[1] = visits[1].replace(",2,", ",0,")
    notes = load("tables", own(tmp_path / "own", visits=visits), store).about["notes"]
    assert "1 patient has visits with different times of death: the latest is taken" in notes


@pytest.mark.parametrize(("time", "age"), [("2150-01-01T10:00:00Z", ""), ("", "70 ")])
def test_a_value_with_blanks_or_a_letter_between_is_named_by_its_row(
    tmp_path: Path, store: CodeStore, time: str, age: str
) -> None:
    visits = [VISITS[0], VISITS[1], VISITS[2].replace(",72,", f",{age},"), VISITS[3]]
    events = [EVENTS[0], EVENTS[1], EVENTS[2].replace(",,", f",{time},"), EVENTS[3]]
    with pytest.raises(PlmError, match=r"\.csv', row 3: a value of the form"):
        load("tables", own(tmp_path / "own", visits=visits, events=events), store)


def test_a_death_in_the_days_of_a_visit_that_nothing_calls_one_is_said(tmp_path: Path, store: CodeStore) -> None:
    visits = [
        "subject_id,visit_id,admission_time,discharge_time,death_time,died",
        "p1,v1,2150-01-01 10:00:00,2150-01-03 10:00:00,2150-01-03,",
        "p1,v2,2149-03-01 10:00:00,2149-03-03 10:00:00,,",
        "p2,v3,2150-01-01 10:00:00,2150-01-03 10:00:00,2150-01-03,1",
    ]
    notes = load("tables", own(tmp_path / "own", visits=visits), store).about["notes"]
    assert (
        "1 visit includes the day on which the patient died, but nothing says that it was in hospital: not taken as a "
        "death in hospital"
    ) in notes


def test_a_time_of_death_is_a_death_whatever_the_flag_says(write_hospital: Write, store: CodeStore) -> None:
    cohort = load("mimic4", write_hospital(admissions=admissions("0")), store)
    assert cohort.visits["died"].to_list() == [False, False, True]
    assert (
        "1 admission has a 'deathtime' although 'hospital_expire_flag' is 0: taken as deaths in hospital"
        in (cohort.about["notes"])
    )


@pytest.mark.parametrize(("one", "other"), [("10,007", "10007"), ("+1000", "1000"), ("A-007.0", "+A-7")])
def test_ids_that_differ_in_the_signs_of_a_number_are_refused(
    tmp_path: Path, store: CodeStore, one: str, other: str
) -> None:
    visits = ["subject_id,visit_id,order", f'"{one}",v1,1', f'"{other}",v2,1', "p3,v3,1"]
    events = [line.partition(",")[2] for line in EVENTS]
    if other == "+A-7":
        # A plus before a letter is no sign of a number: two people.
        assert load("tables", own(tmp_path / "own", visits=visits, events=events), store).patients.height == 3
        return
    with pytest.raises(PlmError, match=r"row 2 and row 3: two ids in column 'subject_id' differ only in the signs of"):
        load("tables", own(tmp_path / "own", visits=visits), store)


def test_digits_of_any_script_and_formulas_are_one_id() -> None:
    assert normal_ids(pl.Series(["\u0661\u0662", '="12"', "\u096712", "12"])).to_list() == ["12", "12", "112", "12"]


def test_two_visits_of_one_order_are_refused(tmp_path: Path, store: CodeStore) -> None:
    visits = ["subject_id,visit_id,order", "p1,v1,1", "p1,v2,1", "p2,v3,1"]
    with pytest.raises(PlmError, match=r"row 2: another visit of this patient has the same 'order'"):
        load("tables", own(tmp_path / "own", visits=visits), store)


def test_what_was_repaired_or_may_be_missing_is_said(tmp_path: Path, store: CodeStore) -> None:
    visits = ["subject_id,visit_id,order,insurance,sex", "p1,v1,1,NULL,NULL", "p1,v2,2, nan,F", "p2,v3,1,Private,m"]
    folder = own(tmp_path / "own", visits=visits, events="\n".join(EVENTS).encode(), labels=LABELS_WITH_BLANKS)
    (folder / "events.csv").rename(folder / "events-0001.csv")
    (folder / "events-0003.csv").write_text("\n".join(EVENTS) + "\n")
    cohort = load("tables", folder, store)
    assert sorted(map(str, cohort.visits["insurance"].to_list())) == ["None", "None", "Private"]
    assert cohort.patients["sex"].to_list() == ["F", "M"]
    for sentence in (
        "'insurance' is a word for a missing value in 2 visits: taken as missing",
        "'sex' is a word for a missing value in 1 visit: taken as missing",
        "the parts of 'events-0001.csv' are numbered from 1 to 3, but 1 of these is not there",
        "the last row of 'events-0001.csv' has no line end: look whether the file was cut off inside it",
        "1 of 2 visits have several values of the task 'frail': several of its classes may apply",
        "labels: 1 value of 'visit_id' was brought into the normal form of ids",
    ):
        assert sentence in cohort.about["notes"]


@pytest.mark.parametrize(
    ("column", "values", "sentence"),
    [
        ("age", [71.0, 40.0, float("nan")], None),
        ("age", [71.9, 40.0, 50.0], "a value of the form '99.9' is not a whole number in column 'age'"),
        ("admission_time", [20200131, 20200201, 20200301], "column 'admission_time' holds Int64, not times"),
        ("admission_time", [1.58e9, 1.59e9, 1.6e9], "column 'admission_time' holds Float64, not times"),
    ],
)
def test_parquet_columns_of_another_type_are_not_bent(
    tmp_path: Path, store: CodeStore, column: str, values: list[float], sentence: str | None
) -> None:
    folder = own(tmp_path / "own")
    (folder / "visits.csv").unlink()
    visits = {"subject_id": ["p1", "p1", "p2"], "visit_id": ["v1", "v2", "v3"], column: values}
    pl.DataFrame(visits).write_parquet(folder / "visits.parquet")
    if sentence is None:
        assert load("tables", folder, store).visits["age"].to_list() == [71, 40, None]
        return
    with pytest.raises(PlmError, match=rf"visits\.parquet'.*{sentence}"):
        load("tables", folder, store)


def test_words_for_a_missing_code_and_labels_without_rows_are_said(tmp_path: Path, store: CodeStore) -> None:
    events = [EVENTS[0], "p1,v1,,diagnosis/own,NULL", "p1,v2,,diagnosis/own,none", "p2,v3,,diagnosis/own,x"]
    cohort = load("tables", own(tmp_path / "own", events=events, labels=[LABELS]), store)
    assert cohort.codes["diagnosis"]["code"].to_list() == ["none", "x"]
    assert json.loads((cohort.folder / "coverage.json").read_text())[0]["rows_unmapped"] == 1
    assert "the optional table 'labels' has no rows" in cohort.about["notes"]


def test_a_kind_that_is_nearly_one_is_guessed_for_the_reader(tmp_path: Path, store: CodeStore) -> None:
    events = [line.replace("diagnosis", "diagnoses") for line in EVENTS]
    with pytest.raises(PlmError, match=r"unknown kind of the form '.*' \(is it 'diagnosis'\?\)"):
        load("tables", own(tmp_path / "own", events=events), store)


def test_codes_that_are_dated_years_from_their_visit_are_said(tmp_path: Path, store: CodeStore) -> None:
    visits = [
        "subject_id,visit_id,admission_time,discharge_time",
        "p1,v1,2020-01-31 08:00:00,2020-02-05 10:00:00",
        "p1,v2,2020-03-01 08:00:00,",
        "p2,v3,2020-03-01 08:00:00,2020-03-05 10:00:00",
    ]
    times = ["2010-01-31 10:00:00", "2030-03-01 10:00:00", "2020-12-31 10:00:00"]
    events = [EVENTS[0], *(row.replace(",,", f",{time},") for row, time in zip(EVENTS[1:], times, strict=True))]
    notes = load("tables", own(tmp_path / "far", visits=visits, events=events), store).about["notes"]
    assert [note for note in notes if "dated" in note] == [
        "2 diagnosis codes are dated more than a year before or after their visits"
    ]
