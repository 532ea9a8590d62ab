"""Elements of FHIR resources as expressions: references, identifiers, codings, and times of one time zone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.records.file_errors import OTHER_ZONE
from patients_like_me.records.source_files import SourceTable
from patients_like_me.records.values import refuse_rows

_OFFSET: Final = r"(Z|[+-]\d\d:\d\d)$"
_RACE: Final = "http://hl7.org/fhir/us/core/StructureDefinition/us-core-race"


def id_of(reference: pl.Expr) -> pl.Expr:
    """Return the id in a reference, whatever comes before it.

    >>> given = ["Patient/7", "https://a.org/fhir/Patient/7/_history/2", "urn:uuid:a-b", None]
    >>> pl.DataFrame({"r": given}).select(id_of(pl.col("r")))["r"].to_list()
    ['7', '7', 'a-b', None]
    """
    return reference.str.replace(r"/_history/.*$", "").str.extract(r"([^/#:]+)$")


def referred_id(element: pl.Expr) -> pl.Expr:
    """Return the id that an element of the type Reference names."""
    return id_of(element.struct.field("reference"))


def identified(system: str, otherwise: pl.Expr) -> pl.Expr:
    """Return the value of the identifier of a system, or something else where there is none."""
    if not system:
        return otherwise
    wanted = pl.col("identifier").list.filter(pl.element().struct.field("system") == system)
    return pl.coalesce(wanted.list.first().struct.field("value"), otherwise)


def best_coding(concept: pl.Expr, systems: Mapping[str, str]) -> pl.Expr:
    """Return the coding of a concept whose system comes first among those given; else the first one."""
    coding = concept.struct.field("coding")
    if not systems:
        return coding.list.first()
    ranks = {uri: rank for rank, uri in enumerate(systems)}
    rank = coding.list.eval(
        pl.element().struct.field("system").replace_strict(ranks, default=len(ranks), return_dtype=pl.UInt32)
    )
    return coding.list.get(rank.list.arg_min(), null_on_oob=True)


def word_of(concept: pl.Expr) -> pl.Expr:
    """Return the text of a concept, else its first code."""
    return pl.coalesce(concept.struct.field("text"), concept.struct.field("coding").list.first().struct.field("code"))


def race_of(extension: pl.Expr) -> pl.Expr:
    """Return the text of the extension for race that the United States use."""
    race = extension.list.filter(pl.element().struct.field("url") == _RACE).list.first().struct.field("extension")
    return race.list.filter(pl.element().struct.field("url") == "text").list.first().struct.field("valueString")


@dataclass(frozen=True)
class Clock:
    """The offsets from universal time that occur, at most an hour apart, so that clock times can be compared."""

    offsets: tuple[str, ...]

    @classmethod
    def of(cls, table: SourceTable, encounters: pl.DataFrame) -> Clock:
        """Take the offsets of the encounters; a mixture of time zones is refused."""
        times = pl.col("period").struct.field("start"), pl.col("period").struct.field("end")
        offsets = encounters.select(*(time.str.extract(_OFFSET).alias(str(place)) for place, time in enumerate(times)))
        found = pl.concat([offsets["0"], offsets["1"].alias("0")]).drop_nulls().unique().to_list()
        if not found:
            return cls(())
        minutes = {offset: _minutes(offset) for offset in found}
        if max(minutes.values()) - min(minutes.values()) > 60:
            usual = max(found, key=lambda offset: int((offsets["0"] == offset).sum()))
            far = [offset for offset in found if abs(minutes[offset] - minutes[usual]) > 60]
            odd = far or [offset for offset in found if offset != usual]
            place = table.place_of(
                pl.any_horizontal(*(time.str.extract(_OFFSET).is_in(odd) for time in times)).fill_null(False)
            )
            raise PlmError(
                f"{place}: a time with the offset {odd[0]}, where others have {usual}: the times are of several zones",
                remedy="export all times in the local time of the hospital",
            )
        low, high = max(minutes.values()) - 60, min(minutes.values()) + 60
        return cls(tuple(name for name in _all_offsets() if low <= _minutes(name) <= high))

    def time(self, text: pl.Expr, *, strict: bool = True) -> pl.Expr:
        """Read times as clock times; a day is its midnight, a month or a year is too vague to be a time.

        Anything else stops the reading, or is missing where ``strict`` is off.

        >>> given = pl.DataFrame({"t": ["2150-01-31T10:30:00-05:00", "2150-01-31", "2150-01", None]})
        >>> [str(time) for time in given.select(Clock(("-05:00",)).time(pl.col("t")))["t"]]
        ['2150-01-31 10:30:00', '2150-01-31 00:00:00', 'None', 'None']
        """
        offset = text.str.extract(_OFFSET)
        clock = text.str.slice(0, 19)
        known = (
            pl.when(text.str.len_bytes() == 10)
            .then(text + "T00:00:00")
            .when(text.str.len_bytes().is_in([4, 7]))
            .then(pl.lit(None, dtype=pl.String))
            .when(offset.is_null() | offset.is_in(self.offsets))
            .then(clock)
            .otherwise(text + OTHER_ZONE)
        )
        return known.str.to_datetime("%Y-%m-%dT%H:%M:%S", time_unit="us", strict=strict, cache=False)

    def refuse_others(self, rows: pl.DataFrame, text: pl.Expr, table: SourceTable, what: str) -> None:
        """Refuse the first row whose time is none, or is one of another time zone."""
        is_vague = text.str.contains(r"^\d{4}(-\d\d)?$")
        bad = text.is_not_null() & ~is_vague & self.time(text, strict=False).is_null()
        refuse_rows(rows, bad, table, f"{what} is not a time like 2150-01-31T10:30:00-05:00 in the visits' time zone")


def birthday(text: pl.Expr) -> pl.Expr:
    """Read days of birth; of a year or a month alone the first day is taken.

    >>> pl.DataFrame({"born": ["1950-06-15", "1950", "June"]}).select(birthday(pl.col("born")))["born"].to_list()
    [datetime.date(1950, 6, 15), datetime.date(1950, 1, 1), None]
    """
    whole = pl.when(text.str.contains(r"^\d{4}(-\d\d)?$")).then((text + "-01-01").str.slice(0, 10)).otherwise(text)
    return whole.str.to_date("%Y-%m-%d", strict=False)


def _minutes(offset: str) -> int:
    """Return an offset in minutes.

    >>> _minutes("-04:30"), _minutes("Z")
    (-270, 0)
    """
    if offset == "Z":
        return 0
    hours, minutes = offset[1:].split(":")
    return (60 * int(hours) + int(minutes)) * (-1 if offset[0] == "-" else 1)


def _all_offsets() -> list[str]:
    quarters = [f"{sign}{at // 4:02}:{at % 4 * 15:02}" for sign in "+-" for at in range(14 * 4 + 1)]
    return ["Z", *quarters]
