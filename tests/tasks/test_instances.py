"""What an instance may see: prefixes, allowed kinds, known times; and what must never reach it."""

from __future__ import annotations

from datetime import datetime, timedelta

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patients_like_me.records.cohort import KINDS, Cohort
from patients_like_me.records.small import cohort_of
from patients_like_me.tasks.instances import build_instances, instances_to_predict
from patients_like_me.tasks.prompts import parts_of_instances
from patients_like_me.tasks.registry import all_tasks
from patients_like_me.tasks.task import TaskSettings

TASKS = all_tasks()

START = datetime(2150, 1, 1, 10)


def day(number: float) -> datetime:
    return START + timedelta(days=number)


@pytest.fixture
def cohort() -> Cohort:
    return cohort_of(
        [
            {
                "subject_id": "p",
                "visit_id": f"v{n}",
                "admission_time": day(10 * n),
                "discharge_time": day(10 * n + 4),
                "diagnoses": [f"d{n}", "shared"],
                "procedures": [(f"p{n}", day(10 * n + 1))],
                "medications": [(f"m{n}", day(10 * n + 2)), (f"late{n}", day(10 * n + 6))],
            }
            for n in range(3)
        ]
    )


def seen(cohort: Cohort, task: str, visit: str, **settings: str) -> set[str]:
    instances = build_instances(cohort, TASKS[task], TASKS[task].settings(settings))
    row = instances.instance_ids.index(visit)
    frames = pl.concat([instances.inputs(kind) for kind in KINDS])
    return set(frames.filter(pl.col("instance") == row)["code"].to_list())


@pytest.mark.parametrize("inputs", ["retrospective", "known"])
@pytest.mark.parametrize("task", TASKS)
def test_the_sets_of_a_graph_are_the_diagnoses_of_the_inputs(cohort: Cohort, task: str, inputs: str) -> None:
    instances = build_instances(cohort, TASKS[task], TASKS[task].settings({"inputs": inputs}))
    wanted = instances.inputs("diagnosis").group_by("instance").agg(pl.col("code").unique().sort())
    sets = instances.diagnosis_sets
    assert {row: list(sets.of(row)) for row in range(len(sets)) if sets.of(row)} == dict(wanted.iter_rows())
    assert set(sets.vocabulary) == {code for codes in wanted["code"].to_list() for code in codes}


def test_instances_without_any_diagnosis_have_empty_sets() -> None:
    empty = cohort_of([{"subject_id": "p", "visit_id": "v", "admission_time": day(0), "discharge_time": day(2)}])
    sets = build_instances(empty, TASKS["length_of_stay"]).diagnosis_sets
    assert sets.indptr.tolist() == [0, 0]
    assert sets.vocabulary == ()


def test_an_instance_sees_its_prefix_and_nothing_later(cohort: Cohort) -> None:
    assert seen(cohort, "length_of_stay", "v1") == {
        "d0",
        "d1",
        "shared",
        "p0",
        "p1",
        "m0",
        "m1",
        "late0",
        "late1",
    }


def test_drug_recommendation_never_sees_its_own_medications(cohort: Cohort) -> None:
    assert seen(cohort, "drug_recommendation", "v1") == {"d0", "d1", "shared", "p0", "p1", "m0", "late0"}
    assert seen(cohort, "drug_recommendation", "v0") == {"d0", "shared", "p0"}


@pytest.mark.parametrize("task", ["length_of_stay", "drug_recommendation"])
def test_known_inputs_at_admission_hold_nothing_of_the_current_visit(cohort: Cohort, task: str) -> None:
    assert seen(cohort, task, "v0", inputs="known") == set()
    assert seen(cohort, task, "v1", inputs="known") == {"d0", "shared", "p0", "m0", "late0"}


def test_known_inputs_at_discharge_leave_out_what_was_ordered_later(cohort: Cohort) -> None:
    assert seen(cohort, "readmission", "v0", inputs="known") == {"d0", "shared", "p0", "m0"}
    assert "late0" in seen(cohort, "readmission", "v0", inputs="retrospective")


def test_known_inputs_leave_out_an_earlier_visit_that_still_went_on() -> None:
    overlapping = cohort_of(
        [
            {
                "subject_id": "p",
                "visit_id": "a",
                "admission_time": day(0),
                "discharge_time": day(9),
                "diagnoses": ["x"],
            },
            {
                "subject_id": "p",
                "visit_id": "b",
                "admission_time": day(3),
                "discharge_time": day(4),
                "diagnoses": ["y"],
            },
        ]
    )
    assert seen(overlapping, "length_of_stay", "b", inputs="known") == set()
    assert seen(overlapping, "length_of_stay", "b") == {"x", "y"}


def test_known_inputs_leave_out_what_has_no_end_or_came_later() -> None:
    """An earlier visit without a discharge may still go on; an order dated after the prediction is not known."""
    open_ended = cohort_of(
        [
            {"subject_id": "p", "visit_id": "a", "admission_time": day(0), "medications": [("late", day(60))]},
            {
                "subject_id": "p",
                "visit_id": "b",
                "admission_time": day(30),
                "discharge_time": day(31),
                "medications": ["x"],
            },
        ]
    )
    assert seen(open_ended, "drug_recommendation", "b", inputs="known") == set()
    ended = cohort_of(
        [
            {
                "subject_id": "p",
                "visit_id": "a",
                "admission_time": day(0),
                "discharge_time": day(1),
                "medications": [("late", day(60)), ("early", day(0))],
            },
            {
                "subject_id": "p",
                "visit_id": "b",
                "admission_time": day(30),
                "discharge_time": day(31),
                "medications": ["x"],
            },
        ]
    )
    assert seen(ended, "drug_recommendation", "b", inputs="known") == {"early"}


def test_diagnosis_sets_hold_each_diagnosis_of_the_prefix_once(cohort: Cohort) -> None:
    sets = build_instances(cohort, TASKS["length_of_stay"]).diagnosis_sets
    assert [sets.of(row) for row in range(3)] == [
        ("d0", "shared"),
        ("d0", "d1", "shared"),
        ("d0", "d1", "d2", "shared"),
    ]
    known = build_instances(cohort, TASKS["length_of_stay"], TaskSettings(inputs="known")).diagnosis_sets
    assert [known.of(row) for row in range(3)] == [(), ("d0", "shared"), ("d0", "d1", "shared")]


VISITS = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.integers(0, 60),
        st.lists(st.sampled_from("abcdefgh"), max_size=4, unique=True),
    ),
    min_size=1,
    max_size=15,
)


@given(VISITS)
def test_changing_a_later_visit_or_another_patient_changes_no_input(
    rows: list[tuple[int, int, list[str]]],
) -> None:
    """The leak alarm: replace every code outside an instance's prefix, and its inputs stay the same."""

    def make(keep: set[str] | None) -> Cohort:
        return cohort_of(
            [
                {
                    "subject_id": str(subject),
                    "visit_id": f"{n:02d}",
                    "admission_time": day(start),
                    "discharge_time": day(start + 1),
                    "diagnoses": codes if keep is None or f"{n:02d}" in keep else ["changed"],
                    "medications": codes if keep is None or f"{n:02d}" in keep else ["changed"],
                }
                for n, (subject, start, codes) in enumerate(rows)
            ]
        )

    original = build_instances(make(None), TASKS["length_of_stay"])
    for row, visit in enumerate(original.frame["visit"].to_list()):
        subject = original.cohort.visits["subject"][visit]
        prefix = original.cohort.visits.filter((pl.col("subject") == subject) & (pl.col("visit") <= visit))
        changed = build_instances(make(set(prefix["visit_id"].to_list())), TASKS["length_of_stay"])
        for kind in KINDS:
            mine = pl.col("instance") == row
            assert changed.inputs(kind).filter(mine).equals(original.inputs(kind).filter(mine))


@given(VISITS)
def test_visit_order_does_not_depend_on_the_order_of_the_rows(rows: list[tuple[int, int, list[str]]]) -> None:
    visits = [
        {"subject_id": str(subject), "visit_id": f"{n:02d}", "admission_time": day(start), "diagnoses": codes}
        for n, (subject, start, codes) in enumerate(rows)
    ]
    assert cohort_of(visits).visits.equals(cohort_of(visits[::-1]).visits)
    times = cohort_of(visits).visits.with_columns(before=pl.col("admission_time").shift(1).over("subject"))
    assert times.filter(pl.col("admission_time") < pl.col("before")).is_empty()


def test_newcomers_are_asked_the_question_of_the_settings(cohort: Cohort) -> None:
    task = TASKS["readmission"]

    instances = instances_to_predict(cohort, task, task.settings({"window_days": 30}))

    assert "30 days" in parts_of_instances(instances)[0].question
    assert "15 days" not in parts_of_instances(instances)[0].question
