"""Known interactions between drugs: pairs of ATC-3 codes, and the codes that the table covers at all.

A pair of covered codes that is not listed has no known interaction. Of a code that the table does not cover nothing
is known: it is unknown, not safe.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.codes.drug_tables import ParsedTable, normalised_atc3
from patients_like_me.codes.table_files import clean_column
from patients_like_me.errors import PlmError

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore

InteractionTable = Literal["atc3_interactions", "atc3_covered"]
INTERACTION_TABLES: Final[tuple[InteractionTable, ...]] = get_args(InteractionTable)
COLUMNS: Final = {"atc3_interactions": ("atc3_a", "atc3_b"), "atc3_covered": ("atc3",)}
_FIRST, _SECOND = ("atc3a", "atca", "atc31", "atc1"), ("atc3b", "atcb", "atc32", "atc2")
_ALONE = ("atc3", "atc", "atc3covered", "covered")
HEADER_WORDS: Final = (*_FIRST, *_SECOND)


@dataclass(frozen=True)
class Interactions:
    """The installed table: unordered pairs that interact, and the codes it covers."""

    pairs: frozenset[tuple[str, str]]
    covered: frozenset[str]

    @classmethod
    def installed(cls, store: CodeStore | None = None) -> Interactions | None:
        """Return the user's installed table, None where there is none.

        The codes of the pairs are covered, and those of the list of covered codes where one is installed. A
        missing list leaves every code without any interaction unknown.
        """
        from patients_like_me.codes.store import CodeStore

        store = store or CodeStore.default()
        pairs = store.table("atc3_interactions")
        if pairs is None:
            return None
        listed = store.table("atc3_covered")
        found = frozenset((str(first), str(second)) for first, second in pairs.rows())
        codes = [] if listed is None else listed["atc3"].to_list()
        return cls(found, frozenset(code for pair in found for code in pair) | frozenset(codes))

    def matrix(self, codes: tuple[str, ...]) -> npt.NDArray[np.bool_]:
        """Return which of these codes interact, as a symmetric matrix.

        >>> Interactions(frozenset({("A01A", "B03B")}), frozenset()).matrix(("B03B", "A01A")).tolist()
        [[False, True], [True, False]]
        """
        place = {code: at for at, code in enumerate(codes)}
        found = np.zeros((len(codes), len(codes)), dtype=bool)
        for first, second in self.pairs:
            if first in place and second in place:
                found[place[first], place[second]] = found[place[second], place[first]] = True
        return found


def parse_interactions(
    raw: pl.DataFrame, *, source: Path, table: InteractionTable | None = None
) -> list[ParsedTable] | None:
    """Recognise a table of interacting pairs (columns atc3_a, atc3_b) or of covered codes (the one column atc3).

    >>> raw = pl.DataFrame({"atc3_a": ["B03B", "A01A", "A01A"], "atc3_b": ["A01A", "B03B", "A01A"]})
    >>> parse_interactions(raw, source=Path("own.csv"))[0].frame.rows()
    [('A01A', 'B03B')]
    """
    names = {clean_column(name): name for name in raw.columns}
    first, second = (next((names[name] for name in known if name in names), None) for known in (_FIRST, _SECOND))
    alone = next((names[name] for name in _ALONE if name in names), None)
    if table != "atc3_covered" and first is not None and second is not None:
        ends = raw.select(normalised_atc3(pl.col(first)).alias("a"), normalised_atc3(pl.col(second)).alias("b"))
        # A code does not interact with itself: two drugs of one class are one code here.
        usable = ends.drop_nulls().filter(pl.col("a") != pl.col("b"))
        frame = usable.select(pl.min_horizontal("a", "b").alias("atc3_a"), pl.max_horizontal("a", "b").alias("atc3_b"))
        return [_parsed("atc3_interactions", frame, raw.height - usable.height, source)]
    if table != "atc3_interactions" and alone is not None and (table == "atc3_covered" or raw.width == 1):
        frame = raw.select(normalised_atc3(pl.col(alone)).alias("atc3")).drop_nulls()
        return [_parsed("atc3_covered", frame, raw.height - frame.height, source)]
    if table is not None:
        raise PlmError(
            f"'{source}' has no column for {' and '.join(COLUMNS[table])}; it has {', '.join(raw.columns)}",
            remedy=f"name the columns {' and '.join(COLUMNS[table])}",
        )
    return None


def codes_of_json(text: str, *, source: Path) -> pl.DataFrame | None:
    """Read a JSON list of texts as a table with the column ``atc3``; None where the text is not a JSON list.

    >>> codes_of_json('["N02B", "decoder_point"]', source=Path("own.json")).rows()
    [('N02B',), ('decoder_point',)]
    """
    if not text.lstrip().startswith("["):
        return None
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise PlmError(f"'{source}' is not readable JSON ({error})", remedy="write it again") from None
    if not all(isinstance(code, str) for code in content):
        raise PlmError(f"'{source}' is a JSON list of other things than codes", remedy="give a list of ATC-3 codes")
    return pl.DataFrame({"atc3": content}, schema={"atc3": pl.String})


def _parsed(table: InteractionTable, frame: pl.DataFrame, without_value: int, source: Path) -> ParsedTable:
    if frame.is_empty():
        raise PlmError(
            f"'{source}' has no row with a usable value for {' and '.join(COLUMNS[table])}",
            remedy="an ATC code has four characters or more, such as C07A",
        )
    return ParsedTable(table, frame.unique().sort(frame.columns), without_value)
