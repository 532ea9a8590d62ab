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
from patients_like_me.plain_text import SMALLEST_SHOWN, percent

#: A range needs at least this many validation patients with similar predictions,
FEWEST_ALIKE: Final = 30
#: and at most one in so many of all of them can be similar to one; a validation must be large enough
LARGEST_PART: Final = 5
#: for at least this many to be that part. More than the second number would not make a range better.
SMALLEST_PART, MOST_ALIKE = 50, 500
#: Predictions within so much of one another are similar; beyond it only as many are taken as a range needs.
NEAR: Final = 0.05


@dataclass(frozen=True)
class WorklistRow:
    """One patient of the list.

    ``risk`` orders the list: the probability of an event, the expected length of a stay, the expected number of drugs.
    ``outcome_bits`` tell of each reference whether it had the event, where there is one; ``outside`` says in what the
    patient is unlike everybody in the bank.
    """

    pseudonym: str
    about: str
    answer: str
    risk: float
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

        As many predictions below as above are taken, the nearest first, so that the group is about this prediction and
        not about the many small ones beside it. Where one side has too few, the group is that end of the list, and is
        called so. Its span is said with it. It is at most a fifth of all validation predictions. Nobody was like a
        prediction that is far from all of them.

        >>> ranges = Ranges.of(np.linspace(0, 1, 500), np.arange(500) % 3 == 0, "came back")
        >>> low, high, words = ranges.around(0.3)
        >>> round(low, 2), round(high, 2), words
        (0.22, 0.48, 'of 100 validation patients predicted 25 % to 35 %, 22 to 48 came back')
        >>> ranges.around(0.99)[2]
        'of 100 validation patients with the highest predictions, 94 % to 100 %, fewer than 52 came back'
        >>> Ranges.of(np.linspace(0, 1, 200), np.arange(200) % 3 == 0, "came back").around(0.3) is None
        True
        """
        most = min(len(self.probabilities) // LARGEST_PART, MOST_ALIKE)
        if most < SMALLEST_PART or not self.probabilities[0] - NEAR <= probability <= self.probabilities[-1] + NEAR:
            return None
        first, last, end = self._group(probability, most)
        size = last - first
        positive = int(self.happened[first:last].sum())
        span = _span(self.probabilities[first], self.probabilities[last - 1])
        whose = f"of 100 validation patients {f'with the {end} predictions, {span}' if end else f'predicted {span}'},"
        # How few they were is not shown, only what is true of all small numbers.
        if positive < SMALLEST_SHOWN:
            high = wilson(SMALLEST_SHOWN - 1, size)[1]
            return 0.0, high, f"{whose} fewer than {int(np.ceil(100 * high))} {self.words}"
        if size - positive < SMALLEST_SHOWN:
            low = wilson(size - SMALLEST_SHOWN + 1, size)[0]
            return low, 1.0, f"{whose} more than {int(100 * low)} {self.words}"
        low, high = wilson(positive, size)
        return low, high, f"{whose} {round(100 * low)} to {round(100 * high)} {self.words}"

    def _group(self, probability: float, most: int) -> tuple[int, int, str]:
        """Return the first and last place (exclusive) of the similar predictions, and which end they are, if any."""
        known, total, least = self.probabilities, len(self.probabilities), FEWEST_ALIKE // 2
        equal = np.searchsorted(known, probability, "left"), np.searchsorted(known, probability, "right")
        place = int(sum(equal)) // 2
        first, last = np.searchsorted(known, [probability - NEAR, probability + NEAR]).tolist()
        sides = min(place, total - place)
        at_end = (first == 0 or last == total) and sides < most // 2
        if not at_end and sides >= least:
            half = min(most // 2, sides, max(least, min(place - first, last - place)))
            return place - half, place + half, ""
        size = min(most, max(FEWEST_ALIKE, last - first))
        return (0, size, "lowest") if place < total - place else (total - size, total, "highest")


def _span(lowest: float, highest: float) -> str:
    """Write from where to where some predictions reach.

    >>> _span(0.254, 0.35), _span(0.021, 0.024)
    ('25 % to 35 %', 'about 2 %')
    """
    ends = f"{percent(float(lowest))}", f"{percent(float(highest))}"
    return f"about {ends[0]}" if ends[0] == ends[1] else " to ".join(ends)


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
        row.pseudonym: row.risk if sort == "risk" else (None if row.support is None else order[row.support])
        for row in kept
    }
    with_value = [row for row in sorted(kept, key=number) if values[row.pseudonym] is not None]
    with_value.sort(key=lambda row: values[row.pseudonym] or 0.0, reverse=descending)
    return with_value + [row for row in sorted(kept, key=number) if values[row.pseudonym] is None]
