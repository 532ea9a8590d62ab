"""Splits by patient: all instances of a patient are in one split."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from patients_like_me.tasks.task import SPLITS, TaskSettings


def split_of_patients(subject_ids: Sequence[str], settings: TaskSettings) -> npt.NDArray[np.str_]:
    """Return the split of every patient.

    ``seeded`` shuffles the sorted ids and cuts at the shares, so the shares are exact and the order in which the
    patients come does not matter. ``hash`` places each patient by a hash of seed and id alone, so that adding
    patients moves nobody.

    >>> split_of_patients(["a", "b", "c", "d", "e"], TaskSettings()).tolist()
    ['validation', 'test', 'train', 'train', 'train']
    """
    if settings.split_method == "hash":
        return _by_hash(subject_ids, settings)
    order = np.argsort(np.array(subject_ids, dtype=str), kind="stable")
    shuffled = order[np.random.default_rng(settings.split_seed).permutation(len(order))]
    bounds = np.round(np.cumsum(settings.split_shares)[:2] * len(order)).astype(int)
    splits = np.empty(len(order), dtype="<U10")
    for name, part in zip(SPLITS, np.split(shuffled, bounds), strict=True):
        splits[part] = name
    return splits


def _by_hash(subject_ids: Sequence[str], settings: TaskSettings) -> npt.NDArray[np.str_]:
    positions = np.array(
        [
            int.from_bytes(hashlib.blake2b(f"{settings.split_seed}:{subject}".encode(), digest_size=8).digest()) / 2**64
            for subject in subject_ids
        ]
    )
    bounds = np.cumsum(settings.split_shares)[:2]
    return np.array(SPLITS)[np.searchsorted(bounds, positions, side="right")]
