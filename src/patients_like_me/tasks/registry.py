"""The tasks by name: the paper's three, and those a cohort's own labels define."""

from __future__ import annotations

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.tasks.drug_recommendation import DRUG_RECOMMENDATION
from patients_like_me.tasks.length_of_stay import LENGTH_OF_STAY
from patients_like_me.tasks.own_tasks import own_task
from patients_like_me.tasks.readmission import READMISSION
from patients_like_me.tasks.task import Task

TASKS: dict[str, Task] = {task.name: task for task in (READMISSION, LENGTH_OF_STAY, DRUG_RECOMMENDATION)}


def find_task(name: str, cohort: Cohort | None = None) -> Task:
    """Return a task by its name; with a cohort, also the tasks of its labels table.

    >>> find_task("readmission").metrics
    ('auprc', 'auroc')
    """
    if name in TASKS:
        return TASKS[name]
    own = [] if cohort is None else sorted(set(cohort.labels["task"].to_list()) - set(TASKS))
    if cohort is not None and name in own:
        return own_task(cohort, name)
    raise PlmError(f"there is no task '{name}'", remedy=f"choose one of {', '.join([*TASKS, *own])}")
