"""Today's list: one line per patient, in words that need no table beside them.

The range next to a probability is not a claim of the model about itself: it is how often the event happened to the
validation patients with the most similar predictions, with the uncertainty of that share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.explanation.evidence import wilson
from patients_like_me.explanation.explanation import Explanation
from patients_like_me.plain_text import SMALLEST_SHOWN

#: A range needs at least this many validation patients with similar predictions.
FEWEST_ALIKE: Final = 50
#: One in this many of all validation predictions can be similar to one.
LARGEST_PART: Final = 5


@dataclass(frozen=True)
class WorklistRow:
    """One patient of the list.

    ``outcome_bits`` tell of each reference whether it had the event, where there is one; ``outside`` says in what the
    patient is unlike everybody in the bank.
    """

    pseudonym: str
    about: str
    answer: str
    probability: float | None
    about_in_words: str
    range_in_words: str
    low: float | None
    high: float | None
    support: str | None
    flags: tuple[str, ...]
    outcomes: tuple[int, int] | None
    outcome_bits: tuple[bool | None, ...]
    is_new: bool
    outside: str = ""
    subject_id: str | None = None


@dataclass(frozen=True, eq=False)
class Ranges:
    """Validation predictions in rising order, and for whom happened what they are about; ``words`` say what that is."""

    probabilities: npt.NDArray[np.float64]
    happened: npt.NDArray[np.bool_]
    words: str

    @classmethod
    def of(cls, probabilities: npt.NDArray[Any], happened: npt.NDArray[Any], words: str) -> Ranges:
        """Sort what validation knows."""
        order = np.argsort(probabilities, kind="stable")
        return cls(np.asarray(probabilities, np.float64)[order], np.asarray(happened, bool)[order], words)

    def around(self, probability: float) -> tuple[float, float, str] | None:
        """Return the range of the observed share among the most similar predictions; None where there are too few.

        The group is at most a fifth of all validation predictions: everybody would not be a neighbourhood.

        >>> ranges = Ranges.of(np.linspace(0, 1, 500), np.arange(500) % 3 == 0, "came back")
        >>> low, high, words = ranges.around(0.3)
        >>> round(low, 2), round(high, 2), words
        (0.22, 0.48, 'of 100 validation patients with such a prediction, 22 to 48 came back')
        >>> Ranges.of(np.linspace(0, 1, 200), np.arange(200) % 3 == 0, "came back").around(0.3) is None
        True
        """
        total = len(self.probabilities)
        size = min(max(FEWEST_ALIKE, total // 10), 500)
        if total < LARGEST_PART * size:
            return None
        place = int(np.searchsorted(self.probabilities, probability))
        first = min(max(place - size // 2, 0), total - size)
        positive = int(self.happened[first : first + size].sum())
        whose = "of 100 validation patients with such a prediction,"
        if positive < SMALLEST_SHOWN:
            # How few they were is not shown, only what is true of all small numbers.
            high = wilson(SMALLEST_SHOWN - 1, size)[1]
            return 0.0, high, f"{whose} fewer than {int(np.ceil(100 * high))} {self.words}"
        low, high = wilson(positive, size)
        return low, high, f"{whose} {round(100 * low)} to {round(100 * high)} {self.words}"


def outcome_bits(explanation: Explanation) -> tuple[bool | None, ...]:
    """Return of each reference behind the support whether it had the event; of a set whether it agrees."""
    return explanation.support.bits


def chosen_rows(
    rows: Sequence[WorklistRow], *, sort: str, descending: bool, search: str, flag: str | None
) -> list[WorklistRow]:
    """Return the rows that are searched for, sorted; rows without a value come last in either direction."""
    wanted = search.strip().casefold()
    kept = [
        row
        for row in rows
        if (not wanted or row.pseudonym.casefold().startswith(wanted) or wanted in (row.subject_id or "").casefold())
        and (flag is None or flag in row.flags)
    ]

    def number(row: WorklistRow) -> tuple[str, int]:
        return (row.pseudonym[0] != "P" and "N") or "", int(row.pseudonym[1:])

    if sort == "pseudonym":
        return sorted(kept, key=number, reverse=descending)
    order = {"no comparable patients": 0, "weakly supported": 1, "well supported": 2}
    values = {
        row.pseudonym: row.probability if sort == "risk" else (None if row.support is None else order[row.support])
        for row in kept
    }
    with_value = [row for row in sorted(kept, key=number) if values[row.pseudonym] is not None]
    with_value.sort(key=lambda row: values[row.pseudonym] or 0.0, reverse=descending)
    return with_value + [row for row in sorted(kept, key=number) if values[row.pseudonym] is None]
