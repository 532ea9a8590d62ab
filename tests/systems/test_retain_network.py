"""RETAIN: the whole forward pass held to plain numpy, and contributions that sum to the logit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tiny_visits import (
    CHECKS,
    ORDER_SIZES,
    SIZES,
    accuracy,
    array,
    eight_instances,
    evaluated,
    fit,
    gru_states,
    head_logits,
    linear,
    random_batch,
    records_where_order_decides,
    reordered_visits,
    softmax,
    visit_vectors,
)
from torch import Tensor, nn

from patients_like_me.systems.retain import Retain, RetainSettings
from patients_like_me.systems.visit_layers import Sizes, Visits

SMALL = {"embedding": 12, "visit_hidden": 10, "code_hidden": 11, "embedding_dropout": 0.0, "context_dropout": 0.0}


def network(kind: type[Retain] = Retain, sizes: Sizes = SIZES, **changes: bool) -> Retain:
    torch.manual_seed(0)
    return kind(RetainSettings(**SMALL, **changes), sizes)


@pytest.mark.parametrize("time_gaps", [False, True])
def test_forward_equals_plain_numpy(time_gaps: bool) -> None:
    model, batch = network(time_gaps=time_gaps), random_batch(6)
    logits = evaluated(model, batch)

    for row in range(6):
        vectors = visit_vectors(model.embedding.weights, batch, row)
        gaps = np.log1p(array(batch.gaps[row]))[: len(vectors), None]
        read = np.concatenate([vectors, gaps], axis=1) if time_gaps else vectors
        g = gru_states(model.visit_gru.gru, read[::-1])[::-1]
        h = gru_states(model.code_gru.gru, read[::-1])[::-1]
        alpha = softmax(linear(model.visit_score, g)[:, 0])
        beta = np.tanh(linear(model.code_weight, h))
        context = (alpha[:, None] * beta * vectors).sum(axis=0)
        np.testing.assert_allclose(array(logits[row]), head_logits(model.head, context, batch, row), atol=1e-5)


def test_contributions_sum_to_the_logit_and_padding_adds_nothing() -> None:
    model, batch = network(), random_batch(6)
    logits = evaluated(model, batch)

    for output in range(SIZES.outputs):
        parts = model.contributions(batch, output)
        torch.testing.assert_close(parts.logit, logits[:, output], rtol=0, atol=1e-6)
        assert not parts.visits[~batch.visit_mask].any()
        assert all(not parts.codes[kind][batch.codes[kind] == 0].any() for kind in SIZES.codes)


def test_a_contribution_is_alpha_times_output_times_beta_times_embedding() -> None:
    model, batch = network(), random_batch(6)
    model.eval()
    with torch.no_grad():
        alpha, beta = model.attention(model.embedding(batch.codes), batch)
    code = int(batch.codes["diagnosis"][0, 1, 0])
    vector = array(model.embedding.weights["diagnosis"][code])
    expected = float(alpha[0, 1]) * array(model.head.output.weight[1]) @ (array(beta[0, 1]) * vector)

    assert code
    assert float(model.contributions(batch, 1).codes["diagnosis"][0, 1, 0]) == pytest.approx(expected, abs=1e-6)


def test_the_penalty_is_the_squared_weights_of_four_layers() -> None:
    model = network()
    weights = [model.head.output.weight, model.visit_score.weight, model.code_weight.weight]
    expected = 0.001 * sum(
        float(weight.detach().square().sum()) for weight in [*weights, *model.embedding.weights.values()]
    )

    assert float(model.penalty().detach()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("check", CHECKS)
def test_named_checks(check: Callable[[nn.Module], None]) -> None:
    check(network())


def test_overfits_eight_instances() -> None:
    assert fit(network(), *eight_instances(), steps=150) < 0.05


class WithoutAttention(Retain):
    """Every visit and every dimension counts the same."""

    def attention(self, vectors: Tensor, visits: Visits) -> tuple[Tensor, Tensor]:
        return visits.visit_mask / visits.visit_mask.sum(1, keepdim=True), torch.ones_like(vectors)


def test_attention_and_the_order_of_visits_matter() -> None:
    train, labels = records_where_order_decides(300, seed=1)
    test, answers = records_where_order_decides(300, seed=2)
    model, without = network(sizes=ORDER_SIZES), network(WithoutAttention, ORDER_SIZES)
    unordered = network(sizes=ORDER_SIZES)
    fit(model, train, labels, steps=80)
    fit(without, train, labels, steps=80)
    fit(unordered, reordered_visits(train, seed=3), labels, steps=80)

    assert accuracy(model, test, answers) > 0.95
    assert accuracy(without, test, answers) < 0.65
    assert accuracy(unordered, reordered_visits(test, seed=4), answers) < 0.65
