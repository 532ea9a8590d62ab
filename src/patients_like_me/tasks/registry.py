"""The tasks by name: those of the package, of installed packages, and those a cohort's own labels define."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from patients_like_me.errors import PlmError
from patients_like_me.parts import found_parts, refuse_broken
from patients_like_me.records.cohort import Cohort
from patients_like_me.settings import merged, preset_values
from patients_like_me.tasks.kinds import kind_named
from patients_like_me.tasks.own_tasks import own_task
from patients_like_me.tasks.task import Task, TaskSettings, Words, settings_for, without_labels


def all_tasks() -> dict[str, Task]:
    """Return the tasks that every cohort can have: one file each in ``tasks/catalogue``, and those of other packages.

    Another package adds a task by naming it in the entry-point group ``patients_like_me.tasks``.

    >>> sorted(all_tasks())[:3]
    ['drug_recommendation', 'length_of_stay', 'readmission']
    """
    return dict(_found())


def _found() -> Mapping[str, Task]:
    return found_parts(
        Task, package="patients_like_me.tasks.catalogue", constant="TASK", group="patients_like_me.tasks"
    )


def find_task(name: str, cohort: Cohort | None = None) -> Task:
    """Return a task by its name; with a cohort, also the tasks of its labels table.

    >>> find_task("readmission").metrics
    ('auprc', 'auroc')
    """
    tasks = all_tasks()
    given = set() if cohort is None else set(cohort.labels["task"].to_list())
    own = {task for task in given if task.lower() not in tasks}
    if cohort is not None and name in own:
        return own_task(cohort, name)
    refuse_broken(_found(), name)
    if name not in tasks:
        raise PlmError(f"there is no task '{name}'", remedy=f"choose one of {', '.join([*tasks, *sorted(own)])}")
    return tasks[name]


def stored_task(content: Mapping[str, Any]) -> Task:
    """Read what :meth:`Task.as_json` returned; such a task can be predicted, but has no labels.

    >>> stored_task(find_task("readmission").as_json()).question == find_task("readmission").question
    True
    """
    words = Words(**_with_tuples(content["words"]))
    return Task(
        **{**_with_tuples(content), "kind": kind_named(content["kind"]), "words": words},
        wording=lambda _: words,
        labeller=without_labels,
        settings_class=_settings_class_of(content["name"]),
    )


def task_settings_of(task_name: str, preset: str, /, **changes: Any) -> TaskSettings:
    """Return the settings of a task under a preset, with changes; a setting that the task does not have is refused.

    A preset has a section ``task`` for every task and a section in ``tasks`` for each that has settings of its own.

    >>> task_settings_of("readmission", "clinical").clock  # type: ignore[attr-defined]
    'discharge'
    >>> task_settings_of("length_of_stay", "clinical", window_days=30)
    Traceback (most recent call last):
        ...
    patients_like_me.errors.PlmError: the task 'length_of_stay' has no setting 'window_days'; it has inputs, prompt, \
split_method, split_seed, split_shares
    """
    sections = preset_values(preset)
    values = merged(sections["task"], sections.get("tasks", {}).get(task_name, {}))
    return settings_for(task_name, _settings_class_of(task_name), merged(values, changes))


def settings_of_tasks(names: Iterable[str], preset: str, changes: Mapping[str, Any]) -> dict[str, TaskSettings]:
    """Return the settings of several tasks: each change goes to the tasks that have it, and some task must have it.

    >>> both = settings_of_tasks(["readmission", "length_of_stay"], "quick", {"window_days": 30})
    >>> both["readmission"].window_days, hasattr(both["length_of_stay"], "window_days")
    (30.0, False)
    """
    names = list(names)
    own = {name: set(_settings_class_of(name).model_fields) for name in names}
    for change in changes:
        if not any(change in found for found in own.values()):
            raise PlmError(
                f"none of the tasks {', '.join(names)} has a setting '{change}'",
                remedy=f"they have {', '.join(sorted(set().union(*own.values())))}",
            )
    return {
        name: task_settings_of(name, preset, **{key: value for key, value in changes.items() if key in own[name]})
        for name in names
    }


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the lists of JSON back into tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _settings_class_of(name: str) -> type[TaskSettings]:
    """Return the settings class of a task; one of a cohort's own labels has the settings that all tasks have."""
    known = all_tasks().get(name)
    return TaskSettings if known is None else known.settings_class
