"""Readers: one file each in ``records/readers/``, and those of other installed packages.

A reader opens the tables of one source and hands on patients, visits and streams of coded events, still in the
source's own codes; filters, code maps and the cohort folder are the same for all. A file that holds ``READER`` adds a
source; another package adds one through the entry-point group ``patients_like_me.readers``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polars as pl
from pydantic import BaseModel, ConfigDict

from patients_like_me.codes.registry import VOCABULARY_COLUMNS
from patients_like_me.errors import PlmError
from patients_like_me.parts import (
    found_parts,
    in_few_words,
    is_ours,
    part_alone,
    part_named,
    refuse_broken,
    say_left_out,
)
from patients_like_me.records.events import EventStream
from patients_like_me.records.record_checks import refuse_wrong_records
from patients_like_me.records.source_files import SourceFolder, SourceTable

#: A scheme of more than one letter and a slash, a user with a password, or the words in which drivers take one.
_ADDRESS: Final = re.compile(
    r"://|^\s*[A-Za-z][\w+.-]+:/|^[^/\\]*:[^/\\]*@|^\s*postgres(ql)?:|password\s*=", re.IGNORECASE
)


class ReaderSettings(BaseModel):
    """The choices that a reader offers; this one offers none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class SourceRecords:
    """Everything a reader found.

    ``patients``: subject_id, sex, death_time. ``visits``: subject_id, visit_id, admission_time, discharge_time, age,
    died, and where the source has them ``order`` (goes before the times), the demographics, ``site`` and ``unit``.
    ``labels``: visit_id, task, value, passed on as given. ``names`` (kind, code, name, chapter) names codes of the
    source's own; the code systems name the others.

    ``unordered`` says why the times of a patient's visits cannot be compared with one another, where that is so: visits
    with the same ``order`` are then not earlier or later than each other, and the time between visits is not known.

    ``place_of_visit`` returns file and row of a visit by its id, where ``visits_table`` has rows that are no visits.
    """

    patients: pl.DataFrame
    visits: pl.DataFrame
    visits_table: SourceTable
    streams: Sequence[EventStream]
    names: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=VOCABULARY_COLUMNS))
    labels: pl.DataFrame | None = None
    time_column_names: tuple[str, str] = ("admission_time", "discharge_time")
    unordered: str = ""
    place_of_visit: Callable[[Any], str] | None = None


@dataclass(frozen=True)
class Description:
    """What a source holds, before it is read: rows of text under columns."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Reader:
    """How one source is read.

    ``name`` is the word after ``plm prepare``, ``title`` what messages call the source. ``looks_like`` tells by the
    tables and columns that are there whether a folder is of this source; ``read`` opens it, with the reader's settings.
    ``any_hospital`` says that the title names a form of tables and not the records, which are then called by their
    folder. ``describe`` lists what a source holds and what becomes of it, where its codes need a dialect.

    ``opener`` is for sources that may be something else than a folder, such as a database. It is given what the user
    wrote, the settings, and a folder that does not exist yet and is removed in the end, for copies; it returns what it
    opened, or None where the user named a plain folder.
    """

    name: str
    title: str
    looks_like: Callable[[SourceFolder], bool]
    read: Callable[[SourceFolder, Any], SourceRecords]
    settings: type[ReaderSettings] = ReaderSettings
    any_hospital: bool = False
    opener: Callable[[str, Any, Path], SourceFolder | None] | None = None
    describe: Callable[[SourceFolder, Any], Description] | None = None


def all_readers() -> Mapping[str, Reader]:
    """Return every reader by name.

    >>> {"mimic3", "mimic4", "tables"} <= set(all_readers())
    True
    """
    return found_parts(
        Reader, package="patients_like_me.records.readers", constant="READER", group="patients_like_me.readers"
    )


def reader_alone(name: str) -> Reader | None:
    """Return a reader without loading the others, where that is possible.

    >>> reader_alone("tables").title
    'own tables'
    """
    return part_alone(
        Reader, name, package="patients_like_me.records.readers", constant="READER", group="patients_like_me.readers"
    )


def find_reader(name: str, source: SourceFolder | None = None) -> Reader:
    """Return a reader by name; an unknown one is refused with what the folder looks like, or with all that exist."""
    readers = all_readers()
    refuse_broken(readers, name)
    if name not in readers and source is not None and (likely := readers_that_fit(source)):
        raise PlmError(
            f"there is no reader '{name}', but this folder looks like {likely[0].title}",
            remedy=f"use '{likely[0].name}'",
        )
    return part_named(readers, name, "reader")


def open_source(reader: Reader, given: Sequence[str], settings: ReaderSettings, scratch: Path) -> SourceFolder:
    """Open what the user named: a folder or several, or whatever else the reader can open."""
    if reader.opener is not None and len(given) == 1 and (opened := reader.opener(given[0], settings, scratch)):
        return opened
    return folders_of(reader, given)


def folders_of(reader: Reader, given: Sequence[str]) -> SourceFolder:
    """Open a folder or several; an address is refused without being repeated, since it may hold a password."""
    if any(is_address(place) for place in given):
        taken = "one database at a time" if reader.opener else "a folder, not from a database"
        raise PlmError(f"{reader.title} is read from {taken}", remedy="see: plm prepare --help")
    return SourceFolder(tuple(map(Path, given)), reader.title)


def is_address(place: str) -> bool:
    """Tell whether a place is an address such as ``postgresql://...``, or was meant to be one, and not a path.

    What may hold a password is never taken for a folder, for the name of a folder is repeated in messages.

    >>> is_address("postgresql://reader@host/cdm"), is_address("downloads/omop")
    (True, False)
    >>> [is_address(place) for place in ("postgres:/me:secret@host/db", "me:secret@host/db", "host=h password=secret")]
    [True, True, True]
    """
    return _ADDRESS.search(place) is not None


def readers_that_fit(source: SourceFolder) -> list[Reader]:
    """Return the readers whose source a folder looks like."""
    return [reader for _, reader in sorted(all_readers().items()) if _looks_like(reader, source)]


def _looks_like(reader: Reader, source: SourceFolder) -> bool:
    """Ask a reader whether a folder is of its source; one of another package that fails does not know it."""
    try:
        return bool(reader.looks_like(source))
    except Exception as error:
        if isinstance(error, PlmError) or is_ours(reader.looks_like):
            raise
        say_left_out(
            f"the reader '{reader.name}' cannot tell whether a folder is of its source ({in_few_words(error)})"
        )
        return False


def read_source(reader: Reader, source: SourceFolder, settings: ReaderSettings) -> SourceRecords:
    """Read a source; where that fails and the folder looks like another source, the error says so."""
    try:
        records = reader.read(source, settings)
    except PlmError as error:
        others = [other for other in readers_that_fit(source) if other.name != reader.name]
        if _looks_like(reader, source) or not others:
            raise
        folders = ", ".join(f"'{folder}'" for folder in source.folders)
        raise PlmError(
            f"{folders} cannot be read as {reader.title} ({error.problem}); it looks like {others[0].title}",
            remedy=f"use '{others[0].name}'",
        ) from error
    except Exception as error:
        if isinstance(error, OSError | MemoryError) or is_ours(reader.read):
            raise
        raise PlmError(
            f"the reader '{reader.name}' failed ({in_few_words(error)})", remedy="correct or uninstall it"
        ) from error
    if not is_ours(reader.read):
        refuse_wrong_records(reader.name, records, SourceRecords)
    return records
