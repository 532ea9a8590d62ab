"""Names and hierarchy of the ATC classification down to its third level (ATC-3, such as ``C03C``).

The codes are facts of the WHO classification; the names are our own short words for them. The first letter of
a code is its anatomical group, the first three characters its therapeutic group.
"""

from __future__ import annotations

import csv
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType

import polars as pl

from patients_like_me.codes.registry import VOCABULARY_COLUMNS, Kind
from patients_like_me.errors import PlmError

ANATOMICAL_GROUPS = MappingProxyType(
    {
        "A": "Digestion and metabolism",
        "B": "Blood and fluids",
        "C": "Heart and vessels",
        "D": "Skin",
        "G": "Urinary tract and sex hormones",
        "H": "Other hormones",
        "J": "Infections",
        "L": "Cancer and immune system",
        "M": "Muscles and bones",
        "N": "Nervous system",
        "P": "Parasites",
        "R": "Breathing",
        "S": "Eye and ear",
        "V": "Various",
    }
)


def all_atc3_codes() -> tuple[str, ...]:
    """Return every ATC-3 code, sorted.

    >>> all_atc3_codes()[:3]
    ('A01A', 'A02A', 'A02B')
    """
    return tuple(sorted(_names()))


def atc3_name(code: str) -> str:
    """Return our name of an ATC-3 code.

    >>> atc3_name("C03C")
    'Loop diuretics'
    >>> atc3_name("C03Z")
    Traceback (most recent call last):
    patients_like_me.errors.PlmError: 'C03Z' is not an ATC-3 code; give a code such as 'C03C'
    """
    name = _names().get(code)
    if name is None:
        raise PlmError(f"'{code}' is not an ATC-3 code", remedy="give a code such as 'C03C'")
    return name


def anatomical_group(code: str) -> str:
    """Return the name of the anatomical group, the first letter, of any ATC code.

    >>> anatomical_group("C03C")
    'Heart and vessels'
    """
    name = ANATOMICAL_GROUPS.get(code[:1])
    if name is None:
        raise PlmError(f"'{code}' does not begin with an anatomical group of ATC", remedy="give a code such as 'C03C'")
    return name


def atc3_names(kind: Kind) -> pl.DataFrame:
    """Return ``kind, code, name, chapter`` of all ATC-3 codes."""
    rows = [(kind, code, atc3_name(code), anatomical_group(code)) for code in all_atc3_codes()]
    return pl.DataFrame(rows, schema=VOCABULARY_COLUMNS, orient="row")


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    text = files("patients_like_me.codes").joinpath("atc3_names.csv").read_text(encoding="utf-8")
    return {row["atc3"]: row["name"] for row in csv.DictReader(text.splitlines())}
