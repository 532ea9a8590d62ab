"""Reader for MEDS, the Medical Event Data Standard (0.3 and 0.4): events of subject, time and code in Parquet shards.

A dialect (``records/dialects/meds.py``) says what the codes mean. All shards are read once, piece by piece; of each
piece only the rows stay that the dialect knows as admissions, discharges, demographics, diagnoses, procedures and
medications. Visits come from a column with their id where the data has one, else from admissions and discharges, and
an event that names no visit belongs to the one in whose time it falls. See ``docs/meds.md``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

import polars as pl
from pydantic import Field

from patients_like_me.codes.registry import KINDS
from patients_like_me.errors import PlmError
from patients_like_me.plain_text import counted, printable
from patients_like_me.records.cohort import DEMOGRAPHICS, PLACES, TIME
from patients_like_me.records.dialects.loading import file_of_dialect
from patients_like_me.records.dialects.meds import IGNORED, MedsDialect, find_meds_dialect, shipped_meds_dialects
from patients_like_me.records.event_visits import paired_visits
from patients_like_me.records.meds_events import KeptRows, in_memory, kept_rows, streams_of
from patients_like_me.records.meds_layout import (
    check_metadata,
    codes_of,
    event_files,
    looks_like_meds,
    of_splits,
    open_events,
    read_labels,
)
from patients_like_me.records.meds_skeleton import PlaceOf, Skeleton, subjects_of
from patients_like_me.records.registry import Description, Reader, ReaderSettings, SourceRecords
from patients_like_me.records.source_files import SourceFolder, SourceTable
from patients_like_me.records.values import OLDEST, SHIFTED, by_distinct_values, completed_years

_TEXT: Final = pl.String()


class MedsSettings(ReaderSettings):
    """What the codes mean, and what is read."""

    dialect: str = Field("", description="a shipped dialect (mimic4, eicu) or a JSON file; blank: the one that suits")
    subject_splits: str = Field(
        "refuse",
        description="splits of the dataset's own: refuse, ignore, or the names of those to read (train+tuning)",
    )
    labels: str = Field("", description="a label file or a folder of them: each becomes an own task")


def read_meds(source: SourceFolder, settings: MedsSettings) -> SourceRecords:
    """Read all shards once, rebuild the visits and give every event its visit."""
    all_events, dialect, codes = _opened(source, settings)
    events = of_splits(all_events, source, settings.subject_splits)
    kept = kept_rows(events, all_events, dialect, codes)
    _say_what_is_missing(kept, source)
    skeleton = Skeleton(kept)
    place_of = partial(_place_of, kept=kept, events=all_events)
    subjects = subjects_of(skeleton, place_of, source)
    visits = _with_ages(_visits(skeleton, subjects, dialect, source), skeleton, dialect, place_of)

    def place_of_visit(visit: int | str) -> str:
        """Return the row of the discharge, by which a stay ends before it begins."""
        of_visit = visits.filter(pl.col("visit_id") == visit).select("subject_id", time="discharge_time")
        discharges = skeleton.of("discharge")
        return place_of(discharges.join(of_visit, on=["subject_id", "time"], how="semi", maintain_order="left"))

    return SourceRecords(
        patients=subjects.select("subject_id", "sex", "death_time"),
        visits=visits.drop("given_id"),
        visits_table=in_memory(visits, events),
        place_of_visit=place_of_visit,
        streams=list(streams_of(kept, visits, events, source)),
        labels=read_labels(settings.labels, visits, source) if settings.labels else None,
        unordered=dialect.unordered,
    )


def describe_meds(source: SourceFolder, settings: MedsSettings) -> Description:
    """Count the codes by their beginning and say what the dialect makes of each."""
    events = open_events(event_files(source), [])
    dialect = find_meds_dialect(settings.dialect) if settings.dialect else None
    if dialect is None:
        suiting = _suiting(codes_of(source, events))
        dialect = suiting[0] if len(suiting) == 1 else None
    counted = (
        events.then(lambda frame: frame.group_by("code").agg(pl.len().alias("rows")))
        .collect()
        .group_by("code")
        .agg(pl.col("rows").sum())
    )
    first = pl.col("code").str.split("//").list.first()
    rule = pl.lit(None, dtype=pl.Int32) if dialect is None else dialect.meanings(counted["code"])["rule"]
    forms = [] if dialect is None else [rule.match for rule in dialect.rules]
    form = pl.col("rule").replace_strict(dict(enumerate(forms)), default=None, return_dtype=pl.String)
    grouped = (
        counted.with_columns(rule.alias("rule"))
        .group_by(pl.coalesce(form, first).alias("form"), "rule")
        .agg(pl.len().alias("codes"), pl.col("rows").sum())
        .sort(["rows", "form"], descending=[True, False])
    )
    rows = [
        (row["form"], f"{row['codes']:,}", f"{row['rows']:,}", _in_words(dialect, row["rule"]))
        for row in grouped.to_dicts()
    ]
    title = "no dialect suits" if dialect is None else f"dialect '{dialect.name}'"
    return Description(f"Codes of MEDS, {title}", ("codes", "different", "rows", "becomes"), rows)


def _in_words(dialect: MedsDialect | None, number: int | None) -> str:
    if dialect is None or number is None:
        return "not read: no rule matches"
    rule = dialect.rules[number]
    if rule.role == IGNORED:
        return f"not read: {rule.why or 'ignored by the dialect'}"
    return f"{rule.role} ({rule.system})" if rule.system else rule.role


def _opened(source: SourceFolder, settings: MedsSettings) -> tuple[SourceTable, MedsDialect, pl.Series]:
    """Open the shards and choose the dialect: the given one, or the only shipped one that suits the codes.

    The codes that were looked at for that are returned too.
    """
    paths = event_files(source)
    source.used.extend(paths)
    check_metadata(source)
    codes = pl.Series([], dtype=_TEXT)
    if settings.dialect:
        dialect = find_meds_dialect(settings.dialect)
        source.used.extend(file_of_dialect("meds", settings.dialect))
    else:
        codes = codes_of(source, open_events(paths, []))
        suiting = _suiting(codes)
        if len(suiting) != 1:
            which = "no shipped dialect suits" if not suiting else "several shipped dialects suit"
            raise PlmError(
                f"{which} the codes of this dataset",
                remedy="look at them with --describe, and give one with --set dialect=NAME or FILE (docs/meds.md)",
            )
        dialect = suiting[0]
        source.notes.append(f"the dialect '{dialect.name}' was chosen, the only shipped one that suits the codes")
    return open_events(paths, dialect.extra_columns()), dialect, codes


def _suiting(codes: pl.Series) -> list[MedsDialect]:
    return [dialect for dialect in shipped_meds_dialects().values() if dialect.suits(codes)]


def _say_what_is_missing(kept: KeptRows, source: SourceFolder) -> None:
    """Note kinds of code of which the dialect finds none; where another shipped one finds all, it is the wrong one."""
    if kept.unknown:
        events, codes = counted(kept.unknown, "event"), counted(int((kept.rules < 0).sum()), "code")
        source.notes.append(f"{events} with {codes} that no rule of the dialect knows: not read (see --describe)")
    found = {kept.dialect.rules[number].role for number in kept.found()}
    missing = [kind for kind in KINDS if kind not in found]
    if not missing:
        return
    name = printable(kept.dialect.name)
    others = [other.name for other in _suiting(kept.words.texts) if other != kept.dialect]
    if others:
        raise PlmError(
            f"the dialect '{name}' finds no {missing[0]} in this dataset, and the dialect '{others[0]}' does",
            remedy=f"give --set dialect={others[0]}, or look at the codes with --describe",
        )
    source.notes += [f"the dialect '{name}' finds no {kind} in this dataset" for kind in missing]


def _place_of(found: pl.DataFrame, *, kept: KeptRows, events: SourceTable) -> str:
    """Return file and row of the first of some events among admissions, discharges and demographics."""
    event = found.row(0, named=True)
    return events.place_of(
        (pl.col("subject_id") == event["subject_id"])
        & pl.col("time").eq_missing(pl.lit(event["time"], dtype=TIME))
        & (pl.col("code") == kept.words.texts[event["code"]])
    )


def _visits(skeleton: Skeleton, subjects: pl.DataFrame, dialect: MedsDialect, source: SourceFolder) -> pl.DataFrame:
    """Return the visits in the order of subjects and times, with their demographics and the birth of the subject."""
    with_id = (dialect.visit_id,) if dialect.visit_id in skeleton.columns else ()
    given_id = (pl.col(*with_id) if with_id else pl.lit(None, dtype=_TEXT)).alias("given_id")
    columns = {name: column for name, column in dialect.columns.items() if column in skeleton.columns}
    opening = skeleton.of("admission", *with_id, *columns.values()).filter(pl.col("time").is_not_null())
    known = [_known_words(opening[column], dialect.unknown).alias(name) for name, column in columns.items()]
    openings = opening.select("subject_id", "time", given_id, *known)
    closing = skeleton.of("discharge", *with_id).filter(pl.col("time").is_not_null())
    closings = closing.select("subject_id", "time", given_id, "died")
    if openings.is_empty() or closings.is_empty():
        what = "admissions" if openings.is_empty() else "discharges"
        raise PlmError(
            f"the dialect '{dialect.name}' finds no {what} in this dataset",
            remedy="look at the codes with --describe, and give another dialect with --set dialect=NAME or FILE",
        )
    if dialect.visits == "subject":
        visits = _one_visit_per_subject(openings, closings)
    else:
        paired = _one_for_one(openings, closings)
        if paired is None:
            paired = _by_id_or_time(openings.unique(maintain_order=True), closings.unique(maintain_order=True), source)
        visits = _in_order(paired)
    visits = _with_those_of_subjects(visits, subjects.drop("sex", "death_time"))
    if not visits["given_id"].null_count():
        return visits.with_columns(pl.col("given_id").alias("visit_id"))
    own = pl.format("{}-{}", "subject_id", pl.col("admission_time").dt.strftime("%Y%m%dT%H%M%S"))
    in_turn = pl.int_range(pl.len()).over("subject_id", "admission_time")
    own = pl.when(in_turn > 0).then(pl.format("{}-{}", own, in_turn + 1)).otherwise(own)
    return visits.with_columns(pl.coalesce(pl.col("given_id").cast(_TEXT), own).alias("visit_id"))


def _known_words(words: pl.Series, unknown: Iterable[str]) -> pl.Series:
    """Return words without blanks around them; those that say that nothing is known are missing."""
    stripped = pl.col(words.name).str.strip_chars()
    return by_distinct_values(words, pl.when(~stripped.is_in(["", *unknown])).then(stripped).alias(words.name))


def _with_those_of_subjects(visits: pl.DataFrame, subjects: pl.DataFrame) -> pl.DataFrame:
    """Add what is said of the subjects; of a visit itself it goes first."""
    filled = [name for name in subjects.columns if subjects[name].null_count() < subjects.height]
    blank = [name for name in subjects.columns if name not in (*filled, *visits.columns)]
    visits = visits.join(subjects.select(filled), on="subject_id", how="left", maintain_order="left")
    both = [name for name in (*DEMOGRAPHICS, *PLACES) if f"{name}_right" in visits.columns]
    return visits.with_columns(
        *(pl.lit(None, dtype=subjects.schema[name]).alias(name) for name in blank),
        *(pl.coalesce(name, f"{name}_right").alias(name) for name in both),
    ).drop(f"{name}_right" for name in both)


def _one_visit_per_subject(openings: pl.DataFrame, closings: pl.DataFrame) -> pl.DataFrame:
    opened = openings.group_by("subject_id").agg(
        pl.col("time").min().alias("admission_time"), pl.exclude("time").drop_nulls().first()
    )
    closed = closings.group_by("subject_id").agg(pl.col("time").max().alias("discharge_time"), pl.col("died").any())
    visits = opened.join(closed, on="subject_id", how="left").with_columns(pl.col("died").fill_null(False))
    return visits.with_columns(pl.col("subject_id").cast(_TEXT).alias("given_id")).sort("subject_id")


def _by_id_or_time(openings: pl.DataFrame, closings: pl.DataFrame, source: SourceFolder) -> pl.DataFrame:
    """Pair admissions and discharges by the id of the visit, and those without one by their times."""
    keys = ["subject_id", "given_id"]
    ends = closings.filter(pl.col("given_id").is_not_null()).rename({"time": "discharge_time"})
    by_id = openings.rename({"time": "admission_time"}).join(ends, on=keys, how="inner", maintain_order="left")
    rest = openings.join(ends, on=keys, how="anti", maintain_order="left")
    by_time = paired_visits(rest, closings.join(openings, on=keys, how="anti", maintain_order="left"))
    visits = pl.concat([by_id.select(by_time.columns), by_time])
    if without := visits["discharge_time"].null_count():
        one, many = "admission has no discharge of its own", "admissions have no discharge of their own"
        source.notes.append(counted(without, one, many))
    if lost := closings.height - (visits.height - without):
        source.notes.append(
            counted(
                lost,
                "discharge has no admission of its own and was left out",
                "discharges have no admission of their own and were left out",
            )
        )
    return visits


def _one_for_one(openings: pl.DataFrame, closings: pl.DataFrame) -> pl.DataFrame | None:
    """Return the visits where each id has one admission and one discharge, of one subject; else None."""
    ids = openings["given_id"]
    if len(ids) != closings.height or ids.null_count() or ids.n_unique() < len(ids):
        return None
    visits = openings.rename({"time": "admission_time"}).join(
        closings.rename({"time": "discharge_time", "subject_id": "of"}), on="given_id", maintain_order="left"
    )
    # As many discharges as admissions: where each admission has met one, none is left.
    is_whole = visits["given_id"].equals(ids) and (visits["of"] == visits["subject_id"]).all()
    return visits.drop("of") if is_whole else None


def _in_order(visits: pl.DataFrame) -> pl.DataFrame:
    """Return visits by subject and admission; those that are in this order, as in most datasets, are not sorted."""
    subject, time = pl.col("subject_id"), pl.col("admission_time")
    in_turn = (subject > subject.shift(1)) | ((subject == subject.shift(1)) & (time >= time.shift(1)))
    if visits.select(in_turn.slice(1).fill_null(False).all()).item():
        return visits
    return visits.sort("subject_id", "admission_time", maintain_order=True)


def _with_ages(visits: pl.DataFrame, skeleton: Skeleton, dialect: MedsDialect, place_of: PlaceOf) -> pl.DataFrame:
    """Add the age in whole years: the stated one, or that from the birth to the admission."""
    years = completed_years("birth_time", "admission_time")
    if visits["age"].null_count() < visits.height:
        stated = pl.col("age").str.strip_chars().str.replace(r"\.0+$", "").cast(pl.Int32, strict=False)
        odd = visits.filter(pl.col("age").is_not_null() & stated.is_null()).select("subject_id", value="age")
        years = pl.coalesce(stated, years)
    else:
        odd = pl.DataFrame()
    if odd.height:
        ages = skeleton.of("age").join(odd, on=["subject_id", "value"], how="semi")
        raise PlmError(
            f"{place_of(ages)}: the age of {counted(odd['subject_id'].n_unique(), 'subject')} is not a whole number",
            remedy="correct it, or let a rule of the dialect say what it means ('values')",
        )
    visits, age = visits.with_columns(years.alias("age")), pl.col("age")
    impossible = (age < 0) | (age > OLDEST)
    if dialect.oldest_age is not None:
        impossible &= ~age.is_between(*SHIFTED)
    wrong = visits.filter(impossible).select("subject_id", time="admission_time")
    if wrong.height:
        admissions = skeleton.of("admission").join(wrong, on=["subject_id", "time"], how="semi")
        raise PlmError(
            f"{place_of(admissions)}: {counted(wrong.height, 'visit begins', 'visits begin')} before the birth or more "
            f"than {OLDEST} years after it",
            remedy="correct the events of birth and admission",
        )
    if dialect.oldest_age is not None:
        age = age.clip(upper_bound=dialect.oldest_age)
    return visits.with_columns(age.cast(pl.Int16).alias("age")).drop("birth_time")


READER = Reader("meds", "MEDS", looks_like_meds, read_meds, MedsSettings, any_hospital=True, describe=describe_meds)
