"""What a reader of another package hands on is checked where it enters: columns, types, ids, ages and labels."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from patients_like_me.codes.registry import VOCABULARY_COLUMNS
from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import DEMOGRAPHICS, PLACES
from patients_like_me.records.events import EventStream
from patients_like_me.records.source_files import SourceTable
from patients_like_me.records.values import OLDEST

_ID, _TIME, _TEXT, _NUMBER, _TRUTH = "ids", "times", "text", "whole numbers", "true or false"
_PATIENTS: Final = {"subject_id": _ID, "sex": _TEXT, "death_time": _TIME}
_VISITS: Final = {
    "subject_id": _ID,
    "visit_id": _ID,
    "admission_time": _TIME,
    "discharge_time": _TIME,
    "age": _NUMBER,
    "died": _TRUTH,
}
_OPTIONAL: Final = {"order": _NUMBER, **dict.fromkeys((*DEMOGRAPHICS, *PLACES), _TEXT)}
_LABELS: Final = {"visit_id": _ID, "task": _TEXT, "value": _TEXT}
#: What may not be missing in any row.
_NEVER_NULL: Final = {
    "patients": ("subject_id",),
    "visits": ("subject_id", "visit_id", "died"),
    "labels": tuple(_LABELS),
}


def refuse_wrong_records(reader: str, records: Any, kind: type[Any]) -> None:
    """Refuse what a reader must not return, with a sentence that names the reader, the table and the column."""
    if wrong := _wrong_records(records, kind):
        raise PlmError(f"the reader '{reader}' returned {wrong}", remedy="correct its read; see docs/extend.md")


def _wrong_records(records: Any, kind: type[Any]) -> str:
    if not isinstance(records, kind):
        return f"a {type(records).__name__}, not {kind.__name__}"
    if not isinstance(records.visits_table, SourceTable):
        return f"'visits_table' as a {type(records.visits_table).__name__}, not as the SourceTable that was opened"
    streams = records.streams
    if not isinstance(streams, list | tuple) or not all(isinstance(each, EventStream) for each in streams):
        return "'streams' that are not a list of EventStream"
    columns = dict.fromkeys(VOCABULARY_COLUMNS, _TEXT)
    tables = {"patients": _PATIENTS, "visits": _VISITS, "names": columns}
    if records.labels is not None:
        tables["labels"] = _LABELS
    for name, wanted in tables.items():
        if wrong := _wrong_table(name, getattr(records, name), wanted):
            return wrong
    types = {table: getattr(records, table).schema["subject_id"] for table in ("patients", "visits")}
    if types["patients"] != types["visits"]:
        return f"'subject_id' as {types['patients']} in 'patients' and as {types['visits']} in 'visits'"
    ages = records.visits.filter(~pl.col("age").is_between(0, OLDEST)).height
    return f"{ages:,} visits whose 'age' is not between 0 and {OLDEST}" if ages else ""


def _wrong_table(name: str, table: Any, wanted: dict[str, str]) -> str:
    if not isinstance(table, pl.DataFrame):
        return f"'{name}' as a {type(table).__name__}, not as a DataFrame"
    if missing := [column for column in wanted if column not in table.columns]:
        return f"'{name}' without the column '{missing[0]}'"
    more = _OPTIONAL if name == "visits" else {}
    for column, form in {**wanted, **more}.items():
        if column in table.columns and not _has_form(table.schema[column], form):
            return f"the column '{column}' of '{name}' as {table.schema[column]}, where {form} are expected" + (
                " (without a time zone)" if form == _TIME else ""
            )
    for column in _NEVER_NULL.get(name, ()):
        if missing_values := table[column].null_count():
            return f"'{name}' with {missing_values:,} rows without '{column}'"
    return ""


def _has_form(found: pl.DataType, form: str) -> bool:
    """Tell whether a column is of a form; one without any value has none."""
    if found == pl.Null:
        return True
    if form == _TIME:
        return isinstance(found, pl.Datetime) and found.time_zone is None
    if form == _TEXT:
        return found == pl.String
    if form == _TRUTH:
        return found == pl.Boolean
    return found.is_integer() or (form == _ID and found == pl.String)
