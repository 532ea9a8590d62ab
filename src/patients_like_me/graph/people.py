"""Who may be a reference of whom by sex and age, in one form for rules in words, for numpy and for kernels.

A row of *bounds* is what a person goes with: sexes as bits, the lowest and the highest age. Two rows fit where they
have a sex in common and their ages overlap. A sex or an age that is not recorded goes with everybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.tasks.diagnosis_sets import UNKNOWN

#: int16 ``[N, 3]``: sexes as bits, lowest age, highest age.
Bounds = npt.NDArray[np.int16]

_ANY_SEX: Final = 3
_AGES: Final = (-(1 << 15), (1 << 15) - 1)


@dataclass(frozen=True)
class PersonRule:
    """Whether references are of the same sex, and by how many years their ages may differ.

    >>> rule = PersonRule(same_sex=True, max_age_difference=10)
    >>> bank = rule.bounds(np.array([0, 1, -1]), np.array([70, 61, -1]))
    >>> fitting(rule.bounds(np.array([0]), np.array([60]), reach=True), bank).tolist()
    [True, False, True]
    """

    same_sex: bool = False
    max_age_difference: int | None = None

    @property
    def compares(self) -> bool:
        """Tell whether sex or age decides anything."""
        return self.same_sex or self.max_age_difference is not None

    def bounds(self, sexes: npt.ArrayLike, ages: npt.ArrayLike, *, reach: bool = False) -> Bounds:
        """Return the bounds of people with sexes 0 and 1; ``reach`` for those who look for references."""
        sex, age = np.asarray(sexes, np.int64), np.asarray(ages, np.int64)
        found = np.tile(np.array([_ANY_SEX, *_AGES], np.int16), (len(sex), 1))
        if self.same_sex:
            found[:, 0] = np.where(sex == UNKNOWN, _ANY_SEX, 1 << np.maximum(sex, 0))
        if self.max_age_difference is not None:
            further = min(self.max_age_difference, _AGES[1]) if reach else 0
            for column, end in ((1, age - further), (2, age + further)):
                found[:, column] = np.where(age == UNKNOWN, found[:, column], np.clip(end, *_AGES))
        return found

    def in_words(self) -> str:
        """Say who may be a reference.

        >>> PersonRule(True, 10).in_words(), PersonRule().in_words()
        ('the same sex and an age within 10 years', 'any sex and age')
        """
        parts = ["the same sex"] if self.same_sex else []
        parts += [f"an age within {self.max_age_difference} years"] if self.max_age_difference is not None else []
        return " and ".join(parts) or "any sex and age"

    def within_in_words(self) -> str:
        """Return the same to follow a noun; nothing where everybody may be a reference.

        >>> PersonRule(max_age_difference=5).within_in_words()
        ' of an age within 5 years'
        """
        return f" of {self.in_words()}" if self.compares else ""


ANYBODY: Final = PersonRule()
#: What a page calls the rule.
ONLY_REFERENCES_OF: Final = "only references of"
#: The bounds of an index that compares nobody.
NO_BOUNDS: Final[Bounds] = np.zeros((0, 3), np.int16)


def fitting(looking: npt.NDArray[Any], bank: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Tell which pairs of bounds fit; the shapes before the last dimension are broadcast."""
    sexes = (looking[..., 0] & bank[..., 0]) != 0
    found: npt.NDArray[np.bool_] = sexes & (looking[..., 1] <= bank[..., 2]) & (bank[..., 1] <= looking[..., 2])
    return found
