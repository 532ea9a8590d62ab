"""Reader for a hospital's own long tables: ``visits``, ``events``, and optionally ``labels`` and ``names``.

``visits``
    ``subject_id, visit_id``, and where known ``admission_time, discharge_time, order, sex, age, died, death_time,
    insurance, language, religion, marital_status, ethnicity, site, unit``.
``events``
    ``visit_id, kind, code``, and where known ``subject_id, time``. ``kind`` is ``diagnosis``, ``procedure`` or
    ``medication``, followed by a slash and the code system where it is not the default: ``diagnosis/icd9``. Every
    registered code system can be named.
``labels``
    ``visit_id, task, value``: labels where the data has no dates, and tasks of the user's own. Numbers, and yes and no,
    are brought into one form (:mod:`..label_values`); what a task requires of them is checked by the task.
``names``
    ``kind, code, name``: names of codes in the system ``own``.

Visits without dates keep the column ``order``, or else the order of the file. See ``docs/own-tables.md``.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

import polars as pl
from pydantic import Field

from patients_like_me.codes.registry import KINDS, VOCABULARY_COLUMNS, Kind, systems_of
from patients_like_me.errors import PlmError
from patients_like_me.plain_text import counted, form_of
from patients_like_me.records.cohort import DEMOGRAPHICS, PLACES, TIME
from patients_like_me.records.events import EventStream
from patients_like_me.records.file_scans import Columns
from patients_like_me.records.ids import normal_ids, note_on_changed_ids, refuse_look_alikes, refuse_lost_ids
from patients_like_me.records.label_values import NEVER_A_VALUE, in_one_form
from patients_like_me.records.registry import Reader, ReaderSettings, SourceRecords
from patients_like_me.records.source_files import SourceFolder, SourceTable
from patients_like_me.records.values import (
    letter_of_sex,
    notes_on_sex,
    notes_on_unread_columns,
    refuse_ages,
    refuse_other_words,
    refuse_rows,
    without_words_for_missing,
    yes_or_no,
)

_TASK_NAME: Final = r"^[A-Za-z0-9_-]+$"
_VISIT_COLUMNS: Final[Columns] = {
    "subject_id": pl.String,
    "visit_id": pl.String,
    "admission_time": TIME,
    "discharge_time": TIME,
    "order": pl.Int64,
    "sex": pl.String,
    "age": pl.Int32,
    "died": pl.String,
    "death_time": TIME,
    **dict.fromkeys((*DEMOGRAPHICS, *PLACES), pl.String),
}


class TablesSettings(ReaderSettings):
    """What may be missing."""

    without_events: bool = Field(False, description="accept an events table without rows: visits without any codes")


def read_tables(source: SourceFolder, settings: TablesSettings) -> SourceRecords:
    """Open a hospital's own tables."""
    optional = [name for name in _VISIT_COLUMNS if name not in ("subject_id", "visit_id")]
    visits_table = source.open("visits", _VISIT_COLUMNS, optional=optional)
    source.notes += notes_on_unread_columns(visits_table, _VISIT_COLUMNS)
    visits = visits_table.collect().with_row_index("row")
    _refuse_blank(visits, ("subject_id", "visit_id"), visits_table)
    visits = _with_normal_ids(visits, visits_table, source)
    if visits.height and visits["admission_time"].is_null().all() and visits["order"].is_null().all():
        visits = visits.with_columns(pl.col("row").cast(pl.Int64).alias("order"))
    refuse_other_words(visits, "died", visits_table)
    refuse_ages(visits, pl.col("age"), visits_table)
    refuse_rows(
        visits,
        pl.struct("subject_id", "order").is_duplicated() & pl.col("order").is_not_null(),
        visits_table,
        "another visit of this patient has the same 'order'",
    )
    _refuse_order_against_times(visits, visits_table)
    visits, notes = without_words_for_missing(visits, ("sex", *DEMOGRAPHICS, *PLACES), "visit")
    source.notes += notes
    visits = visits.with_columns(yes_or_no("died"), letter_of_sex())
    source.notes += notes_on_sex(visits) + _notes_on_deaths(visits)
    events = source.open(
        "events",
        {"subject_id": pl.String, "visit_id": pl.String, "time": pl.String, "kind": pl.String, "code": pl.String},
        optional=("subject_id", "time"),
    )
    source.notes += notes_on_unread_columns(events, events.schema)
    _refuse_other_patients(events, visits)
    return SourceRecords(
        patients=visits.group_by("subject_id", maintain_order=True).agg(
            pl.col("sex").drop_nulls().first(), pl.col("death_time").max()
        ),
        visits=visits.drop("sex", "death_time", "row"),
        visits_table=visits_table,
        streams=_streams(events, settings),
        names=_names(source),
        labels=_labels(source, visits),
    )


def _with_normal_ids(visits: pl.DataFrame, table: SourceTable, source: SourceFolder) -> pl.DataFrame:
    """Bring the ids of patients and visits into their normal form; look-alikes that remain are refused."""
    normal = [normal_ids(visits[name]) for name in ("subject_id", "visit_id")]
    for ids in normal:
        refuse_rows(visits.with_columns(ids), pl.col(ids.name) == "", table, f"column '{ids.name}' is blank")
        refuse_lost_ids(ids, table)
        refuse_look_alikes(ids, table)
        source.notes += note_on_changed_ids(ids, visits[ids.name])
    return visits.with_columns(normal)


def _refuse_order_against_times(visits: pl.DataFrame, table: SourceTable) -> None:
    """Refuse a visit that comes after one with a later admission by its ``order``: one of the two is wrong."""
    given = visits.filter(pl.col("order").is_not_null()).sort("subject_id", "order")
    back = pl.col("admission_time") < pl.col("admission_time").cum_max().shift(1).over("subject_id")
    wrong = given.filter(back.fill_null(False))["row"]
    if len(wrong):
        place = table.place_of_number(sorted(wrong)[0])
        raise PlmError(
            f"{place}: by 'order' this visit comes after one with a later admission_time",
            remedy="correct the order or the time, or leave out the column 'order'",
        )


def _notes_on_deaths(visits: pl.DataFrame) -> list[str]:
    """Say how many patients have several times of death."""
    times = visits.drop_nulls("death_time").group_by("subject_id").agg(pl.col("death_time").n_unique())
    several = times.filter(pl.col("death_time") > 1).height
    one, many = "patient has visits", "patients have visits"
    return [f"{counted(several, one, many)} with different times of death: the latest is taken"] if several else []


def _streams(events: SourceTable, settings: TablesSettings) -> list[EventStream]:
    """Make one stream per (kind, system) that occurs."""
    found = events.then(lambda frame: frame.select(pl.col("kind").unique())).collect()["kind"].unique().to_list()
    if not found and not settings.without_events:
        raise PlmError(
            f"the table '{events.path}' has no rows",
            remedy="copy or export it again; for visits without any codes add --set without_events=true",
        )
    streams = []
    for written in sorted(found, key=str):
        kind, system = _kind_and_system(written, events)
        code = pl.col("code").str.strip_chars()
        if system == "own":
            # Any code is kept as it is, but NULL is none: it is counted as unmapped.
            code = pl.when(~code.str.to_lowercase().is_in(NEVER_A_VALUE)).then(code)
        of_kind = events.then(
            lambda frame, written=written, code=code: frame.filter(pl.col("kind") == written).select(  # type: ignore[misc]
                "visit_id", code, "time"
            )
        )
        streams.append(EventStream(kind, of_kind, {"code": system}))
    return streams


def _kind_and_system(written: str | None, events: SourceTable) -> tuple[Kind, str]:
    kind_text, _, name = (written or "").strip().lower().partition("/")
    for kind in KINDS:
        if kind_text == kind:
            for system in systems_of(kind):
                if name in ("", system.name):
                    return kind, system.name
    condition = pl.col("kind").is_null() if written is None else pl.col("kind") == written
    known = ", ".join(f"{kind}/{system.name}" for kind in KINDS for system in systems_of(kind))
    # What is not a kind may be anything, also a name, where a row is shifted.
    shown = f"{kind_text}/{form_of(name)}" if kind_text in KINDS else form_of(written or "")
    near = get_close_matches(kind_text, KINDS, n=1)
    hint = f" (is it '{near[0]}'?)" if near and kind_text not in KINDS else ""
    raise PlmError(
        f"{events.place_of(condition)}: unknown kind of the form '{shown}'{hint}", remedy=f"use one of {known}"
    )


def _names(source: SourceFolder) -> pl.DataFrame:
    table = source.open_optional("names", {"kind": pl.String, "code": pl.String, "name": pl.String})
    if table is None:
        return pl.DataFrame(schema=VOCABULARY_COLUMNS)
    kind = pl.col("kind").str.strip_chars().str.to_lowercase().str.split("/").list.first()
    names = table.collect()
    if names.is_empty():
        source.notes.append("the optional table 'names' has no rows")
    _refuse_blank(names, ("code",), table)
    refuse_rows(names, ~kind.is_in(KINDS).fill_null(False), table, f"'kind' must be one of {', '.join(KINDS)}")
    if (
        several := names.select(kind.alias("kind"), "code", "name")
        .unique()
        .select("kind", "code")
        .is_duplicated()
        .sum()
    ):
        source.notes.append(
            f"{several:,} rows of the table 'names' name a code in several ways: the first name is taken"
        )
    return names.with_columns(kind, pl.lit(None, dtype=pl.String).alias("chapter"))


def _labels(source: SourceFolder, visits: pl.DataFrame) -> pl.DataFrame | None:
    table = source.open_optional("labels", {"visit_id": pl.String, "task": pl.String, "value": pl.String})
    if table is None:
        return None
    labels = table.collect()
    if labels.is_empty():
        source.notes.append("the optional table 'labels' has no rows")
    _refuse_blank(labels, ("visit_id", "task", "value"), table)
    normal = normal_ids(labels["visit_id"])
    source.notes += [f"labels: {note}" for note in note_on_changed_ids(normal, labels["visit_id"])]
    labels = labels.with_columns(normal).with_row_index("row")
    strangers = labels.join(visits.select("visit_id"), on="visit_id", how="anti", maintain_order="left")
    if strangers.height:
        raise PlmError(
            f"{table.place_of_number(strangers['row'][0])}: this visit_id is not in the visits table "
            f"({counted(strangers.height, 'such row')})",
            remedy="add the visit or remove the label",
        )
    labels = labels.drop("row")
    bad = ~pl.col("task").str.strip_chars().str.contains(_TASK_NAME)
    if labels.select(bad.any()).item():
        raise PlmError(
            f"{table.place_of(bad)}: the name of a task may have letters, digits, - and _ only",
            remedy="correct the value",
        )
    labels = labels.with_columns(pl.col("task").str.strip_chars(), pl.col("value").str.strip_chars())
    names: dict[str, str] = {}
    for name in labels["task"].unique(maintain_order=True).to_list():
        if (other := names.setdefault(name.lower(), name)) != name:
            raise PlmError(
                f"{table.place_of(pl.col('task').str.strip_chars() == name)}: the tasks '{other}' and '{name}' differ "
                "only in upper and lower case",
                remedy="use one name",
            )
    return in_one_form(labels, table, source.notes)


def _refuse_other_patients(events: SourceTable, visits: pl.DataFrame) -> None:
    """Refuse an event that names another patient than its visit: one of the two ids is wrong."""
    owners = visits.lazy().select("visit_id", pl.col("subject_id").alias("owner"))
    joined = events.then(
        lambda frame: frame.select("visit_id", "subject_id").join(
            owners, on="visit_id", how="left", maintain_order="left"
        )
    )
    # Ids in their normal form agree at once; the few others are normalised and compared again.
    other = (pl.col("subject_id") != pl.col("owner").fill_null("")).fill_null(False)
    odd = joined.then(lambda frame: frame.filter(other).select("visit_id", "subject_id").unique()).collect().unique()
    if odd.is_empty():
        return
    normal = odd.select(
        pl.all().name.suffix(" written"), normal_ids(odd["visit_id"]), normal_ids(odd["subject_id"])
    ).join(owners.collect(), on="visit_id", how="inner")
    wrong = normal.filter(pl.col("subject_id") != pl.col("owner"))
    if wrong.height:
        first = wrong.row(0, named=True)
        condition = (pl.col("visit_id") == first["visit_id written"]) & (
            pl.col("subject_id") == first["subject_id written"]
        )
        raise PlmError(
            f"{joined.place_of(condition)}: this subject_id is not the patient of the visit",
            remedy="correct the subject_id or the visit_id",
        )


def _refuse_blank(rows: pl.DataFrame, columns: tuple[str, ...], table: SourceTable) -> None:
    for column in columns:
        blank = pl.col(column).is_null() | (pl.col(column).str.strip_chars() == "")
        if rows.select(blank.any()).item():
            raise PlmError(f"{table.place_of(blank)}: column '{column}' is blank", remedy="fill it in")


def _looks_like(source: SourceFolder) -> bool:
    return source.has("visits", "subject_id", "visit_id") and source.has("events", "visit_id", "kind", "code")


READER = Reader("tables", "own tables", _looks_like, read_tables, TablesSettings, any_hospital=True)
