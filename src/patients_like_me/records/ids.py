"""One form for every id, so that one person is never taken for two.

The normal form of an id that is text: compatibility characters become plain ones (Unicode NFKC, so full-width digits
become digits), digits of any script become plain ones, zero-width characters are removed, spaces of any kind and quotes
around it too (also the ``="7"`` of spreadsheets), and a whole number loses its ``.0``. What still differs only in upper
and lower case, in leading zeros, in ``.0`` or in the signs of a number (``+7``, ``10,007``) is refused: the two may be
one person or two, and only the hospital knows. So is what an export made of many ids: a number of which a spreadsheet
kept the first digits alone (``1.2E+11``), or a word for a missing value. Sentences name rows and never an id.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Mapping
from functools import cache
from typing import Final

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.plain_text import counted
from patients_like_me.records.source_files import SourceTable

#: An id of these signs alone is in normal form, unless it ends in .0 or begins or ends with a quote or space.
_PLAIN: Final = r"^[!#-&(-_a-~]([ -~]*[!#-&(-_a-~])?$"
#: Signs that nobody sees: controls, formats such as zero-width spaces and tags, and selectors of variants.
_WITHOUT_WIDTH: Final = r"[\p{Cc}\p{Cf}\u180B-\u180F\uFE00-\uFE0F\x{E0100}-\x{E01EF}]"
#: How a spreadsheet writes a long number: 1.2E+11, or 1,2E+11; and a column of fractions in a Parquet file: 1.2e17.
_SHORTENED: Final = r"^[+-]?\d(([.,]\d*)?[eE]\+|[.,]\d+[eE])\d{1,3}$"
#: How exports write a value that is missing, in lower case.
MISSING: Final = (
    "null", "nan", "none", "nil", "na", "n/a", "#n/a", "<na>", "\\n", "nat", "undefined", "unknown", "#ref!",
    "#value!", "-", "?",
)  # fmt: skip
#: A number with a plus, or with commas between its thousands.
_SIGNED: Final = (r"^\+(\d)", r"(\d),(\d{3})\b")
_AROUND: Final = " \t\r\n\"'`´\u2018\u2019\u201c\u201d"


def normal_ids(ids: pl.Series) -> pl.Series:
    r"""Return ids in their normal form; plain ones, which are most, are only looked at.

    >>> normal_ids(pl.Series(["p001", " p001\u00a0", "p\u200b001", "\uff11\uff12", '="7"', "12.0"])).to_list()
    ['p001', 'p001', 'p001', '12', '7', '12']
    """
    if ids.dtype != pl.String:
        return ids
    is_plain = ids.str.contains(_PLAIN) & ~ids.str.contains(r"\.0+$")
    if is_plain.fill_null(True).all():
        return ids
    text = pl.col(ids.name)
    plain = text.str.normalize("NFKC").str.replace_all(_WITHOUT_WIDTH, "").str.strip_chars(_AROUND)
    # A spreadsheet keeps a text of digits as a formula: ="007".
    plain = plain.str.replace(r'^="(.*)$', "$1").str.replace_many(*_digits_of_other_scripts())
    whole = plain.str.replace(r"^([+-]?\d+)\.0+$", "$1")
    return ids.to_frame().select(whole).to_series()


@cache
def _digits_of_other_scripts() -> tuple[list[str], list[str]]:
    """Return the digits of other scripts, such as Arabic ones, and the plain ones that they stand for."""
    digits = [sign for sign in map(chr, range(128, sys.maxunicode + 1)) if sign.isdecimal()]
    return digits, [str(unicodedata.decimal(sign)) for sign in digits]


def note_on_changed_ids(normal: pl.Series, given: pl.Series) -> list[str]:
    """Say how many ids are not written in their normal form; nothing where all are.

    >>> note_on_changed_ids(pl.Series("subject_id", ["7", "8"]), pl.Series("subject_id", ["7", " 8"]))
    ["1 value of 'subject_id' was brought into the normal form of ids"]
    """
    changed = int((normal != given).sum())
    verb = "was" if changed == 1 else "were"
    return (
        [f"{counted(changed, 'value')} of '{given.name}' {verb} brought into the normal form of ids"] if changed else []
    )


def refuse_lost_ids(ids: pl.Series, table: SourceTable) -> None:
    """Refuse an id that is a number in a spreadsheet's short form, or a word for a missing value."""
    if ids.dtype != pl.String:
        return
    for what, lost, remedy in (
        (
            "was shortened, as 123456789012 becomes 1.23E+11 in a spreadsheet: several ids may have become one",
            ids.str.contains(_SHORTENED),
            "export the ids again as text, not as numbers or through a spreadsheet",
        ),
        (
            "is a word for a missing value, such as NULL or NaN",
            ids.str.to_lowercase().is_in(MISSING),
            "fill in the ids or remove these rows",
        ),
    ):
        if rows := lost.fill_null(False).arg_true().to_list():
            place = table.place_of_number(rows[0])
            raise PlmError(
                f"{place}: the id in column '{ids.name}' {what} ({counted(len(rows), 'such row')})", remedy=remedy
            )


def refuse_look_alikes(ids: pl.Series, table: SourceTable) -> None:
    """Refuse two ids that differ only in upper and lower case, leading zeros, ``.0`` or the signs of a number."""
    if ids.dtype != pl.String:
        return
    distinct = ids.to_frame("id").with_row_index("row").unique("id", keep="first", maintain_order=True)
    for what, key in (
        ("upper and lower case", pl.col("id").str.to_lowercase()),
        ("leading zeros", _without_zeros(pl.col("id"))),
        ("'.0' at the end", _without_fraction(pl.col("id"))),
        ("case, leading zeros and '.0'", _without_fraction(_without_zeros(pl.col("id").str.to_lowercase()))),
        ("the signs of a number, as 10,007 and +10007 do", _without_signs(pl.col("id"))),
        (
            "case, leading zeros, '.0' and the signs of a number",
            _without_fraction(_without_zeros(_without_signs(pl.col("id").str.to_lowercase()))),
        ),
    ):
        alike = distinct.with_columns(key.alias("key")).filter(pl.col("key").is_duplicated())
        if alike.is_empty():
            continue
        first = alike.filter(pl.col("key") == alike["key"][0])["row"].to_list()[:2]
        one, other = (table.place_of_number(int(row)) for row in first)
        raise PlmError(
            f"{one} and {other.rsplit(', ', 1)[-1]}: two ids in column '{ids.name}' differ only in {what} "
            f"({counted(alike['key'].n_unique(), 'such case')})",
            remedy="write the id of one patient or visit in one way in all tables",
        )


def look_alike_key(name: str) -> str:
    """Return what ids have in common that :func:`refuse_look_alikes` would refuse beside each other.

    >>> look_alike_key("A-007.0"), look_alike_key("a-7"), look_alike_key("+10,007")
    ('a-7', 'a-7', '10007')
    """
    plus, thousands = _SIGNED
    name = re.sub(thousands, r"\1\2", re.sub(plus, r"\1", name))
    return re.sub(r"\.0+$", "", re.sub(r"(^|\D)0+(\d)", r"\1\2", name.lower()))


class KnownPeople:
    """Finds people of earlier records by their ids; an id that looks like theirs is taken for theirs.

    Two sources may write one id in two ways. Who may be the same is not a reference of theirs: where two people are
    taken for one, a reference is lost; where one is taken for two, their own outcome predicts them.

    >>> people = KnownPeople({"12": 0, "a1": 1})
    >>> people.number_of("012"), people.number_of("A1"), people.number_of("b")
    (0, 1, None)
    """

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self.numbers = numbers
        self._alike: dict[str, int] = {}
        for name, number in numbers.items():
            self._alike.setdefault(look_alike_key(name), number)

    def number_of(self, name: str) -> int | None:
        """Return the number of a person; None for one who is not known."""
        found = self.numbers.get(name)
        return self._alike.get(look_alike_key(name)) if found is None else found


def _without_zeros(ids: pl.Expr) -> pl.Expr:
    """Return ids without the zeros in front of any of their numbers."""
    return ids.str.replace_all(r"(^|\D)0+(\d)", "${1}${2}")


def _without_fraction(ids: pl.Expr) -> pl.Expr:
    return ids.str.replace(r"\.0+$", "")


def _without_signs(ids: pl.Expr) -> pl.Expr:
    plus, thousands = _SIGNED
    return ids.str.replace(plus, "${1}").str.replace_all(thousands, "${1}${2}")
