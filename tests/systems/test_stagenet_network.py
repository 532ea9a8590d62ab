"""StageNet: cell, window and theme held to plain numpy; stages of the visits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tiny_visits import (
    CHECKS,
    ORDER_SIZES,
    SIZES,
    Array,
    accuracy,
    array,
    eight_instances,
    evaluated,
    fit,
    head_logits,
    linear,
    random_batch,
    records_where_order_decides,
    reordered_visits,
    sigmoid,
    softmax,
    visit_vectors,
)
from torch import Tensor, nn

from patients_like_me.systems.stagenet import StageNet, StageNetSettings
from patients_like_me.systems.visit_layers import Sizes, Visits, log_gaps

LEVELS, CHUNK = 3, 4


def network(sizes: Sizes = SIZES, window: int = 3, kind: type[StageNet] = StageNet) -> StageNet:
    torch.manual_seed(0)
    settings = StageNetSettings(
        embedding=6,
        levels=LEVELS,
        chunk=CHUNK,
        window=window,
        dropout=0.0,
        connection_dropout=0.0,
        residual_dropout=0.0,
    )
    return kind(settings, sizes)


def steps_of(model: StageNet, vectors: Array, gaps: Array) -> tuple[Array, Array]:
    """Return states [V, hidden] and master forget gates [V, levels], level by level."""
    memory = np.zeros((LEVELS, CHUNK))
    state = np.zeros(LEVELS * CHUNK)
    states, kept = [], []
    for vector, gap in zip(vectors, gaps, strict=True):
        total = linear(model.cell.of_input, np.append(vector, gap)) + linear(model.cell.of_state, np.append(state, gap))
        forget_share, input_share = softmax(total[:LEVELS]), softmax(total[LEVELS : 2 * LEVELS])
        gates = total[2 * LEVELS :].reshape(4, LEVELS, CHUNK)
        new_memory = np.zeros_like(memory)
        for level in range(LEVELS):
            keep, take = forget_share[: level + 1].sum(), input_share[level:].sum()
            both = keep * take
            f, i, candidate = sigmoid(gates[0, level]), sigmoid(gates[1, level]), np.tanh(gates[3, level])
            new_memory[level] = (
                both * (f * memory[level] + i * candidate) + (keep - both) * memory[level] + (take - both) * candidate
            )
        memory = new_memory
        state = (sigmoid(gates[2]) * np.tanh(memory)).reshape(-1)
        states.append(state)
        kept.append(np.cumsum(forget_share))
    return np.array(states), np.array(kept)


@pytest.mark.parametrize("window", [2, 3, 10])
def test_cell_window_and_theme_equal_plain_numpy(window: int) -> None:
    model, batch = network(window=window), random_batch(6)
    logits, shown = evaluated(model, batch), model.stages(batch)
    filters, bias = array(model.convolution.weight), array(model.convolution.bias)

    for row in range(6):
        vectors = visit_vectors(model.embedding.weights, batch, row)
        states, kept = steps_of(model, vectors, np.log1p(array(batch.gaps[row]))[: len(vectors)])
        movement = 1 - kept.mean(axis=1)
        last = states[-window:]
        weights = softmax(np.cumsum(movement[-window:]))
        places = np.zeros((window, LEVELS * CHUNK))
        places[-len(last) :] = weights[:, None] * last
        theme = sigmoid(linear(model.stretch, np.maximum(linear(model.squeeze, places.mean(axis=0)), 0)))
        pattern = bias + np.einsum("ock,kc->o", filters, places)
        expected = head_logits(model.head, theme * pattern + states[-1], batch, row)
        np.testing.assert_allclose(array(logits[row]), expected, atol=1e-5)
        np.testing.assert_allclose(array(shown.kept[row, : len(kept)]), kept, atol=1e-5)
        np.testing.assert_allclose(array(shown.movement[row, : len(kept)]), movement, atol=1e-5)
        np.testing.assert_allclose(array(shown.window[row, -len(last) :]), weights, atol=1e-5)


def test_stages_of_padding_are_zero_and_window_weights_sum_to_one() -> None:
    batch = random_batch(6)
    stages = network(window=10).eval().stages(batch)

    assert not stages.movement[~batch.visit_mask].any()
    assert not stages.kept[~batch.visit_mask].any()
    torch.testing.assert_close(stages.window.sum(1), torch.ones(6))
    assert torch.equal((stages.window > 0).sum(1), batch.visit_mask.sum(1))


def test_time_between_visits_changes_the_result() -> None:
    model, batch = network(), random_batch(6)
    longer = type(batch)(batch.codes, batch.visit_mask, batch.gaps * 3, batch.dated, batch.demographics)
    several = batch.visit_mask.sum(1) > 1
    changed = (evaluated(model, longer) - evaluated(model, batch)).abs().amax(1)

    assert bool((changed[several] > 1e-6).all())
    assert not changed[~several].any()


@pytest.mark.parametrize("check", CHECKS)
def test_named_checks(check: Callable[[nn.Module], None]) -> None:
    check(network())


def test_overfits_eight_instances() -> None:
    assert fit(network(), *eight_instances(), steps=150) < 0.05


class WithoutStages(StageNet):
    """No memory and no window: every visit is read alone, and all count the same."""

    def forward(self, visits: Visits) -> Tensor:
        gaps, mask = log_gaps(visits.gaps), visits.visit_mask
        added = self.cell.from_input(self.embedding(visits.codes), gaps)
        states = self.cell(added.flatten(0, 1), gaps.flatten(0, 1), None, None)[1].unflatten(0, mask.shape)
        logits: Tensor = self.head((states * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True), visits.demographics)
        return logits


def test_stages_and_the_order_of_visits_matter() -> None:
    train, labels = records_where_order_decides(300, seed=1)
    test, answers = records_where_order_decides(300, seed=2)
    model, without, unordered = network(ORDER_SIZES), network(ORDER_SIZES, kind=WithoutStages), network(ORDER_SIZES)
    fit(model, train, labels, steps=80)
    fit(without, train, labels, steps=80)
    fit(unordered, reordered_visits(train, seed=3), labels, steps=80)

    assert accuracy(model, test, answers) > 0.95
    assert accuracy(without, test, answers) < 0.65
    assert accuracy(unordered, reordered_visits(test, seed=4), answers) < 0.65
