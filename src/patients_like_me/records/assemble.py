"""From what a reader found to a cohort: filters with their flow, visits in order, codes gathered and named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime
from threading import Event
from typing import Literal

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from patients_like_me.codes.coverage import MapCoverage
from patients_like_me.codes.registry import systems_in
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import NoVisitsError, PlmError
from patients_like_me.plain_text import counted
from patients_like_me.records.code_table import CodeTable
from patients_like_me.records.cohort import (
    CODE_COLUMNS,
    DEMOGRAPHICS,
    KINDS,
    LABEL_COLUMNS,
    PATIENT_COLUMNS,
    PLACES,
    TIME,
    VISIT_COLUMNS,
    VOCABULARY_COLUMNS,
    Kind,
)
from patients_like_me.records.events import EventStream, GatheredCodes, gather_codes
from patients_like_me.records.flow import Flow
from patients_like_me.records.odd_visits import notes_on_bare_visits, notes_on_deaths, notes_on_far_times
from patients_like_me.records.registry import SourceRecords
from patients_like_me.records.values import YEARS, by_distinct_values, notes_on_ages, without_words_for_missing
from patients_like_me.records.visit_order import ordered_visits, with_next_admission
from patients_like_me.workers import number_of_threads


class CohortSettings(BaseModel):
    """How visits are chosen; every choice is a station of the flow."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    negative_stays: Literal["refuse", "drop"] = Field(
        "refuse", description="a discharge before the admission stops the reading, or drops the visit"
    )
    minimum_age: int | None = Field(None, ge=0, description="keep visits of patients at least this old")
    require: tuple[Kind, ...] = Field((), description="keep visits with at least one mapped code of these kinds")


@dataclass
class BuiltCohort:
    """The tables of a cohort with the record of how it was built."""

    patients: pl.DataFrame
    visits: pl.DataFrame
    codes: Mapping[Kind, CodeTable]
    vocabulary: pl.DataFrame
    labels: pl.DataFrame
    source: str
    unordered: str
    flow: Flow
    coverage: list[MapCoverage] = field(default_factory=list)
    unmapped: list[pl.DataFrame] = field(default_factory=list)
    rows_read: dict[str, int] = field(default_factory=dict)
    rows_without_visit: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def build_cohort(
    records: SourceRecords,
    settings: CohortSettings,
    store: CodeStore,
    *,
    source: str,
    report: Callable[[str], None] = lambda _: None,
) -> BuiltCohort:
    """Filter and order the visits, gather their codes, and name the codes."""
    flow = Flow()
    visits = ordered_visits(filter_visits(records, settings, flow), ties_in_order=bool(records.unordered))
    _refuse_nobody(visits, records, flow)
    index = visits.select("visit_id", "visit", "subject_id")
    gathered = _gather_all(records, index, store, report)
    for stream, codes in zip(records.streams, gathered, strict=True):
        _refuse_strangers(codes, stream)
    code_tables = {
        kind: _united(
            [codes.codes for stream, codes in zip(records.streams, gathered, strict=True) if stream.kind == kind]
        )
        for kind in KINDS
    }
    labels = _labels(records, index.drop("subject_id"))
    if settings.require:
        visits, code_tables, labels = _with_required_codes(
            visits, code_tables, labels, settings, flow, ties_in_order=bool(records.unordered)
        )
    _refuse_nobody(visits, records, flow)
    notes = notes_on_bare_visits(visits, code_tables) + notes_on_far_times(visits, code_tables)
    if not records.unordered:
        notes += notes_on_ages(visits) + notes_on_deaths(visits)
    patients, more = without_words_for_missing(records.patients, ("sex",), "patient")
    visits, notes_on_words = without_words_for_missing(visits, (*DEMOGRAPHICS, *PLACES), "visit")
    notes += more + notes_on_words
    patients, visits = _numbered_patients(
        patients.with_columns(_in_one_line(patients["sex"])),
        visits.with_columns(_in_one_line(visits[name]) for name in DEMOGRAPHICS),
    )
    result = BuiltCohort(
        patients=patients,
        visits=visits.select(list(VISIT_COLUMNS)).cast(VISIT_COLUMNS),
        codes=code_tables,
        vocabulary=_vocabulary(records, code_tables),
        labels=labels,
        source=source,
        unordered=records.unordered,
        flow=flow,
    )
    _note_how_it_went(result, records, gathered)
    result.notes += notes
    return result


def _note_how_it_went(result: BuiltCohort, records: SourceRecords, gathered: Sequence[GatheredCodes]) -> None:
    """Add the coverage of the code maps, and the rows that were read and left out."""
    for stream, codes in zip(records.streams, gathered, strict=True):
        result.coverage += codes.coverage
        result.unmapped += codes.unmapped
        result.notes += codes.remarks
        name = stream.table.label
        if codes.rows_of_others:
            one = f"row of '{name}' names another patient than its visit does, and is left out"
            many = f"rows of '{name}' name another patient than their visit does, and are left out"
            result.notes.append(counted(codes.rows_of_others, one, many))
        result.rows_read[name] = result.rows_read.get(name, 0) + codes.rows
        result.rows_without_visit[name] = result.rows_without_visit.get(name, 0) + codes.rows_without_visit


def _in_one_line(words: pl.Series) -> pl.Series:
    """Return words as they may stand in a prompt: line ends and other control characters become a blank."""
    in_one_line = pl.col(words.name).str.replace_all(r"[\p{Cc}\p{Zl}\p{Zp}]+", " ").str.strip_chars()
    return by_distinct_values(words, in_one_line)


def _refuse_nobody(visits: pl.DataFrame, records: SourceRecords, flow: Flow) -> None:
    if visits.is_empty():
        raise NoVisitsError(
            f"no visit of '{records.visits_table.path}' is left after the filters:\n{flow.markdown()}",
            remedy="look at the station that left them out",
        )


def _refuse_strangers(codes: GatheredCodes, stream: EventStream) -> None:
    """Refuse an event table that is empty or has nothing to do with the visits: its ids are of another kind."""
    if not codes.rows and not stream.optional:
        raise PlmError(f"the table '{stream.table.path}' has no rows", remedy="copy or download it again")
    if codes.rows_of_others and codes.rows == codes.rows_without_visit + codes.rows_of_others:
        raise PlmError(
            f"all rows of '{stream.table.path}' that belong to a visit ({codes.rows_of_others:,}) name another patient "
            "than that visit does",
            remedy="take patients, visits and events from one export",
        )
    if codes.rows and codes.rows == codes.rows_without_visit:
        raise PlmError(
            f"none of the {codes.rows:,} rows of '{stream.table.path}' belongs to a visit of the cohort",
            remedy="write the visit ids in both tables in the same way (007 and 7 are two ids)",
        )


def _gather_all(
    records: SourceRecords, index: pl.DataFrame, store: CodeStore, report: Callable[[str], None]
) -> list[GatheredCodes]:
    """Read several event tables at once, one per core: one waits for its decompression while another is worked on."""
    stopped = Event()
    # polars loads its side of numpy at first use, and fails where two threads do so at once.
    pl.Series(np.zeros(0, dtype=np.int64))

    def report_unless_stopped(line: str) -> None:
        if stopped.is_set():
            raise _StoppedError
        report(line)

    with ThreadPoolExecutor(max_workers=max(1, min(len(records.streams), number_of_threads()))) as pool:
        # The largest first: with the others next to it, it does not end alone. Of one table it is the last kind.
        order = sorted(range(len(records.streams)), key=lambda place: (-records.streams[place].table.size, -place))
        submitted = {
            place: pool.submit(gather_codes, records.streams[place], index, store, report_unless_stopped)
            for place in order
        }
        tasks = [submitted[place] for place in range(len(order))]
        try:
            return [task.result() for task in _finished(tasks)]
        except BaseException:
            stopped.set()
            raise


def _finished(tasks: Sequence[Future[GatheredCodes]]) -> Sequence[Future[GatheredCodes]]:
    """Wait until all tasks are done or one has failed; return them in their order, the failed one first."""
    done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
    failed = [task for task in tasks if task in done and task.exception() is not None]
    return [*failed, *tasks] if failed else tasks


class _StoppedError(Exception):
    """Ends a reading thread after another one failed."""


def filter_visits(records: SourceRecords, settings: CohortSettings, flow: Flow) -> pl.DataFrame:
    """Apply the visit filters one by one, noting in ``flow`` what each leaves."""
    admission, discharge = records.time_column_names
    path = records.visits_table.path
    visits = _with_all_columns(records.visits)
    if visits.is_empty():
        raise PlmError(f"the table '{path}' has no rows", remedy="copy or download it again")
    for name in ("subject_id", "visit_id"):
        if blank := visits[name].null_count():
            whose = "patient" if name == "subject_id" else "visit"
            raise PlmError(
                f"'{path}' has {counted(blank, 'row')} without the id of a {whose}",
                remedy="fill in the ids or remove these rows",
            )
    repeated = visits.filter(pl.col("visit_id").is_duplicated())
    if repeated.height:
        raise PlmError(
            f"'{path}' names {counted(repeated['visit_id'].n_unique(), 'visit')} more than once",
            remedy="keep one row per visit",
        )

    if records.patients["subject_id"].is_duplicated().any():
        raise PlmError(f"some patients of '{path}' have more than one row", remedy="keep one row per patient")

    def note(name: str) -> None:
        # A filter that left out no visit has left out no patient.
        last = flow.steps[-1] if flow.steps and flow.steps[-1].visits == visits.height else None
        flow.add(name, patients=last.patients if last else visits["subject_id"].n_unique(), visits=visits.height)

    note("all visits in the source")
    visits = visits.join(records.patients.select("subject_id", "death_time"), on="subject_id", how="inner")
    note("patient in the patients table")
    _refuse_placeholder_times(visits, records)
    visits = _those_that(visits, pl.col("admission_time").is_not_null() | pl.col("order").is_not_null())
    note("admission time or order given")
    visits = _those_that(visits, ~(pl.col("admission_time") > _end_of_day(pl.col("death_time"))).fill_null(False))
    note("admitted before death")
    visits = with_next_admission(visits)
    if records.unordered:
        visits = visits.with_columns(pl.lit(None, dtype=TIME).alias("next_admission_time"))
    negative = pl.col("discharge_time") < pl.col("admission_time")
    if settings.negative_stays == "refuse" and visits.select(negative.any()).item():
        wrong = visits.filter(negative)["visit_id"]
        count = len(wrong)
        if records.place_of_visit is not None:
            place = records.place_of_visit(wrong[0])
        else:
            place = records.visits_table.place_of(pl.col(discharge) < pl.col(admission))
        raise PlmError(
            f"{place}: {discharge} is before {admission} ({counted(count, 'such visit')} in all)",
            remedy="correct them, or leave them out with --negative-stays drop",
        )
    visits = _those_that(visits, ~negative.fill_null(False))
    note("discharge not before admission")
    if settings.minimum_age is not None:
        visits = visits.filter(pl.col("age") >= settings.minimum_age)
        note(f"aged {settings.minimum_age} or older")
    return visits


def _those_that(visits: pl.DataFrame, condition: pl.Expr) -> pl.DataFrame:
    """Return the visits that meet a condition; where all do, nothing is copied."""
    kept = visits.select(condition).to_series()
    return visits if kept.all(ignore_nulls=False) else visits.filter(kept)


def _refuse_placeholder_times(visits: pl.DataFrame, records: SourceRecords) -> None:
    """Refuse times in years in which no stay is: 9999-12-31 for a discharge would be a stay of 8,000 years."""
    first, last = YEARS
    for name, written in (
        *zip(("admission_time", "discharge_time"), records.time_column_names, strict=True),
        ("death_time", "the time of death"),
    ):
        is_possible = pl.col(name).is_between(datetime(first, 1, 1), datetime(last + 1, 1, 1), closed="left")
        count = visits.select((~is_possible).sum()).item()
        if count:
            raise PlmError(
                f"'{records.visits_table.path}': {counted(count, 'visit')} {'has' if count == 1 else 'have'} a time "
                f"before {first} or after {last} ({written})",
                remedy="leave a time blank that is not known, instead of writing 1900-01-01 or 9999-12-31",
            )


def _with_all_columns(visits: pl.DataFrame) -> pl.DataFrame:
    """Add what a source does not have, as not recorded."""
    wanted = {"order": pl.Int64(), **dict.fromkeys((*DEMOGRAPHICS, *PLACES), pl.String())}
    return visits.with_columns(
        pl.lit(None, dtype=dtype).alias(name) for name, dtype in wanted.items() if name not in visits.columns
    )


def _end_of_day(time: pl.Expr) -> pl.Expr:
    """A death date without a clock time means the whole day."""
    return time.dt.truncate("1d") + pl.duration(days=1)


def _united(tables: list[CodeTable]) -> CodeTable:
    if len(tables) == 1:
        return tables[0]
    frames = [pl.DataFrame(schema=CODE_COLUMNS), *(table.frame() for table in tables)]
    united = pl.concat(frames).group_by("visit", "code").agg(pl.col("time").min()).sort("visit", "code")
    return CodeTable.of(united)


def _labels(records: SourceRecords, index: pl.DataFrame) -> pl.DataFrame:
    if records.labels is None:
        return pl.DataFrame(schema=LABEL_COLUMNS)
    return (
        records.labels.join(index, on="visit_id", how="inner")
        .select(list(LABEL_COLUMNS))
        .unique()
        .sort("visit", "task", "value")
        .cast(LABEL_COLUMNS)
    )


def _with_required_codes(
    visits: pl.DataFrame,
    codes: Mapping[Kind, CodeTable],
    labels: pl.DataFrame,
    settings: CohortSettings,
    flow: Flow,
    *,
    ties_in_order: bool,
) -> tuple[pl.DataFrame, dict[Kind, CodeTable], pl.DataFrame]:
    number_of_visits = visits.height
    for kind in settings.require:
        has_code = np.zeros(number_of_visits, dtype=np.bool_)
        has_code[codes[kind].visit] = True
        visits = visits.filter(pl.Series(has_code[visits["visit"].to_numpy()]))
        flow.add(f"at least one mapped {kind}", patients=visits["subject_id"].n_unique(), visits=visits.height)
    renumbered = ordered_visits(visits.rename({"visit": "old_visit"}), ties_in_order=ties_in_order)
    # Fewer visits, in the same order: tables that were sorted by visit stay so.
    new = np.full(number_of_visits, -1, dtype=np.int64)
    new[renumbered["old_visit"].to_numpy()] = renumbered["visit"].to_numpy()
    moved = labels.with_columns(pl.Series("visit", new[labels["visit"].to_numpy()])).filter(pl.col("visit") >= 0)
    kept_labels = moved.cast(LABEL_COLUMNS).sort("visit", "task")
    return renumbered.drop("old_visit"), {kind: codes[kind].moved(new) for kind in KINDS}, kept_labels


def _numbered_patients(patients: pl.DataFrame, visits: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Number the patients in the order of their visits, and cast the source's own ids to text."""
    kept = visits.select("subject_id").unique(maintain_order=True).with_row_index("subject")
    numbered = kept.join(patients, on="subject_id", how="left", maintain_order="left")
    with_subject = visits.join(kept, on="subject_id", how="left", maintain_order="left")
    return (
        numbered.with_columns(pl.col("subject_id").cast(pl.String)).select(list(PATIENT_COLUMNS)).cast(PATIENT_COLUMNS),
        with_subject.with_columns(pl.col("visit_id").cast(pl.String)),
    )


def _vocabulary(records: SourceRecords, codes: Mapping[Kind, CodeTable]) -> pl.DataFrame:
    """Name the codes that occur: by the source's own names, else by their code system, else by the code itself."""
    systems = {
        (stream.kind, system.names)
        for stream in records.streams
        for system in systems_in(stream.kind, stream.codes)
        if system.names is not None
    }
    given = records.names.select(list(VOCABULARY_COLUMNS)).cast(VOCABULARY_COLUMNS)
    named = [given, *(names(kind).cast(VOCABULARY_COLUMNS) for kind, names in systems)]
    names = pl.concat(named).unique(["kind", "code"], keep="first", maintain_order=True)
    present = pl.concat(
        [
            pl.DataFrame({"kind": kind, "code": table.present()}, schema={"kind": pl.String, "code": pl.String})
            for kind, table in codes.items()
        ]
    )
    return (
        present.join(names, on=["kind", "code"], how="left")
        .with_columns(pl.col("name").fill_null(pl.col("code")))
        .sort("kind", "code")
        .select(list(VOCABULARY_COLUMNS))
        .cast(VOCABULARY_COLUMNS)
    )
