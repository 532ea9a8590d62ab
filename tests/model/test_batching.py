"""Batches by length: every row once, little padding, the order from the given generator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patients_like_me.errors import PlmError
from patients_like_me.model.batching import TokenizedPrompts, reading_batches, shuffled_batches

lengths_of_prompts = st.lists(st.integers(1, 512), max_size=80).map(lambda values: np.array(values, dtype=np.int64))


@given(lengths_of_prompts, st.integers(1, 40), st.integers(0, 5))
def test_shuffled_batches_hold_every_row_once(lengths: np.ndarray, batch_size: int, seed: int) -> None:
    batches = shuffled_batches(lengths, batch_size, np.random.default_rng(seed))
    rows = np.concatenate(batches) if batches else np.zeros(0, dtype=np.int64)
    assert sorted(rows.tolist()) == list(range(len(lengths)))
    assert all(1 <= len(batch) <= batch_size for batch in batches)


@given(lengths_of_prompts, st.integers(1, 2000))
def test_reading_batches_keep_the_budget(lengths: np.ndarray, budget: int) -> None:
    batches = reading_batches(lengths, tokens_per_batch=budget)
    rows = np.concatenate(batches) if batches else np.zeros(0, dtype=np.int64)
    assert sorted(rows.tolist()) == list(range(len(lengths)))
    assert all(len(batch) == 1 or len(batch) * lengths[batch].max() <= budget for batch in batches)
    assert (np.diff(lengths[rows]) <= 0).all()


def test_a_card_reads_more_tokens_at_once_than_a_cpu() -> None:
    lengths = np.full(1000, 128)
    cpu, card = (len(reading_batches(lengths, device=device)) for device in ("cpu", "cuda"))
    assert (cpu, card) == (63, 4)


def test_the_generator_decides_the_order() -> None:
    lengths = np.random.default_rng(9).integers(5, 500, 400)

    def order(seed: int) -> list[int]:
        return np.concatenate(shuffled_batches(lengths, 32, np.random.default_rng(seed))).tolist()

    assert order(1) == order(1) != order(2)


def test_buckets_save_most_of_the_padding() -> None:
    lengths = np.random.default_rng(0).integers(20, 512, 2048)

    def share_of_padding(batches: list[np.ndarray]) -> float:
        cells = sum(len(batch) * lengths[batch].max() for batch in batches)
        return 1 - lengths.sum() / cells

    by_chance = np.array_split(np.random.default_rng(1).permutation(2048), 64)
    assert share_of_padding(by_chance) > 0.4
    assert share_of_padding(shuffled_batches(lengths, 32, np.random.default_rng(1))) < 0.08


def test_padded_prompts_keep_their_tokens() -> None:
    prompts = TokenizedPrompts.from_lists([[1, 2, 3], [4], [5, 6]])
    ids, mask = prompts.padded(np.array([2, 0]))
    assert ids.tolist() == [[5, 6, 0], [1, 2, 3]]
    assert mask.tolist() == [[True, True, False], [True, True, True]]


def test_equal_prompts_have_equal_keys() -> None:
    keys = TokenizedPrompts.from_lists([[1, 2], [12], [1, 2], [2, 1]]).keys()
    assert keys[0] == keys[2]
    assert len(set(keys)) == 3


def test_a_prompt_without_tokens_is_named() -> None:
    with pytest.raises(PlmError, match="prompt 1 has no token"):
        TokenizedPrompts.from_lists([[1], [], [2]])


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(PlmError, match="the batch size is 0"):
        shuffled_batches(np.array([1]), 0, np.random.default_rng(0))
