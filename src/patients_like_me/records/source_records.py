"""What every reader hands on: patients, visits and streams of coded events, still in the source's own codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import polars as pl

from patients_like_me.codes.coverage import MapCoverage
from patients_like_me.records.cohort import Kind
from patients_like_me.records.source_files import SourceTable

#: Maps distinct keys (one row each) to the same rows with ``codes`` (list of text) and ``way`` (text).
KeyMapper = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True)
class EventStream:
    """One table of coded events, read in pieces: ``visit_id``, ``time`` (text or null) and the key columns.

    ``map_keys`` turns distinct keys into codes of the cohort's vocabulary. ``map_name`` names the code map of a
    key in the coverage, ``describe_key`` writes a key in one piece for the list of unmapped codes.
    """

    kind: Kind
    table: SourceTable
    keys: Sequence[str]
    map_keys: KeyMapper
    map_name: pl.Expr
    describe_key: pl.Expr


@dataclass(frozen=True)
class SourceRecords:
    """Everything a reader found.

    ``patients``: subject_id, sex, death_time. ``visits``: subject_id, visit_id, admission_time, discharge_time,
    order (a given order, or null), age, died and the demographics. ``labels``: visit_id, task, value.
    ``vocabulary`` names codes (kind, code, name, chapter) that the mapped events can bring.
    """

    source: str
    patients: pl.DataFrame
    visits: pl.DataFrame
    visits_table: SourceTable
    streams: Sequence[EventStream]
    vocabulary: pl.DataFrame
    labels: pl.DataFrame | None = None
    time_column_names: tuple[str, str] = ("admittime", "dischtime")


@dataclass
class GatheredCodes:
    """The codes of one kind for all visits, and how the code maps fared."""

    codes: pl.DataFrame
    coverage: list[MapCoverage] = field(default_factory=list)
    unmapped: list[pl.DataFrame] = field(default_factory=list)
    rows: int = 0
    rows_without_visit: int = 0
