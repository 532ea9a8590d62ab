from __future__ import annotations

import numpy as np
import torch
from drug_networks import (
    COLUMNS,
    SIZES,
    TWELVE,
    Array,
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
    softmax,
    some_interactions,
    stream_states,
    twelve_interactions,
    twelve_labels,
    weights_of,
)

from patients_like_me.systems.gamenet import SYSTEM, GAMENet, GAMENetSettings, prescribed_together

SMALL = GAMENetSettings(width=8, hidden=10, dropout=0.0, graph_dropout=0.0)


def make(settings: GAMENetSettings = SMALL, *, interactions: bool = True) -> GAMENet:
    with seeded():
        return GAMENet(
            SIZES,
            settings,
            together=prescribed_together(make_targets().numpy()),
            columns=COLUMNS,
            interactions=some_interactions() if interactions else None,
        )


def relu(values: Array) -> Array:
    return np.maximum(values, 0)


def drug_graph(weights: dict[str, Array], name: str, adjacency: Array) -> Array:
    spread = (adjacency + np.eye(len(adjacency))) / (adjacency.sum(1, keepdims=True) + 1)
    hidden = relu(spread @ weights[f"{name}.first.weight"].T + weights[f"{name}.first.bias"])
    return spread @ hidden @ weights[f"{name}.second.weight"].T + weights[f"{name}.second.bias"]


def test_both_reads_against_numpy() -> None:
    network, batch = make(), make_batch()
    weights = weights_of(network)
    targets, interacting = make_targets().numpy(), some_interactions().matrix.numpy()
    together = np.array([[float(i != j and any(t[i] and t[j] for t in targets)) for i in range(6)] for j in range(6)])
    memory = drug_graph(weights, "together", together) - weights["balance"] * drug_graph(
        weights, "interacting", interacting
    )
    for row, found in enumerate(logits_of(network, batch)):
        states = stream_states(weights, batch, row, mean=True)
        queries = [weights["query.weight"] @ relu(state) + weights["query.bias"] for state in states]
        first = second = softmax(memory @ queries[-1]) @ memory
        if len(queries) > 1:
            taken = np.zeros((len(queries) - 1, 6))
            for visit in range(len(queries) - 1):
                numbers = COLUMNS[batch.codes["medication"][row, visit].numpy()]
                taken[visit, numbers[numbers >= 0]] = 1
            second = softmax(np.array(queries[:-1]) @ queries[-1]) @ taken @ memory
        joined = relu(np.concatenate([queries[-1], first, second]))
        hidden = relu(weights["output.1.weight"] @ joined + weights["output.1.bias"])
        expected = weights["output.3.weight"] @ hidden + weights["output.3.bias"]
        close(found, expected + weights["person.person.weight"] @ batch.demographics[row].numpy())


def test_it_treats_visits_as_every_network_must() -> None:
    check_padding_order_and_batch(make())
    check_current_medications_change_nothing(make())


def test_gradients_reach_every_parameter_with_and_without_interactions() -> None:
    for interactions in (True, False):
        network = make(interactions=interactions)
        check_gradients(network, lambda network=network: network.loss(make_batch(), make_targets()))


def test_it_overfits_eight_instances() -> None:
    check_overfits(make(interactions=False))


def test_the_interaction_rate_falls_with_the_target() -> None:
    settings = SMALL.model_copy(update={"temperature": 5.0})
    check_rate_falls(
        lambda target: GAMENet(
            TWELVE,
            settings.model_copy(update={"target_rate": target}),
            together=prescribed_together(twelve_labels(make_batch(16)).numpy()),
            columns=COLUMNS,
            interactions=twelve_interactions(),
        )
    )


def test_a_missing_table_is_in_the_name() -> None:
    assert SYSTEM.title_of(GAMENetSettings()) == "GAMENet"
    assert SYSTEM.title_of(GAMENetSettings(without=("interactions",))) == "GAMENet[no-interactions]"


def test_dropout_is_off_in_evaluation() -> None:
    network = make(GAMENetSettings())
    assert torch.equal(logits_of(network, make_batch()), logits_of(network, make_batch()))
