"""The coded events of a MEDS dataset: kept as numbers while all shards are read, given their visits, made streams.

Text is compared once per distinct value: a row holds the number of its code, and what that number stands for is asked
when all rows are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.codes.registry import KINDS, CodeColumns, SystemColumn
from patients_like_me.errors import PlmError
from patients_like_me.plain_text import printable
from patients_like_me.records.dialects.meds import IGNORED, MedsDialect, Rule
from patients_like_me.records.event_visits import VisitClock
from patients_like_me.records.events import NO_TIME, NO_VISIT, EventStream, Numbers, fixed
from patients_like_me.records.meds_layout import COLUMNS
from patients_like_me.records.source_files import Part, SourceFolder, SourceTable

_TEXT: Final = pl.String()


@dataclass
class KeptRows:
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


def kept_rows(events: SourceTable, dialect: MedsDialect) -> KeptRows:
    """Go through all events once and keep the rows that the dialect knows; text stays as numbers of its categories."""
    kept = KeptRows(dialect)
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


def streams_of(
    kept: KeptRows, visits: pl.DataFrame, events: SourceTable, source: SourceFolder
) -> Iterator[EventStream]:
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
                in_memory(rows.lazy().with_columns(pl.col("visit_id").cast(visits["visit_id"].dtype)), events),
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

    def __init__(self, kept: KeptRows) -> None:
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

    def __init__(self, kept: KeptRows, visits: pl.DataFrame) -> None:
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


def in_memory(rows: pl.DataFrame | pl.LazyFrame, events: SourceTable) -> SourceTable:
    """Return rows as a table of the source, called like its only shard or else its folder."""
    path = events.path if len(events.parts) == 1 else events.path.parent
    return SourceTable((Part(path, rows.lazy(), 1),))
