from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from drug_networks import make_targets, sigmoid, some_interactions

from patients_like_me.codes.interactions import Interactions
from patients_like_me.systems.drug_safety import (
    KnownInteractions,
    annealed_choice,
    exponential_share,
    margin_loss,
    prediction_loss,
    proportional_control,
)

RATES = torch.tensor([0.0, 0.05, 0.06, 0.08, 0.2, 1.0])


def test_the_rate_is_over_known_pairs() -> None:
    known, sets = some_interactions(), make_targets(50) > 0
    interacting = {(0, 1), (0, 2), (3, 4)}
    for row, rate in zip(sets, known.rates(sets).tolist(), strict=True):
        pairs = [pair for pair in combinations(np.flatnonzero(row).tolist(), 2) if 5 not in pair]
        expected = sum(pair in interacting for pair in pairs) / len(pairs) if pairs else 0.0
        assert rate == pytest.approx(expected, abs=1e-6)
        assert set(known.pairs(row)) == interacting & set(pairs)


def test_the_matrix_is_restricted_to_the_labels_and_unknown_is_not_safe() -> None:
    table = Interactions(frozenset({("A01A", "B03B"), ("A01A", "C07A")}), frozenset({"A01A", "B03B", "C07A", "N02B"}))
    known = KnownInteractions.of_labels(table, ("N02B", "B03B", "Z99Z", "A01A"))

    assert known.covered.tolist() == [True, True, False, True]
    assert torch.nonzero(known.matrix).tolist() == [[1, 3], [3, 1]]
    assert known.rates(torch.tensor([[False, True, True, True]])).tolist() == [1.0]


def test_the_losses_are_those_of_torch() -> None:
    logits, targets = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)), make_targets()
    indices = torch.full((8, 6), -1)
    for row, found in enumerate(targets):
        indices[row, : int(found.sum())] = torch.nonzero(found)[:, 0]
    margin = torch.nn.functional.multilabel_margin_loss(torch.sigmoid(logits), indices, reduction="none")
    torch.testing.assert_close(margin_loss(torch.sigmoid(logits), targets), margin)
    entropy = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(1)
    found = prediction_loss(logits, targets, entropy_weight=0.9, margin_weight=0.01)
    torch.testing.assert_close(found, 0.9 * entropy + 0.01 * margin)


def test_expected_pairs_are_the_double_sum() -> None:
    known, probabilities = some_interactions(), sigmoid(np.random.default_rng(0).normal(size=(3, 6)))
    expected = [sum(known.matrix[i, j] * p[i] * p[j] for i in range(6) for j in range(6)) for p in probabilities]
    found = known.expected_pairs(torch.as_tensor(probabilities, dtype=torch.float32))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32))


def test_proportional_control_and_exponential_share_against_their_formulas() -> None:
    proportional, exponential = [], []
    for rate in RATES.tolist():
        proportional.append(1.0 if rate <= 0.06 else max(0.0, 1 - (rate - 0.06) / 0.05))
        exponential.append(1.0 if rate <= RATES[2] else math.exp(2.5 * (1 - rate / 0.06)))
    torch.testing.assert_close(proportional_control(RATES, 0.06, 0.05), torch.tensor(proportional), atol=1e-5, rtol=0)
    torch.testing.assert_close(exponential_share(RATES, 0.06, 2.5), torch.tensor(exponential), atol=1e-5, rtol=0)


def test_the_annealed_choice_has_its_probability_and_freezes() -> None:
    draws = (torch.arange(10_000) + 0.5) / 10_000
    for rate in RATES.tolist():
        corrected = 1 - annealed_choice(torch.full((10_000,), rate), 0.05, 0.5, draws).mean()
        expected = 0.0 if rate <= RATES[1] else math.exp((0.05 - rate) / 0.5)
        assert float(corrected) == pytest.approx(expected, abs=2e-4)
    assert annealed_choice(RATES, 0.05, 0.5 * 0.85**40, torch.full((6,), 0.01))[3:].tolist() == [1.0, 1.0, 1.0]
