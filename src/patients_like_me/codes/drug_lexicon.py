"""The tables behind the drug names, as files next to this one, written by us.

``ingredients.csv``    ingredient or combination of ingredients, and its ATC-3 codes, most usual first;
``drug_synonyms.csv``  other names: international and older names, US brands (with the route where the brand
                       exists for one route only), hospital shorthand;
``drug_words.csv``     words that are not ingredients, by role: ``salt``, ``form`` (with the route it tells),
                       ``unit``, ``note``; ``short`` for abbreviations; ``weak`` for names that count only
                       where every other word is known; ``carrier`` for fluids that carry other drugs;
``not_medicines.csv``  rules, with their reason, that set water, flushes and supplies apart.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from patients_like_me.codes.drug_text import __file__ as text_file
from patients_like_me.codes.drug_text import texts_of_words
from patients_like_me.kept import kept

Words = tuple[str, ...]
_TABLES: Final = ("ingredients.csv", "drug_synonyms.csv", "drug_words.csv", "not_medicines.csv")
_LETTERS_OF_A_SHORT_NAME = 3


@dataclass(frozen=True)
class Lexicon:
    """The loaded tables; every name is a tuple of its words, and ``noise`` unites forms, units and notes."""

    atc3: dict[str, tuple[str, ...]]
    names: dict[Words, str]
    longest_name: int
    brand_routes: dict[Words, str]
    weak_names: frozenset[Words]
    combinations: dict[frozenset[str], str]
    carriers: frozenset[str]
    salts: frozenset[Words]
    noise: frozenset[Words]
    units: frozenset[str]
    routes: dict[str, str]
    expansions: dict[str, Words]
    not_medicine_patterns: tuple[re.Pattern[str], ...]
    container_words: frozenset[str]


def parts_of(ingredient: str) -> frozenset[str]:
    """Return the parts of a combination, as they are compared between names.

    >>> sorted(parts_of("dextrose-sodium chloride"))
    ['dextrose', 'sodium chloride']
    >>> parts_of("sodium chloride solution")
    frozenset({'sodium chloride'})
    """
    return frozenset(part.removesuffix(" solution") for part in ingredient.split("-"))


@lru_cache(maxsize=1)
def load_lexicon() -> Lexicon:
    """Read all tables once; a name that means two things is an error of the tables.

    Splitting thousands of names into words takes a tenth of a second, so what comes out is kept.

    >>> load_lexicon().atc3["furosemide"]
    ('C03C',)
    """
    made_from = [*(_content(table) for table in _TABLES), *(Path(file).read_bytes() for file in (__file__, text_file))]
    read = json.loads(kept("drug_lexicon.json", made_from, lambda: json.dumps(_read_tables()).encode()))

    def words(name: str) -> frozenset[Words]:
        return frozenset(map(tuple, read[name]))

    atc3 = {name: tuple(codes) for name, codes in read["atc3"].items()}
    names = {tuple(text.split(" ")): name for text, name in read["names"].items()}
    return Lexicon(
        atc3=atc3,
        names=names,
        longest_name=max(map(len, names)),
        brand_routes={tuple(text.split(" ")): route for text, route in read["brand_routes"].items()},
        weak_names=frozenset(
            name for name in names if " ".join(name) in read["weak"] or sum(map(len, name)) <= _LETTERS_OF_A_SHORT_NAME
        ),
        combinations={parts: name for name in atc3 if len(parts := parts_of(name)) > 1},
        carriers=frozenset(read["carrier"]),
        salts=words("salts"),
        noise=words("noise"),
        units=frozenset(read["unit"]),
        routes={word: route for word, route in read["form"].items() if route},
        expansions={word: tuple(text.split()) for word, text in read["short"].items()},
        not_medicine_patterns=tuple(re.compile(text) for text in read["patterns"]),
        container_words=frozenset(read["container_words"]),
    )


def _read_tables() -> dict[str, Any]:
    """Return what the tables say, ready for JSON; a name is written as its words with blanks between them."""
    words_by_role: dict[str, dict[str, str]] = {}
    for row in _rows("drug_words.csv"):
        words_by_role.setdefault(row["role"], {})[row["word"]] = row["detail"]
    expansions = {word: tuple(text.split()) for word, text in words_by_role["short"].items()}

    def as_words(text: str) -> Words:
        return texts_of_words(text, expansions)

    atc3 = {row["ingredient"]: row["atc3"].split("|") for row in _rows("ingredients.csv")}
    synonyms = list(_rows("drug_synonyms.csv"))
    names: dict[Words, str] = {}
    for text, ingredient in [(name, name) for name in atc3] + [(row["name"], row["ingredient"]) for row in synonyms]:
        if ingredient not in atc3:
            raise ValueError(f"'{text}' stands for '{ingredient}', which is not an ingredient")
        if names.setdefault(as_words(text), ingredient) != ingredient:
            raise ValueError(f"'{text}' stands for '{ingredient}' and '{names[as_words(text)]}'")
    combinations = [name for name in atc3 if len(parts_of(name)) > 1]
    # A part without a row of its own (clidinium) is known only as a part, and never hides a shorter name.
    for part in sorted({part for name in combinations for part in name.split("-")}):
        words = as_words(part)
        if not any(words[:length] in names for length in range(1, len(words) + 1)):
            names[words] = part
    not_medicines = list(_rows("not_medicines.csv"))
    noise = [word for role in ("form", "unit", "note") for word in words_by_role[role]]
    return {
        **{role: words_by_role[role] for role in ("weak", "carrier", "unit", "form", "short")},
        "atc3": atc3,
        "names": {" ".join(words): name for words, name in names.items()},
        "brand_routes": {" ".join(as_words(row["name"])): row["route"] for row in synonyms if row["route"]},
        "salts": sorted(set(map(as_words, words_by_role["salt"]))),
        "noise": sorted(set(map(texts_of_words, noise))),
        "patterns": [row["text"] for row in not_medicines if row["rule"] == "pattern"],
        "container_words": [row["text"] for row in not_medicines if row["rule"] == "word"],
    }


def _rows(table: str) -> Iterator[dict[str, str]]:
    yield from csv.DictReader(_content(table).decode().splitlines())


def _content(table: str) -> bytes:
    return files("patients_like_me.codes").joinpath(table).read_bytes()
