"""Reader for eICU 2.0 (the collaborative research database and its demo).

A visit is a hospital stay or, with ``--set visit=unit``, a stay in one intensive care unit. eICU has no dates: times
are minutes before or after the admission to a unit. They are put on a calendar here: the hospital admission is placed
on 1 January of the discharge year, at its recorded time of day, and everything else of that stay in minutes from it.
Only differences within one hospital stay mean anything; of a patient's stays, only the year tells which came first.
See ``docs/eicu.md``.
"""

from __future__ import annotations

from typing import Final, Literal

import polars as pl
from pydantic import Field

from patients_like_me.codes.registry import VOCABULARY_COLUMNS
from patients_like_me.plain_text import counted
from patients_like_me.records.cohort import TIME
from patients_like_me.records.events import EventStream
from patients_like_me.records.file_scans import CENTURY, Columns, minutes_after
from patients_like_me.records.ids import normal_ids, note_on_changed_ids, refuse_look_alikes, refuse_lost_ids
from patients_like_me.records.registry import Reader, ReaderSettings, SourceRecords
from patients_like_me.records.source_files import SourceFolder, SourceTable
from patients_like_me.records.values import (
    YEARS,
    letter_of_sex,
    plain_word,
    refuse_ages,
    refuse_other_sexes,
    refuse_other_words,
    refuse_rows,
    yes_or_no,
)

#: Ages above 89 are written "> 89"; one value is used for all of them.
OLDEST_AGE: Final = 90
MORTALITY: Final = "mortality"
_UNORDERED: Final = (
    "eICU has no dates: a patient's hospital stays are ordered by the year of discharge only, and the time between "
    "them is not known"
)
_PATIENT_COLUMNS: Final[Columns] = {
    "patientunitstayid": pl.Int64,
    "patienthealthsystemstayid": pl.Int64,
    "uniquepid": pl.String,
    "gender": pl.String,
    "age": pl.String,
    "ethnicity": pl.String,
    "hospitalid": pl.String,
    "unittype": pl.String,
    "unitvisitnumber": pl.Int64,
    "hospitaladmittime24": pl.String,
    "hospitaladmitoffset": pl.Int64,
    "hospitaldischargeyear": pl.Int64,
    "hospitaldischargeoffset": pl.Int64,
    "hospitaldischargestatus": pl.String,
    "unitdischargeoffset": pl.Int64,
    "unitdischargestatus": pl.String,
}


class EicuSettings(ReaderSettings):
    """What counts as a visit, and which rows count as its drugs and procedures."""

    visit: Literal["hospital", "unit"] = Field("hospital", description="a visit is a hospital stay, or a unit stay")
    admission_drugs: bool = Field(True, description="drugs taken before the admission are medications of the visit too")
    treatments: Literal["procedures", "all"] = Field(
        "procedures", description="keep treatments that are procedures, or all, with those that name drugs"
    )


def read_eicu(source: SourceFolder, settings: EicuSettings) -> SourceRecords:
    """Open the eICU tables; the event tables are read later, piece by piece."""
    table = source.open("patient", _PATIENT_COLUMNS, optional=("unittype", "hospitaladmittime24"))
    rows = table.collect()
    _refuse_ages(rows, table)
    normal = normal_ids(rows["uniquepid"])
    source.notes += note_on_changed_ids(normal, rows["uniquepid"])
    rows = rows.with_columns(normal)
    for name in ("uniquepid", "patienthealthsystemstayid", "patientunitstayid"):
        blank = pl.col(name).cast(pl.String).fill_null("").str.strip_chars() == ""
        refuse_rows(rows, blank, table, f"column '{name}' is blank")
    refuse_lost_ids(rows["uniquepid"], table)
    refuse_look_alikes(rows["uniquepid"], table)
    _refuse_times(rows, table)
    _refuse_contradictions(rows, table)
    _refuse_clocks(rows, table)
    _refuse_statuses(rows, table)
    refuse_other_sexes(rows, "gender", table)
    units = _with_times(rows).with_columns(_visit_columns(settings))
    units, notes = _with_one_end(units)
    source.notes += notes
    visits = (
        units.sort("unitvisitnumber")
        .group_by("visit_id", maintain_order=True)
        .agg(pl.col(name).first() for name in _OF_VISIT)
        .with_columns(_order(settings))
    )
    index = units.lazy().select("patientunitstayid", "visit_id", "unit_admission")
    streams = [EventStream("diagnosis", _diagnoses(source, index), {"icd9code": "icd"})]
    names = pl.DataFrame(schema=VOCABULARY_COLUMNS)
    treatments = _events(source, index, "treatment", "treatmentoffset", {"treatmentstring": pl.String})
    if treatments is not None:
        system = "own" if settings.treatments == "all" else "eicu_treatment"
        streams.append(EventStream("procedure", treatments, {"treatmentstring": system}, optional=True))
        names = _names_of_treatments(treatments)
    streams += _drugs(source, index, settings)
    known = visits.filter(pl.col("status").is_not_null())
    return SourceRecords(
        patients=_patients(units),
        visits=visits.drop("status", "year", "unitvisitnumber", "patienthealthsystemstayid"),
        visits_table=table,
        streams=streams,
        names=names,
        labels=known.select(
            "visit_id",
            pl.lit(MORTALITY).alias("task"),
            (pl.col("status") == "expired").cast(pl.Int8).cast(pl.String).alias("value"),
        ),
        time_column_names=("hospitaladmitoffset", "hospitaldischargeoffset"),
        unordered=_UNORDERED,
    )


#: What a visit takes from its first unit stay; all but the unit are the same for every unit stay of a hospital stay.
_OF_VISIT: Final = (
    "subject_id",
    "admission_time",
    "discharge_time",
    "age",
    "died",
    "status",
    "ethnicity",
    "site",
    "unit",
    "year",
    "unitvisitnumber",
    "patienthealthsystemstayid",
)


#: The hour of the hospital admission, the only time of day that eICU gives; null where it is blank.
_CLOCK: Final = pl.col("hospitaladmittime24").str.strip_chars().str.to_time("%H:%M:%S", strict=False)


def _refuse_contradictions(rows: pl.DataFrame, table: SourceTable) -> None:
    """Refuse unit stays that are named twice, or that put one hospital stay into two years or give it two patients."""
    again = pl.col("patientunitstayid").is_duplicated() & ~pl.col("patientunitstayid").is_first_distinct()
    refuse_rows(rows, again, table, "this 'patientunitstayid' is in an earlier row too")
    for name in ("uniquepid", "hospitaldischargeyear"):
        other = pl.col(name) != pl.col(name).first().over("patienthealthsystemstayid")
        refuse_rows(rows, other.fill_null(False), table, f"another unit stay of its hospital stay has another '{name}'")


def _refuse_times(rows: pl.DataFrame, table: SourceTable) -> None:
    """Refuse a year in which no stay is, and minutes that are more than a century."""
    year = ~pl.col("hospitaldischargeyear").is_between(*YEARS)
    refuse_rows(rows, year.fill_null(False), table, "'hospitaldischargeyear' must be a year such as 2014")
    for name in ("hospitaladmitoffset", "hospitaldischargeoffset", "unitdischargeoffset"):
        far = ~pl.col(name).is_between(-CENTURY, CENTURY)
        refuse_rows(rows, far.fill_null(False), table, f"'{name}' must be minutes, and these are more than a century")


def _with_one_end(units: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Give all unit stays of a visit one end: where one of them says that the patient died, the patient did."""
    died = pl.col("died").any().over("visit_id")
    several = units.filter(died & (pl.col("status") == "alive"))["visit_id"].n_unique()
    ended = units.with_columns(died, pl.when(died).then(pl.lit("expired")).otherwise("status").alias("status"))
    one, many = (
        "visit ends both alive and expired: taken as a death",
        "visits end both alive and expired: taken as deaths",
    )
    return ended, [counted(several, one, many)] if several else []


def _refuse_clocks(rows: pl.DataFrame, table: SourceTable) -> None:
    """Refuse a time of day that is neither blank nor hours, minutes and seconds: it would count as midnight."""
    written = pl.col("hospitaladmittime24").fill_null("").str.strip_chars() != ""
    refuse_rows(
        rows, written & _CLOCK.is_null(), table, "'hospitaladmittime24' must be a time such as 17:05:00, or blank"
    )


def _refuse_statuses(rows: pl.DataFrame, table: SourceTable) -> None:
    """Refuse a state at discharge that is neither alive, expired nor blank: a death would vanish."""
    for kind in ("hospital", "unit"):
        other = (~plain_word(f"{kind}dischargestatus").is_in(["alive", "expired"])).fill_null(False)
        refuse_rows(rows, other, table, f"'{kind}dischargestatus' must be Alive, Expired or blank")


def _with_times(units: pl.DataFrame) -> pl.DataFrame:
    """Put the unit stays on a calendar: ``hospital_admission``, ``hospital_discharge``, ``unit_admission``, ..."""
    seconds = _CLOCK.cast(pl.Int64).fill_null(0) // 1_000_000_000
    first_of_year = pl.datetime(pl.col("hospitaldischargeyear"), 1, 1)
    return (
        units.with_columns(
            (first_of_year + pl.duration(seconds=seconds)).cast(TIME).alias("hospital_admission"),
            (pl.col("hospitaldischargeoffset") - pl.col("hospitaladmitoffset")).alias("hospital_minutes"),
            (-pl.col("hospitaladmitoffset")).alias("minutes_before_unit"),
        )
        .with_columns(
            minutes_after("hospital_admission", "hospital_minutes").alias("hospital_discharge"),
            minutes_after("hospital_admission", "minutes_before_unit").alias("unit_admission"),
        )
        .with_columns(minutes_after("unit_admission", "unitdischargeoffset").alias("unit_discharge"))
    )


def _visit_columns(settings: EicuSettings) -> list[pl.Expr]:
    """Return the columns of a visit; what is not recorded becomes null."""
    kind = settings.visit
    status = plain_word(f"{kind}dischargestatus")
    age = pl.col("age").str.strip_chars()
    ethnicity = pl.col("ethnicity").str.strip_chars()
    return [
        pl.col("uniquepid").alias("subject_id"),
        pl.col("patienthealthsystemstayid" if kind == "hospital" else "patientunitstayid").alias("visit_id"),
        pl.col(f"{kind}_admission").alias("admission_time"),
        pl.col(f"{kind}_discharge").alias("discharge_time"),
        pl.when(age == "> 89").then(pl.lit(OLDEST_AGE)).otherwise(age.cast(pl.Int16, strict=False)).alias("age"),
        (status == "expired").fill_null(False).alias("died"),
        status.alias("status"),
        pl.when(~ethnicity.is_in(["", "Other/Unknown"])).then(ethnicity).alias("ethnicity"),
        pl.col("hospitalid").alias("site"),
        pl.col("unittype").replace("", None).alias("unit"),
        pl.col("hospitaldischargeyear").alias("year"),
    ]


def _refuse_ages(rows: pl.DataFrame, table: SourceTable) -> None:
    """Refuse an age that is neither blank, "> 89" nor a number of years that somebody can have."""
    written = pl.col("age").str.strip_chars().replace(["", "> 89"], None)
    years = written.cast(pl.Int32, strict=False)
    refuse_rows(rows, written.is_not_null() & years.is_null(), table, "'age' must be a whole number, '> 89' or blank")
    refuse_ages(rows, years, table)


def _order(settings: EicuSettings) -> pl.Expr:
    """Order a patient's visits by year, and the unit stays of a year's only hospital stay by their visit number.

    Visits that share a number here are of unknown order.
    """
    year = pl.col("year") * 1000
    if settings.visit == "hospital":
        return year.alias("order")
    only_stay = pl.col("patienthealthsystemstayid").n_unique().over("subject_id", "year") == 1
    return pl.when(only_stay).then(year + pl.col("unitvisitnumber")).otherwise(year).alias("order")


def _patients(units: pl.DataFrame) -> pl.DataFrame:
    """Return the patients; a time of death would mean something within one hospital stay only, so there is none."""
    letter = letter_of_sex("gender")
    known = pl.when(letter.is_in(["F", "M"])).then(letter)
    patients = units.group_by("subject_id", maintain_order=True).agg(known.drop_nulls().first().alias("sex"))
    return patients.with_columns(pl.lit(None, dtype=TIME).alias("death_time"))


def _events(source: SourceFolder, index: pl.LazyFrame, table: str, offset: str, columns: Columns) -> SourceTable | None:
    """Open an event table with the visit and the time of each row; None where there is none."""
    opened = source.open_optional(table, {"patientunitstayid": pl.Int64, offset: pl.Int64, **columns})
    return None if opened is None else _in_visits(opened, index, offset, columns)


def _in_visits(table: SourceTable, index: pl.LazyFrame, offset: str, columns: Columns) -> SourceTable:
    return table.then(
        lambda frame: frame.join(index, on="patientunitstayid", how="left", maintain_order="left").select(
            "visit_id",
            minutes_after("unit_admission", offset).cast(TIME).alias("time"),
            *(pl.col(name).str.strip_chars().replace("", None) for name in columns),
        )
    )


def _diagnoses(source: SourceFolder, index: pl.LazyFrame) -> SourceTable:
    columns: Columns = {"icd9code": pl.String}
    table = source.open("diagnosis", {"patientunitstayid": pl.Int64, "diagnosisoffset": pl.Int64, **columns})
    return _in_visits(table, index, "diagnosisoffset", columns)


def _names_of_treatments(treatments: SourceTable) -> pl.DataFrame:
    """Name each treatment by the last two parts of its string; its chapter is the first."""
    column = pl.col("treatmentstring")
    distinct = treatments.then(lambda frame: frame.select(column.unique())).collect().unique().drop_nulls()
    parts = column.str.split("|")
    return distinct.select(
        pl.lit("procedure").alias("kind"),
        column.alias("code"),
        parts.list.tail(2).list.join(": ").alias("name"),
        parts.list.first().alias("chapter"),
    )


def _drugs(source: SourceFolder, index: pl.LazyFrame, settings: EicuSettings) -> list[EventStream]:
    """Open the drug tables: orders that were not cancelled, infusions, and drugs taken before the admission."""
    named: Columns = {"drugname": pl.String, "drughiclseqno": pl.String}
    orders = source.open_optional(
        "medication",
        {"patientunitstayid": pl.Int64, "drugstartoffset": pl.Int64, "drugordercancelled": pl.String, **named},
        optional=("drugordercancelled",),
    )
    tables = []
    if orders is not None:
        cancelled = orders.then(lambda frame: frame.select("drugordercancelled"))
        refuse_other_words(cancelled.collect(), "drugordercancelled", orders)
        kept = orders.then(lambda frame: frame.filter(~yes_or_no("drugordercancelled")))
        tables.append(_in_visits(kept, index, "drugstartoffset", named))
    if settings.admission_drugs:
        before = _events(source, index, "admissiondrug", "drugoffset", named)
        tables += [] if before is None else [before]
    usual = _usual_names(tables)
    streams = [
        EventStream(
            "medication",
            table.then(lambda frame: frame.join(usual.lazy(), on="drughiclseqno", how="left", maintain_order="left")),
            {"drugname": "name", "usual_name": "usual_name"},
            optional=True,
        )
        for table in tables
    ]
    infusions = _events(source, index, "infusiondrug", "infusionoffset", {"drugname": pl.String})
    if infusions is not None:
        streams.append(EventStream("medication", infusions, {"drugname": "name"}, optional=True))
    return streams


def _usual_names(tables: list[SourceTable]) -> pl.DataFrame:
    """Return the most frequent name of every HICL number: two fifths of the drug orders give only the number."""
    pairs = pl.col("drugname").is_not_null() & pl.col("drughiclseqno").is_not_null() & (pl.col("drughiclseqno") != "0")
    named = [
        table.then(lambda frame: frame.filter(pairs).group_by("drughiclseqno", "drugname").len()).collect()
        for table in tables
    ]
    schema = {"drughiclseqno": pl.String, "drugname": pl.String, "len": pl.UInt32}
    counted = (
        pl.concat([pl.DataFrame(schema=schema), *named]).group_by("drughiclseqno", "drugname").agg(pl.col("len").sum())
    )
    return (
        counted.sort(["len", "drugname"], descending=[True, False])
        .unique("drughiclseqno", keep="first", maintain_order=True)
        .select("drughiclseqno", pl.col("drugname").alias("usual_name"))
    )


def _looks_like(source: SourceFolder) -> bool:
    return source.has("patient", "patientunitstayid", "uniquepid") and source.has("diagnosis", "icd9code")


READER = Reader("eicu", "eICU", _looks_like, read_eicu, EicuSettings)
