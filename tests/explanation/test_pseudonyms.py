"""A person is shown with an age group and day offsets; ids only where they were asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from patients_like_me.explanation.pseudonyms import age_in_words, differences_of, person_of, sex_in_words
from patients_like_me.explanation.scene import Scene, set_scene
from patients_like_me.runs.run import load_run


@pytest.fixture(scope="module")
def scene(finished_run: Callable[..., Path]) -> Scene:
    return set_scene(load_run(finished_run(references="bank")))


def with_dates(scene: Scene) -> Scene:
    """The same scene, every visit 30 days after the one before it and 4 days and 5 hours long, ages from 88 on."""
    visits = scene.cohort.visits
    start = datetime(2151, 3, 1, 22, 30)
    times = [start + timedelta(days=30 * position) for position in visits["position"]]
    dated = visits.with_columns(
        pl.Series("admission_time", times, dtype=visits.schema["admission_time"]),
        pl.Series(
            "discharge_time",
            [time + timedelta(days=4, hours=5) for time in times],
            dtype=visits.schema["discharge_time"],
        ),
        (88 + pl.col("position")).cast(pl.Int16).alias("age"),
    )
    cohort = replace(scene.cohort, visits=dated)
    instances = replace(scene.instances, cohort=cohort)
    return replace(scene, instances=instances)


def test_days_count_from_the_own_current_admission(scene: Scene) -> None:
    dated = with_dates(scene)
    frame = dated.instances.frame
    row = int((frame["visit"] - frame["first_visit"]).arg_max() or 0)
    person = person_of(dated, row, "R1")
    assert [visit.day for visit in person.visits] == [-60, -30, 0]
    assert [visit.stay for visit in person.visits] == [4, 4, None]
    assert person.age == "90 or older"
    assert person.visits[-1].current
    assert "2151" not in repr(person)


def test_days_between_visits_that_cannot_be_compared_are_not_made_up(scene: Scene) -> None:
    dated = with_dates(scene)
    cohort = replace(dated.cohort, unordered="there are no dates")
    timeless = replace(dated, instances=replace(dated.instances, cohort=cohort))
    frame = dated.instances.frame
    row = int((frame["visit"] - frame["first_visit"]).arg_max() or 0)
    person = person_of(timeless, row, "R1")
    assert len(person.visits) > 1
    assert {visit.day for visit in person.visits} == {None}


def test_without_dates_there_is_the_order_alone(scene: Scene) -> None:
    person = person_of(scene, 0, "R1")
    assert all(visit.day is None and visit.stay is None for visit in person.visits)


def test_ids_are_there_only_where_asked_for(scene: Scene) -> None:
    frame = scene.instances.frame
    hidden, shown = person_of(scene, 3, "R1"), person_of(scene, 3, "R1", show_ids=True)
    assert hidden.title == "R1"
    assert hidden.instance_id is None
    assert hidden.subject_id is None
    assert shown.instance_id == frame["instance_id"][3]
    assert shown.subject_id is not None
    assert shown.subject_id in shown.title


@pytest.mark.parametrize(
    ("age", "words"), [(0, "0 years"), (89, "89 years"), (90, "90 or older"), (300, "90 or older")]
)
def test_ages_over_89_are_one_group(age: int, words: str) -> None:
    assert age_in_words(age) == words


def test_whatever_stands_in_the_column_sex_only_words_come_out() -> None:
    assert sex_in_words("Jane Doe, 12 Main St") == "sex not recorded"
    assert sex_in_words(" M ") == "male"


def test_a_reference_of_another_sex_or_a_far_age_is_marked() -> None:
    cohort = SimpleNamespace(
        patients=pl.DataFrame({"sex": ["F", "M", None]}), visits=pl.DataFrame({"age": [60, 71, 70, None]})
    )
    frame = pl.DataFrame({"subject": [0, 1, 0, 2], "visit": [0, 1, 2, 3]})
    scene: Any = SimpleNamespace(cohort=cohort, instances=SimpleNamespace(frame=frame))
    assert differences_of(scene, 0, 1) == ("another sex", "more than 10 years older")
    assert differences_of(scene, 1, 0) == ("another sex", "more than 10 years younger")
    assert differences_of(scene, 0, 2) == ()
    assert differences_of(scene, 0, 3) == ()
