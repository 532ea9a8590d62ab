"""What every reader checks in the same way: yes or no, ages, and columns that nobody reads.

A value is accepted by a stated rule or refused with its row; none is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.plain_text import counted, printable
from patients_like_me.records.file_scans import header_of
from patients_like_me.records.ids import MISSING
from patients_like_me.records.source_files import SourceTable

#: How yes and no are written, in any case and with blanks around them.
YES: Final = ("1", "true", "yes", "y", "t", "1.0")
NO: Final = ("0", "false", "no", "n", "f", "0.0")
#: No patient is older; an age beyond it is a mistake.
OLDEST: Final = 130
#: The years from a birth date that was shifted 300 years back, as MIMIC-III hides ages over 89, to an admission.
SHIFTED: Final = (289, 330)
#: Years in which a stay may be, shifted dates included; others stand for a missing time, as 9999, 1900 and 0001 do.
YEARS: Final = (1901, 2299)


def plain_word(column: str) -> pl.Expr:
    """Return a column of words without blanks around them, in lower case; a blank one is missing."""
    return pl.col(column).str.strip_chars().str.to_lowercase().replace("", None)


def yes_or_no(column: str) -> pl.Expr:
    """Return whether a column says yes; missing counts as no.

    >>> words = pl.DataFrame({"died": ["1.0", " 1", "True", "Y", "0", None]})
    >>> words.select(yes_or_no("died"))["died"].to_list()
    [True, True, True, True, False, False]
    """
    return plain_word(column).is_in(YES).fill_null(False).alias(column)


def letter_of_sex(column: str = "sex") -> pl.Expr:
    """Return F and M for the usual ways of writing them, in any case; other words stay, without blanks around them.

    >>> pl.DataFrame({"sex": ["female", " m", "\u200bF", "X", ""]}).select(letter_of_sex())["sex"].to_list()
    ['F', 'M', 'F', 'X', None]
    """
    letters = {"f": "F", "female": "F", "m": "M", "male": "M"}
    # Nobody sees a sign without width, and with one there would be a third sex.
    given = pl.col(column).str.replace_all(r"\p{Cf}", "").str.strip_chars().replace("", None)
    return given.str.to_lowercase().replace_strict(letters, default=given, return_dtype=pl.String).alias(column)


def by_distinct_values(column: pl.Series, change: pl.Expr) -> pl.Series:
    """Return a column with its values changed, each of which is looked at once; for columns with few different ones.

    >>> by_distinct_values(pl.Series("word", [" a", "b", None, " a"]), pl.col("word").str.strip_chars()).to_list()
    ['a', 'b', None, 'a']
    """
    distinct = column.unique()
    changed = distinct.to_frame().select(change).to_series()
    if changed.equals(distinct):
        return column
    return column.replace_strict(distinct, changed, return_dtype=changed.dtype)


def refuse_other_sexes(rows: pl.DataFrame, column: str, table: SourceTable) -> None:
    """Refuse a sex that is none where the form of the source knows two: it would count as not recorded."""
    known = ["f", "female", "m", "male", "other", *MISSING]
    bad = (~plain_word(column).is_in(known)).fill_null(False)
    refuse_rows(rows, bad, table, f"'{column}' must be F, Female, M, Male, Other, Unknown or blank")


def without_words_for_missing(rows: pl.DataFrame, columns: Iterable[str], one: str) -> tuple[pl.DataFrame, list[str]]:
    """Take words for a missing value, such as NULL, as missing, and say so: as values they would stand in prompts.

    >>> without_words_for_missing(pl.DataFrame({"sex": ["F", " NULL"]}), ["sex"], "patient")[1]
    ["'sex' is a word for a missing value in 1 patient: taken as missing"]
    """
    notes = []
    for name in columns:
        # Fields have few distinct values: they are looked at, not the rows.
        distinct = rows[name].unique()
        if words := distinct.filter(distinct.str.strip_chars().str.to_lowercase().is_in(MISSING)).to_list():
            is_word = pl.col(name).is_in(words).fill_null(False)
            count = rows.select(is_word.sum()).item()
            notes.append(f"'{name}' is a word for a missing value in {counted(count, one)}: taken as missing")
            rows = rows.with_columns(pl.when(~is_word).then(pl.col(name)).alias(name))
    return rows, notes


def notes_on_sex(visits: pl.DataFrame) -> list[str]:
    """Say how many patients have visits with different sexes; the first one that is given is taken.

    >>> notes_on_sex(pl.DataFrame({"subject_id": ["a", "a"], "sex": ["F", "M"]}))
    ['1 patient has visits with different sexes: the first one is taken']
    """
    sexes = visits.drop_nulls("sex").group_by("subject_id").agg(pl.col("sex").n_unique())
    differing = sexes.filter(pl.col("sex") > 1).height
    verb = "has" if differing == 1 else "have"
    what = f"{counted(differing, 'patient')} {verb} visits with different sexes"
    return [f"{what}: the first one is taken"] if differing else []


def notes_on_ages(visits: pl.DataFrame) -> list[str]:
    """Say how many patients are younger at a visit than at an earlier one; visits are in the order of time.

    >>> notes_on_ages(pl.DataFrame({"subject_id": ["a", "a"], "age": [71, 17]}))
    ['1 patient is younger at a visit than at an earlier one; ages are kept as given']
    """
    # Where no age is below the one before it, none is below any earlier one.
    same = pl.col("subject_id") == pl.col("subject_id").shift(1)
    if not visits["age"].null_count() and not visits.select((same & (pl.col("age").diff() < 0)).any()).item():
        return []
    earlier = pl.col("age").cum_max().shift(1).over("subject_id")
    falling = visits.filter(pl.col("age") < earlier)["subject_id"].n_unique()
    if not falling:
        return []
    verb = "is" if falling == 1 else "are"
    return [f"{counted(falling, 'patient')} {verb} younger at a visit than at an earlier one; ages are kept as given"]


def in_the_days_of(death: str = "death_time") -> pl.Expr:
    """Return whether a visit's days hold the day of the patient's death; a death may be a day without a clock.

    >>> from datetime import datetime
    >>> came, left, died = datetime(2150, 1, 1, 10), datetime(2150, 1, 3, 9), datetime(2150, 1, 3)
    >>> visit = pl.DataFrame({"admission_time": [came], "discharge_time": [left], "death_time": [died]})
    >>> visit.select(in_the_days_of()).item()
    True
    """
    day = pl.col(death).dt.truncate("1d")
    in_days = (pl.col("admission_time").dt.truncate("1d") <= day) & (day <= pl.col("discharge_time"))
    return in_days.fill_null(False)


def refuse_other_words(rows: pl.DataFrame, column: str, table: SourceTable, *, blank: bool = True) -> None:
    """Refuse the first row whose ``column`` is neither yes nor no; ``blank`` says whether it may be missing."""
    bad = (~plain_word(column).is_in([*YES, *NO])).fill_null(not blank)
    allowed = ", ".join((*YES, *NO))
    refuse_rows(rows, bad, table, f"'{column}' must be one of {allowed}")


def refuse_ages(rows: pl.DataFrame, age: pl.Expr, table: SourceTable, what: str = "'age'") -> None:
    """Refuse the first row with an age that nobody has."""
    bad = ((age < 0) | (age > OLDEST)).fill_null(False)
    refuse_rows(rows, bad, table, f"{what} must be between 0 and {OLDEST}")


def completed_years(born: str, came: str) -> pl.Expr:
    """Return the age in whole years on the day of one column, from the birthday in another.

    >>> from datetime import date
    >>> days = pl.DataFrame({"born": [date(1990, 6, 15)] * 2, "came": [date(2050, 6, 14), date(2050, 6, 15)]})
    >>> days.select(completed_years("born", "came"))["came"].to_list()
    [59, 60]
    """

    def day_of_year(column: str) -> pl.Expr:
        return pl.col(column).dt.month().cast(pl.Int32) * 100 + pl.col(column).dt.day()

    before_birthday = (day_of_year(came) < day_of_year(born)).cast(pl.Int32)
    return pl.col(came).dt.year() - pl.col(born).dt.year() - before_birthday


def refuse_rows(rows: pl.DataFrame, bad: pl.Expr, table: SourceTable, what: str) -> None:
    """Refuse the first row that meets a condition; ``rows`` are those of the table, in its order."""
    hits = rows.select(bad.arg_true()).to_series()
    if len(hits):
        raise PlmError(f"{table.place_of_number(int(hits[0]))}: {what}", remedy="correct the value")


def notes_on_unread_columns(table: SourceTable, wanted: Iterable[str]) -> list[str]:
    """Name the columns of a table that no reader knows, each with the known one that it resembles and lacks."""
    there = {name.strip().lower(): printable(name.strip()) for part in table.parts for name in header_of(part.path)}
    known = set(wanted)
    named = []
    for name in sorted(there.keys() - known - {""}):
        near = get_close_matches(name, known - there.keys(), n=1, cutoff=0.6)
        named.append(f"'{there[name]}'" + (f" (is it '{near[0]}'?)" if near else ""))
    if not named:
        return []
    more = f" and {len(named) - 8} more" if len(named) > 8 else ""
    return [f"'{table.path.name}' has columns that are not read: {', '.join(named[:8])}{more}"]
