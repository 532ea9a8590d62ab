"""The tasks by name: the paper's three, and those a cohort's own labels define."""

from __future__ import annotations

from typing import Any

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.settings import checked, merged, preset_values
from patients_like_me.tasks.drug_recommendation import DRUG_RECOMMENDATION
from patients_like_me.tasks.length_of_stay import LENGTH_OF_STAY
from patients_like_me.tasks.own_tasks import own_task
from patients_like_me.tasks.readmission import READMISSION
from patients_like_me.tasks.task import Task, TaskSettings

TASKS: dict[str, Task] = {task.name: task for task in (READMISSION, LENGTH_OF_STAY, DRUG_RECOMMENDATION)}


def find_task(name: str, cohort: Cohort | None = None) -> Task:
    """Return a task by its name; with a cohort, also the tasks of its labels table.

    >>> find_task("readmission").metrics
    ('auprc', 'auroc')
    """
    if name in TASKS:
        return TASKS[name]
    given = set() if cohort is None else set(cohort.labels["task"].to_list())
    own = sorted(task for task in given if task.lower() not in TASKS)
    if cohort is not None and name in own:
        return own_task(cohort, name)
    raise PlmError(f"there is no task '{name}'", remedy=f"choose one of {', '.join([*TASKS, *own])}")


def task_settings_of(task_name: str, preset: str, /, **changes: Any) -> TaskSettings:
    """Return the settings of a task under a preset, with changes.

    >>> task_settings_of("readmission", "clinical").clock
    'discharge'
    """
    del task_name
    return checked(TaskSettings, **merged(preset_values(preset)["task"], changes))
