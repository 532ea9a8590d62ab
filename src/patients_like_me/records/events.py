"""From millions of event rows to the distinct codes of every visit, in one pass and bounded memory.

The rows of a hospital's table come in runs of one visit and carry few distinct keys (drug names, ICD codes). So a visit
is looked up once per run and a key is mapped once in all; the rest is counting whole numbers, done in compiled loops
(``event_kernels``). Files in any other order give the same result, only more slowly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import polars as pl

from patients_like_me.codes.coverage import UNMAPPED, MapCoverage, measure_coverage
from patients_like_me.codes.registry import CodeColumns, Kind, SystemColumn, map_codes, systems_in, ways_set_apart
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.plain_text import form_of
from patients_like_me.records.code_table import NO_TIME, CodeTable
from patients_like_me.records.cohort import CODE_COLUMNS, TIME
from patients_like_me.records.event_rows import EventRows, GatheredRows, VisitIds, as_numbers, expected_rows
from patients_like_me.records.source_files import SourceTable
from patients_like_me.records.text_numbers import NULL, TextNumbers


@dataclass(frozen=True)
class EventStream:
    """One table of coded events: ``visit_id``, ``time`` (text, a time, or null) and the columns that hold codes.

    ``codes`` names those columns with their code systems; the first that answers decides alone. A table that is
    ``optional`` may have no rows, which is then a note in the coverage.

    Where the codes have to be looked up first (a database's own concept numbers), ``look_up`` takes the distinct values
    of the columns ``looked_up`` and returns one row for each, in their order, with the columns that ``codes`` names.

    A table that names the patient beside the visit has a column ``subject_id`` of whole numbers: the patient's id where
    ids are whole numbers, else -1 for a patient who is not that of the visit; null is not compared. Rows of another
    patient than their visit's are left out and counted. ``remarks`` takes the distinct keys with their number of
    ``rows`` and returns sentences for the notes, or refuses them.

    A reader that has read the rows already gives them with ``read``, which takes the visits (visit_id, visit). Of a
    table that is ``dated`` it is said if no row has a time, too: in JSON a time of a wrong type is read as none.
    """

    kind: Kind
    table: SourceTable
    codes: CodeColumns
    optional: bool = False
    looked_up: tuple[str, ...] = ()
    look_up: Callable[[pl.DataFrame], pl.DataFrame] | None = None
    remarks: Callable[[pl.DataFrame], list[str]] | None = None
    read: Callable[[pl.DataFrame], GatheredRows] | None = None
    dated: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns on which the codes of a row depend."""
        if self.looked_up:
            return self.looked_up
        columns = [system.column for system in self.codes.values() if isinstance(system, SystemColumn)]
        return tuple(dict.fromkeys([*columns, *self.codes]))


@dataclass
class GatheredCodes:
    """The codes of one kind for all visits, and how the code maps fared."""

    codes: CodeTable
    coverage: list[MapCoverage] = field(default_factory=list)
    unmapped: list[pl.DataFrame] = field(default_factory=list)
    rows: int = 0
    rows_without_visit: int = 0
    rows_of_others: int = 0
    remarks: list[str] = field(default_factory=list)


def gather_codes(
    stream: EventStream, visit_index: pl.DataFrame, store: CodeStore, report: Callable[[str], None] = lambda _: None
) -> GatheredCodes:
    """Read a stream of events and return each visit's distinct codes with the first time of each.

    ``visit_index`` (visit_id, visit, subject_id) holds the visits of the cohort; events of other visits, and those of
    another patient than their visit's, are only counted.
    The rows are read piece by piece; of each piece only distinct (visit, key) pairs stay, so memory does not grow
    with the repeated orders that make up most of a prescriptions table.
    """
    gathered = _read(stream, visit_index, report) if stream.read is None else stream.read(visit_index)
    if not gathered.rows:
        nothing = CodeTable.of(pl.DataFrame(schema=CODE_COLUMNS))
        return GatheredCodes(nothing, [_no_rows(stream)] if stream.optional else [])
    given = gathered.keys if stream.look_up is None else stream.look_up(gathered.keys)
    _refuse_unknown_systems(given, stream)
    mapped = map_codes(stream.kind, given, stream.codes, store)
    counted = mapped.with_columns(pl.Series("rows", gathered.rows_of_key)).filter(pl.col("rows") > 0)
    coverage, unmapped = _coverage(counted, stream)
    return GatheredCodes(
        gathered.codes(mapped["codes"]),
        coverage,
        unmapped,
        rows=gathered.rows,
        rows_without_visit=gathered.rows - int(gathered.rows_of_key.sum()) - gathered.of_others,
        rows_of_others=gathered.of_others,
        remarks=[*_tell_undated(stream, gathered), *(stream.remarks(counted) if stream.remarks is not None else [])],
    )


def _tell_undated(stream: EventStream, gathered: GatheredRows) -> list[str]:
    """Say how many rows have no time: nobody can tell when their codes were known."""
    if not gathered.undated:
        return []
    if gathered.undated == gathered.rows:
        return [f"no {stream.kind} row of {stream.table.label} has a time"] if stream.dated else []
    return [f"{gathered.undated:,} of {gathered.rows:,} {stream.kind} rows of {stream.table.label} have no time"]


def _read(stream: EventStream, visit_index: pl.DataFrame, report: Callable[[str], None]) -> GatheredRows:
    """Read the rows of a stream piece by piece, as whole numbers."""
    gathered = EventRows(VisitIds(visit_index), len(stream.keys), expected_rows(stream.table.size))
    schema = stream.table.schema
    texts = {name: TextNumbers() for name in stream.keys if schema[name] == pl.String}
    numbers = [pl.col(name).cast(pl.Int32).reinterpret(signed=False) for name in stream.keys if name not in texts]
    patient = ["subject_id"] if "subject_id" in schema else []
    selected = stream.table.then(lambda frame: frame.select("visit_id", *patient, *texts, *numbers, _times(frame)))
    rows = undated = 0
    for batch in selected.batches():
        if not batch.height:
            continue
        rows += batch.height
        undated += batch["time"].null_count()
        parts = [
            texts[name].of(batch[name]) if name in texts else batch[name].fill_null(NULL).to_numpy()
            for name in stream.keys
        ]
        subjects = batch["subject_id"] if patient else None
        gathered.add(batch["visit_id"], subjects, as_numbers(batch["time"], NO_TIME), parts)
        report(f"{stream.table.label}: {rows:,} rows")
    columns = []
    for name, part in zip(stream.keys, gathered.parts_of_keys(), strict=True):
        number = pl.Series(name, part).replace(NULL, None)
        as_given = (
            texts[name].texts.gather(number).alias(name)
            if name in texts
            else number.reinterpret(signed=True).cast(schema[name])
        )
        columns.append(as_given)
    return replace(gathered.gathered(pl.DataFrame(columns), rows), undated=undated)


def _refuse_unknown_systems(keys: pl.DataFrame, stream: EventStream) -> None:
    for system in stream.codes.values():
        if isinstance(system, str) or not system.refuse:
            continue
        known = list(system.systems)
        unknown = (~pl.col(system.column).is_in(known)).fill_null(True)
        if keys.filter(unknown).height:
            place, row = stream.table.first(unknown)
            value = row[system.column]
            value = form_of(value) if isinstance(value, str) else value
            raise PlmError(
                f"{place}: unknown {system.title} {'(blank)' if value is None else value} in column '{system.column}'",
                remedy=f"only {' and '.join(map(str, known))} are known: correct the value",
            )


def _times(frame: pl.LazyFrame) -> pl.Expr:
    """Return how to read the times: text in the form that the first one in the file has.

    A time of another form stops the reading: taken for missing, it would count as known at any time.
    """
    kind = frame.collect_schema()["time"]
    if kind == pl.Null:
        return pl.lit(None, dtype=TIME).alias("time")
    if kind.is_temporal():
        return pl.col("time").cast(TIME)
    text = pl.col("time").cast(pl.String)
    given = frame.select(text).drop_nulls().filter(pl.col("time") != "").head(1)
    first = given.collect(engine="streaming")["time"].to_list()
    example = first[0] if first else ""
    if len(example) == 10:
        parsed = text.str.to_datetime("%Y-%m-%d", time_unit="us", cache=False)
    else:
        # Cutting fractions of a second and turning "T" into a blank cost time, so only where they are needed.
        whole = text.str.replace(r"\.\d+$", "") if len(example) > 19 else text
        whole = whole.str.replace("T", " ", literal=True) if "T" in example else whole
        parsed = whole.str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="us", cache=False)
    return parsed.alias("time")


def _coverage(by_key: pl.DataFrame, stream: EventStream) -> tuple[list[MapCoverage], list[pl.DataFrame]]:
    """Count how each code map fared, and list every code that got no category, set apart or not."""
    *tried_first, last = stream.codes
    shown = [pl.coalesce(last, *reversed(tried_first), pl.lit("(blank)"))]
    for column in tried_first:
        both = pl.col(column).is_not_null() & (pl.col(column) != "") & pl.col(last).is_not_null()
        shown.append(pl.when(both).then(pl.format(f" [{column.upper()} {{}}]", column)).otherwise(pl.lit("")))
    apart = ways_set_apart()
    described = by_key.with_columns(pl.concat_str(shown).alias("described"))
    coverage = [
        measure_coverage(str(name), rows, code="described", table=stream.table.label, set_apart=apart)
        for (name,), rows in sorted(described.group_by("map"), key=lambda group: str(group[0][0]))
    ]
    missed = (
        described.filter(pl.col("way").is_in([UNMAPPED, *apart]))
        .group_by("map", "way", pl.col("described").alias("code"))
        .agg(pl.col("rows").sum().cast(pl.UInt32))
        .sort(["map", "way", "rows", "code"], descending=[False, True, True, False])
    )
    return coverage, [missed]


def _no_rows(stream: EventStream) -> MapCoverage:
    titles = " or ".join(system.titles[stream.kind] for system in systems_in(stream.kind, stream.codes))
    note = f"the optional table '{stream.table.label}' has no rows"
    return MapCoverage(f"{stream.kind} {titles}", 0, {}, table=stream.table.label, note=note)
