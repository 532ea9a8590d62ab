"""Settings from outside: a wrong value or an unknown name ends in one sentence."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from patients_like_me.errors import PlmError

Settings = TypeVar("Settings", bound=BaseModel)


def checked(kind: type[Settings], /, **values: Any) -> Settings:
    """Make settings of a kind; what pydantic refuses becomes a sentence that names setting, value and remedy.

    >>> from patients_like_me.tasks.task import TaskSettings
    >>> checked(TaskSettings, clock="noon")
    Traceback (most recent call last):
        ...
    patients_like_me.errors.PlmError: clock='noon' is not possible: input should be 'admission' or 'discharge'
    """
    try:
        return kind(**values)
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(part) for part in problem['loc']) or 'settings'}={problem['input']!r} is not possible: "
            f"{problem['msg'][0].lower()}{problem['msg'][1:]}"
            for problem in error.errors()
        ]
        raise PlmError("; ".join(problems)) from None
