"""Reader for the OMOP common data model 5.3 and 5.4: a folder of tables, a DuckDB file, or a PostgreSQL database.

Which visit concepts are hospital visits is a setting. Visits of one person that touch (the next one starts no later
than the latest end so far, or within ``merge_hours`` of it) become one: an emergency visit and the inpatient visit
that follows from it are one stay in hospital. See ``docs/omop.md``.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import polars as pl
from pydantic import Field, field_validator

from patients_like_me.errors import PlmError
from patients_like_me.plain_text import counted, printable
from patients_like_me.records.cohort import TIME
from patients_like_me.records.events import EventStream
from patients_like_me.records.omop_codes import KEYS, code_columns, look_up
from patients_like_me.records.omop_database import open_database
from patients_like_me.records.omop_tables import DEATH, EVENTS, OPTIONAL, PERSON, VISIT, event_columns
from patients_like_me.records.omop_vocabulary import Vocabulary
from patients_like_me.records.readers.mimic4 import OLDEST_AGE, known_text
from patients_like_me.records.registry import Reader, ReaderSettings, SourceRecords
from patients_like_me.records.source_files import SourceFolder, SourceTable
from patients_like_me.records.values import OLDEST, in_the_days_of, refuse_rows
from patients_like_me.records.visit_order import is_in_order, rows_in_order

#: Inpatient, emergency and inpatient, inpatient hospital, intensive care, inpatient critical care.
HOSPITAL_VISITS: Final = (9201, 262, 8717, 32037, 581379)
#: "Patient died", where a visit led to.
_DIED: Final = 4216643
#: Records made for billing: the date of a diagnosis is that of the stay, and does not say when it was known.
_BILLING: Final = (32821, 32810, 32811, 32853, 32854, 32855)
_SEX: Final = {8507: "M", 8532: "F"}
_RACES: Final = {
    8527: "White",
    8516: "Black or African American",
    8515: "Asian",
    8557: "Native Hawaiian or Other Pacific Islander",
    8657: "American Indian or Alaska Native",
}
_HISPANIC: Final = {38003563: "Hispanic or Latino"}


class OmopSettings(ReaderSettings):
    """What counts as a visit, and where the tables are."""

    visit_concepts: tuple[int, ...] = Field(
        HOSPITAL_VISITS, min_length=1, description="the visit concepts that are hospital visits"
    )
    merge: Literal["touching", "never"] = Field("touching", description="visits of a person that touch become one")
    merge_hours: float = Field(0.0, ge=0, le=8784, description="visits this many hours apart still touch")
    vocabulary: str = Field("", description="the folder of the Athena vocabulary; default: next to the records")
    cdm_schema: str = Field("", description="the schema of a database that holds the records")
    vocabulary_schema: str = Field("", description="the schema that holds the vocabulary; default: the same")

    @field_validator("visit_concepts", mode="before")
    @classmethod
    def _from_words(cls, value: Any) -> Any:
        """Take ``9201,262`` and a single number too."""
        return [part.strip() for part in value.split(",")] if isinstance(value, str) else (
            [value] if isinstance(value, int) else value
        )  # fmt: skip


def read_omop(source: SourceFolder, settings: OmopSettings) -> SourceRecords:
    """Open the tables of the common data model; the event tables are read later, piece by piece."""
    _check_version(source)
    persons_table = source.open("person", PERSON, optional=OPTIONAL["person"])
    persons = persons_table.collect()
    repeated = pl.col("person_id").is_duplicated() & ~pl.col("person_id").is_first_distinct()
    refuse_rows(persons, repeated, persons_table, "this person is in an earlier row too")
    no_day = ~pl.col("month_of_birth").is_between(1, 12) | ~pl.col("day_of_birth").is_between(1, 31)
    refuse_rows(
        persons, no_day.fill_null(False), persons_table, "'month_of_birth' must be 1 to 12, 'day_of_birth' 1 to 31"
    )
    table = source.open("visit_occurrence", VISIT, optional=OPTIONAL["visit_occurrence"]).then(_with_times)
    visits = _visits_of_persons(table, persons, source)
    persons = _with_death(source, persons)
    visits = _hospital_visits(visits, settings, source)
    visits, merged = _merged(visits, settings, source)
    visits = visits.join(persons, on="person_id", how="left", maintain_order="left")
    visits = visits.with_columns(_age().alias("age"))
    _refuse_ages(visits, table)
    vocabulary = Vocabulary.found(source, settings.vocabulary)
    return SourceRecords(
        patients=persons.select(pl.col("person_id").alias("subject_id"), "sex", "death_time"),
        visits=visits.select(
            pl.col("person_id").alias("subject_id"),
            "visit_id",
            "admission_time",
            "discharge_time",
            pl.col("age").clip(upper_bound=OLDEST_AGE).cast(pl.Int16),
            _died().alias("died"),
            "ethnicity",
            pl.col("care_site_id").replace("", None).alias("site"),
        ),
        visits_table=table,
        place_of_visit=lambda visit: table.place_of(pl.col("visit_occurrence_id") == visit),
        streams=[stream for name in EVENTS if (stream := _events(source, name, merged, vocabulary)) is not None],
    )


def _check_version(source: SourceFolder) -> None:
    """Refuse another version than 5.3 and 5.4 where the table 'cdm_source' names one."""
    table = source.open_optional("cdm_source", {"cdm_version": pl.String})
    rows = None if table is None else table.collect()
    if table is None or rows is None or not rows.height or rows["cdm_version"][0] is None:
        source.notes.append("the version of the common data model is not recorded (table 'cdm_source')")
        return
    version = str(rows["cdm_version"][0])
    if not re.search(r"(^|[^\d.])5\.[34](\.|$|[^\d])", version):
        raise PlmError(
            f"'{table.path}' says that the version of the common data model is '{printable(version)[:40]}'",
            remedy="versions 5.3 and 5.4 are read: convert the tables",
        )


def _with_times(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add the times of a visit; a day without a clock is its midnight, but a stay does not end before it starts."""
    start = pl.coalesce("visit_start_datetime", "visit_start_date")
    end_of_day = pl.max_horizontal("visit_end_date", start)
    whole_day = pl.when(pl.col("visit_end_date") >= start.dt.truncate("1d")).then(end_of_day)
    end = pl.coalesce("visit_end_datetime", whole_day.otherwise("visit_end_date"))
    return frame.with_columns(start.alias("admission_time"), end.alias("discharge_time"))


def _visits_of_persons(table: SourceTable, persons: pl.DataFrame, source: SourceFolder) -> pl.DataFrame:
    visits = table.collect()
    repeated = pl.col("visit_occurrence_id").is_duplicated() & ~pl.col("visit_occurrence_id").is_first_distinct()
    refuse_rows(visits, repeated, table, "this visit is in an earlier row too")
    refuse_rows(visits, pl.col("visit_occurrence_id").is_null(), table, "'visit_occurrence_id' is missing")
    stranger = ~pl.col("person_id").is_in(persons["person_id"].implode()).fill_null(False)
    refuse_rows(visits, stranger.fill_null(True), table, "the person of this visit is not in the table 'person'")
    other_day = [
        pl.col(f"visit_{end}_datetime").dt.date() != pl.col(f"visit_{end}_date").dt.date() for end in ("start", "end")
    ]
    if several := visits.select(pl.any_horizontal(other_day).sum()).item():
        one, many = (
            "visit has a date of another day than its datetime",
            "visits have a date of another day than their datetime",
        )
        source.notes.append(f"{counted(several, one, many)}: the datetime is taken")
    return visits


def _with_death(source: SourceFolder, persons: pl.DataFrame) -> pl.DataFrame:
    """Add sex, ethnicity and the time of death; the first death counts."""
    table = source.open_optional("death", DEATH, optional=OPTIONAL["death"])
    deaths = pl.DataFrame(schema={"person_id": pl.Int64, "death_time": TIME})
    if table is not None:
        time = pl.coalesce("death_datetime", "death_date")
        rows = table.collect()
        if rows.is_empty():
            source.notes.append("the optional table 'death' has no rows")
        if blank := rows["person_id"].null_count():
            source.notes.append(f"{counted(blank, 'row')} of 'death' without a person_id: left out")
            rows = rows.filter(pl.col("person_id").is_not_null())
        deaths = rows.group_by("person_id").agg(time.min().alias("death_time"))
        if several := rows.select("person_id", time).unique().height - deaths.height:
            source.notes.append(
                counted(
                    several,
                    "further death of a person who died before was left out",
                    "further deaths of persons who died before were left out",
                )
            )
    return persons.join(deaths, on="person_id", how="left", maintain_order="left").with_columns(
        pl.col("gender_concept_id").replace_strict(_SEX, default=None, return_dtype=pl.String).alias("sex"),
        pl.coalesce(
            known_text("race_source_value"),
            known_text("ethnicity_source_value"),
            pl.col("race_concept_id").replace_strict(_RACES, default=None, return_dtype=pl.String),
            pl.col("ethnicity_concept_id").replace_strict(_HISPANIC, default=None, return_dtype=pl.String),
        ).alias("ethnicity"),
    )


def _age() -> pl.Expr:
    """The years from birth to admission; a birthday that is not recorded counts as 1 January."""
    admitted = pl.col("admission_time")
    later_in_year = (pl.col("month_of_birth") * 100 + pl.col("day_of_birth").fill_null(1)).fill_null(101)
    before_birthday = admitted.dt.month().cast(pl.Int32) * 100 + admitted.dt.day().cast(pl.Int32) < later_in_year
    return admitted.dt.year() - pl.col("year_of_birth") - before_birthday.cast(pl.Int32)


def _refuse_ages(visits: pl.DataFrame, table: SourceTable) -> None:
    """Refuse an age that nobody has; the rows are those of stays, and the message names that of the table."""
    wrong = visits.filter(((pl.col("age") < 0) | (pl.col("age") > OLDEST)).fill_null(False))
    if wrong.height:
        place = table.place_of(pl.col("visit_occurrence_id") == wrong["visit_id"][0])
        raise PlmError(
            f"{place}: the age at admission, from 'year_of_birth', must be between 0 and {OLDEST}",
            remedy="correct the value",
        )


def _died() -> pl.Expr:
    """Tell whether the patient died in the visit: by where it led, else by whether its days hold the day of death."""
    is_said = (pl.col("led_to") != 0).fill_null(False)
    return pl.when(is_said).then(pl.col("led_to") == _DIED).otherwise(in_the_days_of("death_time"))


def _hospital_visits(visits: pl.DataFrame, settings: OmopSettings, source: SourceFolder) -> pl.DataFrame:
    """Keep the visits of the wanted concepts, and say how many others there are."""
    wanted = pl.col("visit_concept_id").is_in(settings.visit_concepts).fill_null(False)
    others = visits.filter(~wanted).group_by("visit_concept_id").len().sort("len", "visit_concept_id", descending=True)
    if others.height:
        shown = ", ".join(f"{concept}: {count:,}" for concept, count in others.head(12).iter_rows())
        source.notes.append(
            f"{others['len'].sum():,} of {visits.height:,} visits are not hospital visits by their concept ({shown}); "
            "--set visit_concepts=... chooses"
        )
        if others["len"].sum() == visits.height:
            raise PlmError(
                f"none of the {visits.height:,} visits is a hospital visit by its concept (there: {shown})",
                remedy="choose the concepts with --set visit_concepts=...",
            )
    return visits.filter(wanted)


def _merged(visits: pl.DataFrame, settings: OmopSettings, source: SourceFolder) -> tuple[pl.DataFrame, dict[int, int]]:
    """Merge visits that touch; return one row per stay, and the stay of every visit that was merged into another."""
    ordered = _in_order(visits)
    same_person = pl.col("person_id") == pl.col("person_id").shift(1)
    gap = pl.duration(minutes=round(60 * settings.merge_hours))
    can_touch = same_person & pl.lit(settings.merge == "touching")
    end = pl.coalesce("discharge_time", "admission_time")

    def touches(latest: pl.Expr) -> pl.Expr:
        return (can_touch & (pl.col("admission_time") <= latest + gap)).fill_null(False).alias("touches")

    led_to = pl.coalesce("discharged_to_concept_id", "discharge_to_concept_id").alias("led_to")
    # Visits are in order: where none touches the one before it, none touches any earlier one.
    if not ordered.select(touches(end.shift(1)).any()).item():
        return ordered.with_columns(led_to, pl.col("visit_occurrence_id").alias("visit_id")), {}
    ordered = ordered.with_columns(touches(end.cum_max().over("person_id").shift(1)), led_to)
    stays = ordered.with_columns((~pl.col("touches")).cum_sum().alias("stay")).with_columns(
        pl.col("visit_occurrence_id").first().over("stay").alias("visit_id")
    )
    merged = stays.filter(pl.col("visit_occurrence_id") != pl.col("visit_id"))
    one, many = (
        "visit touches an earlier one of the same person and is",
        "visits touch an earlier one of the same person and are",
    )
    source.notes.append(f"{counted(merged.height, one, many)} merged with it (--set merge=never keeps them apart)")
    of_stay = stays.group_by("stay", maintain_order=True).agg(
        pl.col("person_id", "visit_id", "admission_time").first(), pl.col("care_site_id").drop_nulls().first()
    )
    return of_stay.join(_ends_of_stays(stays), on="stay", how="left", maintain_order="left"), dict(
        merged.select("visit_occurrence_id", "visit_id").iter_rows()
    )


def _ends_of_stays(stays: pl.DataFrame) -> pl.DataFrame:
    """Return when each stay ended and where it led: both are said by the visit that ends last, not that begins last.

    A visit without an end counts as ended at its start; where it is the last one even so, the stay has not ended. Of
    visits that end together one that says where it led goes first, and before all others one that ended in death.
    """
    says = (pl.col("led_to") != 0).fill_null(False)
    order = [
        pl.coalesce("discharge_time", "admission_time"),
        pl.col("discharge_time").is_null(),
        says,
        says & (pl.col("led_to") == _DIED).fill_null(False),
    ]
    last = stays.sort("stay", *order, maintain_order=True).unique("stay", keep="last", maintain_order=True)
    return last.select("stay", "discharge_time", "led_to")


def _in_order(visits: pl.DataFrame) -> pl.DataFrame:
    """Return visits by person and time; a table that is in that order, as most are, is not sorted again."""
    if is_in_order(visits, "person_id"):
        return visits
    return visits[rows_in_order(visits, ["person_id", "admission_time", "discharge_time", "visit_occurrence_id"])]


def _events(source: SourceFolder, name: str, merged: dict[int, int], vocabulary: Vocabulary) -> EventStream | None:
    """Open an event table; only the conditions must be there. A row names its person beside its visit."""
    kind, prefix, time = EVENTS[name]
    columns, optional = event_columns(name)
    opened = source.open if kind == "diagnosis" else source.open_optional
    table = opened(name, columns, optional=optional)
    if table is None:
        return None
    when = pl.coalesce(f"{time}_datetime", f"{time}_date")
    if kind == "diagnosis":
        when = pl.when(~pl.col(f"{prefix}_type_concept_id").is_in(_BILLING).fill_null(False)).then(when)
    visit = pl.col("visit_occurrence_id")
    events = table.then(
        lambda frame: frame.select(
            (visit.replace(merged) if merged else visit).alias("visit_id"),
            pl.col("person_id").alias("subject_id"),
            when.alias("time"),
            pl.col(f"{prefix}_source_value").alias(KEYS[0]),
            pl.col(f"{prefix}_source_concept_id").alias(KEYS[1]),
            pl.col(f"{prefix}_concept_id").alias(KEYS[2]),
        )
    )
    return EventStream(
        kind,
        events,
        code_columns(kind),
        optional=kind != "diagnosis",
        looked_up=KEYS,
        look_up=look_up(kind, vocabulary),
    )


def _looks_like(source: SourceFolder) -> bool:
    return source.has("person", "person_id", "year_of_birth") and source.has("visit_occurrence", "visit_concept_id")


READER = Reader("omop", "OMOP", _looks_like, read_omop, OmopSettings, any_hospital=True, opener=open_database)
