from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from drug_networks import (
    COLUMNS,
    SIZES,
    TWELVE,
    Array,
    Batch,
    check_current_medications_change_nothing,
    check_gradients,
    check_overfits,
    check_padding_order_and_batch,
    check_rate_falls,
    close,
    logits_of,
    make_batch,
    make_targets,
    seeded,
    sigmoid,
    some_interactions,
    twelve_interactions,
    weights_of,
)

from patients_like_me.systems.micron import MICRON, MICRONSettings

SMALL = MICRONSettings(width=8, hidden=16, dropout=0.0)


def make(settings: MICRONSettings = SMALL, *, interactions: bool = True) -> MICRON:
    with seeded():
        known = some_interactions() if interactions else None
        return MICRON(SIZES, settings, columns=COLUMNS, interactions=known)


def prescription(weights: dict[str, Array], state: Array) -> Array:
    hidden = np.maximum(weights["prescription.0.weight"] @ state + weights["prescription.0.bias"], 0)
    return weights["prescription.2.weight"] @ hidden + weights["prescription.2.bias"]


def health_states(weights: dict[str, Array], batch: Batch, row: int) -> list[Array]:
    states = []
    for visit in range(int(batch.visit_mask[row].sum())):
        sums = [
            weights[f"sums.{kind}.embedding.weight"][batch.codes[kind][row, visit].numpy()].sum(0)
            for kind in ("diagnosis", "procedure")
        ]
        states.append(weights["health.weight"] @ np.concatenate(sums) + weights["health.bias"])
    return states


def test_the_residual_recursion_and_its_sets_against_numpy() -> None:
    network, batch = make(SMALL.model_copy(update={"add_above": 0.52, "remove_below": 0.48})), make_batch()
    with torch.no_grad():  # larger states, so that drugs come and go
        network.health.weight *= 20
    weights, found = weights_of(network), logits_of(network, batch)
    added, removed = network.changes(batch)
    for row in range(8):
        states = health_states(weights, batch, row)
        person = weights["person.person.weight"] @ batch.demographics[row].numpy()
        running = prescription(weights, states[0]) + person
        chosen, before = sigmoid(running) >= 0.5, np.zeros(6, dtype=bool)
        for last, now in pairwise(states):
            running = running + prescription(weights, now - last)
            before = chosen.copy()
            chosen = np.where(sigmoid(running) >= 0.52, True, np.where(sigmoid(running) < 0.48, False, before))
        close(found[row], running)
        assert added[row].tolist() == (chosen & ~before).tolist()
        assert removed[row].tolist() == (before & ~chosen).tolist()
    assert added.any()
    assert removed.any()


def test_the_loss_against_numpy() -> None:
    network, batch, targets = make(SMALL.model_copy(update={"target_rate": 0.0})), make_batch(), make_targets()
    weights, found = weights_of(network), network.loss(batch, targets)
    matrix = some_interactions().matrix.numpy()

    def predicted(logits: Array, labels: Array) -> float:
        p = sigmoid(logits)
        entropy = -(labels * np.log(p) + (1 - labels) * np.log(1 - p)).mean()
        pairs = [1 - p[j] + p[i] for j in np.flatnonzero(labels) for i in np.flatnonzero(1 - labels)]
        return float(0.25 * entropy + 0.25 * 0.05 * sum(pairs) / 6)

    for row, loss in enumerate(found.tolist()):
        states = health_states(weights, batch, row)
        person = weights["person.person.weight"] @ batch.demographics[row].numpy()
        logits = prescription(weights, states[-1]) + person
        expected = predicted(logits, targets[row].numpy())
        if len(states) > 1:
            last, residual = prescription(weights, states[-2]) + person, prescription(weights, states[-1] - states[-2])
            taken, numbers = np.zeros(6), COLUMNS[batch.codes["medication"][row, len(states) - 2].numpy()]
            taken[numbers[numbers >= 0]] = 1
            expected = 0.75 * expected + 0.25 * predicted(last, taken)
            expected += 0.25 * ((sigmoid(logits) - sigmoid(last + residual)) ** 2).mean()
        chosen = logits >= 0
        if chosen @ matrix @ chosen:
            expected += 0.25 * sigmoid(logits) @ matrix @ sigmoid(logits) / 6
        np.testing.assert_allclose(loss, expected, atol=1e-5)


def test_it_treats_visits_as_every_network_must() -> None:
    check_padding_order_and_batch(make())
    check_current_medications_change_nothing(make())


def test_gradients_reach_every_parameter() -> None:
    network = make()
    check_gradients(network, lambda: network.loss(make_batch(), make_targets()))


def test_it_overfits_eight_instances() -> None:
    # Each instance trains its last change alone: two visits at most, or earlier changes would have to be instances too.
    check_overfits(make(SMALL.model_copy(update={"reconstruction_weight": 2.0}), interactions=False), visits=2)


def test_the_interaction_rate_falls_with_the_target() -> None:
    check_rate_falls(
        lambda target: MICRON(
            TWELVE,
            MICRONSettings(width=16, hidden=32, dropout=0.0, target_rate=target),
            columns=COLUMNS,
            interactions=twelve_interactions(),
        )
    )


def test_without_medications_among_the_inputs_only_the_current_visit_is_predicted() -> None:
    network, batch = make(interactions=False), make_batch()
    bare = Batch({kind: batch.codes[kind] for kind in ("diagnosis", "procedure")}, batch.visit_mask, batch.demographics)
    assert torch.isfinite(network.loss(bare, make_targets())).all()
    assert torch.equal(logits_of(network, bare), logits_of(network, batch))
