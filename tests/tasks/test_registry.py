"""Tasks are found by file and by entry point, are kept as JSON, and take only the settings that they have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal

import polars as pl
import pytest

from patients_like_me import parts
from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.small import cohort_of
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.kinds import BINARY
from patients_like_me.tasks.registry import all_tasks, find_task, settings_of_tasks, stored_task, task_settings_of
from patients_like_me.tasks.task import Task, TaskSettings, Words


class SeasonSettings(TaskSettings):
    season: Literal["winter", "summer"] = "winter"


def season_words(settings: SeasonSettings) -> Words:
    return Words(
        title=f"is the patient admitted in {settings.season}?",
        label=f"1 in {settings.season}",
        question=f"Is it {settings.season}?",
        answer="Answer 0 or 1.",
        about=f"admission in {settings.season}",
    )


def season_labels(cohort: Cohort, settings: SeasonSettings) -> pl.DataFrame:
    return cohort.visits.select("visit", pl.lit(int(settings.season == "winter"), dtype=pl.Int64).alias("label"))


SEASON = Task(
    name="season",
    kind=BINARY,
    predicted_at="admission",
    current_inputs=(),
    known_inputs=(),
    wording=season_words,
    labeller=season_labels,
    settings_class=SeasonSettings,
    classes=("other", "this season"),
)


@pytest.mark.parametrize("name", ["accuracy", "f1_macro"])
def test_a_metric_that_the_kind_does_not_have_is_refused_with_those_it_has(name: str) -> None:
    with pytest.raises(PlmError, match=f"names the metric '{name}'.*binary labels.*choose from auprc, auroc"):
        replace(SEASON, metrics=("auroc", name))
    assert replace(SEASON, metrics=("auroc",)).metrics == ("auroc",)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"predicted_at": "arrival"}, "predicted_at='arrival', which is neither 'admission' nor 'discharge'"),
        ({"current_inputs": ("lab",)}, "current_inputs with 'lab', which is none of diagnosis"),
        ({"known_inputs": "diagnosis"}, "known_inputs='diagnosis', which is not a tuple"),
        ({"kind": "binary"}, "the kind 'binary'"),
        ({"classes": ()}, "0 classes, where a binary task has two"),
        ({"classes": ("a", "b", "c")}, "3 classes, where a binary task has two"),
        ({"classes": ("a", "a")}, "a class twice"),
    ],
)
def test_a_misspelt_declaration_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PlmError, match=f"the task 'season' declares {words}"):
        replace(SEASON, **changes)


def test_a_broken_task_asked_for_by_name_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Task:
        raise ImportError("no module 'weather'")

    point = SimpleNamespace(name="season", value="other:TASK", dist=None, load=broken)
    monkeypatch.setattr(parts, "entry_points", lambda group: [point] if group == "patients_like_me.tasks" else [])
    parts._found.cache_clear()
    with (
        pytest.warns(parts.LeftOutWarning),
        pytest.raises(PlmError, match=r"'season' .* cannot be loaded .ImportError: no module 'weather'.; correct"),
    ):
        find_task("season")
    parts._found.cache_clear()


class Point:
    name, value, dist = "season", "other_package:TASK", None

    @staticmethod
    def load() -> Task:
        return SEASON


@pytest.fixture
def with_season(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def points(*, group: str) -> list[Any]:
        return [Point] if group == "patients_like_me.tasks" else []

    monkeypatch.setattr(parts, "entry_points", points)
    parts._found.cache_clear()
    yield
    parts._found.cache_clear()


def test_a_task_of_another_package_is_one_of_all(with_season: None) -> None:
    assert set(all_tasks()) == {"readmission", "length_of_stay", "drug_recommendation", "season"}
    settings = task_settings_of("season", "clinical", season="summer")
    assert settings.inputs == "known"
    instances = build_instances(cohort_of([{"subject_id": "p", "visit_id": "v", "order": 0}]), SEASON, settings)
    assert instances.labels.tolist() == [0]
    assert instances.task.title == "is the patient admitted in summer?"
    stored = stored_task(instances.task.as_json())
    assert stored.words == instances.task.words
    assert stored.settings({"season": "summer"}) == settings.model_copy(
        update={"inputs": "retrospective", "prompt": "paper"}
    )


@pytest.mark.parametrize("name", ["readmission", "length_of_stay", "drug_recommendation"])
def test_a_stored_task_says_the_same(name: str) -> None:
    task = find_task(name)
    stored = stored_task(task.as_json())
    assert stored.describe() == task.describe()
    assert (stored.kind, stored.metrics, stored.ordered) == (task.kind, task.metrics, task.ordered)


def test_an_own_task_has_the_settings_of_all_tasks() -> None:
    assert task_settings_of("mortality", "clinical") == TaskSettings(inputs="known", prompt="brief")
    with pytest.raises(PlmError, match="the task 'mortality' has no setting 'clock'; it has inputs, prompt"):
        task_settings_of("mortality", "quick", clock="discharge")


def test_a_change_goes_to_the_tasks_that_have_it() -> None:
    found = settings_of_tasks(["readmission", "length_of_stay"], "quick", {"window_days": 30, "inputs": "known"})
    assert found["readmission"].model_dump()["window_days"] == 30
    assert {each.inputs for each in found.values()} == {"known"}
    with pytest.raises(PlmError, match="none of the tasks length_of_stay, mortality has a setting 'window_days'"):
        settings_of_tasks(["length_of_stay", "mortality"], "quick", {"window_days": 30})


@pytest.mark.parametrize(
    ("task", "value", "expected"),
    [("readmission", "2", "0 or 1"), ("readmission", "yes", "0 or 1"), ("length_of_stay", "-1", "a number of days")],
)
def test_a_given_label_is_checked_by_its_task(task: str, value: str, expected: str) -> None:
    visits = [{"subject_id": "p", "visit_id": "v", "order": 0}]
    with pytest.raises(PlmError, match=f"gives a value of the form '.*' for the task '{task}' where {expected}"):
        build_instances(cohort_of(visits, labels=[("v", task, value)]), find_task(task))
