from __future__ import annotations

import copy
import warnings
from typing import Any

import polars as pl
import pytest

from patients_like_me.errors import PlmError
from patients_like_me.records.newcomers import cohort_of_newcomers

ADA: dict[str, Any] = {
    "id": "ada",
    "age": 71,
    "sex": "F",
    "insurance": "public",
    "visits": [
        {"admission": "2024-05-03", "discharge": "2024-05-09", "diagnoses": ["I50.9", "icd9:428.0"]},
        {
            "admission": "2024-06-01T10:30:00",
            "diagnoses": ["E11.9"],
            "medications": ["furosemide 40 mg", "atc:A10BA02"],
        },
    ],
}


def test_a_dict_becomes_a_patient_with_visits_and_codes() -> None:
    cohort = cohort_of_newcomers(ADA)

    assert cohort.patients["subject_id"].to_list() == ["ada"]
    assert cohort.visits["age"].to_list() == [None, 71]
    assert cohort.visits["insurance"].to_list() == ["public", "public"]
    assert cohort.visits["admission_time"].dt.strftime("%F %H:%M").to_list() == ["2024-05-03 00:00", "2024-06-01 10:30"]
    # Both ICD codes are heart failure: CCS 108, once.
    assert cohort.codes["diagnosis"].rows() == [(0, "108", None), (1, "49", None)]
    assert sorted(cohort.codes["medication"]["code"]) == ["A10B", "C03C"]


def test_frames_and_dicts_give_the_same_cohort() -> None:
    frames = {
        "visits": pl.DataFrame(
            {"subject_id": ["a"], "visit_id": ["v"], "admission_time": ["2024-05-03"], "age": ["40"]}
        ),
        "events": pl.DataFrame({"visit_id": ["v"], "kind": ["diagnosis"], "code": ["I50.9"]}),
    }
    person = {
        "id": "a",
        "age": 40,
        "visits": [{"id": "v", "admission": "2024-05-03", "diagnoses": ["I50.9"]}],
    }

    from_frames, from_dict = cohort_of_newcomers(frames), cohort_of_newcomers([person])

    assert from_frames.visits.equals(from_dict.visits)
    assert from_frames.codes["diagnosis"].equals(from_dict.codes["diagnosis"])


def changed(change: dict[str, Any], *, visit: dict[str, Any] | None = None) -> dict[str, Any]:
    person = copy.deepcopy(ADA) | change
    if visit is not None:
        person["visits"][0] |= visit
    return person


@pytest.mark.parametrize(
    ("person", "words"),
    [
        (changed({"agee": 3}), "unknown entry 'agee'"),
        (changed({}, visit={"drugs": ["x"]}), r"unknown entry 'drugs' \(visit 1, 'drugs'\)"),
        (changed({}, visit={"admission": "yesterday"}), r"visit 1, 'admission'"),
        (changed({"age": 900}), "'age'"),
        (changed({"age": True}), "an age should be a whole number .'age'."),
        (
            {
                "visits": pl.DataFrame(schema=["subject_id", "visit_id"]),
                "events": pl.DataFrame(schema=["visit_id", "kind", "code"]),
            },
            "^the newcomers' visits has no rows",
        ),
        (changed({"visits": []}), "at least one visit is needed .'visits'."),
        (changed({"visits": {}}), "input should be a list .'visits'."),
        (changed({"visits": [None]}), "a visit should be a dict"),
        (changed({}, visit={"diagnoses": "I50.9"}), "input should be a list .visit 1, 'diagnoses'."),
        (changed({}, visit={"admission": 20240503}), "a date should be text such as 2024-05-03, or a date .visit 1"),
        (changed({}, visit={"admission": "0001-01-01"}), "1 is not a year of a hospital stay .visit 1, 'admission'."),
        ({"visits": pl.DataFrame({"subject_id": [1]}), "events": None}, "the table 'events' .* is a NoneType"),
        ({"visits": pl.LazyFrame(), "events": pl.DataFrame()}, "'visits' .* is a LazyFrame, .*; collect it first"),
        (
            changed({}, visit={"discharge": "2024-05-01"}),
            "newcomers' visits, row 2: discharge_time is before .*; correct them$",
        ),
        (
            changed({}, visit={"diagnoses": ["snomedd:1"]}),
            "newcomers' events, row 2: unknown kind of the form 'diagnosis/xxxxxxx'",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(person: dict[str, Any], words: str) -> None:
    with pytest.raises(PlmError, match=words):
        cohort_of_newcomers(person)


def test_the_same_id_twice_is_refused_and_not_printed() -> None:
    with pytest.raises(PlmError, match="newcomer 2 has the id") as caught:
        cohort_of_newcomers([ADA, ADA])
    assert "ada" not in str(caught.value)


def test_a_code_that_no_map_knows_is_named() -> None:
    with pytest.warns(UserWarning, match=r"no map knows are left out: 'I5O\.?9'"):
        cohort = cohort_of_newcomers(changed({}, visit={"diagnoses": ["I50.9", "I5O.9"]}))
    assert cohort.codes["diagnosis"]["code"].to_list() == ["108", "49"]


def test_what_is_left_out_of_frames_or_repaired_is_said() -> None:
    frames = {
        "visits": pl.DataFrame({"subject_id": ["a", "b"], "visit_id": ["v", " w"], "sex": ["F", "NULL"]}),
        "events": pl.DataFrame({"visit_id": ["v", "V"], "kind": ["diagnosis"] * 2, "code": ["I50.9"] * 2}),
    }
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        cohort = cohort_of_newcomers(frames)
    assert cohort.patients["sex"].to_list() == ["F", None]
    assert [str(warning.message) for warning in said] == [
        "1 value of 'visit_id' was brought into the normal form of ids",
        "'sex' is a word for a missing value in 1 visit: taken as missing",
        "1 row of the table events belongs to no visit and is left out",
    ]


def test_visits_are_taken_by_their_dates_whatever_their_order() -> None:
    early = {"admission": "2023-05-03", "diagnoses": ["E11.9"]}
    late = {"admission": "2024-05-03T10:00", "diagnoses": ["I50.9"]}
    sorted_, turned = (cohort_of_newcomers({"age": 71, "visits": order}) for order in ([early, late], [late, early]))
    times = sorted_.visits.sort("visit")["admission_time"].to_list()
    assert times == sorted(times) == turned.visits.sort("visit")["admission_time"].to_list()
    assert (
        turned.codes["diagnosis"].sort("visit")["code"].to_list()
        == sorted_.codes["diagnosis"].sort("visit")["code"].to_list()
    )
    assert turned.visits.sort("visit")["age"].to_list() == sorted_.visits.sort("visit")["age"].to_list()
    with pytest.raises(PlmError, match="not in that order"):
        cohort_of_newcomers({"visits": [late, {"diagnoses": ["J18.9"]}, early]})


def test_the_usual_words_for_a_sex_are_one() -> None:
    found = [
        cohort_of_newcomers({"sex": sex, "visits": [{"diagnoses": ["I50.9"]}]}).patients["sex"].item()
        for sex in ("F", "female", "Female ", "f")
    ]
    assert found == ["F"] * 4
