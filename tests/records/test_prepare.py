"""From files to a cohort folder: what is read, what is filtered, what is counted."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from tiny_hospital import TABLES

from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.records.assemble import CohortSettings
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.prepare import prepare
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import all_tasks

TASKS_BY_NAME = all_tasks()

Write = Callable[..., Path]


def cohort_of_folder(folder: Path, store: CodeStore, out: Path, **settings: object) -> Cohort:
    return Cohort.load(
        prepare("mimic4", folder, out, settings=CohortSettings.model_validate(settings), store=store).folder
    )


@pytest.fixture
def cohort(write_hospital: Write, store: CodeStore, tmp_path: Path) -> Cohort:
    return cohort_of_folder(write_hospital(), store, tmp_path / "cohort")


def codes_of(cohort: Cohort, kind: str, visit_id: str) -> list[str]:
    visit = cohort.visits.filter(pl.col("visit_id") == visit_id)["visit"][0]
    return cohort.codes[kind].filter(pl.col("visit") == visit)["code"].to_list()  # type: ignore[index]


def test_visits_are_ordered_by_patient_and_time(cohort: Cohort) -> None:
    assert cohort.visits["visit_id"].to_list() == ["10", "11", "20"]
    assert cohort.visits["position"].to_list() == [0, 1, 0]
    assert cohort.visits["age"].to_list() == [60, 60, 90]
    assert cohort.visits["died"].to_list() == [False, False, True]


def test_what_is_not_recorded_is_null(cohort: Cohort) -> None:
    first = cohort.visits.row(0, named=True)
    assert (first["insurance"], first["language"], first["marital_status"], first["ethnicity"]) == (
        "Medicare",
        None,
        None,
        None,
    )


def test_codes_are_mapped_by_version_and_distinct_within_a_visit(cohort: Cohort) -> None:
    assert codes_of(cohort, "diagnosis", "10") == ["108", "49"]
    assert codes_of(cohort, "diagnosis", "11") == ["108"]
    assert codes_of(cohort, "medication", "10") == ["C03C"]
    assert codes_of(cohort, "medication", "11") == ["A10A"]
    assert cohort.codes["medication"]["time"][0] == datetime(2150, 1, 1, 11)
    assert cohort.names("diagnosis")["108"].startswith("Congestive heart failure")


def test_coverage_counts_what_is_mapped_unmapped_and_set_apart(cohort: Cohort, tmp_path: Path) -> None:
    maps = {row["map"]: row for row in json.loads((tmp_path / "cohort" / "coverage.json").read_text())}
    assert maps["diagnosis ICD-9-CM to CCS"]["share"] == 1.0
    assert maps["diagnosis ICD-10-CM to CCS"]["rows_unmapped"] == 1
    assert maps["procedure ICD-9 procedures to CCS"]["rows_mapped"] == 0
    drugs = maps["medication NDC or name to ATC-3"]
    assert drugs["mapped_by_way"] == {"name": 3}
    assert drugs["set_apart"] == {"not_a_medicine": 1}
    assert drugs["most_frequent_unmapped"] == [{"code": "Qzxwv", "rows": 1}]
    unmapped = pl.read_parquet(tmp_path / "cohort" / "unmapped.parquet")
    assert set(unmapped["code"]) == {"ZZZZ", "3995", "Qzxwv", "Sterile Water"}


def test_provenance_names_every_file(cohort: Cohort) -> None:
    files = cohort.about["identity"]["files"]
    assert set(files) == {f"{name}.csv" for name in TABLES}
    assert all(len(entry["sha256"]) == 64 and entry["bytes"] > 0 for entry in files.values())
    assert cohort.about["rows_without_visit"]["diagnoses_icd.csv"] == 1


def test_the_flow_is_a_table_and_a_drawing(cohort: Cohort, tmp_path: Path) -> None:
    steps = json.loads((tmp_path / "cohort" / "flow.json").read_text())
    assert steps[0]["visits"] == steps[-1]["visits"] == cohort.visits.height
    drawing = (tmp_path / "cohort" / "flow.svg").read_text()
    assert drawing.count("<rect") == len(steps) + 1


@pytest.mark.parametrize(("ending", "upper"), [(".csv", True), (".csv.gz", False), (".csv.gz", True)])
def test_any_ending_and_header_case_give_the_same_cohort(
    write_hospital: Write, store: CodeStore, tmp_path: Path, cohort: Cohort, ending: str, upper: bool
) -> None:
    other = cohort_of_folder(write_hospital("other", ending=ending, upper=upper), store, tmp_path / "second")
    assert other.hash == cohort.hash


def test_parquet_gives_the_same_cohort(write_hospital: Write, store: CodeStore, tmp_path: Path, cohort: Cohort) -> None:
    folder = write_hospital("other")
    for path in (folder / "hosp").iterdir():
        pl.read_csv(
            path, try_parse_dates=True, schema_overrides={"icd_code": pl.String, "ndc": pl.String}
        ).write_parquet(path.with_suffix(".parquet"))
        path.unlink()
    assert cohort_of_folder(folder, store, tmp_path / "second").hash == cohort.hash


@pytest.mark.parametrize("level", ["", "hosp", ".."])
def test_the_folder_may_be_given_at_any_usual_level(
    write_hospital: Write, store: CodeStore, tmp_path: Path, level: str
) -> None:
    folder = write_hospital("download/mimic-iv-3.1")
    assert cohort_of_folder(folder / level, store, tmp_path / "cohort").visits.height == 3


def test_filters_show_in_the_flow(write_hospital: Write, store: CodeStore, tmp_path: Path) -> None:
    admissions = [*TABLES["admissions"], "2,21,2151-03-05 08:00:00,2151-03-06 12:00:00,,Other,,,,0"]
    cohort = cohort_of_folder(
        write_hospital(admissions=admissions),
        store,
        tmp_path / "cohort",
        minimum_age=18,
        require=("diagnosis",),
    )
    steps = {step["name"]: step for step in json.loads((tmp_path / "cohort" / "flow.json").read_text())}
    assert steps["admitted before death"]["visits_left_out"] == 1
    assert steps["at least one mapped diagnosis"]["visits_left_out"] == 1
    assert cohort.visits["visit_id"].to_list() == ["10", "11"]
    assert cohort.codes["medication"]["visit"].to_list() == [0, 1]


def test_a_rerun_reuses_and_other_settings_are_refused(write_hospital: Write, store: CodeStore, tmp_path: Path) -> None:
    folder, out = write_hospital(), tmp_path / "cohort"
    assert not prepare("mimic4", folder, out, store=store).reused
    assert prepare("mimic4", folder, out, store=store).reused
    with pytest.raises(PlmError, match=r"settings\.minimum_age is null there and 18 here"):
        prepare("mimic4", folder, out, store=store, settings=CohortSettings(minimum_age=18))
    (folder / "hosp" / "patients.csv").write_text("\n".join(TABLES["patients"][:2]) + "\n")
    with pytest.raises(PlmError, match=r"patients\.csv"):
        prepare("mimic4", folder, out, store=store)
    prepare("mimic4", folder, out, store=store, replace=True)
    assert Cohort.load(out).patients.height == 1


def changed(table: str, row: int, old: str, new: str) -> dict[str, list[str]]:
    lines = list(TABLES[table])
    assert old in lines[row]
    lines[row] = lines[row].replace(old, new)
    return {table: lines}


BAD = {
    "a missing file": ({"diagnoses_icd": None}, r"no table 'diagnoses_icd'"),
    "a missing column": (
        changed("admissions", 0, "dischtime", "left"),
        r"admissions\.csv' has no column 'dischtime'",
    ),
    "mixed encodings": (
        {"prescriptions": ("\n".join(TABLES["prescriptions"][:3]) + "\n1,10,,,MAIN,Caf\xe9,0\n").encode("latin-1")},
        r"prescriptions\.csv' is not UTF-8 text at row 4",
    ),
    "a UTF-16 file": (
        {"patients": "\n".join(TABLES["patients"]).encode("utf-16")},
        r"patients\.csv' (is not|looks like)|header of .*patients",
    ),
    "a negative stay": (
        changed("admissions", 2, "2150-01-02", "2149-01-02"),
        r"admissions\.csv', row 3: dischtime is before admittime",
    ),
    "an unknown ICD version": (
        changed("diagnoses_icd", 3, "I509,10", "I509,11"),
        r"diagnoses_icd\.csv', row 4: unknown ICD version 11",
    ),
    "an empty file": ({"patients": b""}, r"patients\.csv' is empty"),
    "an empty table": ({"admissions": TABLES["admissions"][:1]}, r"admissions\.csv' has no rows"),
    "a word for a number": (
        changed("admissions", 1, "1,11,", "1,eleven,"),
        r"admissions\.csv', row 2: this id is not a whole number in column 'hadm_id'",
    ),
    "a word for a time": (
        changed("admissions", 2, "2150-01-01 10:00:00", "yesterday"),
        r"admissions\.csv', row 3: a value of the form 'xxxxxxxxx' is not a time",
    ),
    "an empty event table": ({"diagnoses_icd": TABLES["diagnoses_icd"][:1]}, r"diagnoses_icd\.csv' has no rows"),
    "a negative ICD version": (
        changed("diagnoses_icd", 3, "I509,10", "I509,-1"),
        r"diagnoses_icd\.csv', row 4: unknown ICD version -1",
    ),
    "a time zone": (
        changed("admissions", 1, "2150-03-01 10:00:00", "2150-03-01 10:00:00+09:00"),
        r"admissions\.csv', row 2: a value of the form '9999-99-99 99:99:99\+99:99' is not a time",
    ),
    "a wrong order time": (
        changed("prescriptions", 2, "2150-01-01 11:00:00", "01/01/2150"),
        r"prescriptions\.csv', row 3: a value of the form '99/99/9999' is not a time",
    ),
    "a visit twice": (
        {"admissions": [*TABLES["admissions"], TABLES["admissions"][1]]},
        r"names 1 visit more than once",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_in_a_sentence_and_leaves_nothing(
    write_hospital: Write, store: CodeStore, tmp_path: Path, case: str
) -> None:
    tables, sentence = BAD[case]
    with pytest.raises(PlmError, match=sentence) as caught:
        prepare("mimic4", write_hospital(**tables), tmp_path / "out" / "cohort", store=store)
    assert caught.value.remedy
    assert not list((tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else True


def test_a_truncated_gzip_is_named(write_hospital: Write, store: CodeStore, tmp_path: Path) -> None:
    folder = write_hospital(ending=".csv.gz")
    path = folder / "hosp" / "prescriptions.csv.gz"
    lines = "".join(f"1,10,2150-01-01 12:00:00,,MAIN,Drug {n * 7919 % 10_007},0\n" for n in range(20_000))
    whole = gzip.compress(f"{TABLES['prescriptions'][0]}\n{lines}".encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PlmError, match=r"prescriptions\.csv\.gz' ends too early"):
        prepare("mimic4", folder, tmp_path / "cohort", store=store)
    assert not (tmp_path / "cohort").exists()


def test_negative_stays_can_be_dropped(write_hospital: Write, store: CodeStore, tmp_path: Path) -> None:
    folder = write_hospital(**changed("admissions", 2, "2150-01-02", "2149-01-02"))
    assert cohort_of_folder(folder, store, tmp_path / "cohort", negative_stays="drop").visits["visit_id"].to_list() == [
        "11",
        "20",
    ]


def test_a_wrong_folder_says_what_is_there(tmp_path: Path, store: CodeStore) -> None:
    (tmp_path / "holiday.csv").write_text("a\n1\n")
    with pytest.raises(PlmError, match=r"no table 'patients'.*holiday\.csv"):
        prepare("mimic4", tmp_path, tmp_path / "cohort", store=store)
    with pytest.raises(PlmError, match="does not exist"):
        prepare("mimic4", tmp_path / "nowhere", tmp_path / "cohort", store=store)
    with pytest.raises(PlmError, match="not a cohort folder"):
        Cohort.load(tmp_path)


def test_a_foreign_out_folder_is_left_alone(write_hospital: Write, store: CodeStore, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("precious")
    with pytest.raises(PlmError, match="not a cohort folder"):
        prepare("mimic4", write_hospital(), tmp_path / "thesis", store=store)
    with pytest.raises(PlmError, match="not a cohort folder"):
        prepare("mimic4", write_hospital("again"), tmp_path / "thesis", store=store, replace=True)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "precious"


def test_events_of_strangers_alone_are_refused(write_hospital: Write, store: CodeStore, tmp_path: Path) -> None:
    strangers = [TABLES["diagnoses_icd"][0], "9,99,1,I509,10"]
    with pytest.raises(PlmError, match=r"none of the 1 rows of .*diagnoses_icd\.csv' belongs to a visit"):
        cohort_of_folder(write_hospital(diagnoses_icd=strangers), store, tmp_path / "cohort")


def test_nobody_left_is_said_with_the_flow(write_hospital: Write, store: CodeStore, tmp_path: Path) -> None:
    with pytest.raises(PlmError, match=r"no visit of .* is left after the filters"):
        cohort_of_folder(write_hospital(), store, tmp_path / "cohort", minimum_age=120)


def test_a_filtered_visit_still_counts_as_a_readmission(
    write_hospital: Write, store: CodeStore, tmp_path: Path
) -> None:
    """A next visit without codes is left out of the cohort, but the patient did come back."""
    admissions = [*TABLES["admissions"], "1,12,2150-01-08 08:00:00,2150-01-09 12:00:00,,Other,,,,0"]
    folder = write_hospital(admissions=admissions)
    cohort = cohort_of_folder(folder, store, tmp_path / "cohort", require=("diagnosis",))
    instances = build_instances(cohort, TASKS_BY_NAME["readmission"])
    assert dict(zip(instances.instance_ids, instances.labels.tolist(), strict=True)) == {"10": 1}


def test_a_cohort_inside_its_source_is_passed_over(write_hospital: Write, store: CodeStore) -> None:
    folder = write_hospital()
    prepare("mimic4", folder, folder / "cohort", store=store)
    assert prepare("mimic4", folder, folder / "cohort", store=store).reused


def test_the_order_of_event_rows_does_not_matter(
    write_hospital: Write, store: CodeStore, tmp_path: Path, cohort: Cohort
) -> None:
    """Runs of one visit are a shortcut: rows in any order give the same cohort."""
    mixed = {
        name: [lines[0], *lines[:0:-1]] for name, lines in TABLES.items() if name in ("prescriptions", "diagnoses_icd")
    }
    mixed["prescriptions"] = [mixed["prescriptions"][number] for number in (0, 3, 1, 5, 2, 4)]
    assert cohort_of_folder(write_hospital("mixed", **mixed), store, tmp_path / "second").hash == cohort.hash
