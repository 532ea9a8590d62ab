"""The quick form of any system: the room cuts what makes a training long, by the names of settings.

A system that calls its settings as the others do has a quick form without writing anything; a third-party one too. What
is smaller already stays as it is, and results of the quick form say nothing about what a system is worth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from patients_like_me.settings import merged
from patients_like_me.systems.contract import System

#: The largest values of the quick form, wherever a setting of this name is, also in nested settings.
LARGEST: Final[Mapping[str, int]] = {
    "epochs": 4,
    "patience": 2,
    "teacher_epochs": 1,
    "tuning_epochs": 2,
    "round_epochs": 1,
    "rounds": 1,
    "iterations": 1,
    "em_epochs": 1,
    "steps": 60,
    "most_reports": 100,
    "most_reasons": 100,
    "new_tokens": 48,
}
#: A preset speaks of these itself.
_LEFT_ALONE: Final = ("backbone", "graph", "embedder")


def quick_changes(system: System, preset: str | None = None, *, max_tokens: int | None = None) -> dict[str, Any]:
    """Return the changes that make the quick form of a system under a preset.

    >>> from patients_like_me.systems.registry import find_system
    >>> quick_changes(find_system("frequency")), quick_changes(find_system("retain"))
    ({}, {'epochs': 4, 'patience': 2})
    """
    changes = _cut(system.settings_of(preset))
    if max_tokens is not None and system.has_setting("max_tokens"):
        changes = merged(changes, {"max_tokens": max_tokens})
    return changes


def _cut(settings: BaseModel) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            if name not in _LEFT_ALONE and (inner := _cut(value)):
                changes[name] = inner
        elif name in LARGEST and isinstance(value, int) and value > LARGEST[name]:
            changes[name] = LARGEST[name]
    return changes
