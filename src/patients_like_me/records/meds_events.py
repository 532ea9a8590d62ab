"""The coded events of a MEDS dataset: kept as numbers while all shards are read, given their visits, made streams.

Text is compared once per distinct value: a row holds the number of its code, and what that number stands for is asked
when all rows are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import polars as pl

from patients_like_me.codes.registry import KINDS, CodeColumns, Kind, SystemColumn
from patients_like_me.errors import PlmError
from patients_like_me.plain_text import counted, printable
from patients_like_me.records.code_table import NO_TIME
from patients_like_me.records.dialects.meds import IGNORED, MedsDialect, Rule
from patients_like_me.records.event_rows import NO_VISIT, Numbers, as_numbers, expected_rows
from patients_like_me.records.events import EventStream
from patients_like_me.records.meds_rows import HAS_KEY, PASSED_OVER, SET_APART, CodedRows, PairsOfVisits, Words
from patients_like_me.records.meds_visits import VisitFinder
from patients_like_me.records.source_files import Part, SourceFolder, SourceTable, one_ahead
from patients_like_me.records.text_numbers import NULL, TextNumbers

_TEXT: Final = pl.String()


@dataclass(frozen=True)
class NumberedRows:
    """A piece of the events as numbers; ``rows`` has the columns of admissions, discharges and demographics.

    ``rules`` has the rule of every code that was seen up to here.
    """

    rows: pl.DataFrame
    subjects: Numbers
    ids: Numbers
    times: Numbers
    codes: Words
    texts: list[Words]
    rules: Numbers


@dataclass
class KeptRows:
    """The rows that the dialect knows, and the meaning of every code by its number.

    ``skeleton`` are admissions, discharges and demographics, ``rows`` the diagnoses, procedures and medications.
    ``words`` numbers the codes, ``texts`` the texts of other columns that hold codes, ``ids`` visit ids that are text.
    ``listed`` are the meanings of codes that the dialect was asked about, of the events or not.
    """

    dialect: MedsDialect
    listed: pl.DataFrame
    texts: dict[str, TextNumbers]
    ids: TextNumbers | None = None
    words: TextNumbers = field(default_factory=TextNumbers)
    skeleton: list[pl.DataFrame] = field(default_factory=list)
    rules: Numbers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    parts: pl.Series = field(default_factory=lambda: pl.Series([], dtype=pl.String))
    #: How many rows have a code that no rule knows.
    unknown: int = 0
    #: A guess of how many rows there are.
    expected: int = 0

    def __post_init__(self) -> None:
        self.rows = CodedRows(len(self.texts), self.expected)
        of_rule: dict[str, int] = {IGNORED: PASSED_OVER, **dict.fromkeys(KINDS, HAS_KEY)}
        used = ("subject_id", "time", self.dialect.visit_id, *self.dialect.columns.values())
        self._of_skeleton = [name for name in dict.fromkeys(used) if name]
        # The last entry is that of the codes without a rule, whose number is -1.
        self._what = np.array([*(of_rule.get(rule.role, SET_APART) for rule in self.dialect.rules), 0], dtype=np.int8)
        self._uses = np.zeros((len(self._what), len(self.texts)), dtype=np.uint8)
        for number, rule in enumerate(self.dialect.rules):
            self._uses[number] = [name in (rule.column, *rule.first) for name in self.texts]

    def numbered(self, batch: pl.DataFrame) -> NumberedRows:
        """Return a piece of the events as whole numbers; codes that were not seen before get theirs."""
        codes = self.words.of(batch["code"])
        self._meet_new_codes()
        return NumberedRows(
            batch.select(name for name in self._of_skeleton if name in batch.columns),
            as_numbers(batch["subject_id"], NO_VISIT),
            self._named_visits(batch),
            as_numbers(batch["time"], NO_TIME),
            codes,
            [numbers.of(batch[name].cast(_TEXT)) for name, numbers in self.texts.items()],
            self.rules,
        )

    def add(self, piece: NumberedRows) -> None:
        """Keep what the dialect knows of a piece of the events."""
        codes, rules = piece.codes, piece.rules
        is_unknown = rules < 0
        self.unknown += int(np.count_nonzero(is_unknown[codes])) if is_unknown.any() else 0
        apart = self.rows.add(
            piece.subjects, piece.ids, piece.times, codes, piece.texts, self._what[rules], self._uses[rules]
        )
        if len(apart):
            rule = pl.Series("rule", rules[codes[apart]], dtype=pl.Int32)
            self.skeleton.append(piece.rows[apart].with_columns(pl.Series("code", codes[apart]), rule))

    def _named_visits(self, batch: pl.DataFrame) -> Numbers:
        """Return the visit that each row names by its id, or by the number of its id where ids are text."""
        visit_id = self.dialect.visit_id
        if self.ids is not None:
            numbers = self.ids.of(batch[visit_id])
            return np.where(numbers == NULL, NO_VISIT, numbers.astype(np.int64))
        if visit_id in batch.columns:
            return as_numbers(batch[visit_id], NO_VISIT)
        return np.full(batch.height, NO_VISIT)

    def _meet_new_codes(self) -> None:
        """Ask the dialect about the codes that were not seen before."""
        codes = self.words.texts[len(self.rules) :].alias("given")
        if len(codes):
            unlisted = codes.filter(~codes.is_in(self.listed["given"].implode()))
            if len(unlisted):
                self.listed = pl.concat([self.listed, self.dialect.meanings(unlisted)])
            meanings = codes.to_frame().join(self.listed, on="given", how="left", maintain_order="left")
            self.rules = np.append(self.rules, meanings["rule"].fill_null(-1).to_numpy())
            self.parts = pl.concat([self.parts, meanings["part"]])

    def found(self) -> set[int]:
        """Return the rules of diagnoses, procedures and medications of which there are rows."""
        return set(np.unique(self.rules[self.rows.keys()[:, 0]]).tolist())

    def place_of(self, number: int) -> int:
        """Return the rule with which a rule is taken together: those that need nothing but the code, by their role."""
        rules = self.dialect.rules
        if not _is_plain(rules[number]):
            return number
        return next(n for n, rule in enumerate(rules) if rule.role == rules[number].role and _is_plain(rule))


def _is_plain(rule: Rule) -> bool:
    """Tell whether the code alone says what an event is."""
    return not rule.column and not rule.first


def kept_rows(events: SourceTable, everything: SourceTable, dialect: MedsDialect, listed: pl.Series) -> KeptRows:
    """Go through the events once and keep the rows that the dialect knows; ``listed`` are codes that may come.

    ``everything`` are the events of all subjects, among which a wrong row of some of them is counted.
    """
    schema = events.schema
    used = {name for rule in dialect.rules for name in (rule.column, *rule.first)}
    kept = KeptRows(
        dialect,
        listed=dialect.meanings(listed),
        texts={name: TextNumbers() for name in schema.names() if name in used},
        ids=TextNumbers() if schema.get(dialect.visit_id) == _TEXT else None,
        expected=expected_rows(events.size),
    )
    # While rows are put where they belong, which one thread does, the next ones are numbered.
    for piece in one_ahead(_numbered_pieces(events, everything, kept)):
        kept.add(piece)
    if (kept.words.texts.str.strip_chars() == "").any():
        raise PlmError(
            f"{everything.place_of(pl.col('code').cast(_TEXT).str.strip_chars() == '')}: column 'code' is blank",
            remedy="every MEDS event has a subject and a code: correct the row",
        )
    return kept


def _numbered_pieces(events: SourceTable, everything: SourceTable, kept: KeptRows) -> Iterator[NumberedRows]:
    for batch in events.batches():
        for column in ("subject_id", "code"):
            if batch[column].null_count():
                raise PlmError(
                    f"{everything.place_of(pl.col(column).is_null())}: column '{column}' is blank",
                    remedy="every MEDS event has a subject and a code: correct the row",
                )
        if batch.height:
            yield kept.numbered(batch)


def streams_of(
    kept: KeptRows, visits: pl.DataFrame, events: SourceTable, source: SourceFolder
) -> Iterator[EventStream]:
    """Yield the events of each kind with their visits; rules with the same columns make one stream."""
    rules, found = kept.dialect.rules, kept.found()
    finder = VisitFinder(visits)
    written = None if kept.ids is None else kept.ids.texts
    named = finder.named_rows(*kept.rows.named_visits(), written)
    subjects, times, keys = kept.rows.loose()
    loose = np.full(len(keys), -1, dtype=np.int64)
    rule_of_loose = kept.rules[kept.rows.keys()[keys, 0]]
    for number in np.unique(rule_of_loose).tolist():
        at = np.flatnonzero(rule_of_loose == number)
        loose[at] = finder.by_time(subjects[at], times[at], rules[number])
    pairs = PairsOfVisits(visits["visit_id"], kept.rows, named, loose)
    meanings = _Meanings(kept)
    for kind in KINDS:
        together: dict[tuple[tuple[str, str], ...], list[int]] = {}
        for place in sorted({kept.place_of(number) for number in found if rules[number].role == kind}):
            together.setdefault(meanings.filled_columns(place), []).append(place)
        for columns, places in together.items():
            yield _stream(kind, columns, places, kept, meanings, pairs, events)
    if of_others := pairs.rows_of(finder.is_of_others):
        source.notes.append(
            counted(
                of_others,
                "event names a visit of another subject, and is left out",
                "events name a visit of another subject, and are left out",
            )
        )


def _stream(
    kind: Kind,
    columns: tuple[tuple[str, str], ...],
    places: list[int],
    kept: KeptRows,
    meanings: _Meanings,
    pairs: PairsOfVisits,
    events: SourceTable,
) -> EventStream:
    """Return the stream of some rules: their keys, each once, and for every key of the rows its place among them."""
    rules = kept.dialect.rules
    numbers = [number for number in sorted(kept.found()) if kept.place_of(number) in places]
    systems = list(dict.fromkeys(rules[number].system for number in numbers))
    several = SystemColumn("system", {system: system for system in systems})
    codes: CodeColumns = {**dict(columns), "code": systems[0] if len(systems) == 1 else several}
    given = pl.concat([meanings.keys_of(place, [name for name, _ in columns]) for place in places])
    distinct = given.drop("key").unique(maintain_order=True)
    row = given.join(distinct.with_row_index("row"), on=distinct.columns, how="left", nulls_equal=True)
    row_of_key = np.full(len(kept.rows.rows_of_key), -1, dtype=np.int64)
    row_of_key[row["key"].to_numpy()] = row["row"].to_numpy()
    nothing = in_memory(distinct.clear(), events)
    return EventStream(
        kind,
        nothing,
        codes,
        optional=True,
        looked_up=tuple(distinct.columns),
        look_up=meanings.look_up,
        read=partial(pairs.gathered, keys=distinct, row_of_key=row_of_key),
    )


class _Meanings:
    """What the number of a code stands for: the text that is mapped, and its code system.

    Where a column holds the code, its texts are numbered after the codes; the last number of a column means none.
    """

    def __init__(self, kept: KeptRows) -> None:
        self.kept = kept
        self.keys = kept.rows.keys()
        places = np.array([kept.place_of(number) for number in range(len(kept.dialect.rules))])
        self.place_of_key = places[kept.rules[self.keys[:, 0]]]
        self.columns = kept.texts
        self.texts = kept.parts
        # Codes that no rule knows have the number -1 and take the last entry.
        systems = pl.Series([*(rule.system for rule in kept.dialect.rules), ""])
        self.systems = systems.gather(np.where(kept.rules < 0, len(systems) - 1, kept.rules))

    def filled_columns(self, place: int) -> tuple[tuple[str, str], ...]:
        """Return the columns whose codes go first for the rows of a rule, with their systems, where they are filled."""
        mine = self.place_of_key == place
        return tuple(
            (name, system)
            for name, system in self.kept.dialect.rules[place].first.items()
            if name in self.columns and (self._numbers(name)[mine] != NULL).any()
        )

    def keys_of(self, place: int, first: list[str]) -> pl.DataFrame:
        """Return the keys of the rows of a rule: their number, the texts of columns that go first, and the code."""
        mine = np.flatnonzero(self.place_of_key == place)
        texts = {name: self.columns[name].texts.gather(_or_null(self._numbers(name)[mine])) for name in first}
        code = pl.Series("code", self._code_of(self.kept.dialect.rules[place], mine), dtype=pl.UInt32)
        return pl.DataFrame({"key": mine, **texts}).with_columns(code)

    def _numbers(self, name: str) -> Numbers:
        found: Numbers = self.keys[:, 1 + list(self.columns).index(name)].astype(np.int64)
        return found

    def _code_of(self, rule: Rule, keys: Numbers) -> Numbers:
        """Return the numbers of the codes of keys; the texts of a column get the next numbers."""
        if not rule.column:
            codes: Numbers = self.keys[keys, 0].astype(np.int64)
            return codes
        if rule.column not in self.columns:
            raise PlmError(
                f"the dialect takes the codes of '{printable(rule.match)}' from the column '{printable(rule.column)}', "
                "which the events do not have",
                remedy="extract the dataset with that column, or change the dialect",
            )
        texts = self.columns[rule.column].texts
        start, none = len(self.texts), len(texts)
        self.texts = pl.concat([self.texts, texts.alias(""), pl.Series([None], dtype=_TEXT)])
        self.systems = pl.concat([self.systems, pl.Series([rule.system] * (none + 1))])
        number = self._numbers(rule.column)[keys]
        return start + np.where(number == NULL, none, number)

    def look_up(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Replace the numbers of codes by their texts, and add their systems."""
        texts = self.texts.str.strip_chars().replace({"": None, "UNK": None})
        return keys.with_columns(
            texts.gather(keys["code"]).alias("code"), self.systems.gather(keys["code"]).alias("system")
        )


def _or_null(numbers: Numbers) -> pl.Series:
    return pl.Series(numbers).replace(NULL, None)


def in_memory(rows: pl.DataFrame | pl.LazyFrame, events: SourceTable) -> SourceTable:
    """Return rows as a table of the source, called like its only shard or else its folder."""
    path = events.path if len(events.parts) == 1 else events.path.parent
    return SourceTable((Part(path, rows.lazy(), 1),))
