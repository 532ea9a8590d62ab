"""Sampling error by a bootstrap over patients, and the spread over seeds apart from it.

Patients are drawn with replacement, and all instances of a patient come along each time the patient is drawn: they
resemble each other, and drawing them singly would give intervals that are too narrow. Weights depend on the number of
patients, the replicates and the seed alone, so every metric of every run sees the same resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

import numpy as np

from patients_like_me.errors import PlmError
from patients_like_me.tasks.forms import Floats, MetricForm

REPLICATES: Final = 1000
LEVEL: Final = 0.95
#: Resamples that are drawn and weighed at once.
BLOCK: Final = 100
#: numpy takes the seeds n and (n, 0) for the same: a last number keeps resamples apart from data simulated with n.
_RESAMPLES: Final = 20_011

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Interval:
    """A percentile interval; ``left_out`` resamples in which the metric was not available are not in it."""

    low: float
    high: float
    level: float
    replicates: int
    left_out: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the interval as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Difference:
    """The difference between two values over the same resamples, with a two-sided bootstrap p-value."""

    value: float
    interval: Interval | None
    p_value: float | None

    def as_json(self) -> dict[str, Any]:
        """Return the difference as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class SeedSpread:
    """What the choice of the seed does to a value: not sampling error, and not in any interval."""

    mean: float
    deviation: float | None
    seeds: int

    def as_json(self) -> dict[str, Any]:
        """Return the spread as plain data."""
        return asdict(self)


def resamples(patients: int, replicates: int = REPLICATES, seed: int = 0) -> Iterator[Floats]:
    """Yield how often each patient is drawn: blocks of [resamples, patients], ``replicates`` rows in all.

    >>> [block.shape for block in resamples(7, 150)], set(next(resamples(7, 5)).sum(axis=1).tolist())
    ([(100, 7), (50, 7)], {7.0})
    """
    for number, start in enumerate(range(0, replicates, BLOCK)):
        yield resample(patients, number, min(BLOCK, replicates - start), seed)


def resample(patients: int, number: int, rows: int, seed: int = 0) -> Floats:
    """Return one block of resamples by its number, [rows, patients]; it does not depend on the others.

    >>> blocks = list(resamples(7, 150))
    >>> bool((resample(7, 1, 50) == blocks[1]).all())
    True
    """
    generator = np.random.default_rng([seed, number, _RESAMPLES])
    drawn = generator.integers(0, patients, size=(BLOCK, patients))[:rows]
    places = drawn + np.arange(rows)[:, None] * patients
    return np.bincount(places.ravel(), minlength=rows * patients).reshape(rows, patients).astype(np.float64)


def resampled_values(
    forms: Mapping[Name, MetricForm],
    patients: int,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> dict[Name, Floats]:
    """Return the value of every form in every resample [replicates]; NaN where it is not available."""
    if replicates < 1:
        raise PlmError(f"{replicates} replicates give no interval", remedy="give 1 or more; 1000 are usual")
    if patients < 2:
        return {name: np.full(replicates, np.nan) for name in forms}
    found: dict[Name, list[Floats]] = {name: [] for name in forms}
    for weights in resamples(patients, replicates, seed):
        for name, form in forms.items():
            found[name].append(form(weights))
        if progress is not None:
            progress(len(weights))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def interval_of(values: Floats, level: float = LEVEL) -> Interval | None:
    """Return the percentile interval of resampled values, None where fewer than half of them are available.

    >>> interval_of(np.array([np.nan, *range(101)]), level=0.5)
    Interval(low=25.0, high=75.0, level=0.5, replicates=102, left_out=1)
    """
    usable = values[~np.isnan(values)]
    if not len(usable) or 2 * len(usable) < len(values):
        return None
    low, high = np.quantile(usable, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), level, len(values), len(values) - len(usable))


def paired_difference(
    value: float | None, reference: float | None, values: Floats, references: Floats, level: float = LEVEL
) -> Difference | None:
    """Return value - reference, with its interval and p-value over resamples in which both are available.

    The p-value is twice the smaller share of resampled differences on either side of 0, counting one more on each
    side than was seen; it is never 0.

    >>> found = paired_difference(0.6, 0.5, np.full(99, 0.6), np.full(99, 0.5))
    >>> round(found.value, 6), round(found.p_value, 6)
    (0.1, 0.02)
    """
    if value is None or reference is None:
        return None
    differences = values - references
    usable = differences[~np.isnan(differences)]
    interval = interval_of(differences, level)
    if interval is None:
        return Difference(value - reference, None, None)
    fewer = min(int((usable <= 0).sum()), int((usable >= 0).sum()))
    return Difference(value - reference, interval, min(1.0, 2 * (fewer + 1) / (len(usable) + 1)))


def seed_spread(values: Sequence[float | None]) -> SeedSpread | None:
    """Return mean and standard deviation (n - 1) over runs that differ only in their seed; None without a value.

    >>> seed_spread([0.4, 0.6]), seed_spread([0.5]).deviation, seed_spread([0.5, None])
    (SeedSpread(mean=0.5, deviation=0.14142135623730948, seeds=2), None, None)
    """
    if not values or any(value is None for value in values):
        return None
    numbers = np.array(values, dtype=np.float64)
    deviation = float(numbers.std(ddof=1)) if len(numbers) > 1 else None
    return SeedSpread(float(numbers.mean()), deviation, len(numbers))
