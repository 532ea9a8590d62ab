"""A probability as a person reads it: about how many in how many, against the average, and against other patients."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from patients_like_me.plain_text import percent

#: The shares that are said as "1 in 5" or "2 in 3".
_SHARES: Final = tuple(
    sorted({Fraction(1, n) for n in range(2, 21)} | {Fraction(n, d) for d in (3, 4, 5, 10) for n in range(1, d)})
)
#: Fewer patients are not enough to say who is above and who below whom.
FEWEST_OTHERS: Final = 20
_PARTS: Final = {
    3: "third", 4: "quarter", 5: "fifth", 6: "sixth", 7: "seventh", 8: "eighth", 9: "ninth", 10: "tenth", 11: "tenth",
}  # fmt: skip
_FRACTIONS: Final = {
    0.4: "about two fifths of", 0.5: "half", 0.6: "about three fifths of", 2 / 3: "about two thirds of",
    0.75: "about three quarters of", 0.8: "about four fifths of", 0.9: "nearly",
}  # fmt: skip
_TIMES: Final = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}


@dataclass(frozen=True)
class Risk:
    """The probability of an event, its average in training, and the share of other patients with a lower one."""

    probability: float
    average: float | None = None
    lower_share: float | None = None

    @property
    def ratio(self) -> float | None:
        """How many times the average the probability is."""
        return None if not self.average else self.probability / self.average

    @property
    def parts(self) -> tuple[str, ...]:
        """The risk in words: frequency, relative risk, rank; those that are not known are left out."""
        found = [one_in(self.probability)]
        if self.average is not None and self.ratio is not None:
            found.append(against_average(self.ratio, self.average))
        if self.lower_share is not None:
            found.append(rank_in_words(self.lower_share))
        return tuple(found)

    @property
    def words(self) -> str:
        """The risk in one line.

        >>> Risk(0.22, 0.11, 0.992).words
        'about 1 in 5; twice the average of 11 %; higher than 99 % of patients'
        """
        return "; ".join(self.parts)


def one_in(probability: float) -> str:
    """Write a probability as a frequency.

    >>> [one_in(value) for value in (0.22, 0.667, 0.012, 0.0004, 0.97)]
    ['about 1 in 5', 'about 2 in 3', 'about 1 in 80', 'fewer than 1 in 1,000', 'more than 19 in 20']
    """
    if probability < 0.001:
        return "fewer than 1 in 1,000"
    if probability > 0.95:
        return "more than 19 in 20"
    if probability < 0.05:
        number = 1 / probability
        size = 10 if number >= 50 else 5
        return f"about 1 in {round(number / size) * size:,}"
    nearest = min(_SHARES, key=lambda share: (abs(float(share) - probability), share.denominator))
    return f"about {nearest.numerator} in {nearest.denominator}"


def against_average(ratio: float, average: float) -> str:
    """Write how a probability compares with the average.

    >>> [against_average(ratio, 0.11).split(" the")[0] for ratio in (2.04, 1.0, 0.73, 0.5)]
    ['twice', 'about', 'about three quarters of', 'half']
    >>> [against_average(ratio, 0.11).split(" the")[0] for ratio in (0.44, 0.3, 0.03)]
    ['about two fifths of', 'about a third of', 'less than a tenth of']
    """
    of = f"the average of {percent(average, 0 if average >= 0.095 else 1)}"
    if 0.9 <= ratio <= 1.1:
        return f"about {of}"
    if ratio < 0.095:
        return f"less than a tenth of {of}"
    if ratio < 0.38:
        return f"about a {_PARTS[round(1 / ratio)]} of {of}"
    if ratio < 0.9:
        return f"{_FRACTIONS[min(_FRACTIONS, key=lambda share: abs(share - ratio))]} {of}"
    whole = round(ratio)
    if whole in _TIMES and abs(ratio - whole) <= 0.05 * whole:
        return f"{_TIMES[whole]} {of}"
    return f"{ratio:.0f} times {of}" if ratio >= 9.5 else f"{ratio:.1f} times {of}"


def rank_in_words(lower_share: float) -> str:
    """Write how a probability ranks among those of other patients.

    >>> rank_in_words(0.992), rank_in_words(0.2), rank_in_words(1.0)
    ('higher than 99 % of patients', 'lower than 80 % of patients', 'higher than 99 % of patients')
    """
    side, share = ("higher", lower_share) if lower_share >= 0.5 else ("lower", 1 - lower_share)
    return f"{side} than {min(int(100 * share + 1e-9), 99)} % of patients"


def lower_share(probability: float, others: npt.NDArray[np.float64]) -> float | None:
    """Return the share of others with a lower probability, equal ones counted half; None where they are too few."""
    if len(others) < FEWEST_OTHERS:
        return None
    return float(np.mean(others < probability) + 0.5 * np.mean(others == probability))
