"""Labels and clocks: what counts as a readmission, a class of stay, a set of drugs."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patients_like_me.errors import PlmError
from patients_like_me.records.small import cohort_of
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import all_tasks, find_task
from patients_like_me.tasks.task import TaskSettings

TASKS = all_tasks()

START = datetime(2150, 1, 1, 10)


def visit(subject: str, name: str, day: float, stay: float | None = 1.0, **more: object) -> dict[str, object]:
    admitted = START + timedelta(days=day)
    discharged = None if stay is None else admitted + timedelta(days=stay)
    return {
        "subject_id": subject,
        "visit_id": name,
        "admission_time": admitted,
        "discharge_time": discharged,
        **more,
    }


def labels_of(visits: list[dict[str, object]], task: str, **settings: object) -> dict[str, int]:
    instances = build_instances(cohort_of(visits), find_task(task), find_task(task).settings(settings))
    return dict(zip(instances.instance_ids, instances.labels.tolist(), strict=True))


def test_readmission_counts_to_the_last_second_of_the_window() -> None:
    second = 1 / 86_400
    visits = [visit("p", "a", 0), visit("p", "b", 15), visit("p", "c", 30 + second), visit("q", "d", 0)]
    assert labels_of(visits, "readmission") == {"a": 1, "b": 0}


def test_the_discharge_clock_starts_later() -> None:
    visits = [visit("p", "a", 0, stay=10), visit("p", "b", 20, stay=1)]
    assert labels_of(visits, "readmission", clock="admission") == {"a": 0}
    assert labels_of(visits, "readmission", clock="discharge") == {"a": 1}


def test_a_missing_discharge_leaves_the_discharge_clock_without_a_label() -> None:
    visits = [visit("p", "a", 0, stay=None), visit("p", "b", 3), visit("p", "c", 5)]
    assert labels_of(visits, "readmission", clock="admission") == {"a": 1, "b": 1}
    assert labels_of(visits, "readmission", clock="discharge") == {"b": 1}


def test_a_given_label_does_not_keep_a_death_among_those_discharged_alive() -> None:
    visits = [visit("p", "a", 0), visit("q", "b", 0, died=True), visit("r", "c", 0)]
    given = [("a", "readmission", "1"), ("b", "readmission", "0"), ("c", "readmission", "0")]
    cohort = cohort_of(visits, labels=given)
    for population, expected in (("discharged_alive", ["a", "c"]), ("with_successor", ["a", "b", "c"])):
        found = build_instances(cohort, TASKS["readmission"], TASKS["readmission"].settings({"population": population}))
        assert found.instance_ids == expected


def test_the_population_discharged_alive_has_last_visits_but_no_deaths() -> None:
    visits = [visit("p", "a", 0), visit("p", "b", 3), visit("q", "c", 0, died=True)]
    assert labels_of(visits, "readmission", population="discharged_alive") == {"a": 1, "b": 0}


@pytest.mark.parametrize(
    ("days", "expected"),
    [(0, 0), (0.999, 0), (1, 1), (1.99, 1), (7, 7), (7.99, 7), (8, 8), (14.99, 8), (15, 9), (400, 9)],
)
def test_length_of_stay_classes(days: float, expected: int) -> None:
    assert labels_of([visit("p", "a", 0, stay=days)], "length_of_stay") == {"a": expected}


def test_length_of_stay_needs_a_discharge() -> None:
    assert labels_of([visit("p", "a", 0, stay=None), visit("p", "b", 2)], "length_of_stay") == {"b": 1}


def test_drug_labels_are_sets_over_the_training_vocabulary() -> None:
    visits = [visit(str(n), str(n), 0, medications=["A02B", f"X{n:03d}"]) for n in range(20)]
    instances = build_instances(cohort_of(visits), TASKS["drug_recommendation"])
    train = set(instances.rows_of("train").tolist())
    assert set(instances.label_vocabulary) == {"A02B"} | {f"X{int(instances.instance_ids[n]):03d}" for n in train}
    assert instances.labels_outside_vocabulary == 20 - len(train)
    assert instances.labels[:, instances.label_vocabulary.index("A02B")].all()


def test_visits_without_medications_are_no_drug_instances() -> None:
    visits = [visit("p", "a", 0), visit("p", "b", 2, medications=["A02B"])]
    instances = build_instances(cohort_of(visits), TASKS["drug_recommendation"])
    assert instances.instance_ids == ["b"]


def test_given_labels_serve_where_there_are_no_dates() -> None:
    rows = [{"subject_id": "p", "visit_id": name, "order": n} for n, name in enumerate("ab")]
    labels = [
        ("a", "readmission", "1"),
        ("b", "length_of_stay", "9.5"),
        ("a", "mood", "good"),
        ("b", "mood", "bad"),
    ]
    cohort = cohort_of(rows, labels=labels)
    assert build_instances(cohort, TASKS["readmission"]).labels.tolist() == [1]
    assert build_instances(cohort, TASKS["length_of_stay"]).labels.tolist() == [8]
    own = find_task("mood", cohort)
    assert own.kind == "multiclass"
    everyone_trains = TaskSettings(split_shares=(1, 0, 0))
    instances = build_instances(cohort, own, everyone_trains)
    assert instances.task.classes == ("bad", "good")
    assert instances.labels.tolist() == [1, 0]


def test_own_tasks_are_binary_multiclass_or_multilabel_by_their_values() -> None:
    rows = [{"subject_id": "p", "visit_id": name, "order": n} for n, name in enumerate("ab")]
    labels = [
        ("a", "yes", "1"),
        ("b", "yes", "0"),
        ("a", "set", "x"),
        ("a", "set", "y"),
        ("a", "grade", "10"),
        ("b", "grade", "9"),
    ]
    cohort = cohort_of(rows, labels=labels)
    assert find_task("yes", cohort).kind == "binary"
    assert find_task("set", cohort).kind == "multilabel"
    instances = build_instances(cohort, find_task("grade", cohort), TaskSettings(split_shares=(1, 0, 0)))
    assert instances.task.classes == ("9", "10")


def test_a_class_that_only_test_patients_have_reaches_nothing() -> None:
    rows = [{"subject_id": str(n), "visit_id": str(n), "order": 0} for n in range(20)]
    labels = [(str(n), "grade", "common" if n % 2 else "other") for n in range(20)]
    plain = build_instances(cohort_of(rows, labels=labels), find_task("grade", cohort_of(rows, labels=labels)))
    stranger = plain.instance_ids[int(plain.rows_of("test")[0])]
    changed = [(visit, task, "SECRET" if visit == stranger else value) for visit, task, value in labels]
    cohort = cohort_of(rows, labels=changed)
    instances = build_instances(cohort, find_task("grade", cohort))
    assert instances.task.classes == ("common", "other")
    assert "SECRET" not in instances.task.answer
    assert stranger not in instances.instance_ids
    assert instances.labels_outside_vocabulary == 1


@pytest.mark.parametrize(
    ("task", "value"), [("readmission", "2"), ("readmission", "maybe"), ("length_of_stay", "long")]
)
def test_a_wrong_given_label_is_refused(task: str, value: str) -> None:
    cohort = cohort_of([{"subject_id": "p", "visit_id": "a", "order": 0}], labels=[("a", task, value)])
    with pytest.raises(PlmError, match="labels table"):
        build_instances(cohort, TASKS[task])


def test_an_unknown_task_names_the_known_ones() -> None:
    with pytest.raises(PlmError, match="drug_recommendation, length_of_stay, readmission"):
        find_task("mortality")


def test_no_label_at_all_is_said() -> None:
    with pytest.raises(PlmError, match="no visit of this cohort has a label"):
        build_instances(cohort_of([visit("p", "a", 0)]), TASKS["readmission"])


def test_every_task_describes_itself() -> None:
    for task in TASKS.values():
        words = task.describe()
        assert words["metrics"]
        assert "medication" in words["inputs"]
    assert "current visit no (retrospective)" in TASKS["drug_recommendation"].describe()["inputs"]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 40), st.one_of(st.none(), st.integers(0, 30))),
        min_size=1,
        max_size=12,
    )
)
def test_clocks_agree_with_a_plain_recomputation(rows: list[tuple[int, int, int | None]]) -> None:
    """Equal times, missing discharges, one visit: the labels are what a loop over the sorted visits gives."""
    visits = [visit(str(subject), f"{n:02d}", day, stay) for n, (subject, day, stay) in enumerate(rows)]
    cohort = cohort_of(visits)
    for clock in ("admission", "discharge"):
        expected = {}
        for subject in {row["subject_id"] for row in visits}:
            own = sorted(
                (v for v in visits if v["subject_id"] == subject),
                key=lambda v: (
                    v["admission_time"],
                    v["discharge_time"] is None,
                    v["discharge_time"] or START,
                    v["visit_id"],
                ),
            )
            for now, later in pairwise(own):
                start = now["admission_time"] if clock == "admission" else now["discharge_time"]
                if start is not None:
                    expected[now["visit_id"]] = int(later["admission_time"] - start <= timedelta(days=15))  # type: ignore[operator]
        if not expected:
            continue
        instances = build_instances(cohort, TASKS["readmission"], TASKS["readmission"].settings({"clock": clock}))
        assert dict(zip(instances.instance_ids, instances.labels.tolist(), strict=True)) == expected
