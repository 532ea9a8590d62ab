"""What a user asks of an experiment, and where that departs from the paper."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments.design import PAPER, PAPER_SEEDS, Experiment
from patients_like_me.settings import merged

#: Under these names of ``--set`` are settings of tasks, of one task, and of all systems but our own.
OF_TASKS, OF_ONE_TASK, OF_SYSTEMS = "task", "tasks", "systems"


@dataclass(frozen=True)
class Request:
    """What a user asks of an experiment; what is not given is taken from the experiment."""

    out: Path
    #: The folder in ``out`` and the first word of the tables' labels; default: the experiment's name.
    name: str = ""
    tasks: tuple[str, ...] = ()
    seeds: int | None = None
    preset: str = "quick"
    #: Changes of settings by name, as ``changes_from_words`` returns them: those under ``task`` are the task's, those
    #: under ``tasks.NAME`` are for one task, those under a system's name for that system, those under ``systems`` for
    #: every system other than ours.
    changes: Mapping[str, Any] = field(default_factory=dict)
    backbones: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    #: Systems to add as rows, or ``all``.
    systems: tuple[str, ...] = ()
    #: The names of the rows to keep; none: all of them.
    rows: tuple[str, ...] = ()
    #: Values of ``task.split_seed``; none: the one of the task's settings.
    splits: tuple[int, ...] = ()
    #: Choose tau among these on validation, for each task and split; none: tau is a setting like any other.
    taus: tuple[int, ...] = ()
    #: The row that differences are against; default: the first.
    against: str = ""
    #: edge-weights: draw this many training and test patients, one instance of each.
    sample: tuple[int, int] | None = None
    second_best: bool = False
    quick: bool = False

    def folder_of(self, experiment: Experiment) -> Path:
        """Return the folder of the tables and figures."""
        return self.out / (self.name or experiment.name)

    def changes_of_task(self, task: str) -> dict[str, Any]:
        """Return the changes for one task; those under ``tasks.NAME`` win over the general ones.

        >>> asked = Request(Path("out"), changes={"epochs": 2, "tasks": {"readmission": {"epochs": 3}}})
        >>> asked.changes_of_task("readmission"), asked.changes_of_task("length_of_stay")
        ({'epochs': 3}, {'epochs': 2})
        """
        general = {name: value for name, value in self.changes.items() if name != OF_ONE_TASK}
        return merged(general, self.changes.get(OF_ONE_TASK, {}).get(task, {}))

    def refuse_unused_tasks(self, tasks: Sequence[str]) -> None:
        """Refuse settings for a task that is not part of the experiment."""
        for task in self.changes.get(OF_ONE_TASK, {}):
            if task not in tasks:
                raise PlmError(
                    f"'{OF_ONE_TASK}.{task}' is a setting of a task that is not trained",
                    remedy=f"choose one of {', '.join(tasks)}",
                )


def departures_from_paper(experiment: Experiment, request: Request, seeds: int, backbones: Sequence[str]) -> list[str]:
    """Say in words where an experiment differs from the paper's; an empty list where it does not.

    The cohort is not among them: only a user knows whether it is the paper's.
    """
    if not experiment.paper:
        return []
    found = []
    if request.preset != PAPER:
        found.append(f"the preset is '{request.preset}', the paper's is '{PAPER}'")
    if request.quick:
        found.append("the quick form has fewer rows, seeds, tokens and epochs")
    if request.changes:
        found.append(f"settings are changed: {', '.join(_names_of(request.changes))}")
    if request.tasks and set(request.tasks) != set(experiment.tasks):
        found.append(f"the tasks are {', '.join(request.tasks)}, the paper's {', '.join(experiment.tasks)}")
    if experiment.grid and not experiment.alone and seeds != PAPER_SEEDS:
        found.append(f"the number of seeds is {seeds}, the paper's is {PAPER_SEEDS}")
    if experiment.grid and backbones and set(backbones) != set(experiment.paper_backbones):
        found.append(
            f"the backbones are {', '.join(map(str, backbones))}, the paper's {', '.join(experiment.paper_backbones)}"
        )
    return found


def split_seeds_of(text: str) -> tuple[int, ...]:
    """Read ``--splits``: a number of splits, or their seeds.

    >>> split_seeds_of("3"), split_seeds_of("4,7")
    ((0, 1, 2), (4, 7))
    """
    found = numbers_of(text, "--splits")
    return tuple(range(found[0])) if len(found) == 1 else found


def sample_of(text: str) -> tuple[int, int]:
    """Read ``--sample``: numbers of training and of test patients.

    >>> sample_of("6000,2000")
    (6000, 2000)
    """
    found = numbers_of(text, "--sample")
    if len(found) != 2 or min(found) < 1:
        raise PlmError(f"--sample {text} is not possible", remedy="give two numbers, such as --sample 6000,2000")
    return found[0], found[1]


def numbers_of(text: str, option: str) -> tuple[int, ...]:
    """Read whole numbers with commas between them.

    >>> numbers_of("1, 2,3", "--tune-tau")
    (1, 2, 3)
    """
    words = words_of(text)
    if not words or not all(word.isdigit() for word in words):
        raise PlmError(f"{option} {text} is not possible", remedy=f"give whole numbers, such as {option} 1,2,3")
    return tuple(dict.fromkeys(int(word) for word in words))


def words_of(text: str) -> tuple[str, ...]:
    """Read words with commas between them; a comma within square brackets belongs to the word.

    >>> words_of("frequency, KARE[smollm2-135m,no-reasoning]")
    ('frequency', 'KARE[smollm2-135m,no-reasoning]')
    """
    parts = re.split(r",(?![^\[\]]*\])", text)
    return tuple(dict.fromkeys(word.strip() for word in parts if word.strip()))


def _names_of(changes: Mapping[str, Any], before: str = "") -> list[str]:
    return [
        each
        for name, value in changes.items()
        for each in (_names_of(value, f"{before}{name}.") if isinstance(value, Mapping) else [f"{before}{name}"])
    ]
