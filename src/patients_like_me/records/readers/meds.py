"""Reader for MEDS, the Medical Event Data Standard (0.3 and 0.4): events of subject, time and code in Parquet shards.

A dialect (``records/dialects/meds.py``) says what the codes mean. All shards are read once, piece by piece; of each
piece only the rows stay that the dialect knows as admissions, discharges, demographics, diagnoses, procedures and
medications. Visits come from a column with their id where the data has one, else from admissions and discharges, and
an event that names no visit belongs to the one in whose time it falls. See ``docs/meds.md``.
"""

from __future__ import annotations

from collections.abc import Callable
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
from patients_like_me.records.registry import Description, Reader, ReaderSettings, SourceRecords
from patients_like_me.records.source_files import SourceFolder, SourceTable
from patients_like_me.records.values import OLDEST, SHIFTED, completed_years, letter_of_sex

_TEXT: Final = pl.String()
#: Tells file and row of the first of some events.
PlaceOf = Callable[[pl.DataFrame], str]


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
    skeleton = _with_meanings(kept)
    place_of = partial(_place_of, kept=kept, events=all_events)
    subjects = _subjects(skeleton, place_of, source)
    visits = _with_ages(_visits(skeleton, subjects, dialect, source), skeleton, dialect, place_of)

    def place_of_visit(visit: int | str) -> str:
        """Return the row of the discharge, by which a stay ends before it begins."""
        of_visit = visits.filter(pl.col("visit_id") == visit).select("subject_id", time="discharge_time")
        discharges = skeleton.filter(pl.col("role") == "discharge")
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


def _with_meanings(kept: KeptRows) -> pl.DataFrame:
    """Return admissions, discharges and demographics with their role and value."""
    if not kept.skeleton:
        raise PlmError(
            f"the dialect '{kept.dialect.name}' finds no admissions in this dataset",
            remedy="look at the codes with --describe, and give another dialect with --set dialect=NAME or FILE",
        )
    rows = pl.concat(kept.skeleton).sort("rule", maintain_order=True)
    roles = pl.Series("role", [rule.role for rule in kept.dialect.rules])
    died = pl.Series("died", [rule.died for rule in kept.dialect.rules])
    value = pl.Series("value", kept.parts).replace({"": None})
    unknown = list(kept.dialect.unknown)
    return rows.with_columns(
        roles.gather(rows["rule"]), died.gather(rows["rule"]), value.gather(rows["code"].cast(pl.UInt32))
    ).with_columns(pl.when(~pl.col("value").str.strip_chars().is_in(unknown)).then(pl.col("value").str.strip_chars()))


def _place_of(found: pl.DataFrame, *, kept: KeptRows, events: SourceTable) -> str:
    """Return file and row of the first of some events among admissions, discharges and demographics."""
    event = found.row(0, named=True)
    return events.place_of(
        (pl.col("subject_id") == event["subject_id"])
        & pl.col("time").eq_missing(pl.lit(event["time"], dtype=TIME))
        & (pl.col("code") == kept.words.texts[event["code"]])
    )


def _subjects(skeleton: pl.DataFrame, place_of: PlaceOf, source: SourceFolder) -> pl.DataFrame:
    """Return one row per subject: birth, death, sex, age and demographics; two sexes or births are refused."""
    subjects = skeleton.select("subject_id").unique().sort("subject_id")
    for role, column in (("birth", "time"), ("death", "time"), ("sex", "value")):
        of_role = skeleton.filter(pl.col("role") == role)
        if role == "sex":
            of_role = of_role.with_columns(letter_of_sex("value"))
        given = of_role.filter(pl.col(column).is_not_null())
        if column == "time" and (lost := of_role.height - given.height):
            source.notes.append(f"{counted(lost, 'event')} of a {role} without a time: not read")
        second = given.filter(pl.col(column) != pl.col(column).first().over("subject_id"))
        if several := second["subject_id"].n_unique():
            raise PlmError(
                f"{place_of(second)}: {counted(several, 'subject has', 'subjects have')} more than one {role}",
                remedy="keep the right event: two subjects may share one id",
            )
        name = {"birth": "birth_time", "death": "death_time", "sex": "sex"}[role]
        first = given.group_by("subject_id").agg(pl.col(column).first().alias(name))
        subjects = subjects.join(first, on="subject_id", how="left", maintain_order="left")
    for role in ("age", *DEMOGRAPHICS):
        given = skeleton.filter((pl.col("role") == role) & pl.col("value").is_not_null())
        last = given.sort("time").group_by("subject_id").agg(pl.col("value").last().alias(role))
        subjects = subjects.join(last, on="subject_id", how="left", maintain_order="left")
    return subjects


def _visits(skeleton: pl.DataFrame, subjects: pl.DataFrame, dialect: MedsDialect, source: SourceFolder) -> pl.DataFrame:
    """Return the visits in the order of subjects and times, with their demographics and the birth of the subject."""
    given_id = pl.col(dialect.visit_id) if dialect.visit_id in skeleton.columns else pl.lit(None, dtype=_TEXT)
    columns = {name: column for name, column in dialect.columns.items() if column in skeleton.columns}
    unknown = list(dialect.unknown)
    of_visit = [
        pl.when(~pl.col(column).str.strip_chars().is_in(["", *unknown]))
        .then(pl.col(column).str.strip_chars())
        .alias(name)
        for name, column in columns.items()
    ]
    timed = skeleton.filter(pl.col("time").is_not_null()).with_columns(given_id.alias("given_id"))
    openings = timed.filter(pl.col("role") == "admission").select("subject_id", "time", "given_id", *of_visit)
    closings = timed.filter(pl.col("role") == "discharge").select("subject_id", "time", "given_id", "died")
    if openings.is_empty() or closings.is_empty():
        what = "admissions" if openings.is_empty() else "discharges"
        raise PlmError(
            f"the dialect '{dialect.name}' finds no {what} in this dataset",
            remedy="look at the codes with --describe, and give another dialect with --set dialect=NAME or FILE",
        )
    if dialect.visits == "subject":
        visits = _one_visit_per_subject(openings, closings)
    else:
        visits = _by_id_or_time(_distinct(openings), _distinct(closings), source)
    own = pl.format("{}-{}", "subject_id", pl.col("admission_time").dt.strftime("%Y%m%dT%H%M%S"))
    in_turn = pl.int_range(pl.len()).over("subject_id", "admission_time")
    own = pl.when(in_turn > 0).then(pl.format("{}-{}", own, in_turn + 1)).otherwise(own)
    visits = visits.join(subjects.drop("sex", "death_time"), on="subject_id", how="left", maintain_order="left")
    missing = [name for name in (*DEMOGRAPHICS, *PLACES) if f"{name}_right" in visits.columns]
    named = visits["given_id"].null_count() == 0
    return visits.with_columns(
        (pl.col("given_id") if named else pl.coalesce(pl.col("given_id").cast(_TEXT), own)).alias("visit_id"),
        *(pl.coalesce(name, f"{name}_right").alias(name) for name in missing),
    ).drop(f"{name}_right" for name in missing)


def _distinct(rows: pl.DataFrame) -> pl.DataFrame:
    """Return distinct rows; where the ids are, as in most datasets, the rows are too."""
    ids = rows["given_id"]
    if not ids.null_count() and ids.n_unique() == rows.height:
        return rows
    return rows.unique(maintain_order=True)


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
    return visits.sort("subject_id", "admission_time", maintain_order=True)


def _with_ages(visits: pl.DataFrame, skeleton: pl.DataFrame, dialect: MedsDialect, place_of: PlaceOf) -> pl.DataFrame:
    """Add the age in whole years: the stated one, or that from the birth to the admission."""
    years = completed_years("birth_time", "admission_time")
    stated = pl.col("age").str.strip_chars().str.replace(r"\.0+$", "").cast(pl.Int32, strict=False)
    odd = visits.filter(pl.col("age").is_not_null() & stated.is_null()).select("subject_id", value="age")
    if odd.height:
        ages = skeleton.filter(pl.col("role") == "age").join(odd, on=["subject_id", "value"], how="semi")
        raise PlmError(
            f"{place_of(ages)}: the age of {counted(odd['subject_id'].n_unique(), 'subject')} is not a whole number",
            remedy="correct it, or let a rule of the dialect say what it means ('values')",
        )
    age = pl.coalesce(stated, years)
    impossible = (age < 0) | (age > OLDEST)
    if dialect.oldest_age is not None:
        impossible &= ~age.is_between(*SHIFTED)
    wrong = visits.filter(impossible).select("subject_id", time="admission_time")
    if wrong.height:
        admissions = skeleton.filter(pl.col("role") == "admission").join(wrong, on=["subject_id", "time"], how="semi")
        raise PlmError(
            f"{place_of(admissions)}: {counted(wrong.height, 'visit begins', 'visits begin')} before the birth or more "
            f"than {OLDEST} years after it",
            remedy="correct the events of birth and admission",
        )
    if dialect.oldest_age is not None:
        age = age.clip(upper_bound=dialect.oldest_age)
    return visits.with_columns(age.cast(pl.Int16).alias("age")).drop("birth_time")


READER = Reader("meds", "MEDS", looks_like_meds, read_meds, MedsSettings, any_hospital=True, describe=describe_meds)
