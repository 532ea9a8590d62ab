"""Settings from outside: presets, changes by name, and a sentence for a wrong value or an unknown name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.resources import files
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from patients_like_me.errors import PlmError

#: Larger whole numbers do not fit where they are used, and infinity is not JSON.
_LARGEST = 2**63
Settings = TypeVar("Settings", bound=BaseModel)


def checked(kind: type[Settings], /, **values: Any) -> Settings:
    """Make settings of a kind; what pydantic refuses becomes a sentence that names setting, value and remedy.

    >>> from patients_like_me.tasks.task import TaskSettings
    >>> checked(TaskSettings, inputs="all")
    Traceback (most recent call last):
        ...
    patients_like_me.errors.PlmError: inputs='all' is not possible: input should be 'retrospective' or 'known'
    """
    values = _over_own_defaults(kind, values)
    try:
        made = kind(**values)
    except ValidationError as error:
        unknown = [problem for problem in error.errors() if problem["type"] == "extra_forbidden"]
        if unknown:
            raise _unknown_setting(kind, [str(part) for part in unknown[0]["loc"]]) from None
        problems = []
        for problem in error.errors():
            name = ".".join(str(part) for part in problem["loc"])
            words = problem["msg"].removeprefix("Value error, ")
            # What contradicts other settings says so itself.
            problems.append(
                f"{name}={problem['input']!r} is not possible: {words[0].lower()}{words[1:]}" if name else words
            )
        raise PlmError("; ".join(problems)) from None
    for name, value, wanted in _odd_numbers(values, made.model_dump()):
        raise PlmError(f"{name}={json.dumps(value)} is not possible: input should be {wanted}")
    return made


def _over_own_defaults(kind: type[BaseModel], values: dict[str, Any]) -> dict[str, Any]:
    """Lay partial values of nested settings over those that this kind gives them, which need not be their usual ones.

    >>> from patients_like_me.systems.linear import LinearSettings
    >>> LinearSettings().bag.places, checked(LinearSettings, bag={"earlier": "presence"}).bag.places
    (True, True)
    """
    result = dict(values)
    for name, field in kind.model_fields.items():
        if isinstance(field.default, BaseModel) and isinstance(given := values.get(name), dict):
            result[name] = _over(field.default, given)
    return result


def _over(own: BaseModel, given: dict[str, Any]) -> dict[str, Any]:
    """Lay values over what was set in an object; whoever gives nothing at all for a part means nothing."""
    laid = dict(given)
    for name, value in given.items():
        part = getattr(own, name, None)
        if isinstance(part, BaseModel) and isinstance(value, dict) and value:
            laid[name] = _over(part, value)
    return merged(own.model_dump(exclude_unset=True), laid)


def _odd_numbers(given: Any, kept: Any, name: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield what was given as yes or no and taken for 1 or 0, or the other way round, and numbers without an end."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key in given:
            yield from _odd_numbers(given[key], kept.get(key), f"{name}.{key}".lstrip("."))
    elif isinstance(given, list | tuple) and isinstance(kept, list | tuple):
        for value, other in zip(given, kept, strict=False):
            yield from _odd_numbers(value, other, name)
    elif isinstance(given, int | float) and isinstance(kept, int | float):
        if isinstance(given, bool) != isinstance(kept, bool):
            yield name, given, "a number" if isinstance(given, bool) else "true or false"
        elif not abs(given) < _LARGEST:
            yield name, given, "a number that a computer counts to"


def _unknown_setting(kind: type[BaseModel], place: list[str]) -> PlmError:
    """Say that there is no such setting, with the nearest names that there are.

    >>> from patients_like_me.graph.settings import GraphSettings
    >>> str(_unknown_setting(GraphSettings, ["tua"]))
    "there is no setting 'tua'; did you mean tau? plm settings lists all"
    """
    part: type[BaseModel] = kind
    for name in place[:-1]:
        field = part.model_fields.get(name)
        inner = None if field is None else field.annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        part = inner
    near = get_close_matches(place[-1], part.model_fields, n=3, cutoff=0.5)
    before = ".".join(place[:-1])
    names = [f"{before}.{name}" if before else name for name in near]
    guess = f"did you mean {' or '.join(names)}? " if names else ""
    return PlmError(f"there is no setting '{'.'.join(place)}'", remedy=f"{guess}plm settings lists all")


def preset_names() -> tuple[str, ...]:
    """Return the names of the presets: one JSON file each.

    >>> "paper" in preset_names()
    True
    """
    found = (path.name for path in files("patients_like_me.presets").iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in found if name.endswith(".json")))


def preset_values(name: str) -> dict[str, Any]:
    """Return what a preset sets, by part: ``prepare``, ``task``, ``tasks``, ``training`` and ``calibrate``.

    ``prepare`` chooses the visits of a cohort; ``task`` is for every task, ``tasks`` (``{"readmission": {...}}``) for
    settings that one task alone has. ``system`` is what is trained where no system is named. ``like`` names the preset
    whose values hold where a preset has none of its own.
    """
    if name not in preset_names():
        raise PlmError(f"there is no preset '{name}'", remedy=f"choose one of {', '.join(preset_names())}")
    text = (files("patients_like_me.presets") / f"{name}.json").read_text(encoding="utf-8")
    values: dict[str, Any] = json.loads(text)
    like = values.pop("like", None)
    return values if like is None else merged(preset_values(like), values)


def calibration_of_preset(name: str) -> str:
    """Return how runs of a preset are recalibrated on validation.

    >>> calibration_of_preset("paper"), calibration_of_preset("quick")
    ('none', 'logistic')
    """
    return str(preset_values(name).get("calibrate", "logistic"))


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Lay changes over nested settings, key by key; whoever gives nothing at all for a key means nothing.

    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}), merged({"a": {"b": 1}}, {"a": {}})
    ({'a': {'b': 3, 'c': 2}}, {'a': {}})
    """
    result = dict(base)
    for key, value in changes.items():
        nested = isinstance(value, dict) and value and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if nested else value
    return result


def changes_from_words(words: list[str]) -> dict[str, Any]:
    """Read settings given as ``NAME=VALUE``; dots lead into nested settings, values are JSON or plain text.

    >>> changes_from_words(["graph.tau=5", "task.clock=discharge", "mc_samples=exact"])
    {'graph': {'tau': 5}, 'task': {'clock': 'discharge'}, 'mc_samples': 'exact'}
    """
    changes: dict[str, Any] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not sign or not name:
            raise PlmError(f"'{word}' is not a setting", remedy="write it as NAME=VALUE, such as graph.tau=5")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        for part in reversed(name.split(".")):
            value = {part: value}
        changes = merged(changes, value)
    if not isinstance(changes.get("task", {}), dict):
        raise PlmError("'task' holds several settings", remedy="name one of them, such as task.clock=discharge")
    return changes


def differences_between(old: Any, new: Any, name: str = "") -> list[str]:
    """Name what differs between two nested descriptions.

    >>> differences_between({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2})
    ['a.b is 1 there and 3 here']
    >>> differences_between({"tables": {}}, {"tables": {"ndc": {"rows": 5}}})
    ['tables.ndc is not there, but here']
    """
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            difference
            for key in sorted({*old, *new})
            for difference in differences_between(old.get(key), new.get(key), f"{name}.{key}".lstrip("."))
        ]
    if old is None and isinstance(new, dict):
        return [f"{name} is not there, but here"]
    if new is None and isinstance(old, dict):
        return [f"{name} is there, but not here"]
    return [] if old == new else [f"{name} is {json.dumps(old)} there and {json.dumps(new)} here"]
