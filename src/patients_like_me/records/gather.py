"""From millions of event rows to the distinct codes of every visit, in one pass and bounded memory."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from patients_like_me.codes.coverage import NOT_A_MEDICINE, UNMAPPED, MapCoverage, measure_coverage
from patients_like_me.records.cohort import CODE_COLUMNS, TIME
from patients_like_me.records.source_records import EventStream, GatheredCodes


def gather_codes(
    stream: EventStream, visit_index: pl.DataFrame, report: Callable[[str], None] = lambda _: None
) -> GatheredCodes:
    """Read a stream of events and return each visit's distinct codes with the first time of each.

    ``visit_index`` (visit_id, visit) holds the visits of the cohort; events of other visits are counted and left.
    The rows are read piece by piece; of each piece only (visit, key) pairs stay, so memory does not grow with the
    repeated orders that make up most of a prescriptions table. Every distinct key is mapped once, at the end.
    """
    keys = _KeyNumbers(list(stream.keys))
    pieces: list[pl.DataFrame] = []
    rows = outside = 0
    for batch in stream.table.batches():
        rows += batch.height
        located = batch.join(visit_index, on="visit_id", how="inner")
        outside += batch.height - located.height
        pieces.append(
            keys.number(located)
            .group_by("visit", "key")
            .agg(pl.len().cast(pl.UInt32).alias("rows"), pl.col("time").min())
        )
        report(f"{stream.table.path.name}: {rows:,} rows")
    if keys.known is None:
        return GatheredCodes(pl.DataFrame(schema=CODE_COLUMNS), rows=rows, rows_without_visit=outside)
    pairs = pl.concat(pieces)
    mapped = stream.map_keys(keys.known.drop("key")).with_columns(keys.known["key"])
    codes = (
        pairs.lazy()
        .join(mapped.lazy().select("key", pl.col("codes").alias("code")), on="key")
        .explode("code", empty_as_null=True, keep_nulls=True)
        .filter(pl.col("code").is_not_null())
        .group_by("visit", "code")
        .agg(pl.col("time").min())
        .with_columns(_parsed_time(pl.col("time")))
        .sort("visit", "code")
        .select(list(CODE_COLUMNS))
        .collect()
        .cast(CODE_COLUMNS)
    )
    by_key = pairs.group_by("key").agg(pl.col("rows").sum()).join(mapped, on="key")
    coverage, unmapped = _coverage(by_key, stream)
    return GatheredCodes(codes, coverage, unmapped, rows=rows, rows_without_visit=outside)


class _KeyNumbers:
    """The distinct keys seen so far, numbered in the order of their appearance."""

    def __init__(self, columns: list[str]) -> None:
        self.columns = columns
        self.known: pl.DataFrame | None = None

    def number(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Put the number of each row's key into a column ``key``; keys not seen before get the next numbers."""
        distinct = rows.select(self.columns).unique(maintain_order=True)
        if self.known is None:
            self.known = distinct.with_row_index("key") if distinct.height else None
        else:
            fresh = distinct.join(self.known, on=self.columns, how="anti", nulls_equal=True, maintain_order="left")
            numbered = fresh.with_row_index("key", offset=self.known.height)
            self.known = pl.concat([self.known, numbered])
        if self.known is None:
            return rows.with_columns(pl.lit(0, dtype=pl.UInt32).alias("key"))
        return rows.join(self.known, on=self.columns, how="left", nulls_equal=True)


def _parsed_time(time: pl.Expr) -> pl.Expr:
    """Read the times that remain; an event time that cannot be read is no reason to lose the code."""
    text = time.cast(pl.String)
    whole = pl.when(text.str.len_bytes() == 10).then(text + " 00:00:00").otherwise(text.str.slice(0, 19))
    return whole.str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="us", strict=False).cast(TIME).alias("time")


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
        .agg(pl.col("rows").sum())
        .sort(["map", "way", "rows", "code"], descending=[False, True, True, False])
    )
    return coverage, [missed]
