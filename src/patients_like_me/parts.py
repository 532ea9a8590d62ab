"""Finding the parts of a room: one file each in the package, and those that other installed packages bring along.

A part is a module-level constant with an agreed name, such as ``SYSTEM`` in a file of ``systems/``. Another package
adds one by naming it in an entry-point group, such as ``patients_like_me.systems``; nothing here has to be edited. A
part of another package that cannot be used is left out with a warning, and refused where it is asked for by name: it
must not stop what does not need it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any, TypeVar

from patients_like_me.errors import PlmError
from patients_like_me.plain_text import printable

Part = TypeVar("Part")
#: The longest words of a foreign error that are repeated.
_LONGEST = 200


class LeftOutWarning(UserWarning):
    """A part of another package that is not used, or an answer of it that is not; the message says which and why."""


def say_left_out(sentence: str) -> None:
    """Warn that something of another package is left out; the command line prints the sentence alone."""
    warnings.warn(sentence, LeftOutWarning, stacklevel=3)


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
                name = part.name if _has_name(part) else point.name
                _add(parts, part, kind, f"the installed package '{_origin(point)}'", group)
        except PlmError as error:
            # Under its own name, unless that is taken by a part that works.
            parts.broken[name if name not in parts else point.name] = error.problem
            say_left_out(f"{error.problem}; it is left out")
    return parts


def _each(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def _has_name(part: Any) -> bool:
    """Tell whether a part has a name that can be written on one line."""
    name = getattr(part, "name", None)
    return isinstance(name, str) and bool(name.strip()) and name.isprintable()


def _add(parts: Parts, part: Any, kind: type[Any], origin: str, group: str) -> None:
    """Add one part; one without a name, of another type or with a taken name is refused."""
    if not _has_name(part):
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


def part_alone(kind: type[Part], name: str, *, package: str, constant: str, group: str) -> Part | None:
    """Return the part of the file that carries its name where no other package brings parts that could be in its way.

    Loading every file for one part takes a while. None where all of them have to be looked at.
    """
    return None if entry_points(group=group) else part_in_own_file(kind, name, package=package, constant=constant)


def part_named(parts: Mapping[str, Part], name: str, what: str) -> Part:
    """Return a part by its name; an unknown one is refused with all that exist.

    >>> part_named({"a": 1}, "b", "system")
    Traceback (most recent call last):
        ...
    patients_like_me.errors.PlmError: there is no system 'b'; choose one of a
    """
    refuse_broken(parts, name)
    if name not in parts:
        raise PlmError(f"there is no {what} '{name}'", remedy=f"choose one of {', '.join(sorted(parts))}")
    return parts[name]


def refuse_broken(parts: Mapping[str, Any], name: str) -> None:
    """Say what is wrong with a part of another package that is asked for by name and cannot be used."""
    if name in getattr(parts, "broken", {}):
        raise PlmError(parts.broken[name], remedy="correct or uninstall it")  # type: ignore[attr-defined]


def is_ours(function: Any) -> bool:
    """Tell whether a function of a part is of this package; what wraps or is given functions is of where those are."""
    while isinstance(function, partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    if is_dataclass(owner):
        given = (getattr(owner, field.name) for field in fields(owner))
        if not all(is_ours(each) for each in given if callable(each)):
            return False
    return str(getattr(function, "__module__", "")).startswith("patients_like_me.")


@contextmanager
def failing_in_words(part: Any, work: Callable[..., Any], doing: str) -> Iterator[None]:
    """Say in a sentence which foreign part failed at what; an error in a part of this package is left as it is."""
    try:
        yield
    except (PlmError, OSError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        # A worker that is told to end leaves with a code; a part that leaves without one ends as if all were well.
        if is_ours(work) or (isinstance(error, SystemExit) and error.code):
            raise
        raise PlmError(
            f"the {type(part).__name__.lower()} '{part.name}' failed while {doing} ({in_few_words(error)})",
            remedy="correct or uninstall it",
        ) from error


def in_few_words(error: BaseException) -> str:
    """Return what a foreign error says on one line, or its name where it says nothing.

    >>> in_few_words(KeyError("x")), in_few_words(ValueError())
    ("KeyError: 'x'", 'ValueError')
    """
    words = printable(error)
    name = "" if isinstance(error, PlmError) else type(error).__name__
    shown = words if len(words) <= _LONGEST else f"{words[:_LONGEST]}..."
    return ": ".join(part for part in (name, shown) if part)


def _loaded(point: EntryPoint) -> Any:
    try:
        return point.load()
    # A script that was named by mistake calls sys.exit, which must not end every command.
    except (Exception, SystemExit) as error:
        raise PlmError(
            f"'{point.name}' of the installed package '{_origin(point)}' cannot be loaded ({in_few_words(error)})",
            remedy="correct or uninstall it",
        ) from error


def _origin(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
