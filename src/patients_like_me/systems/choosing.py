"""The settings of a training: a preset, the common options, and changes by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from patients_like_me.errors import PlmError
from patients_like_me.settings import merged, preset_values
from patients_like_me.systems.registry import DEFAULT, find_system
from patients_like_me.tasks.registry import task_settings_of
from patients_like_me.tasks.task import TaskSettings


def chosen_system(system: str | None, preset: str) -> str:
    """Return the name of the system that is to be trained: the one that was given, that of the preset, or the default.

    >>> chosen_system(None, "references"), chosen_system(None, "paper"), chosen_system("logistic", "references")
    ('references', 'patients_like_me', 'logistic')
    """
    return system or str(preset_values(preset).get("system", DEFAULT))


def chosen_settings(
    task: str,
    preset: str,
    *,
    system: str,
    strategy: str | None = None,
    backbone: str | None = None,
    seed: int = 0,
    changes: Mapping[str, Any] | None = None,
    task_changes: Mapping[str, Any] | None = None,
) -> tuple[BaseModel, TaskSettings]:
    """Return the settings of a system and of a task: options and changes over a preset.

    >>> changes = {"clock": "discharge"}
    >>> settings, of_task = chosen_settings("readmission", "quick", system="logistic", task_changes=changes)
    >>> of_task.clock
    'discharge'
    """
    chosen = find_system(system)
    options: dict[str, Any] = {"seed": seed}
    for name, value in (("strategy", strategy), ("backbone", backbone)):
        if value is None:
            continue
        if not chosen.has_setting(name):
            raise PlmError(f"the system '{system}' has no {name} to choose", remedy=f"leave out the {name}")
        options[name] = {"name": value} if name == "backbone" else value
    settings = chosen.settings_of(preset, **merged(options, dict(changes or {})))
    return settings, task_settings_of(task, preset, **(task_changes or {}))
