"""How much a code map covered: rows by the way they were mapped, rows set apart, and what stayed unmapped."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from patients_like_me.errors import PlmError

UNMAPPED = "unmapped"
_LISTED_IN_JSON = 20


@dataclass(frozen=True)
class MapCoverage:
    """Coverage of one code map over the rows of one source.

    ``mapped_by_way`` counts rows by way, ``set_apart`` counts rows that the map is not meant for (flushes, devices and
    other things that are not medicines), ``unmapped`` lists every unmapped code with its rows, most frequent first.
    ``table`` names the table of the source; ``note`` says what else a reader should know, such as an optional table
    without rows.

    >>> coverage = MapCoverage("drug -> ATC-3", 10, {"name": 6}, (("mystery", 2),), {"not_a_medicine": 2})
    >>> coverage.rows_mapped, coverage.rows_unmapped, coverage.share
    (6, 2, 0.75)
    """

    map: str
    rows: int
    mapped_by_way: dict[str, int]
    unmapped: tuple[tuple[str, int], ...] = ()
    set_apart: dict[str, int] = field(default_factory=dict)
    table: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        counted = self.rows_mapped + self.rows_unmapped + sum(self.set_apart.values())
        if counted != self.rows:
            raise ValueError(f"{self.map}: {counted} rows are accounted for, but there are {self.rows}")

    @property
    def rows_mapped(self) -> int:
        """Rows that got a code, whichever way."""
        return sum(self.mapped_by_way.values())

    @property
    def rows_unmapped(self) -> int:
        """Rows that should have got a code and did not."""
        return sum(rows for _, rows in self.unmapped)

    @property
    def share(self) -> float | None:
        """Mapped rows among the rows that are not set apart; None where there is no such row."""
        wanted = self.rows - sum(self.set_apart.values())
        return self.rows_mapped / wanted if wanted else None

    def as_json(self) -> dict[str, Any]:
        """Return the counts, and of the unmapped codes their number and the most frequent ones."""
        return {
            "map": self.map,
            "table": self.table,
            "rows": self.rows,
            "rows_mapped": self.rows_mapped,
            "rows_unmapped": self.rows_unmapped,
            "share": None if self.share is None else round(self.share, 6),
            "mapped_by_way": self.mapped_by_way,
            "set_apart": self.set_apart,
            "codes_unmapped": len(self.unmapped),
            "note": self.note,
            "most_frequent_unmapped": [{"code": code, "rows": rows} for code, rows in self.unmapped[:_LISTED_IN_JSON]],
        }


def measure_coverage(
    map_name: str,
    frame: pl.DataFrame,
    *,
    code: str,
    rows: str = "rows",
    table: str = "",
    set_apart: Collection[str] = (),
) -> MapCoverage:
    """Count a mapped frame of distinct codes: ``way`` says how, ``rows`` how many rows carry the code.

    ``set_apart`` are the ways of rows that are outside what the map is for.

    >>> ways = ["table", "unmapped", "prefix"]
    >>> frame = pl.DataFrame({"code": ["a", "b", "c"], "way": ways, "rows": [7, 2, 1]})
    >>> measure_coverage("ICD -> CCS", frame, code="code").as_json()["mapped_by_way"]
    {'prefix': 1, 'table': 7}
    """
    if lacking := {code, "way", rows} - set(frame.columns):
        raise PlmError(
            f"coverage of '{map_name}' needs the columns {', '.join(sorted(lacking))}",
            remedy="map the codes first",
        )
    by_way = {way: int(count) for way, count in frame.group_by("way").agg(pl.col(rows).sum()).sort("way").iter_rows()}
    apart = {way: by_way.pop(way) for way in list(by_way) if way in set_apart}
    by_way.pop(UNMAPPED, None)
    missed = (
        frame.filter(pl.col("way") == UNMAPPED)
        .group_by(pl.col(code).cast(pl.String).fill_null("(blank)"))
        .agg(pl.col(rows).sum())
        .sort(rows, code, descending=[True, False])
    )
    unmapped = tuple((name, int(count)) for name, count in missed.iter_rows())
    return MapCoverage(map_name, int(frame[rows].sum()), by_way, unmapped, apart, table)
