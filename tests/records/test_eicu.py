"""eICU: minutes become times, stays become visits, and nothing is known about the time between stays."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from careless import without_times
from tiny_eicu import TABLES

from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort, Kind
from patients_like_me.records.prepare import prepare
from patients_like_me.tasks.audit import audit, audit_instances
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task
from patients_like_me.tasks.task import TaskSettings

Load = Callable[..., Cohort]


@pytest.fixture
def load(tmp_path: Path, store: CodeStore) -> Load:
    """Return a function that prepares the made-up folder, some tables changed or left out (None)."""

    def load(reading: dict[str, Any] | None = None, **changed: list[str] | None) -> Cohort:
        folder = tmp_path / f"eicu{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for name, lines in {**TABLES, **changed}.items():
            if lines is not None:
                (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
        out = folder.with_name(f"{folder.name}-cohort")
        return Cohort.load(prepare("eicu", folder, out, reading=reading, store=store).folder)

    return load


def codes_of(cohort: Cohort, kind: str) -> dict[str, list[str]]:
    joined = cohort.codes[kind].join(cohort.visits.select("visit", "visit_id"), on="visit")  # type: ignore[index]
    return dict(joined.group_by("visit_id").agg(pl.col("code").sort()).iter_rows())


def test_a_hospital_stay_is_a_visit(load: Load) -> None:
    cohort = load()
    visits = {row["visit_id"]: row for row in cohort.visits.to_dicts()}
    assert cohort.visits["visit_id"].to_list() == ["10", "20", "30", "40"]
    assert visits["10"]["admission_time"] == datetime(2014, 1, 1, 23, 36)
    assert visits["10"]["discharge_time"] - visits["10"]["admission_time"] == timedelta(minutes=5760)
    assert [visits[visit]["died"] for visit in ("10", "20", "30", "40")] == [False, True, False, False]
    assert (visits["10"]["age"], visits["30"]["age"]) == (90, 54)
    assert (visits["10"]["site"], visits["10"]["unit"], visits["20"]["site"]) == ("59", "MICU", "60")
    assert (visits["10"]["ethnicity"], visits["30"]["ethnicity"], visits["40"]["ethnicity"]) == (
        "Caucasian",
        None,
        None,
    )
    assert cohort.patients["sex"].to_list() == ["F", "M"]


def test_a_unit_stay_can_be_a_visit(load: Load) -> None:
    cohort = load({"visit": "unit"})
    assert cohort.visits["visit_id"].to_list() == ["101", "102", "201", "301", "401"]
    first, second = cohort.visits["admission_time"][:2]
    assert first == datetime(2014, 1, 2, 0, 36)
    assert second - first == timedelta(minutes=1440)
    assert cohort.visits["sequence"].to_list() == [0, 1, 2, 0, 0]


def test_events_of_all_units_meet_in_the_hospital_stay(load: Load) -> None:
    cohort = load()
    assert codes_of(cohort, "diagnosis") == {"10": ["108", "122"], "20": ["107", "2"], "40": ["49"]}
    times = dict(cohort.codes["diagnosis"].filter(pl.col("visit") == 0).select("code", "time").rows())
    assert times["108"] == datetime(2014, 1, 1, 23, 36) + timedelta(minutes=60 + 30)
    assert times["122"] == datetime(2014, 1, 1, 23, 36) + timedelta(minutes=1500 + 60)


def test_drugs_by_name_and_by_the_usual_name_of_their_number(load: Load) -> None:
    cohort = load()
    assert codes_of(cohort, "medication") == {
        "10": ["C03C"],
        "20": ["A10A", "C01C"],
        "30": ["C03C"],
        "40": ["B01A", "N02B"],
    }
    assert codes_of(load({"admission_drugs": False}), "medication").get("30") is None
    both = cohort.codes["medication"].filter(pl.col("visit") == 0)
    assert both["time"][0] == datetime(2014, 1, 1, 23, 36) + timedelta(minutes=75)


def test_coverage_counts_what_was_found_how(load: Load, tmp_path: Path) -> None:
    load()
    maps = json.loads(next(tmp_path.glob("eicu*-cohort/coverage.json")).read_text())
    by_table = {row["table"]: row for row in maps}
    assert by_table["medication.csv"]["mapped_by_way"] == {"name": 3, "usual_name": 1}
    assert by_table["medication.csv"]["set_apart"] == {"not_a_medicine": 1}
    assert by_table["medication.csv"]["rows_unmapped"] == 1
    assert by_table["treatment.csv"]["set_apart"] == {"drug_treatment": 1}
    assert by_table["diagnosis.csv"]["rows_unmapped"] == 1


def test_treatments_that_are_procedures_are_kept_and_named(load: Load) -> None:
    cohort = load()
    ventilation = "pulmonary|ventilation and oxygenation|mechanical ventilation"
    assert codes_of(cohort, "procedure") == {"10": [ventilation], "20": ["renal|dialysis|hemodialysis"]}
    assert cohort.names("procedure")[ventilation] == "ventilation and oxygenation: mechanical ventilation"
    assert len(codes_of(load({"treatments": "all"}), "procedure")["10"]) == 2


def test_unit_stays_that_contradict_each_other_are_refused_or_said(load: Load) -> None:
    rows = TABLES["patient"]
    for changed, sentence in (
        ([*rows, rows[1]], "row 7: this 'patientunitstayid' is in an earlier row too"),
        (
            [*rows[:2], rows[2].replace(",p-1", ",p-2"), *rows[3:]],
            "row 3: another unit stay .* has another 'uniquepid'",
        ),
        ([*rows[:2], rows[2].replace(",2014,", ",2013,"), *rows[3:]], "row 3: another unit .* 'hospitaldischargeyear'"),
    ):
        with pytest.raises(PlmError, match=sentence):
            load(patient=changed)
    cohort = load(patient=[*rows[:2], rows[2].replace("4260,Alive", "4260,Expired"), *rows[3:]])
    assert cohort.visits["died"].to_list() == [True, True, False, False]
    assert "1 visit ends both alive and expired: taken as a death" in cohort.about["notes"]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (",p-2", ", ", "row 5.*'uniquepid' is blank"),
        ("201,20,", "201,,", "row 4.*'patienthealthsystemstayid' is blank"),
        (",08:00:00,", ",0000-00-00,", "row 4.*'hospitaladmittime24' must be a time such as"),
        (",Expired,SICU", ",Dead,SICU", "row 4.*'hospitaldischargestatus' must be Alive, Expired or blank"),
        (",Expired,p-1", ",1,p-1", "row 4.*'unitdischargestatus' must be Alive, Expired or blank"),
        (",08:00:00,", ",25:00:00,", "row 4.*'hospitaladmittime24' must be a time such as"),
        (",2014,", ",20140101,", "row 2.*'hospitaldischargeyear' must be a year such as 2014"),
        (",2014,", ",9999999999999,", "row 2.*'hospitaldischargeyear' must be a year such as 2014"),
        (",5700,", f",{2**63 - 1},", "row 2.*'hospitaldischargeoffset' must be minutes, and these are more than a"),
        (",Female,", ",Woman,", "row 2.*'gender' must be F, Female, M, Male, Other, Unknown or blank"),
    ],
)
def test_a_stay_of_nobody_and_a_time_that_is_none_are_refused(load: Load, old: str, new: str, sentence: str) -> None:
    row = next(number for number, line in enumerate(TABLES["patient"]) if old in line)
    changed = [line.replace(old, new) if number == row else line for number, line in enumerate(TABLES["patient"])]
    with pytest.raises(PlmError, match=sentence):
        load(patient=changed)


def test_deaths_and_cancelled_orders_are_found_however_they_are_written(load: Load) -> None:
    patients = [line.replace("Expired", " EXPIRED ").replace("Alive", "alive") for line in TABLES["patient"]]
    patients = [line.replace(",Female,", ",FEMALE,").replace(",Male,", ", m,") for line in patients]
    orders = [line.replace(",Yes,", ", YES ,").replace(",No,", ",n,") for line in TABLES["medication"]]
    usual, cohort = load(), load(patient=patients, medication=orders)
    assert cohort.visits["died"].to_list() == usual.visits["died"].to_list()
    assert cohort.labels.equals(usual.labels)
    assert cohort.patients.equals(usual.patients)
    assert codes_of(cohort, "medication") == codes_of(usual, "medication")
    with pytest.raises(PlmError, match=r"row 4: 'drugordercancelled' must be one of 1, true"):
        load(medication=[line.replace(",Yes,", ",stopped,") for line in TABLES["medication"]])


def test_readmission_is_refused_and_the_other_tasks_work(load: Load) -> None:
    cohort = load()
    assert cohort.visits["next_admission_time"].null_count() == 4
    with pytest.raises(PlmError, match="readmission cannot be computed for this cohort: eICU has no dates"):
        build_instances(cohort, find_task("readmission", cohort))
    stays = build_instances(cohort, find_task("length_of_stay", cohort))
    assert dict(zip(stays.instance_ids, stays.labels.tolist(), strict=True)) == {"10": 4, "20": 1, "30": 2, "40": 7}
    assert len(build_instances(cohort, find_task("drug_recommendation", cohort))) == 4
    deaths = build_instances(cohort, find_task("mortality", cohort))
    assert dict(zip(deaths.instance_ids, deaths.labels.tolist(), strict=True)) == {"10": 0, "20": 1, "30": 0}


def test_only_stays_of_earlier_years_are_history(load: Load) -> None:
    """Two stays of one year: nobody knows which came first, so neither may see the other."""
    cohort = load()
    assert cohort.visits["sequence"].to_list() == [0, 1, 0, 0]
    instances = build_instances(cohort, find_task("length_of_stay", cohort))
    assert instances.history.rows() == [(1, 0)]


@pytest.mark.parametrize("visit", ["hospital", "unit"])
@pytest.mark.parametrize("inputs", ["retrospective", "known"])
@pytest.mark.parametrize("task", ["length_of_stay", "drug_recommendation", "mortality"])
def test_no_leak(load: Load, visit: str, inputs: str, task: str) -> None:
    cohort = load({"visit": visit})
    found = audit(cohort, find_task(task, cohort), TaskSettings.model_validate({"inputs": inputs}))
    assert found.leaks == []


def test_minutes_that_fit_into_no_time_are_far_away_and_not_near(load: Load) -> None:
    rows = [line.replace(",101,True,30,", f",101,True,{2**63 - 1},") for line in TABLES["diagnosis"]]
    cohort = load(diagnosis=rows)
    assert cohort.codes["diagnosis"]["time"].max() > datetime(2110, 1, 1)
    assert "1 diagnosis code is dated more than a year before or after its visit" in cohort.about["notes"]


def test_what_is_entered_after_discharge_is_not_known_before(load: Load) -> None:
    """A diagnosis and a drug dated after the discharge of stay 20 never reach an input that must be known."""
    cohort = load()
    late = cohort.codes["diagnosis"].filter(pl.col("code") == "107")
    discharged = cohort.visits.filter(pl.col("visit_id") == "20")["discharge_time"][0]
    assert late["time"][0] > discharged
    known = TaskSettings(inputs="known")
    deaths = build_instances(cohort, find_task("mortality", cohort), known)
    seen = deaths.inputs("diagnosis").join(deaths.frame, on="instance").filter(pl.col("instance_id") == "20")
    assert sorted(seen["code"]) == ["108", "122", "2"]
    assert "A10A" not in set(deaths.inputs("medication")["code"])
    # Without its time the same diagnosis is taken to be known at the end of the stay: the time alone kept it out.
    undated = cohort.codes["diagnosis"].with_columns(pl.lit(None, pl.Datetime("us")).alias("time"))
    planted = replace(cohort, codes={**cohort.codes, "diagnosis": undated})
    assert "107" in set(build_instances(planted, find_task("mortality", planted), known).inputs("diagnosis")["code"])


@pytest.mark.parametrize(("kind", "late"), [("diagnosis", "107"), ("medication", "A10A")])
def test_planted_leaks_are_caught(load: Load, kind: Kind, late: str) -> None:
    """Instances that forget when a code was entered see it too early, and the audit says so."""
    cohort = load()
    honest = build_instances(cohort, find_task("mortality", cohort), TaskSettings(inputs="known"))
    assert audit_instances(honest).leaks == []
    careless = without_times(honest)
    assert late in set(careless.inputs(kind)["code"]) - set(honest.inputs(kind)["code"])
    assert "only what was known at prediction time" in [found.check for found in audit_instances(careless).leaks]


def test_an_input_of_unknown_order_is_a_leak(load: Load) -> None:
    """Pretend that the stays of one year were ordered: the audit finds that an input may come from a later stay."""
    cohort = load()
    task = find_task("length_of_stay", cohort)
    instances = build_instances(cohort, task)
    pretended = replace(instances, cohort=replace(cohort, unordered=""))
    assert [finding.check for finding in audit_instances(pretended).leaks] == [
        "no visit after the prediction",
        "next admission recomputed",
    ]


@pytest.mark.parametrize("table", ["infusionDrug", "admissionDrug", "treatment", "medication"])
def test_an_optional_table_may_be_missing_or_empty(load: Load, table: str) -> None:
    missing = load(**{table: None})
    assert missing.about["notes"][0] == f"the optional table '{table.lower()}' is not there"
    empty = load(**{table: TABLES[table][:1]})
    assert empty.visits.height == missing.visits.height


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"patient": None}, r"no table 'patient'"),
        ({"diagnosis": None}, r"no table 'diagnosis'"),
        ({"patient": [line.replace("uniquepid", "pid") for line in TABLES["patient"]]}, r"has no column 'uniquepid'"),
        (
            {"diagnosis": [line.replace("1,101,True,30,", "1,101,True,soon,") for line in TABLES["diagnosis"]]},
            r"diagnosis\.csv', row 2: a value of the form 'xxxx' is not a whole number in column 'diagnosisoffset'",
        ),
        (
            {"diagnosis": [re.sub(r"^(\d),\d\d\d,", r"\1,99,", line) for line in TABLES["diagnosis"]]},
            r"none of the 6 rows of .*diagnosis\.csv' belongs to a visit",
        ),
    ],
)
def test_bad_input_ends_in_a_sentence(load: Load, changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlmError, match=sentence):
        load(**changed)


@pytest.fixture(scope="module")
def demo(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cohort]:
    if not (shared_data / "eicu_demo").is_dir():
        pytest.skip("the eICU demo is not among the real records of this machine")
    folder = tmp_path_factory.mktemp("eicu")
    return {
        visit: Cohort.load(
            prepare(
                "eicu",
                shared_data / "eicu_demo",
                folder / visit,
                reading={"visit": visit},
                store=CodeStore(folder / "codes"),
            ).folder
        )
        for visit in ("hospital", "unit")
    }


def test_golden_figures_of_the_demo(demo: dict[str, Cohort]) -> None:
    assert {(cohort.patients.height) for cohort in demo.values()} == {1841}
    assert (demo["hospital"].visits.height, demo["unit"].visits.height) == (2174, 2520)
    hospital = demo["hospital"]
    assert hospital.visits["site"].n_unique() == 186
    stays = build_instances(hospital, find_task("length_of_stay", hospital))
    assert len(stays) == 2174
    deaths = build_instances(hospital, find_task("mortality", hospital))
    assert (len(deaths), int(deaths.labels.sum())) == (2149, 182)
    assert np.bincount(stays.labels).sum() == 2174


def test_nine_of_ten_drug_rows_of_the_demo_are_mapped(
    demo: dict[str, Cohort], tmp_path_factory: pytest.TempPathFactory
) -> None:
    del demo
    path = next(tmp_path_factory.getbasetemp().glob("eicu*/hospital/coverage.json"))
    drugs = [row for row in json.loads(path.read_text()) if row["map"].startswith("medication")]
    wanted = sum(row["rows"] - sum(row["set_apart"].values()) for row in drugs)
    assert sum(row["rows"] for row in drugs) == 118_641
    assert sum(row["rows_mapped"] for row in drugs) / wanted > 0.94


@pytest.mark.parametrize("task", ["length_of_stay", "drug_recommendation"])
@pytest.mark.parametrize("inputs", ["retrospective", "known"])
def test_no_leak_in_the_demo(demo: dict[str, Cohort], task: str, inputs: str) -> None:
    for cohort in demo.values():
        found = audit(cohort, find_task(task, cohort), TaskSettings.model_validate({"inputs": inputs}))
        assert found.leaks == []
