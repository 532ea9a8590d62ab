"""Splits by patient: exact, seeded, and stable when patients are added."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patients_like_me.errors import PlmError
from patients_like_me.settings import checked
from patients_like_me.tasks.splits import split_of_patients
from patients_like_me.tasks.task import TaskSettings

IDS = st.lists(st.text(min_size=1, max_size=6), unique=True, max_size=60)


def test_seeded_shares_are_exact() -> None:
    splits = split_of_patients([str(n) for n in range(1000)], TaskSettings(split_seed=3))
    assert Counter(splits.tolist()) == {"train": 600, "validation": 200, "test": 200}


@given(IDS, st.integers(0, 5), st.sampled_from(["seeded", "hash"]))
def test_the_order_of_patients_does_not_matter(ids: list[str], seed: int, method: str) -> None:
    settings = checked(TaskSettings, split_seed=seed, split_method=method)
    forwards = dict(zip(ids, split_of_patients(ids, settings).tolist(), strict=True))
    backwards = dict(zip(ids[::-1], split_of_patients(ids[::-1], settings).tolist(), strict=True))
    assert forwards == backwards


@given(IDS, IDS)
def test_the_hash_split_moves_nobody_when_patients_are_added(ids: list[str], more: list[str]) -> None:
    settings = TaskSettings(split_method="hash")
    both = list(dict.fromkeys([*ids, *more]))
    grown = dict(zip(both, split_of_patients(both, settings).tolist(), strict=True))
    before = dict(zip(ids, split_of_patients(ids, settings).tolist(), strict=True))
    assert before.items() <= grown.items()


def test_hash_shares_are_near_and_seeds_differ() -> None:
    ids = [str(n) for n in range(20_000)]
    first = split_of_patients(ids, TaskSettings(split_method="hash"))
    assert abs((first == "train").mean() - 0.6) < 0.02
    assert (first != split_of_patients(ids, TaskSettings(split_method="hash", split_seed=1))).mean() > 0.3
    seeded = split_of_patients(ids, TaskSettings())
    assert (seeded != split_of_patients(ids, TaskSettings(split_seed=1))).mean() > 0.3


def test_shares_that_make_no_whole_are_refused() -> None:
    with pytest.raises(PlmError, match="split_shares"):
        checked(TaskSettings, split_shares=(0.5, 0.2, 0.2))
