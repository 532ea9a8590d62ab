"""AdaCare: causal convolutions and recalibration held to plain numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tiny_visits import (
    CHECKS,
    SIZES,
    Array,
    VisitBatch,
    array,
    eight_instances,
    evaluated,
    fit,
    gru_states,
    head_logits,
    linear,
    random_batch,
    sigmoid,
    visits_of,
)
from torch import nn

from patients_like_me.systems.adacare import Activation, AdaCare, AdaCareSettings, sparsemax

DILATIONS = (1, 3, 5)


def network(activation: Activation = "sigmoid") -> AdaCare:
    torch.manual_seed(0)
    settings = AdaCareSettings(filters=5, hidden=12, dropout=0.0, activation=activation)
    return AdaCare(settings, SIZES)


def code_vectors(batch: VisitBatch, row: int) -> Array:
    """Return 0/1 vectors over diagnoses, procedures and medications."""
    visits = visits_of(batch, row)
    vectors = np.zeros((len(visits), 19))
    first = {"diagnosis": 0, "procedure": 9, "medication": 13}
    for at, visit in enumerate(visits):
        for kind, codes in visit.items():
            vectors[at, [first[kind] + code - 1 for code in codes]] = 1
    return vectors


def projected(scores: Array) -> Array:
    """Sparsemax by bisection on its threshold: the clipped rest has to sum to 1."""
    low, high = scores.min() - 1, scores.max()
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(scores - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(scores - low, 0)


@pytest.mark.parametrize("activation", ["sigmoid", "sparsemax"])
def test_convolutions_and_recalibration_equal_plain_numpy(activation: Activation) -> None:
    model, batch = network(activation), random_batch(4, visits=7)
    logits, importance = evaluated(model, batch), model.importance(batch)

    for row in range(4):
        codes = code_vectors(batch, row)
        read = []
        for at in range(len(codes)):
            answers = []
            for convolution, dilation in zip(model.convolutions, DILATIONS, strict=True):
                filters = array(convolution.weight)
                before = codes[at - dilation] if at >= dilation else np.zeros(19)
                answers.append(filters[:, :, 0] @ before + filters[:, :, 1] @ codes[at] + array(convolution.bias))
            z = np.maximum(np.concatenate(answers), 0)
            patterns, raw = model.recalibrate_patterns, model.recalibrate_codes
            z_weights = sigmoid(linear(patterns.stretch, np.maximum(linear(patterns.squeeze, z), 0)))
            scores = linear(raw.stretch, np.maximum(linear(raw.squeeze, codes[at]), 0))
            code_weights = sigmoid(scores) if activation == "sigmoid" else projected(scores)
            read.append(np.concatenate([z_weights * z, code_weights * codes[at]]))
            np.testing.assert_allclose(array(importance[row, at]), code_weights * codes[at], atol=1e-5)
        states = gru_states(model.gru.gru, np.array(read))
        np.testing.assert_allclose(array(logits[row]), head_logits(model.head, states[-1], batch, row), atol=1e-5)


def test_no_pattern_sees_a_later_visit() -> None:
    model, batch = network().eval(), random_batch(1, visits=7)
    codes = torch.from_numpy(code_vectors(batch, 0)).float().unsqueeze(0)
    changed = codes.clone()
    changed[0, 4] = 1 - changed[0, 4]
    difference = (model.patterns(changed) - model.patterns(codes)).abs().amax(2)[0]

    assert not difference[:4].any()
    assert difference[4] > 0


def test_sparsemax_sums_to_one_and_passes_gradients() -> None:
    scores = torch.randn(5, 9, generator=torch.Generator().manual_seed(0), dtype=torch.double, requires_grad=True)

    torch.testing.assert_close(sparsemax(scores).sum(-1), torch.ones(5, dtype=torch.double))
    assert torch.autograd.gradcheck(sparsemax, (scores,))


@pytest.mark.parametrize("check", CHECKS)
def test_named_checks(check: Callable[[nn.Module], None]) -> None:
    check(network())


def test_overfits_eight_instances() -> None:
    assert fit(network(), *eight_instances(), steps=150) < 0.05
