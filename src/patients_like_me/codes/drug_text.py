"""Split a drug's name, as hospitals write it, into plain words.

Capitals (also tall-man lettering such as ``HYDROmorphone``), accents and marks go; numbers stay, with their
percent sign, because some of them are part of a name (``Vitamin B 12``, ``0.9% Sodium Chloride``).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Set
from typing import NamedTuple

_BRACKETED = re.compile(r"[(\[{]([^)\]}]*)(?:[)\]}]|$)")
_WORD = re.compile(r"[a-z0-9]+(?:\.[0-9]+[a-z]*)*%?")
_SMALL_LETTERS = re.compile(r"[a-z]+(?: [a-z]+)*")
_SEPARATOR = re.compile(r"[-/+&,;:]")
_SEPARATING_WORDS = frozenset({"and", "in", "or", "with"})
_THOUSANDS_COMMA = re.compile(r"(?<=[0-9]),(?=[0-9]{3})")
_SPACE_BEFORE_PERCENT = re.compile(r"(?<=[0-9])\s+(?=%)")
_STRENGTH = re.compile(r"[0-9][0-9.]*(%|[a-z]*)")
# Half and quarter saline are the only fractions that name a product.
_FRACTIONS = (
    (re.compile(r"1/2\s*(?=ns\b|normal|saline|strength)"), " half "),
    (re.compile(r"1/4\s*(?=ns\b|normal|saline|strength)"), " quarter "),
)


class Word(NamedTuple):
    """A word of a name; ``separated`` where a hyphen, slash, comma, plus or such a word comes before it."""

    text: str
    separated: bool


def plain_text(name: str) -> str:
    """Return the name in lower case, without accents and apostrophes.

    >>> plain_text("OxyCODONE Séarl's")
    'oxycodone searls'
    """
    if not name.isascii():
        # A typographic one half falls apart into 1, a fraction slash and 2.
        decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", name).casefold())
        name = "".join(mark for mark in decomposed if not unicodedata.combining(mark))
        name = name.replace("\N{FRACTION SLASH}", "/").replace("\N{RIGHT SINGLE QUOTATION MARK}", "")
    return name.lower().replace("'", "").replace("`", "")


def split_brackets(name: str) -> tuple[str, str]:
    """Return the plain text outside the brackets and the one inside them.

    >>> split_brackets("HYDROmorphone (Dilaudid) 2 mg")
    ('hydromorphone   2 mg', 'dilaudid')
    """
    text = plain_text(name)
    return _BRACKETED.sub(" ", text), " / ".join(_BRACKETED.findall(text))


def split_words(name: str, expansions: Mapping[str, tuple[str, ...]] | None = None) -> list[Word]:
    """Split a name into words, each abbreviation replaced by the words it stands for.

    >>> [word.text for word in split_words("Potassium Chl 20 mEq / 1000 mL D5 1/2 NS", {"chl": ("chloride",)})]
    ['potassium', 'chloride', '20', 'meq', '1000', 'ml', 'd5', 'half', 'ns']
    >>> split_words("Amoxicillin-Clavulanate")
    [Word(text='amoxicillin', separated=False), Word(text='clavulanate', separated=True)]
    """
    text = plain_text(name)
    for fraction, words_for_it in _FRACTIONS:
        text = fraction.sub(words_for_it, text)
    text = _THOUSANDS_COMMA.sub("", text)
    text = _SPACE_BEFORE_PERCENT.sub("", text)
    expansions = expansions or {}
    words: list[Word] = []
    end = 0
    separated = False
    for match in _WORD.finditer(text):
        separated = separated or _SEPARATOR.search(text, end, match.start()) is not None
        end = match.end()
        if match[0] in _SEPARATING_WORDS:
            separated = True
            continue
        for expanded in expansions.get(match[0], (match[0],)):
            if expanded in _SEPARATING_WORDS:
                separated = True
            else:
                words.append(Word(expanded, separated))
                separated = False
    return words


def texts_of_words(name: str, expansions: Mapping[str, tuple[str, ...]] | None = None) -> tuple[str, ...]:
    """Return the texts of :func:`split_words`; a name of small letters alone, as most are in a table, is quickly split.

    >>> texts_of_words("potassium chl", {"chl": ("chloride",)}), texts_of_words("Amoxicillin-Clavulanate")
    (('potassium', 'chloride'), ('amoxicillin', 'clavulanate'))
    """
    if not _SMALL_LETTERS.fullmatch(name):
        return tuple(word.text for word in split_words(name, expansions))
    words = [word for word in name.split() if word not in _SEPARATING_WORDS]
    if expansions:
        words = [text for word in words for text in expansions.get(word, (word,)) if text not in _SEPARATING_WORDS]
    return tuple(words)


def is_strength(word: str, units: Set[str]) -> bool:
    """Tell whether a word is a number, with or without a percent sign or a unit.

    >>> [is_strength(word, {"mg"}) for word in ("5", "0.9%", "12.5mg", "5fu")]
    [True, True, True, False]
    """
    match = _STRENGTH.fullmatch(word)
    return match is not None and (match[1] in ("", "%") or match[1] in units)
