from __future__ import annotations

import numpy as np
import pytest
import torch
from drug_networks import (
    SIZES,
    TWELVE,
    Array,
    check_current_medications_change_nothing,
    check_gradients,
    check_overfits,
    check_padding_order_and_batch,
    check_rate_falls,
    close,
    layer_norm,
    logits_of,
    make_batch,
    make_targets,
    seeded,
    sigmoid,
    softmax,
    some_interactions,
    stream_states,
    twelve_interactions,
    weights_of,
)
from small_molecules import CODES, SMILES

from patients_like_me.codes.molecules import DrugStructures, MoleculeGraphs, drug_structures, molecule_graphs
from patients_like_me.systems.molerec import SYSTEM, MoleRec, MoleRecSettings

pytest.importorskip("rdkit", reason="the molecules need rdkit")
SMALL = MoleRecSettings(width=8, dropout=0.0, graph_layers=2, graph_dropout=0.0)


def make(
    settings: MoleRecSettings = SMALL, *, interactions: bool = True, structures: DrugStructures | None = None
) -> MoleRec:
    structures = drug_structures(SMILES, CODES) if structures is None else structures
    with seeded():
        known = some_interactions() if interactions else None
        return MoleRec(SIZES, settings, structures=structures, interactions=known)


def linear(weights: dict[str, Array], name: str, values: Array) -> Array:
    return values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def batch_norm(weights: dict[str, Array], name: str, values: Array) -> Array:
    centred = (values - weights[f"{name}.running_mean"]) / np.sqrt(weights[f"{name}.running_var"] + 1e-5)
    return centred * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def graph_vectors(weights: dict[str, Array], name: str, graphs: MoleculeGraphs) -> Array:
    atoms = sum(weights[f"{name}.tables.{at}.weight"][graphs.atoms[:, at]] for at in range(9))
    for layer in range(2):
        own = f"{name}.layers.{layer}"
        received = np.zeros_like(atoms)
        for (start, end), bond in zip(graphs.edges.T.tolist(), graphs.bonds, strict=True):
            vector = sum(weights[f"{own}.bonds.{at}.weight"][bond[at]] for at in range(3))
            received[end] += np.maximum(atoms[start] + vector, 0)
        mixed = linear(weights, f"{own}.mix.0", (1 + weights[f"{own}.loop"]) * atoms + received)
        mixed = linear(weights, f"{own}.mix.3", np.maximum(batch_norm(weights, f"{own}.mix.1", mixed), 0))
        atoms = batch_norm(weights, f"{own}.norm", mixed)
        atoms = np.maximum(atoms, 0) if layer == 0 else atoms
    return np.array([atoms[graphs.molecule == number].mean(0) for number in range(graphs.count)])


def set_attention(weights: dict[str, Array], items: Array) -> Array:
    query, key, value = (linear(weights, f"among_pieces.{name}", items) for name in ("query", "key", "value"))
    mixed = query.copy()
    for head in (slice(0, 4), slice(4, 8)):
        for row in range(len(items)):
            mixed[row, head] += softmax(key[:, head] @ query[row, head] / np.sqrt(8)) @ value[:, head]
    first, second = (
        (weights[f"among_pieces.{name}.weight"], weights[f"among_pieces.{name}.bias"])
        for name in ("first_norm", "second_norm")
    )
    mixed = layer_norm(mixed, *first)
    return layer_norm(mixed + np.maximum(linear(weights, "among_pieces.mix", mixed), 0), *second)


def test_the_masked_attention_over_pieces_against_numpy() -> None:
    network, batch, structures = make(), make_batch(), drug_structures(SMILES, CODES)
    network.train()(batch)  # the running means of the batch norms are no longer 0 and 1
    weights, found = weights_of(network), logits_of(network, batch)
    molecules = structures.averages() @ graph_vectors(weights, "molecules", molecule_graphs(structures.molecules))
    pieces = graph_vectors(weights, "pieces", molecule_graphs(structures.pieces))
    pieces = set_attention(weights, np.concatenate([pieces, weights["own_pieces"]]))
    query_of, key_of = linear(weights, "molecule_query", molecules), linear(weights, "piece_key", pieces)
    for row in range(8):
        state = np.maximum(stream_states(weights, batch, row)[-1], 0)
        relevance = sigmoid(linear(weights, "relevance", linear(weights, "query", np.concatenate([state, state]))))
        expected = []
        for drug, mask in enumerate(structures.piece_mask()):
            has = np.flatnonzero(mask)
            attention = softmax(key_of[has] @ query_of[drug] / np.sqrt(8))
            vector = (attention * relevance[has]) @ pieces[has]
            expected.append(linear(weights, "score.2", np.maximum(linear(weights, "score.0", vector), 0))[0])
        close(found[row], np.array(expected) + weights["person.person.weight"] @ batch.demographics[row].numpy())


def test_attention_is_on_a_drugs_own_pieces() -> None:
    network = make().eval()
    attention = network.attention(network.piece_vectors())
    assert torch.all((attention > 0) == network.mask)
    torch.testing.assert_close(attention.sum(1), torch.ones(6))


def test_it_treats_visits_as_every_network_must() -> None:
    check_padding_order_and_batch(make())
    check_current_medications_change_nothing(make())


def test_gradients_reach_every_parameter() -> None:
    wide = SMALL.model_copy(update={"width": 16})
    table = wide.model_copy(update={"pieces": "embedding"})
    for network in (make(wide), make(table), make(wide, structures=DrugStructures.none(CODES))):
        check_gradients(network, lambda network=network: network.loss(make_batch(), make_targets()))


def test_it_overfits_eight_instances() -> None:
    check_overfits(make(SMALL.model_copy(update={"width": 16}), interactions=False), steps=160)


def test_the_interaction_rate_falls_with_the_target() -> None:
    # The paper's weight is for 131 drugs, whose pairs are a hundred times as many.
    check_rate_falls(
        lambda target: MoleRec(
            TWELVE,
            MoleRecSettings(width=16, dropout=0.0, target_rate=target, interaction_weight=0.05),
            structures=DrugStructures.none(tuple("ABCDEFGHIJKL")),
            interactions=twelve_interactions(),
        )
    )


def test_missing_knowledge_is_in_the_name() -> None:
    assert SYSTEM.title_of(MoleRecSettings(without=("interactions",))) == "MoleRec[no-interactions]"
