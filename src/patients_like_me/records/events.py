"""From millions of event rows to the distinct codes of every visit, in one pass and bounded memory.

The rows of a hospital's table come in runs of one visit and carry few distinct keys (drug names, ICD codes). So a visit
is looked up once per run and a key is mapped once in all; the rest is counting whole numbers, done in compiled loops
(``event_kernels``). Files in any other order give the same result, only more slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.codes.coverage import UNMAPPED, MapCoverage, measure_coverage
from patients_like_me.codes.registry import CodeColumns, Kind, SystemColumn, map_codes, systems_in, ways_set_apart
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.plain_text import form_of
from patients_like_me.records.cohort import CODE_COLUMNS, TIME
from patients_like_me.records.ids import normal_ids
from patients_like_me.records.source_files import SourceTable

#: Marks a missing part of a key.
NULL = np.iinfo(np.uint32).max
#: Marks a missing time; it sorts after every real one.
NO_TIME = np.iinfo(np.int64).max
#: Stands for a missing visit id; some sources number their visits below zero too.
NO_VISIT = np.iinfo(np.int64).min
_ROWS_AT_ONCE = 1 << 14
Numbers = npt.NDArray[np.int64]
Number = TypeVar("Number", bound=np.generic)


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
    """

    kind: Kind
    table: SourceTable
    codes: CodeColumns
    optional: bool = False
    looked_up: tuple[str, ...] = ()
    look_up: Callable[[pl.DataFrame], pl.DataFrame] | None = None
    remarks: Callable[[pl.DataFrame], list[str]] | None = None

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

    codes: pl.DataFrame
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
    words, visits, keys = pl.Categories.random("keys"), VisitNumbers(visit_index), KeyNumbers(len(stream.keys))
    schema = stream.table.schema
    columns = [_as_number(name, schema[name], words).fill_null(NULL) for name in stream.keys]
    patient = [pl.col("subject_id").fill_null(NO_VISIT)] if "subject_id" in schema else []
    numbered = stream.table.then(
        lambda frame: frame.select(visits.expression, *patient, *columns, _microseconds(frame))
    )
    pairs = Pairs()
    rows = 0
    for batch in numbered.batches():
        if not batch.height:
            continue
        rows += batch.height
        starts, of_runs = visits.runs_of(batch["visit_id"], batch["subject_id"] if patient else None)
        numbers = keys.numbers_of([batch[name].to_numpy() for name in stream.keys])
        pairs.add(starts, of_runs, numbers, fixed(batch["time"].to_numpy()), keys.rows)
        report(f"{stream.table.label}: {rows:,} rows")
    if not rows:
        return GatheredCodes(pl.DataFrame(schema=CODE_COLUMNS), [_no_rows(stream)] if stream.optional else [])
    given = _keys_as_given(keys, stream, words)
    if stream.look_up is not None:
        given = stream.look_up(given)
    _refuse_unknown_systems(given, stream)
    mapped = map_codes(stream.kind, given, stream.codes, store)
    counted = mapped.with_columns(pl.Series("rows", keys.rows[: keys.known])).filter(pl.col("rows") > 0)
    coverage, unmapped = _coverage(counted, stream)
    return GatheredCodes(
        _codes(pairs, mapped),
        coverage,
        unmapped,
        rows=rows,
        rows_without_visit=rows - int(keys.rows.sum()) - visits.rows_of_others,
        rows_of_others=visits.rows_of_others,
        remarks=stream.remarks(counted) if stream.remarks is not None else [],
    )


class Pairs:
    """Rows of (visit, key) in the order of the file, with the first time of each, in columns that grow."""

    def __init__(self) -> None:
        self.filled = 0
        self._columns = (np.empty(0, np.uint32), np.empty(0, np.uint32), np.empty(0, np.int64))

    def add(self, starts: Numbers, visits: Numbers, keys: Numbers, times: Numbers, rows_of_key: Numbers) -> None:
        """Add the distinct keys of runs of one visit each."""
        from patients_like_me.records.event_kernels import distinct_keys_of_runs

        needed = self.filled + len(keys)
        if needed > len(self._columns[0]):
            # Twice as much as is needed: what is not written to takes no memory.
            size, old = 2 * needed, self._columns
            self._columns = (np.empty(size, np.uint32), np.empty(size, np.uint32), np.empty(size, np.int64))
            for place in range(3):
                self._columns[place][: self.filled] = old[place][: self.filled]
        self.filled = int(distinct_keys_of_runs(starts, visits, keys, times, rows_of_key, *self._columns, self.filled))

    @property
    def visit(self) -> npt.NDArray[np.uint32]:
        """The visit of each row."""
        return self._columns[0][: self.filled]

    @property
    def key(self) -> npt.NDArray[np.uint32]:
        """The key of each row."""
        return self._columns[1][: self.filled]

    @property
    def time(self) -> Numbers:
        """The first time of each row."""
        return self._columns[2][: self.filled]


def _as_number(name: str, kind: pl.DataType, words: pl.Categories) -> pl.Expr:
    """Return how a part of a key becomes a number: text by its category, numbers as they are."""
    if isinstance(kind, pl.Categorical):
        return pl.col(name).to_physical().cast(pl.UInt32)
    if kind == pl.String:
        return pl.col(name).cast(pl.Categorical(words)).to_physical()
    return pl.col(name).cast(pl.Int32).reinterpret(signed=False)


def _keys_as_given(keys: KeyNumbers, stream: EventStream, words: pl.Categories) -> pl.DataFrame:
    """Return the keys as they are in the source, in the order of their numbers."""
    text = words.to_series().cast(pl.String)
    schema = stream.table.schema
    columns = []
    for name, part in zip(stream.keys, keys.parts(), strict=True):
        numbers = pl.Series(name, part).replace(NULL, None)
        kind = schema[name]
        if isinstance(kind, pl.Categorical):
            columns.append(kind.categories.to_series().cast(pl.String).gather(numbers).alias(name))
        elif kind == pl.String:
            columns.append(text.gather(numbers).alias(name))
        else:
            columns.append(numbers.cast(pl.UInt32).reinterpret(signed=True).cast(kind))
    return pl.DataFrame(columns)


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


def _microseconds(frame: pl.LazyFrame) -> pl.Expr:
    """Return how to read the times as microseconds: text in the form that the first one in the file has.

    A time of another form stops the reading: taken for missing, it would count as known at any time.
    """
    kind = frame.collect_schema()["time"]
    if kind == pl.Null:
        return pl.lit(NO_TIME, dtype=pl.Int64).alias("time")
    if kind.is_temporal():
        return pl.col("time").cast(TIME).cast(pl.Int64).fill_null(NO_TIME).alias("time")
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
    return parsed.cast(pl.Int64).fill_null(NO_TIME).alias("time")


def _codes(pairs: Pairs, mapped: pl.DataFrame) -> pl.DataFrame:
    """Replace each key by its codes, and keep each code of a visit once with its first time."""
    from patients_like_me.records.event_kernels import distinct_codes_of_visits

    lists = mapped["codes"]
    names = pl.Series(sorted({name for codes in lists.to_list() for name in codes}), dtype=pl.String)
    number = {name: place for place, name in enumerate(names.to_list())}
    codes = np.array([number[name] for entries in lists.to_list() for name in entries], dtype=np.int64)
    lengths = lists.list.len().to_numpy().astype(np.int64)
    changes = run_starts(pairs.visit)
    visits, found, times = distinct_codes_of_visits(
        np.argsort(pairs.visit[changes], kind="stable"),
        np.append(changes, len(pairs.visit)),
        pairs.visit,
        pairs.key,
        pairs.time,
        np.concatenate([[0], np.cumsum(lengths)]),
        codes,
        len(names),
        # A table in which no key has several codes, as most have none, needs no count.
        len(pairs.key) if lengths.max(initial=0) <= 1 else int(lengths[pairs.key].sum()),
    )
    time = pl.Series("time", times)
    if len(times) and int(times.max()) == NO_TIME:
        time = time.set(pl.Series(times == NO_TIME), None)
    code = names.gather(found).alias("code")
    return pl.DataFrame([pl.Series("visit", visits), code, time.cast(TIME)]).cast(CODE_COLUMNS)


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


class VisitNumbers:
    """Turns visit ids into visit numbers, once per run of equal ids: whole numbers by search, text as categories.

    ``expression`` is what a query selects to get ids in the form that :meth:`runs_of` takes.

    >>> index = pl.DataFrame({"visit_id": [9, 7], "visit": [0, 1]})
    >>> starts, visits = VisitNumbers(index).runs_of(pl.Series([7, 7, 8, 9]))
    >>> starts.tolist(), visits.tolist()
    ([0, 2, 3, 4], [1, -1, 0])
    """

    def __init__(self, visit_index: pl.DataFrame) -> None:
        self.visits = visit_index["visit"].cast(pl.Int64).to_numpy()
        subjects = visit_index["subject_id"] if "subject_id" in visit_index.columns else pl.Series([], dtype=pl.String)
        #: The patient of each visit; where ids are text, one number for all, which a table never names.
        self.subjects = (
            subjects.cast(pl.Int64).to_numpy() if subjects.dtype.is_integer() else np.zeros(len(self.visits), np.int64)
        )
        self.rows_of_others = 0
        self.written: pl.Categories | None = None
        ids = visit_index["visit_id"]
        if ids.dtype == pl.String:
            # The cohort's ids are the first categories, so that the number of a category is a row of the index.
            self.written = pl.Categories.random("visits")
            categories = pl.Categorical(self.written)
            self.kept_alive = ids.cast(categories)
            self.expression = pl.col("visit_id").fill_null("").cast(categories).to_physical().cast(pl.Int64)
            known = np.arange(len(ids))
        else:
            self.expression = pl.col("visit_id").fill_null(NO_VISIT)
            known = ids.to_numpy()
        self.ids = ids
        #: The row of the index for every id that was seen in a form other than the normal one; -1 for a stranger.
        self.otherwise_written = np.zeros(0, dtype=np.int64)
        from patients_like_me.records.event_kernels import number_keys

        size = 1 << max(1, 2 * len(known)).bit_length()
        self.table = np.zeros(size, dtype=np.uint64), np.full(size, -1, dtype=np.int64)
        number_keys(known.astype(np.uint64), *self.table, 0)

    def runs_of(self, visit_ids: pl.Series, subject_ids: pl.Series | None = None) -> tuple[Numbers, Numbers]:
        """Return where each run of one visit starts (and the last ends), and its visit number or -1.

        Runs that name another patient than the visit's get -1 too, and their rows are counted.
        """
        from patients_like_me.records.event_kernels import find_keys, starts_of_runs

        ids = fixed(visit_ids.to_numpy())
        subjects = ids if subject_ids is None else fixed(subject_ids.to_numpy())
        starts = starts_of_runs(ids, subjects)
        row = find_keys(self._in_normal_form(ids[starts]).astype(np.uint64), *self.table)
        ends = np.append(starts, len(ids))
        if subject_ids is not None:
            heads = subjects[starts]
            is_other = (row >= 0) & (heads != NO_VISIT) & (heads != self.subjects[row])
            self.rows_of_others += int(np.diff(ends)[is_other].sum())
            row = np.where(is_other, -1, row)
        return ends, np.where(row >= 0, self.visits[row], -1)

    def _in_normal_form(self, heads: Numbers) -> Numbers:
        """Return the number of each id's normal form, which differs from its own where it is written otherwise."""
        known = len(self.ids)
        if self.written is None or not len(heads) or int(heads.max()) < known:
            return heads
        if int(heads.max()) >= known + len(self.otherwise_written):
            seen = normal_ids(self.written.to_series().cast(pl.String)[known:].alias("visit_id"))
            index = pl.DataFrame({"visit_id": self.ids, "row": np.arange(known)})
            rows = seen.to_frame().join(index, on="visit_id", how="left", maintain_order="left")["row"]
            self.otherwise_written = rows.fill_null(-1).to_numpy()
        normal = heads.copy()
        others = heads >= known
        normal[others] = self.otherwise_written[heads[others] - known]
        return normal


class KeyNumbers:
    """The distinct keys seen so far, numbered in the order of their appearance; a key has one or more parts.

    ``rows`` counts, by number, the rows of each key that belong to a visit of the cohort. Two parts are packed into one
    number; of three or more, the number of the first ones takes the place of the first part.

    >>> keys = KeyNumbers(3)
    >>> parts = [np.array([5, 5, 5], np.uint32), np.array([1, 2, 1], np.uint32), np.array([9, 9, 9], np.uint32)]
    >>> keys.numbers_of(parts).tolist(), keys.known
    ([0, 1, 0], 2)
    >>> [part.tolist() for part in keys.parts()]
    [[5, 5], [1, 2], [9, 9]]
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.first = KeyNumbers(count - 1) if count > 2 else None
        self.known = 0
        self.rows = np.zeros(0, dtype=np.int64)
        self._empty_table(4 * _ROWS_AT_ONCE)

    def numbers_of(self, parts: Sequence[npt.NDArray[np.uint32]]) -> Numbers:
        """Return the number of each row's key; keys not seen before get the next numbers."""
        from patients_like_me.records.event_kernels import number_keys, number_pairs

        last = parts[-1]
        before = parts[0] if self.first is None else self.first.numbers_of(parts[:-1]).astype(np.uint32)
        numbers = np.empty(len(last), dtype=np.int64)
        # A few rows at a time: the table then need not have room for a whole batch of new keys, and stays in the cache.
        for start in range(0, len(last), _ROWS_AT_ONCE):
            some = slice(start, start + _ROWS_AT_ONCE)
            if 2 * (self.known + _ROWS_AT_ONCE) > len(self.table_keys):
                old = self._in_order()
                self._empty_table(4 * (self.known + _ROWS_AT_ONCE))
                number_keys(old, self.table_keys, self.table_numbers, 0)
            table = (self.table_keys, self.table_numbers, self.known)
            if self.count == 1:
                numbers[some], self.known = number_keys(last[some].astype(np.uint64), *table)
            else:
                numbers[some], self.known = number_pairs(fixed(before[some]), fixed(last[some]), *table)
        if self.known > len(self.rows):
            self.rows = np.append(self.rows, np.zeros(self.known, dtype=np.int64))
        return numbers

    def parts(self) -> list[npt.NDArray[np.uint64]]:
        """Return the parts of all keys, in the order of their numbers."""
        packed = self._in_order()
        last = packed & np.uint64(0xFFFFFFFF)
        if self.count == 1:
            return [last]
        before = packed >> np.uint64(32)
        earlier = [before] if self.first is None else [part[before] for part in self.first.parts()]
        return [*earlier, last]

    def _in_order(self) -> npt.NDArray[np.uint64]:
        filled = np.flatnonzero(self.table_numbers >= 0)
        return self.table_keys[filled[np.argsort(self.table_numbers[filled])]]

    def _empty_table(self, at_least: int) -> None:
        size = 1 << (at_least - 1).bit_length()
        self.table_keys: npt.NDArray[np.uint64] = np.zeros(size, dtype=np.uint64)
        self.table_numbers: Numbers = np.full(size, -1, dtype=np.int64)


def fixed(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return an array that cannot be written to, as most columns of polars are: compiled code is made for one kind."""
    values = values.view()
    values.flags.writeable = False
    return values


def run_starts(values: npt.NDArray[np.generic]) -> Numbers:
    """Return where each run of equal values starts.

    >>> run_starts(np.array([3, 3, 1, 3])).tolist()
    [0, 2, 3]
    """
    if not len(values):
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
