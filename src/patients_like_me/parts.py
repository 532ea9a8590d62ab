"""Finding the parts of a room: one file each in the package, and those that other installed packages bring along.

A part is a module-level constant with an agreed name, such as ``SYSTEM`` in a file of ``systems/``. Another package
adds one by naming it in an entry-point group, such as ``patients_like_me.systems``; nothing here has to be edited. A
part of another package that cannot be used is left out with a warning, and refused where it is asked for by name: it
must not stop what does not need it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any, TypeVar

from patients_like_me.errors import PlmError
from patients_like_me.plain_text import printable

Part = TypeVar("Part")


class Parts(dict[str, Any]):
    """Parts by name, and what is wrong with those of other packages that cannot be used."""

    broken: dict[str, str]

    def __init__(self) -> None:
        super().__init__()
        self.broken = {}


@cache
def _found(kind: type[Any], package: str, constant: str, group: str) -> Parts:
    parts = Parts()
    for module in iter_modules(import_module(package).__path__):
        origin = f"{package}.{module.name}"
        for part in _each(getattr(import_module(origin), constant, ())):
            _add(parts, part, kind, origin, group)
    for point in entry_points(group=group):
        name = point.name
        try:
            for part in _each(_loaded(point)):
                name = str(getattr(part, "name", point.name))
                _add(parts, part, kind, f"the installed package '{_origin(point)}'", group)
        except PlmError as error:
            # Under its own name, unless that is taken by a part that works.
            parts.broken[name if name not in parts else point.name] = error.problem
            warnings.warn(f"{error.problem}; it is left out", UserWarning, stacklevel=3)
    return parts


def _each(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def _add(parts: Parts, part: Any, kind: type[Any], origin: str, group: str) -> None:
    """Add one part; one without a name, of another type or with a taken name is refused."""
    if not isinstance(getattr(part, "name", None), str):
        raise PlmError(f"a part of {origin} for {group} has no name", remedy="correct or uninstall it")
    if not isinstance(part, kind):
        raise PlmError(
            f"'{printable(part.name)}' of {origin} in {group} is a {type(part).__name__}, not a {kind.__name__}",
            remedy="correct or uninstall it",
        )
    if part.name in parts:
        raise PlmError(
            f"{origin} brings a second '{printable(part.name)}' into {group}", remedy="rename or uninstall it"
        )
    parts[part.name] = part


def found_parts(kind: type[Part], *, package: str, constant: str, group: str) -> Mapping[str, Part]:
    """Return all parts of a kind by name: those of the package's own files, then those of entry points.

    ``constant`` names the part (or a tuple of parts) in a module; a module without it holds none.
    """
    kept: Any = kind
    return _found(kept, package, constant, group)


def part_in_own_file(kind: type[Part], name: str, *, package: str, constant: str) -> Part | None:
    """Return the part of the file that carries its name, without importing any other file of the package.

    Other files may load slow libraries. None where no such file holds such a part.
    """
    file = name.replace("-", "_")
    if not file.isidentifier() or find_spec(f"{package}.{file}") is None:
        return None
    found = getattr(import_module(f"{package}.{file}"), constant, ())
    parts = found if isinstance(found, tuple) else (found,)
    return next((part for part in parts if isinstance(part, kind) and getattr(part, "name", None) == name), None)


def part_named(parts: Mapping[str, Part], name: str, what: str) -> Part:
    """Return a part by its name; an unknown one is refused with all that exist.

    >>> part_named({"a": 1}, "b", "system")
    Traceback (most recent call last):
        ...
    patients_like_me.errors.PlmError: there is no system 'b'; choose one of a
    """
    if name in getattr(parts, "broken", {}):
        raise PlmError(parts.broken[name], remedy="correct or uninstall it")  # type: ignore[attr-defined]
    if name not in parts:
        raise PlmError(f"there is no {what} '{name}'", remedy=f"choose one of {', '.join(sorted(parts))}")
    return parts[name]


def _loaded(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        raise PlmError(
            f"'{point.name}' of the installed package '{_origin(point)}' cannot be loaded ({error})",
            remedy="correct or uninstall it",
        ) from error


def _origin(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
