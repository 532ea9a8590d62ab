"""Forms in which a hospital can be written: one file each in ``records/forms/`` that holds ``FORM``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from patients_like_me.parts import found_parts, part_named


@dataclass(frozen=True)
class Form:
    """One form: ``write`` takes a folder of MIMIC-IV's tables and the folder to write, which must not exist."""

    name: str
    title: str
    write: Callable[[Path, Path], None]


def all_forms() -> Mapping[str, Form]:
    """Return every form by name.

    >>> {"fhir", "meds"} <= set(all_forms())
    True
    """
    return found_parts(Form, package="patients_like_me.records.forms", constant="FORM", group="patients_like_me.forms")


def find_form(name: str) -> Form:
    """Return a form by name; an unknown one is refused with all that exist."""
    return part_named(all_forms(), name, "form")
