"""The bag: what a prompt shows and nothing else, with columns that the training split decides."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patients_like_me.records.cohort import DEMOGRAPHICS
from patients_like_me.records.small import cohort_of
from patients_like_me.systems.bags import EARLIER_VISITS, Bag, BagSettings, bag_of
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.prompts import parts_of_instances
from patients_like_me.tasks.registry import all_tasks
from patients_like_me.tasks.task import TaskSettings

TASKS = all_tasks()

EVERYTHING = BagSettings(minimum_instances=1)


def day(number: float) -> datetime:
    return datetime(2150, 1, 1, 10) + timedelta(days=number)


def visit(subject: str, number: int, **more: Any) -> dict[str, Any]:
    return {
        "subject_id": subject,
        "visit_id": f"{subject}{number}",
        "admission_time": day(10 * number),
        "discharge_time": day(10 * number + 4),
        **more,
    }


def instances_of(visits: list[dict[str, Any]], task: str = "length_of_stay", **settings: Any) -> Instances:
    return build_instances(cohort_of(visits), TASKS[task], TASKS[task].settings(settings))


def row(bag: Bag, number: int) -> dict[str, float]:
    """Return the features of one instance by name, those that are not 0."""
    values = bag.values[[number]].toarray()[0]
    return {bag.features[column]: values[column] for column in np.flatnonzero(values)}


def whole_bag(instances: Instances, settings: BagSettings = EVERYTHING) -> Bag:
    return bag_of(instances, np.arange(len(instances)), settings)


def codes(features: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in features.items() if " = " not in name}


def test_current_and_earlier_codes_are_apart_and_earlier_visits_are_counted() -> None:
    visits = [visit("p", n, diagnoses=["49", f"d{n}"], medications=["A10A"]) for n in range(3)]
    bag = whole_bag(instances_of(visits))
    assert codes(row(bag, 0)) == {"current diagnosis 49": 1, "current diagnosis d0": 1, "current medication A10A": 1}
    assert codes(row(bag, 2)) == {
        "current diagnosis 49": 1,
        "current diagnosis d2": 1,
        "current medication A10A": 1,
        "earlier diagnosis 49": pytest.approx(math.log(3)),
        "earlier diagnosis d0": pytest.approx(math.log(2)),
        "earlier diagnosis d1": pytest.approx(math.log(2)),
        "earlier medication A10A": pytest.approx(math.log(3)),
        EARLIER_VISITS: pytest.approx(math.log(3)),
    }
    present = whole_bag(instances_of(visits), BagSettings(earlier="presence", minimum_instances=1))
    assert row(present, 2)["earlier diagnosis 49"] == 1


def test_demographics_are_those_of_the_prompt() -> None:
    instances = instances_of([visit("p", 0, age=60, insurance="Medicare", ethnicity="ASIAN"), visit("q", 0)])
    bag = whole_bag(instances)
    for number, part in enumerate(parts_of_instances(instances)):
        shown = dict(field.split(": ") for field in part.demographics.rstrip(".").split("; "))
        expected = {f"{title.lower().replace(' ', '_')} = {text}" for title, text in shown.items()}
        assert {name for name in row(bag, number) if " = " in name} == expected
    assert {name.split(" = ")[0] for name in bag.features if " = " in name} == set(DEMOGRAPHICS)


def test_age_and_sex_are_seen_where_the_brief_prompt_shows_them() -> None:
    cohort = cohort_of([visit("p", 0, age=67, insurance="Medicare"), visit("p", 1, age=70), visit("q", 0)])
    cohort = replace(cohort, patients=cohort.patients.with_columns(sex=pl.Series(["F", None], dtype=pl.String)))
    shown = [
        {name: value for name, value in row(whole_bag(instances), number).items() if name != EARLIER_VISITS}
        for instances in [build_instances(cohort, TASKS["length_of_stay"], TaskSettings(prompt="brief"))]
        for number in range(3)
    ]
    assert shown[0] == {"age": pytest.approx(67 / 50), "age from 60": 1, "insurance = medicare": 1, "sex = f": 1}
    assert shown[1] == {"age": pytest.approx(70 / 50), "age from 70": 1, "sex = f": 1}
    assert shown[2] == {}
    paper = whole_bag(build_instances(cohort, TASKS["length_of_stay"], TaskSettings(prompt="paper")))
    assert not any(name.startswith(("age", "sex")) for name in paper.features)


def test_drugs_of_the_current_visit_are_hidden_from_drug_recommendation() -> None:
    visits = [visit("p", n, diagnoses=["49"], medications=[f"m{n}"]) for n in range(2)]
    bag = whole_bag(instances_of(visits, "drug_recommendation"))
    assert "earlier medication m0" in row(bag, 1)
    assert not any(name.startswith("current medication") for name in bag.features)


@pytest.mark.parametrize("task", ["length_of_stay", "drug_recommendation"])
def test_known_inputs_at_admission_hold_earlier_visits_only(task: str) -> None:
    visits = [visit("p", n, diagnoses=["49"], medications=["A10A"]) for n in range(2)]
    bag = whole_bag(instances_of(visits, task, inputs="known"))
    assert codes(row(bag, 0)) == {}
    assert not any(name.startswith("current") for name in bag.features)


def test_a_visit_that_still_went_on_is_not_counted_where_only_the_known_is_seen() -> None:
    visits = [
        visit("p", 0, diagnoses=["x"]) | {"discharge_time": day(30)},
        visit("p", 1, diagnoses=["y"]),
    ]
    assert codes(row(whole_bag(instances_of(visits, inputs="known")), 1)) == {}
    assert EARLIER_VISITS in row(whole_bag(instances_of(visits)), 1)


def many(changed_split: str | None = None) -> Instances:
    """Return 30 patients; the codes of one split's patients may be changed altogether."""
    visits = [
        visit(f"p{n:02d}", k, diagnoses=[f"d{(n + k) % 7}", f"d{n % 3}"], medications=[f"m{n % 4}"], insurance="other")
        for n in range(30)
        for k in range(2)
    ]
    instances = instances_of(visits, "drug_recommendation")
    if changed_split is None:
        return instances
    ids = instances.frame.join(instances.cohort.patients, on="subject").filter(split=changed_split)
    patients = set(ids["subject_id"].to_list())
    for entry in visits:
        if entry["subject_id"] in patients:
            entry |= {"diagnoses": ["new"], "medications": ["new"], "insurance": "new"}
    return instances_of(visits, "drug_recommendation")


@pytest.mark.parametrize("split", ["validation", "test"])
def test_another_split_changes_no_column_and_no_row_of_the_others(split: str) -> None:
    before, after = many(), many(split)
    bags = [bag_of(instances, instances.rows_of("train")) for instances in (before, after)]
    assert bags[0].features == bags[1].features
    assert not any("new" in name for name in bags[1].features)
    others = np.flatnonzero(before.splits != split)
    assert (bags[0].values[others] != bags[1].values[others]).nnz == 0
    changed = np.flatnonzero(before.splits == split)
    assert (bags[0].values[changed] != bags[1].values[changed]).nnz > 0


def test_a_rare_feature_is_left_out() -> None:
    visits = [visit("p", 0, diagnoses=["often", "once"]), visit("q", 0, diagnoses=["often"])]
    bag = whole_bag(instances_of(visits), BagSettings(minimum_instances=2))
    assert "current diagnosis often" in bag.features
    assert "current diagnosis once" not in bag.features


VISITS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 60), st.lists(st.sampled_from("abcdef"), max_size=4, unique=True)),
    min_size=1,
    max_size=8,
    # Two visits that begin together are ordered by their ends, which the test moves.
    unique_by=lambda drawn: drawn[:2],
)


@settings(max_examples=15)
@given(VISITS, st.sampled_from(["drug_recommendation", "length_of_stay"]), st.sampled_from(["known", "retrospective"]))
def test_what_lies_outside_an_instance_changes_no_feature_of_it(
    rows: list[tuple[int, int, list[str]]], task: str, inputs: str
) -> None:
    """The leak alarm: replace the answer, later visits and other patients, and the features stay the same."""

    def make(keep: set[str] | None, current: str = "") -> Instances:
        entries = []
        for n, (subject, start, drawn) in enumerate(rows):
            name = f"{n:02d}"
            kept = keep is None or name in keep
            hidden = task == "drug_recommendation" and name == current
            entries.append(
                {
                    "subject_id": str(subject),
                    "visit_id": name,
                    "admission_time": day(start),
                    "discharge_time": day(start + (9 if name == current and task == "length_of_stay" else 1)),
                    "diagnoses": drawn if kept else ["changed"],
                    "medications": ["z", *drawn] if kept and not hidden else ["changed"],
                    "religion": "other" if kept else "changed",
                }
            )
        return instances_of(entries, task, inputs=inputs)

    original = make(None)
    bag = whole_bag(original)
    places = dict(original.cohort.visits.select("visit_id", "position").iter_rows())
    for number, name in enumerate(original.instance_ids):
        prefix = {
            other
            for other, place in places.items()
            if rows[int(other)][0] == rows[int(name)][0] and place <= places[name]
        }
        changed = make(prefix, current=name)
        assert row(whole_bag(changed), changed.instance_ids.index(name)) == row(bag, number)
