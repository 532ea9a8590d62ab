"""Diagnosis sets drawn at random with the shape of hospital records, of any number: for benchmarks and plans."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from patients_like_me.tasks.diagnosis_sets import DiagnosisSets

CODES, MEAN_SIZE = 285, 22


def drawn_sets(instances: int, seed: int = 0) -> DiagnosisSets:
    """Draw instances with skewed codes, long-tailed set sizes and twelve comorbidity patterns, one per patient.

    The popularity falls off as in MIMIC-IV (the commonest category in half of the instances, the fiftieth in one of
    seven), and an instance has 22 diagnoses on average, some over 60.

    >>> sets = drawn_sets(1000)
    >>> len(sets), 20 < len(sets.codes) / len(sets) < 24
    (1000, True)
    """
    generator = np.random.default_rng(seed)
    popularity = np.exp(-np.arange(CODES) / 34.0) + 0.002
    patterns = np.ones((12, CODES))
    for pattern in patterns:
        pattern[generator.choice(CODES, 14, replace=False)] = 4
    burden = generator.gamma(4, 1 / 4, instances)
    kind = generator.integers(12, size=instances)
    rate = _rate_for_mean_size(popularity, patterns)
    counts, codes = [], []
    for first in range(0, instances, 4096):
        part = slice(first, min(first + 4096, instances))
        chance = 1 - np.exp(-burden[part, None] * rate * popularity * patterns[kind[part]])
        has = generator.random(chance.shape, dtype=np.float32) < chance
        counts.append(has.sum(axis=1))
        codes.append(np.nonzero(has)[1].astype(np.int32))
    return DiagnosisSets(
        indptr=np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64),
        codes=np.concatenate(codes),
        patients=np.arange(instances, dtype=np.int32),
        instance_ids=tuple(f"i{number}" for number in range(instances)),
        vocabulary=tuple(str(code) for code in range(CODES)),
    )


def _rate_for_mean_size(popularity: npt.NDArray[np.float64], patterns: npt.NDArray[np.float64]) -> float:
    from scipy.stats import gamma

    burdens = gamma(4, scale=1 / 4).ppf((np.arange(200) + 0.5) / 200)[:, None, None]
    low, high = 0.01, 10.0
    for _ in range(25):
        middle = (low + high) / 2
        size = (1 - np.exp(-burdens * middle * popularity * patterns)).sum(axis=2).mean()
        low, high = (middle, high) if size < MEAN_SIZE else (low, middle)
    return high
