"""Today's list: one line per patient, in words that need no table beside them.

The range next to a probability is not a claim of the model about itself: it is how often the event happened to the
validation patients with the most similar predictions, with the uncertainty of that share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from patients_like_me.explanation.explanation import Explanation
from patients_like_me.plain_text import SMALLEST_SHOWN

Flag = Literal["no comparable patients", "weakly supported", "outside the bank's range", "codes left out"]
Sort = Literal["risk", "pseudonym", "support"]
#: A range needs at least this many validation patients with similar predictions.
FEWEST_ALIKE: Final = 50
_Z: Final = 1.959963984540054


@dataclass(frozen=True)
class WorklistRow:
    """One patient of the list; ``outcome_bits`` tell of each reference whether it had the event, where there is one."""

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
    subject_id: str | None = None


def one_in(probability: float | None) -> str:
    """Write a probability as a person says it.

    >>> one_in(0.16), one_in(0.5), one_in(0.72), one_in(0.004), one_in(0.999), one_in(None)
    ('about 1 in 6', 'about 1 in 2', 'about 7 in 10', 'under 1 in 100', 'over 99 in 100', '')
    """
    if probability is None:
        return ""
    if probability < 0.01:
        return "under 1 in 100"
    if probability > 0.99:
        return "over 99 in 100"
    if probability <= 0.5:
        return f"about 1 in {round(1 / probability)}"
    tenths = round(10 * probability)
    return f"about {tenths} in 10" if tenths < 10 else f"about {round(100 * probability)} in 100"


@dataclass(frozen=True, eq=False)
class Ranges:
    """The validation predictions of one event, in rising order, with what happened."""

    probabilities: npt.NDArray[np.float64]
    happened: npt.NDArray[np.bool_]
    event: str

    @classmethod
    def of(cls, probabilities: npt.NDArray[Any], happened: npt.NDArray[Any], event: str) -> Ranges:
        """Sort what validation knows."""
        order = np.argsort(probabilities, kind="stable")
        return cls(np.asarray(probabilities, np.float64)[order], np.asarray(happened, bool)[order], event)

    def around(self, probability: float) -> tuple[float, float, str] | None:
        """Return the range of the observed share among the most similar predictions; None where there are too few.

        >>> ranges = Ranges.of(np.linspace(0, 1, 200), np.arange(200) % 5 == 0, "readmitted")
        >>> low, high, words = ranges.around(0.3)
        >>> round(low, 2), round(high, 2), words
        (0.13, 0.29, 'of 100 validation patients with such a prediction, 13 to 29 had the event')
        """
        total = len(self.probabilities)
        if total < FEWEST_ALIKE:
            return None
        size = min(max(FEWEST_ALIKE, total // 10), 500, total)
        size = max(size, min(100, total))
        place = int(np.searchsorted(self.probabilities, probability))
        first = min(max(place - size // 2, 0), total - size)
        near = self.happened[first : first + size]
        positive = int(near.sum())
        low, high = wilson(positive, size)
        # A group with fewer than 11 on either side would show a small count.
        shown = positive >= SMALLEST_SHOWN or positive == 0
        ends = f"{round(100 * low)} to {round(100 * high)}"
        words = f"of 100 validation patients with such a prediction, {ends} had the event"
        return (
            low,
            high,
            words if shown else "such a prediction was rare among validation patients, and few had the event",
        )


def wilson(positive: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share.

    >>> [round(end, 3) for end in wilson(8, 10)]
    [0.49, 0.943]
    """
    rate, spread = positive / total, _Z * _Z / total
    middle, half = rate + spread / 2, _Z * float(np.sqrt((rate * (1 - rate) + spread / 4) / total))
    return (middle - half) / (1 + spread), (middle + half) / (1 + spread)


def outcome_bits(explanation: Explanation) -> tuple[bool | None, ...]:
    """Return of each reference, in the order of the page, whether it had the event."""
    return tuple(reference.had for reference in explanation.references)


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
