"""Code tables: what can be installed with ``plm codes add``, one file per family in ``codes/tables/``.

A file that holds ``CODE_TABLE`` (one, or a tuple) adds tables; another package adds one through the entry-point group
``patients_like_me.code_tables``. What is said about a table, which columns it has and how a file is recognised as one
is in its declaration; ``plm codes status``, ``plm codes add`` and the systems that need it ask for it here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from patients_like_me.codes.drug_tables import ParsedTable
from patients_like_me.errors import PlmError
from patients_like_me.parts import found_parts


@dataclass(frozen=True)
class GivenFile:
    """A user's file as it was read: its columns, and its text where it is a text file."""

    path: Path
    columns: pl.DataFrame
    text: str | None


#: (a file, the table that the user says it is) -> the tables it holds, or None where it is something else.
Recogniser = Callable[[GivenFile, str | None], "list[ParsedTable] | None"]


@dataclass(frozen=True)
class CodeTable:
    """One table of codes.

    ``columns`` are those that are kept. Without a ``recognise`` the table comes with the package and cannot be added.
    ``header_words`` are names of columns by which the header of a text file is found; ``of_json`` reads a JSON text as
    columns, None where it is something else. ``place`` orders the list of tables, ``tried`` the recognisers: those with
    the more particular columns first.
    """

    name: str
    title: str
    needed_for: str
    columns: tuple[str, ...] = ()
    recognise: Recogniser | None = None
    how_to_get: str = ""
    optional: bool = False
    one_value_per_code: bool = False
    header_words: tuple[str, ...] = ()
    of_json: Callable[..., pl.DataFrame | None] | None = None
    place: int = 100
    tried: int = 100


def all_code_tables() -> Mapping[str, CodeTable]:
    """Return every code table by name, in the order in which they are listed."""
    found = found_parts(
        CodeTable,
        package="patients_like_me.codes.tables",
        constant="CODE_TABLE",
        group="patients_like_me.code_tables",
    )
    return {table.name: table for table in sorted(found.values(), key=lambda table: table.place)}


def installable_tables() -> Mapping[str, CodeTable]:
    """Return the tables that a user can add.

    >>> list(installable_tables())[:2]
    ['icd9cm_ccs', 'icd10cm_ccs']
    """
    return {name: table for name, table in all_code_tables().items() if table.recognise is not None}


def installable_table(name: str) -> CodeTable:
    """Return a table that a user can add; an unknown name is refused with all that exist."""
    known = installable_tables()
    if name not in known:
        raise PlmError(f"'{name}' is not a code table", remedy=f"choose one of {', '.join(known)}")
    return known[name]
