"""Reader for MEDS, the Medical Event Data Standard (0.3 and 0.4): events of subject, time and code in Parquet shards.

A dialect (``records/dialects/meds.py``) says what the codes mean. All shards are read once, piece by piece; of each
piece only the rows stay that the dialect knows as admissions, discharges, demographics, diagnoses, procedures and
medications. Visits come from a column with their id where the data has one, else from admissions and discharges, and
an event that names no visit belongs to the one in whose time it falls. See ``docs/meds.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from patients_like_me.codes.registry import KINDS, CodeColumns, SystemColumn
from patients_like_me.errors import PlmError
from patients_like_me.plain_text import printable
from patients_like_me.records.cohort import DEMOGRAPHICS, PLACES
from patients_like_me.records.dialects.meds import IGNORED, MedsDialect, Rule, find_meds_dialect, shipped_meds_dialects
from patients_like_me.records.event_visits import VisitClock, paired_visits
from patients_like_me.records.events import NO_TIME, NO_VISIT, EventStream, Numbers, fixed
from patients_like_me.records.meds_layout import (
    COLUMNS,
    check_metadata,
    codes_of,
    event_files,
    looks_like_meds,
    of_splits,
    open_events,
    read_labels,
)
from patients_like_me.records.registry import Description, Reader, ReaderSettings, SourceRecords
from patients_like_me.records.source_files import Part, SourceFolder, SourceTable
from patients_like_me.records.values import OLDEST, completed_years

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
    events, dialect = _opened(source, settings)
    events = of_splits(events, source, settings.subject_splits)
    kept = _kept_rows(events, dialect)
    _say_what_is_missing(kept, source)
    skeleton = _with_meanings(kept)
    subjects = _subjects(skeleton, events)
    visits = _visits(skeleton, subjects, dialect, events, source)
    return SourceRecords(
        patients=subjects.select("subject_id", "sex", "death_time"),
        visits=visits.drop("given_id"),
        visits_table=_in_memory(visits, events),
        streams=list(_streams(kept, visits, events, source)),
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


def _opened(source: SourceFolder, settings: MedsSettings) -> tuple[SourceTable, MedsDialect]:
    """Open the shards and choose the dialect: the given one, or the only shipped one that suits the codes."""
    paths = event_files(source)
    source.used.extend(paths)
    check_metadata(source)
    if settings.dialect:
        dialect = find_meds_dialect(settings.dialect)
    else:
        suiting = _suiting(codes_of(source, open_events(paths, [])))
        if len(suiting) != 1:
            which = "no shipped dialect suits" if not suiting else "several shipped dialects suit"
            raise PlmError(
                f"{which} the codes of this dataset",
                remedy="look at them with --describe, and give one with --set dialect=NAME or FILE (docs/meds.md)",
            )
        dialect = suiting[0]
        source.notes.append(f"the dialect '{dialect.name}' was chosen, the only shipped one that suits the codes")
    return open_events(paths, dialect.extra_columns()), dialect


def _suiting(codes: pl.Series) -> list[MedsDialect]:
    return [dialect for dialect in shipped_meds_dialects().values() if dialect.suits(codes)]


@dataclass
class _Kept:
    """The rows that the dialect knows, and the meaning of every code by its number.

    ``events`` holds them by rule; rules that need nothing but the code are kept together, under the first of their
    kind, since the code tells them apart. ``texts`` are the categories of the columns that hold codes.
    """

    dialect: MedsDialect
    words: pl.Categories = field(default_factory=lambda: pl.Categories.random("codes"))
    texts: dict[str, pl.Categories] = field(default_factory=dict)
    skeleton: list[pl.DataFrame] = field(default_factory=list)
    events: dict[int, list[pl.DataFrame]] = field(default_factory=dict)
    found: set[int] = field(default_factory=set)
    rules: Numbers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    parts: pl.Series = field(default_factory=lambda: pl.Series([], dtype=pl.String))
    codes: pl.Series = field(default_factory=lambda: pl.Series([], dtype=pl.String))

    def meet_new_codes(self) -> None:
        """Ask the dialect about the codes that were not seen before."""
        codes = self.words.to_series().cast(pl.String)[len(self.rules) :]
        if len(codes):
            meanings = self.dialect.meanings(codes)
            self.rules = np.append(self.rules, meanings["rule"].fill_null(-1).to_numpy())
            self.parts = pl.concat([self.parts, meanings["part"]])
            self.codes = pl.concat([self.codes, codes.alias("")])

    def place_of(self, number: int) -> int:
        """Return under which number the rows of a rule are kept."""
        rules = self.dialect.rules
        if not _is_plain(rules[number]):
            return number
        return next(n for n, rule in enumerate(rules) if rule.role == rules[number].role and _is_plain(rule))


def _is_plain(rule: Rule) -> bool:
    """Tell whether the code alone says what an event is."""
    return not rule.column and not rule.first


def _kept_rows(events: SourceTable, dialect: MedsDialect) -> _Kept:
    """Go through all events once and keep the rows that the dialect knows; text stays as numbers of its categories."""
    kept = _Kept(dialect)
    there = events.schema.names()
    used = {name for rule in dialect.rules for name in (rule.column, *rule.first)}
    kept.texts = {name: pl.Categories.random(name) for name in there if name in used}
    numbered = events.then(
        lambda frame: frame.with_columns(
            pl.col("code").cast(pl.Categorical(kept.words)).to_physical(),
            *(
                pl.col(name).cast(_TEXT).cast(pl.Categorical(texts)).alias(f"number of {name}")
                for name, texts in kept.texts.items()
            ),
        )
    )
    visit_id = [name for name in [dialect.visit_id] if name in there]
    of_rule = [
        [*COLUMNS, *visit_id, *(f"number of {name}" for name in (rule.column, *rule.first) if name in kept.texts)]
        for rule in dialect.rules
    ]
    nowhere, skeleton = -1, len(dialect.rules)
    for batch in numbered.batches():
        for column in ("subject_id", "code"):
            if batch[column].null_count():
                raise PlmError(
                    f"{events.place_of(pl.col(column).is_null())}: column '{column}' is blank",
                    remedy="every MEDS event has a subject and a code: correct the row",
                )
        kept.meet_new_codes()
        codes = batch["code"].to_numpy()
        occurring = np.unique(kept.rules[np.flatnonzero(np.bincount(codes, minlength=1))])
        place_of_rule = np.full(len(dialect.rules) + 1, nowhere, dtype=np.int16)
        for number in occurring[occurring >= 0].tolist():
            role = dialect.rules[number].role
            if role in KINDS:
                place_of_rule[number] = kept.place_of(number)
                kept.found.add(number)
            elif role != IGNORED:
                place_of_rule[number] = skeleton
        # The last entry is that of the codes without a rule, whose number is -1.
        place = place_of_rule[kept.rules][codes]
        for number in np.unique(place_of_rule[place_of_rule >= 0]).tolist():
            chosen = pl.Series(place == number)
            if number == skeleton:
                rows = batch.filter(chosen)
                rule = pl.Series("rule", kept.rules[rows["code"].to_numpy()], dtype=pl.Int32)
                kept.skeleton.append(rows.with_columns(rule).sort("rule", maintain_order=True))
            else:
                kept.events.setdefault(number, []).append(batch.select(of_rule[number]).filter(chosen))
    return kept


def _say_what_is_missing(kept: _Kept, source: SourceFolder) -> None:
    """Note kinds of code of which the dialect finds none; where another shipped one finds all, it is the wrong one."""
    found = {kept.dialect.rules[number].role for number in kept.found}
    missing = [kind for kind in KINDS if kind not in found]
    if not missing:
        return
    name = printable(kept.dialect.name)
    others = [other.name for other in _suiting(kept.codes) if other != kept.dialect]
    if others:
        raise PlmError(
            f"the dialect '{name}' finds no {missing[0]} in this dataset, and the dialect '{others[0]}' does",
            remedy=f"give --set dialect={others[0]}, or look at the codes with --describe",
        )
    source.notes += [f"the dialect '{name}' finds no {kind} in this dataset" for kind in missing]


def _with_meanings(kept: _Kept) -> pl.DataFrame:
    """Return admissions, discharges and demographics with their role and value."""
    if not kept.skeleton:
        raise PlmError(
            f"the dialect '{kept.dialect.name}' finds no admissions in this dataset",
            remedy="look at the codes with --describe, and give another dialect with --set dialect=NAME or FILE",
        )
    rows = pl.concat(kept.skeleton)
    roles = pl.Series("role", [rule.role for rule in kept.dialect.rules])
    died = pl.Series("died", [rule.died for rule in kept.dialect.rules])
    value = pl.Series("value", kept.parts).replace({"": None})
    unknown = list(kept.dialect.unknown)
    return rows.with_columns(
        roles.gather(rows["rule"]), died.gather(rows["rule"]), value.gather(rows["code"].cast(pl.UInt32))
    ).with_columns(pl.when(~pl.col("value").str.strip_chars().is_in(unknown)).then(pl.col("value").str.strip_chars()))


def _subjects(skeleton: pl.DataFrame, events: SourceTable) -> pl.DataFrame:
    """Return one row per subject: birth, death, sex, age and demographics; two sexes or births are refused."""
    subjects = skeleton.select("subject_id").unique().sort("subject_id")
    for role, column in (("birth", "time"), ("death", "time"), ("sex", "value")):
        given = skeleton.filter((pl.col("role") == role) & pl.col(column).is_not_null())
        several = (
            given.group_by("subject_id").agg(pl.col(column).n_unique().alias("values")).filter(pl.col("values") > 1)
        )
        if several.height:
            raise PlmError(
                f"'{events.path}': {several.height:,} subjects have more than one {role}",
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


def _visits(
    skeleton: pl.DataFrame, subjects: pl.DataFrame, dialect: MedsDialect, events: SourceTable, source: SourceFolder
) -> pl.DataFrame:
    """Return the visits in the order of subjects and times, with their demographics."""
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
        visits = _by_id_or_time(openings.unique(maintain_order=True), closings.unique(maintain_order=True), source)
    own = pl.format("{}-{}", "subject_id", pl.col("admission_time").dt.strftime("%Y%m%dT%H%M%S"))
    in_turn = pl.int_range(pl.len()).over("subject_id", "admission_time")
    own = pl.when(in_turn > 0).then(pl.format("{}-{}", own, in_turn + 1)).otherwise(own)
    visits = visits.join(subjects.drop("sex", "death_time"), on="subject_id", how="left", maintain_order="left")
    missing = [name for name in (*DEMOGRAPHICS, *PLACES) if f"{name}_right" in visits.columns]
    named = visits["given_id"].null_count() == 0
    return _with_ages(
        visits.with_columns(
            (pl.col("given_id") if named else pl.coalesce(pl.col("given_id").cast(_TEXT), own)).alias("visit_id"),
            *(pl.coalesce(name, f"{name}_right").alias(name) for name in missing),
        ).drop(f"{name}_right" for name in missing),
        dialect,
        events,
    )


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
        source.notes.append(f"{without:,} admissions have no discharge of their own")
    if lost := closings.height - (visits.height - without):
        source.notes.append(f"{lost:,} discharges have no admission of their own and were left out")
    return visits.sort("subject_id", "admission_time", maintain_order=True)


def _with_ages(visits: pl.DataFrame, dialect: MedsDialect, events: SourceTable) -> pl.DataFrame:
    """Add the age in whole years: the stated one, or that from the birth to the admission."""
    years = completed_years("birth_time", "admission_time")
    age = pl.coalesce(pl.col("age").cast(pl.Int32, strict=False), years)
    if dialect.oldest_age is not None:
        age = age.clip(upper_bound=dialect.oldest_age)
    visits = visits.with_columns(age.cast(pl.Int16).alias("age")).drop("birth_time")
    wrong = visits.filter((pl.col("age") < 0) | (pl.col("age") > OLDEST)).height
    if wrong:
        raise PlmError(
            f"'{events.path}': {wrong:,} visits begin before the birth or more than {OLDEST} years after it",
            remedy="correct the events of birth and admission",
        )
    return visits


def _streams(kept: _Kept, visits: pl.DataFrame, events: SourceTable, source: SourceFolder) -> Iterator[EventStream]:
    """Yield the events of each kind with their visits; rules with the same columns make one stream."""
    finder = _VisitFinder(kept, visits)
    rules = kept.dialect.rules
    meanings = _Meanings(kept)
    for kind in KINDS:
        together: dict[tuple[tuple[str, str], ...], list[tuple[int, list[pl.DataFrame]]]] = {}
        for number in sorted(number for number in kept.events if rules[number].role == kind):
            frames = kept.events.pop(number)
            first = tuple(
                (name, system)
                for name, system in rules[number].first.items()
                if name in kept.texts
                and any(frame[f"number of {name}"].null_count() < frame.height for frame in frames)
            )
            code = meanings.code_of(rules[number])
            chosen = ["visit_id", "time", *(pl.col(f"number of {name}").alias(name) for name, _ in first), code]
            # A piece at a time, so that what was read is let go as soon as it has its visits.
            found = [finder.with_visits(frames.pop(0)).select(chosen) for _ in range(len(frames))]
            together.setdefault(first, []).append((number, found))
        for columns, groups in together.items():
            numbers = [number for number in sorted(kept.found) if kept.place_of(number) in dict(groups)]
            systems = list(dict.fromkeys(rules[number].system for number in numbers))
            several = SystemColumn("system", {system: system for system in systems})
            codes: CodeColumns = {**dict(columns), "code": systems[0] if len(systems) == 1 else several}
            rows = pl.concat([frame for _, frames in groups for frame in frames])
            yield EventStream(
                kind,
                _in_memory(rows.lazy().with_columns(pl.col("visit_id").cast(visits["visit_id"].dtype)), events),
                codes,
                optional=True,
                looked_up=(*dict(columns), "code"),
                look_up=meanings.look_up,
            )
    if finder.of_others:
        source.notes.append(f"{finder.of_others:,} events name a visit of another subject, and are left out")


class _Meanings:
    """What the number of a code stands for: the text that is mapped, and its code system.

    Where a column holds the code, its texts are numbered after the codes; the last number of a column means none.
    """

    def __init__(self, kept: _Kept) -> None:
        self.columns = kept.texts
        self.texts = kept.parts
        # Codes that no rule knows have the number -1 and take the last entry.
        systems = pl.Series([*(rule.system for rule in kept.dialect.rules), ""])
        self.systems = systems.gather(np.where(kept.rules < 0, len(systems) - 1, kept.rules))

    def code_of(self, rule: Rule) -> pl.Expr:
        """Return the expression for the numbers of a rule's codes; a column's texts get the next numbers."""
        if not rule.column:
            return pl.col("code")
        if rule.column not in self.columns:
            raise PlmError(
                f"the dialect takes the codes of '{printable(rule.match)}' from the column '{printable(rule.column)}', "
                "which the events do not have",
                remedy="extract the dataset with that column, or change the dialect",
            )
        texts = self.columns[rule.column].to_series().cast(pl.String)
        start, none = len(self.texts), len(texts)
        self.texts = pl.concat([self.texts, texts.alias(""), pl.Series([None], dtype=pl.String)])
        self.systems = pl.concat([self.systems, pl.Series([rule.system] * (none + 1))])
        number = pl.col(f"number of {rule.column}").to_physical().cast(pl.UInt32)
        return (number.fill_null(none) + start).cast(pl.UInt32).alias("code")

    def look_up(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Replace the numbers of codes by their texts, and add their systems."""
        texts = self.texts.str.strip_chars().replace({"": None, "UNK": None})
        return keys.with_columns(
            texts.gather(keys["code"]).alias("code"), self.systems.gather(keys["code"]).alias("system")
        )


class _VisitFinder:
    """Gives each event the visit that it names, else the one in whose time it falls.

    ``of_others`` counts the events that name a visit of another subject: they get none.
    """

    def __init__(self, kept: _Kept, visits: pl.DataFrame) -> None:
        self.kept, self.clock, self.of_others = kept, VisitClock.of(visits), 0
        ids = visits["visit_id"]
        self.ids = ids.cast(pl.Categorical(pl.Categories.random("visits"))) if ids.dtype == _TEXT else ids
        self.named = (
            visits.with_row_index("row")
            .filter(pl.col("given_id").is_not_null())
            .unique("given_id", keep="first")
            .sort("given_id")
            .select("given_id", pl.col("row").cast(pl.Int64), "subject_id")
        )

    def with_visits(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Add the column ``visit_id``."""
        column, subjects = self.kept.dialect.visit_id, frame["subject_id"].to_numpy()
        if column in frame.columns:
            found = self._named_rows(frame[column], subjects)
            nameless = frame[column].is_null().arg_true().to_numpy()
        else:
            found, nameless = np.full(frame.height, -1, dtype=np.int64), np.arange(frame.height)
        if len(nameless):
            times = frame["time"].cast(pl.Int64).fill_null(NO_TIME).to_numpy()
            for number, rows in self._by_rule(frame["code"].to_numpy(), nameless):
                rule = self.kept.dialect.rules[number]
                found[rows] = self.clock.find(
                    subjects[rows], times[rows], dated=rule.dated, hours_before=rule.hours_before
                )
        row = pl.Series("row", found)
        if len(found) and int(found.min()) < 0:
            row = row.set(pl.Series(found < 0), None)
        return frame.with_columns(self.ids.gather(row).alias("visit_id"))

    def _by_rule(self, codes: npt.NDArray[np.uint32], rows: Numbers) -> Iterator[tuple[int, Numbers]]:
        """Yield the rows that a rule decides about, with the number of the rule."""
        numbers = self.kept.rules[codes[rows]]
        distinct = np.unique(numbers).tolist()
        for number in distinct:
            yield number, rows if len(distinct) == 1 else rows[numbers == number]

    def _named_rows(self, named: pl.Series, subjects: Numbers) -> Numbers:
        """Return the row of the visit that each event names, or -1; events come in runs of one visit."""
        from patients_like_me.records.event_kernels import starts_of_runs

        ids = self.named["given_id"]
        if ids.is_empty():
            return np.full(len(named), -1, dtype=np.int64)
        if ids.dtype == _TEXT:
            place = pl.DataFrame({"given_id": ids, "place": np.arange(len(ids))})
            joined = named.cast(_TEXT).to_frame("given_id").join(
                place, on="given_id", how="left", maintain_order="left"
            )  # fmt: skip
            wanted, known = joined["place"].fill_null(-1).to_numpy(), np.arange(len(ids))
        else:
            wanted, known = named.fill_null(NO_VISIT).to_numpy(), ids.to_numpy()
        starts = starts_of_runs(fixed(wanted), fixed(subjects))
        lengths = np.diff(np.append(starts, len(wanted)))
        heads = np.minimum(np.searchsorted(known, wanted[starts]), len(known) - 1)
        same = known[heads] == wanted[starts]
        mine = same & (self.named["subject_id"].to_numpy()[heads] == subjects[starts])
        self.of_others += int(lengths[same & ~mine].sum())
        return np.repeat(np.where(mine, self.named["row"].to_numpy()[heads], -1), lengths)


def _in_memory(rows: pl.DataFrame | pl.LazyFrame, events: SourceTable) -> SourceTable:
    """Return rows as a table of the source, called like its only shard or else its folder."""
    path = events.path if len(events.parts) == 1 else events.path.parent
    return SourceTable((Part(path, rows.lazy(), 1),))


READER = Reader("meds", "MEDS", looks_like_meds, read_meds, MedsSettings, any_hospital=True, describe=describe_meds)
