"""The systems by name: one file each in this room, and those that other installed packages bring along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from patients_like_me.errors import PlmError
from patients_like_me.parts import found_parts, part_in_own_file, part_named
from patients_like_me.systems.contract import System
from patients_like_me.tasks.task import Task

#: What is trained unless another system is named.
DEFAULT: Final = "patients_like_me"
_WHERE: Final = {"package": "patients_like_me.systems", "constant": "SYSTEM"}


def all_systems() -> Mapping[str, System]:
    """Return all systems by name.

    >>> "logistic" in all_systems()
    True
    """
    return found_parts(System, **_WHERE, group="patients_like_me.systems")


def find_system(name: str) -> System:
    """Return a system by its name; files of other systems, which may load slow libraries, are left alone.

    >>> find_system("frequency").capabilities.random
    False
    """
    return part_in_own_file(System, name, **_WHERE) or part_named(all_systems(), name, "system")


def require_service(system: System, task: Task, settings: Any = None) -> None:
    """Refuse a task that a system does not serve, and knowledge that is not here and not left out by the settings."""
    if not system.serves(task):
        serving = ", ".join(f"'{other.name}'" for other in all_systems().values() if other.serves(task))
        raise PlmError(
            f"the system '{system.name}' does not serve the task '{task.name}'", remedy=f"choose one of {serving}"
        )
    if missing := system.missing_knowledge(settings):
        raise PlmError(
            f"the system '{system.name}' needs the table{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
            remedy=" ".join(dict.fromkeys(missing.values())),
        )
