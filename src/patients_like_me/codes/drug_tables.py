"""Bring drug codes into one form, and read two-column tables of NDC, RxCUI and ATC.

An NDC is kept as its 11 digits (5-4-2), an RxCUI as its number without leading zeros, an ATC code cut to
its third level (four characters, ``C07A``). One key may have several values, in several rows or separated
by ``|`` or ``;``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import polars as pl

from patients_like_me.codes.table_files import clean_column
from patients_like_me.errors import PlmError

DrugTable = Literal["ndc_rxcui", "rxcui_atc3", "ndc_atc3"]
DRUG_TABLES: tuple[DrugTable, ...] = get_args(DrugTable)

_NAMES_OF_COLUMN = {
    "ndc": ("ndc11", "ndc", "ndccode", "ndcpackagecode", "packagendc", "nationaldrugcode"),
    "rxcui": ("rxcui", "rxnormcui", "rxnorm", "rxnormid", "rxnormcode"),
    # The third level comes first: a longer code next to it says the same and would only be cut again.
    "atc3": ("atc3", "atc3code", "atclevel3", "atc", "atccode", "atc4", "atclevel4", "atc5", "atclevel5"),
}
HEADER_WORDS = tuple(name for names in _NAMES_OF_COLUMN.values() for name in names)
_DASHED_NDC = r"^(?:\d{4}-\d{4}-\d{2}|\d{5}-\d{3}-\d{2}|\d{5}-\d{4}-\d{1,2})$"


@dataclass(frozen=True)
class ParsedTable:
    """One table read from a user's file: which it is, its rows, and how many rows of the file gave none."""

    table: str
    frame: pl.DataFrame
    rows_without_value: int = 0


def normalised_ndc(ndc: pl.Expr) -> pl.Expr:
    """Return NDCs as 11 digits; missing ones (blank, ``0``, all zeros) and unusable ones become null.

    Dashed codes of 10 or 11 digits are padded segment by segment; 12 digits with a leading zero lose it; a
    number that passed through a spreadsheet (``2322930.0``) gets its leading zeros back. Ten digits without
    dashes could be three different packages, so they are not guessed.

    >>> given = ["00002322930", "0002-3229-30", "63323-262-01", "2322930.0", "0", " ", "6332326201"]
    >>> pl.DataFrame({"ndc": given}).select(normalised_ndc(pl.col("ndc"))).to_series().to_list()
    ['00002322930', '00002322930', '63323026201', '00002322930', None, None, None]
    """
    text = ndc.cast(pl.String).str.strip_chars()
    parts = text.str.split("-")
    padded = pl.concat_str(
        [parts.list.get(at, null_on_oob=True).str.zfill(width) for at, width in enumerate((5, 4, 2))]
    )
    digits = (
        pl.when(text.str.contains(r"^\d{11}$"))
        .then(text)
        .when(text.str.contains(_DASHED_NDC))
        .then(padded)
        .when(text.str.contains(r"^0\d{11}$"))
        .then(text.str.slice(1))
        .when(text.str.contains(r"^\d{1,11}\.0+$"))
        .then(text.str.replace(r"\.0+$", "").str.zfill(11))
    )
    return pl.when(digits.str.contains("[1-9]")).then(digits)


def normalised_rxcui(rxcui: pl.Expr) -> pl.Expr:
    """Return RxCUIs as digits without leading zeros; anything else becomes null.

    >>> given = pl.DataFrame({"rxcui": ["197361", "0197361", "197361.0", "0", "x"]})
    >>> given.select(normalised_rxcui(pl.col("rxcui"))).to_series().to_list()
    ['197361', '197361', '197361', None, None]
    """
    return rxcui.cast(pl.String).str.strip_chars().str.extract(r"^0*([1-9]\d*)(?:\.0+)?$", 1)


def normalised_atc3(atc: pl.Expr) -> pl.Expr:
    """Return ATC codes cut to the third level; codes above that level and anything else become null.

    >>> given = pl.DataFrame({"atc": ["C07AB02", "c07a", "C07", ""]})
    >>> given.select(normalised_atc3(pl.col("atc"))).to_series().to_list()
    ['C07A', 'C07A', None, None]
    """
    return atc.cast(pl.String).str.strip_chars().str.to_uppercase().str.extract(r"^([A-Z]\d\d[A-Z])", 1)


def parse_drug_table(raw: pl.DataFrame, *, source: Path, table: DrugTable | None = None) -> list[ParsedTable] | None:
    """Recognise NDC, RxCUI and ATC columns by their names; None where there are no two of them.

    A table with all three says two things of each NDC, its RxCUI and its ATC codes, and is read as those
    two; what it may say of an RxCUI in general is read only when asked for with ``table="rxcui_atc3"``.

    >>> raw = pl.DataFrame({"NDC": ["0002-3229-30"], "ATC4": ["N06BA|C02AC"]})
    >>> [(part.table, part.frame.rows()) for part in parse_drug_table(raw, source=Path("own.csv"))]
    [('ndc_atc3', [('00002322930', 'C02A'), ('00002322930', 'N06B')])]
    """
    found = _columns_found(raw)
    if table is not None:
        wanted = [table]
        if lacking := [column for column in table.split("_") if column not in found]:
            raise PlmError(
                f"'{source}' has no column for {' and '.join(lacking)}; it has {', '.join(raw.columns)}",
                remedy=f"name the columns {table.replace('_', ' and ')}",
            )
    elif "ndc" in found:
        wanted = [name for name in DRUG_TABLES if name.startswith("ndc_") and name.removeprefix("ndc_") in found]
    else:
        wanted = ["rxcui_atc3"] if {"rxcui", "atc3"} <= found.keys() else []
    if not wanted:
        return None
    parsed = [_parse_pairs(raw, name, found) for name in wanted]
    for part in parsed:
        if part.frame.is_empty():
            key, value = part.table.split("_")
            raise PlmError(
                f"'{source}' has no row with a usable value in both '{found[key]}' and '{found[value]}'",
                remedy="check them: an NDC has 11 digits or dashes, an ATC code four characters or more",
            )
    return parsed


def _columns_found(raw: pl.DataFrame) -> dict[str, str]:
    given = {clean_column(name): name for name in reversed(raw.columns)}
    found = {
        column: next((given[name] for name in names if name in given), None)
        for column, names in _NAMES_OF_COLUMN.items()
    }
    return {column: name for column, name in found.items() if name is not None}


def _parse_pairs(raw: pl.DataFrame, table: DrugTable, found: dict[str, str]) -> ParsedTable:
    key, value = table.split("_")
    frame = raw.select(_row=pl.int_range(pl.len()), _key=_as_text(raw, found[key]), _value=_as_text(raw, found[value]))
    pairs = (
        frame.with_columns(pl.col("_value").str.replace_all(r"[|;,\s]+", "|").str.split("|"))
        .explode("_value")
        .with_columns(_normalised("_key", key), _normalised("_value", value))
        .drop_nulls()
    )
    return ParsedTable(
        table,
        pairs.select(pl.col("_key").alias(key), pl.col("_value").alias(value)).unique().sort(key, value),
        rows_without_value=raw.height - pairs["_row"].n_unique(),
    )


def _as_text(raw: pl.DataFrame, column: str) -> pl.Expr:
    """Return a column as text; whole numbers get the mark by which lost leading zeros are known."""
    kind = raw.schema[column]
    if isinstance(kind, pl.List):
        return pl.col(column).cast(pl.List(pl.String)).list.join("|")
    text = pl.col(column).cast(pl.String)
    return text + ".0" if kind.is_integer() else text


def _normalised(column: str, meaning: str) -> pl.Expr:
    normalise = {"ndc": normalised_ndc, "rxcui": normalised_rxcui, "atc3": normalised_atc3}[meaning]
    return normalise(pl.col(column))
