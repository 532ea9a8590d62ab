"""Deepr: sentences, convolution and masked maximum, held to plain loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_visits import (
    CHECKS,
    SIZES,
    VisitBatch,
    array,
    eight_instances,
    evaluated,
    fit,
    head_logits,
    random_batch,
    visits_of,
)
from torch import nn

from patients_like_me.systems.deepr import Deepr, DeeprSettings

FIRST_NUMBER = {"diagnosis": 6, "procedure": 15, "medication": 19}


def network(seed: int = 0, **changes: float) -> Deepr:
    torch.manual_seed(seed)
    return Deepr(DeeprSettings(embedding=8, motifs=16, dropout=0.0, **changes), SIZES)


def words_of(batch: VisitBatch, row: int) -> list[int]:
    words = []
    for at, visit in enumerate(visits_of(batch, row)):
        if at:
            months = float(batch.gaps[row, at]) / (365.25 / 12)
            words.append(1 + sum(months > end for end in (1, 3, 6, 12)) if batch.dated[row] else 6)
        words += sorted(code + FIRST_NUMBER[kind] for kind, codes in visit.items() for code in codes)
    return words


@pytest.mark.parametrize("reach", [1, 2])
def test_convolution_and_masked_maximum_equal_plain_loops(reach: int) -> None:
    model, batch = network(reach=reach), random_batch(6)
    table, filters, bias = array(model.words), array(model.motifs.weight), array(model.motifs.bias)
    logits = evaluated(model, batch)

    for row in range(6):
        vectors = [table[word] for word in words_of(batch, row)]
        nothing = [np.zeros(8)] * reach
        padded = [*nothing, *vectors, *nothing]
        answers = [
            np.maximum(bias + sum(filters[:, :, offset] @ padded[at + offset] for offset in range(2 * reach + 1)), 0)
            for at in range(len(vectors))
        ]
        expected = head_logits(model.head, np.max(answers, axis=0) if answers else np.zeros(16), batch, row)
        np.testing.assert_allclose(array(logits[row]), expected, atol=1e-5)


def test_a_sentence_keeps_its_newest_words() -> None:
    batch = random_batch(6)
    sentences = network(longest=5).eval().sentences(batch)

    for row in range(6):
        kept = [word for word in sentences[row].tolist() if word]
        assert kept == words_of(batch, row)[-5:]


def test_gap_words_tell_months_apart_and_missing_dates_from_short_gaps() -> None:
    one = torch.ones(1, 6, 1, dtype=torch.long)
    codes = {"diagnosis": one, "procedure": one * 0, "medication": one * 0}
    gaps = torch.tensor([[0.0, 3, 60, 150, 300, 900]])
    batch = VisitBatch(codes, torch.ones(1, 6, dtype=torch.bool), gaps, torch.tensor([True]), torch.zeros(1, 3))
    model = network().eval()

    assert model.sentences(batch)[0].tolist() == [7, 1, 7, 2, 7, 3, 7, 4, 7, 5, 7]
    assert model.sentences(replace(batch, dated=torch.tensor([False])))[0, 1::2].tolist() == [6] * 5


def test_training_draws_the_order_of_codes_again_but_keeps_the_visits() -> None:
    model, batch = network().train(), random_batch(6)
    torch.manual_seed(1)
    first, second = model.sentences(batch), model.sentences(batch)

    assert not torch.equal(first, second)
    assert torch.equal(first.sort(dim=1).values, second.sort(dim=1).values)
    assert torch.equal((first > 0) & (first <= 6), (second > 0) & (second <= 6))


@pytest.mark.parametrize("check", CHECKS)
def test_named_checks(check: Callable[[nn.Module], None]) -> None:
    check(network())


def test_overfits_eight_instances() -> None:
    assert fit(network(), *eight_instances(), steps=150) < 0.05
