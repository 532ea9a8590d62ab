"""Passages of a user's folder of guidelines, found by BM25.

Text files (``.txt``, ``.md``) are cut at empty lines into passages. A query is a list of words; a passage scores by how
rare its words are among all passages, how often it has them, and how long it is.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from patients_like_me.errors import PlmError

_ENDINGS: Final = (".txt", ".md")
#: The usual constants of BM25.
_SATURATION, _LENGTH = 1.5, 0.75
_LONGEST_PASSAGE: Final = 200


def words_of(text: str) -> list[str]:
    """Return the words of a text in small letters.

    >>> words_of("Heart failure (NYHA-III)")
    ['heart', 'failure', 'nyha', 'iii']
    """
    return re.findall(r"[^\W_]+", text.lower())


@dataclass(frozen=True)
class Guidelines:
    """All passages, with what BM25 needs to know about them."""

    passages: tuple[str, ...]
    counts: tuple[Counter[str], ...]
    files: int = 0

    @classmethod
    def of(cls, passages: Sequence[str], files: int = 0) -> Guidelines:
        """Count the words of passages."""
        return cls(tuple(passages), tuple(Counter(words_of(passage)) for passage in passages), files)

    @classmethod
    def read(cls, folder: str) -> Guidelines:
        """Read all text files of a folder, in the order of their names; without a folder there is nothing to find."""
        if not folder:
            return cls.of(())
        place = Path(folder).expanduser()
        files = sorted(path for path in place.rglob("*") if path.suffix.lower() in _ENDINGS) if place.is_dir() else []
        passages: list[str] = []
        for path in files:
            try:
                text = path.read_text(encoding="utf-8-sig")
            except (OSError, UnicodeDecodeError) as error:
                raise PlmError(
                    f"the guideline '{path}' cannot be read ({type(error).__name__})", remedy="give text in UTF-8"
                ) from None
            for block in re.split(r"\n\s*\n", text):
                words = block.split()
                passages += [
                    " ".join(words[at : at + _LONGEST_PASSAGE]) for at in range(0, len(words), _LONGEST_PASSAGE)
                ]
        if not passages:
            raise PlmError(
                f"the folder of guidelines '{folder}' has no text", remedy="put .txt or .md files into it, in UTF-8"
            )
        return cls.of(passages, len(files))

    @property
    def digest(self) -> str:
        """A hash of all passages."""
        return hashlib.sha256("\n".join(self.passages).encode()).hexdigest()

    @cached_property
    def _lengths(self) -> tuple[list[int], float]:
        lengths = [sum(count.values()) for count in self.counts]
        return lengths, sum(lengths) / max(1, len(lengths))

    @cached_property
    def _places(self) -> dict[str, list[int]]:
        """The passages that have a word, by word."""
        found: dict[str, list[int]] = {}
        for at, count in enumerate(self.counts):
            for word in count:
                found.setdefault(word, []).append(at)
        return found

    def best(self, query: Sequence[str], most: int) -> list[str]:
        """Return the passages with the highest scores above 0; of equal ones the first.

        >>> found = Guidelines.of(["insulin lowers sugar", "heparin thins blood", "fever"])
        >>> found.best(["blood", "sugar", "sugar"], 1)
        ['insulin lowers sugar']
        """
        scores = self.scores(query)
        order = sorted(range(len(scores)), key=lambda at: (-scores[at], at))[:most]
        return [self.passages[at] for at in order if scores[at] > 0]

    def scores(self, query: Sequence[str]) -> list[float]:
        """Return the score of every passage."""
        number = len(self.passages)
        lengths, average = self._lengths
        found = [0.0] * number
        for word, times in Counter(query).items():
            having = self._places.get(word, ())
            rarity = math.log(1 + (number - len(having) + 0.5) / (len(having) + 0.5))
            for at in having:
                often = self.counts[at][word]
                long = 1 - _LENGTH + _LENGTH * lengths[at] / average
                found[at] += times * rarity * often * (_SATURATION + 1) / (often + _SATURATION * long)
        return found
