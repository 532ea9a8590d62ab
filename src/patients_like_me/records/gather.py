"""From millions of event rows to the distinct codes of every visit, in one pass and bounded memory.

The rows of a hospital's table come in runs of one visit and carry few distinct keys (drug names, ICD codes). So a visit
is looked up once per run and a key is mapped once in all; what remains is counting whole numbers, done in compiled
loops (``event_kernels``). Files in any other order give the same result, only more slowly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.codes.coverage import NOT_A_MEDICINE, UNMAPPED, MapCoverage, measure_coverage
from patients_like_me.records.cohort import CODE_COLUMNS, TIME
from patients_like_me.records.numbering import NULL, KeyNumbers, Numbers, VisitNumbers, run_starts
from patients_like_me.records.source_files import SourceTable
from patients_like_me.records.source_records import EventStream, GatheredCodes

#: Stands for a missing time; it sorts after every real one.
NO_TIME = np.iinfo(np.int64).max


def gather_codes(
    stream: EventStream, visit_index: pl.DataFrame, report: Callable[[str], None] = lambda _: None
) -> GatheredCodes:
    """Read a stream of events and return each visit's distinct codes with the first time of each.

    ``visit_index`` (visit_id, visit) holds the visits of the cohort; events of other visits are counted and left.
    The rows are read piece by piece; of each piece only distinct (visit, key) pairs stay, so memory does not grow
    with the repeated orders that make up most of a prescriptions table.
    """
    from patients_like_me.records.event_kernels import distinct_keys_of_runs

    words, visits, keys = pl.Categories.random("keys"), VisitNumbers(visit_index), KeyNumbers()
    as_number = pl.Categorical(words)
    schema = stream.table.frame.collect_schema()
    columns = [
        (
            pl.col(name).cast(as_number).to_physical()
            if schema[name] == pl.String
            else pl.col(name).cast(pl.Int32).reinterpret(signed=False)
        ).fill_null(NULL)
        for name in stream.keys
    ]
    numbered = stream.table.frame.select(visits.expression, *columns, _microseconds(stream.table))
    pieces: list[Pairs] = []
    rows = 0
    for batch in SourceTable(stream.table.path, numbered).batches():
        if not batch.height:
            continue
        rows += batch.height
        starts, of_runs = visits.runs_of(batch["visit_id"])
        numbers = keys.numbers_of([batch[name].to_numpy() for name in stream.keys])
        pieces.append(Pairs(*distinct_keys_of_runs(starts, of_runs, numbers, batch["time"].to_numpy(), keys.rows)))
        report(f"{stream.table.path.name}: {rows:,} rows")
    if not pieces:
        return GatheredCodes(pl.DataFrame(schema=CODE_COLUMNS))
    pairs = Pairs.joined(pieces)
    mapped = stream.map_keys(_keys_as_given(keys, stream, words))
    counted = mapped.with_columns(pl.Series("rows", keys.rows[: keys.known])).filter(pl.col("rows") > 0)
    coverage, unmapped = _coverage(counted, stream)
    outside = rows - int(keys.rows.sum())
    return GatheredCodes(_codes(pairs, mapped), coverage, unmapped, rows=rows, rows_without_visit=outside)


@dataclass(frozen=True)
class Pairs:
    """Rows of (visit, key) in the order of the file, with the first time of each."""

    visit: npt.NDArray[np.uint32]
    key: npt.NDArray[np.uint32]
    time: Numbers

    @classmethod
    def joined(cls, pieces: list[Pairs]) -> Pairs:
        """Put pieces one after another."""
        columns = ("visit", "key", "time")
        return cls(*(np.concatenate([getattr(piece, column) for piece in pieces]) for column in columns))


def _keys_as_given(keys: KeyNumbers, stream: EventStream, words: pl.Categories) -> pl.DataFrame:
    """Return the keys as they stood in the source, in the order of their numbers."""
    text = words.to_series().cast(pl.String)
    schema = stream.table.frame.collect_schema()
    columns = []
    for name, part in zip(stream.keys, keys.parts(len(stream.keys)), strict=True):
        numbers = pl.Series(name, part).replace(NULL, None)
        if schema[name] == pl.String:
            columns.append(text.gather(numbers).alias(name))
        else:
            columns.append(numbers.cast(pl.UInt32).reinterpret(signed=True).cast(schema[name]))
    return pl.DataFrame(columns)


def _microseconds(table: SourceTable) -> pl.Expr:
    """Return how to read the times as microseconds: in the form that the first one in the file has.

    A time of another form stops the reading: taken for missing, it would count as known at any time.
    """
    if table.frame.collect_schema()["time"] == pl.Null:
        return pl.lit(NO_TIME, dtype=pl.Int64).alias("time")
    text = pl.col("time").cast(pl.String)
    given = table.frame.select(text).drop_nulls().filter(pl.col("time") != "").head(1)
    first = SourceTable(table.path, given).collect()["time"].to_list()
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
        int(lengths[pairs.key].sum()),
    )
    time = pl.Series("time", times).set(pl.Series(times == NO_TIME), None).cast(TIME)
    return pl.DataFrame([pl.Series("visit", visits), names.gather(found).alias("code"), time]).cast(CODE_COLUMNS)


def _coverage(by_key: pl.DataFrame, stream: EventStream) -> tuple[list[MapCoverage], list[pl.DataFrame]]:
    """Count how each code map fared, and list every code that got no category, set apart or not."""
    described = by_key.with_columns(stream.map_name.alias("map"), stream.describe_key.alias("described"))
    coverage = [
        measure_coverage(str(name), rows, code="described")
        for (name,), rows in sorted(described.group_by("map"), key=lambda group: str(group[0][0]))
    ]
    missed = (
        described.filter(pl.col("way").is_in([UNMAPPED, NOT_A_MEDICINE]))
        .group_by("map", "way", pl.col("described").alias("code"))
        .agg(pl.col("rows").sum().cast(pl.UInt32))
        .sort(["map", "way", "rows", "code"], descending=[False, True, True, False])
    )
    return coverage, [missed]
