from __future__ import annotations

import numpy as np
import pytest
import torch
from drug_networks import (
    SIZES,
    TWELVE,
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
    some_interactions,
    stream_states,
    twelve_interactions,
    weights_of,
)
from small_molecules import CODES, SMILES

from patients_like_me.codes.molecules import DrugStructures, drug_structures
from patients_like_me.systems.drug_safety import variant_name
from patients_like_me.systems.safedrug import SafeDrug, SafeDrugSettings

pytest.importorskip("rdkit", reason="the molecules need rdkit")
SMALL = SafeDrugSettings(width=16, dropout=0.0)


def make(
    settings: SafeDrugSettings = SMALL, *, interactions: bool = True, structures: DrugStructures | None = None
) -> SafeDrug:
    structures = drug_structures(SMILES, CODES) if structures is None else structures
    with seeded():
        known = some_interactions() if interactions else None
        return SafeDrug(SIZES, settings, structures=structures, interactions=known)


def test_the_match_with_molecules_and_masked_pieces_against_numpy() -> None:
    network, batch = make(), make_batch()
    weights, structures = weights_of(network), drug_structures(SMILES, CODES)
    atoms = weights["molecules.embedding.weight"][network.molecules.fingerprints.numpy()]
    adjacency = np.zeros((len(atoms), len(atoms)))
    for start, end in network.molecules.edges.T.tolist():
        adjacency[end, start] += 1
    for layer in range(2):
        weight, bias = (weights[f"molecules.layers.{layer}.{name}"] for name in ("weight", "bias"))
        states = np.maximum(atoms @ weight.T + bias, 0)
        atoms = states + adjacency @ states
    owner = network.molecules.molecule.numpy()
    own = iter(weights["molecules.own"])
    drugs = np.array(
        [
            np.mean([atoms[owner == at].sum(0) for at in np.flatnonzero(row)], axis=0) if row.any() else next(own)
            for row in structures.of_code
        ]
    )
    for row, found in enumerate(logits_of(network, batch)):
        state = stream_states(weights, batch, row)[-1]
        query = weights["query.weight"] @ np.maximum(state, 0) + weights["query.bias"]
        match = sigmoid(drugs @ query)
        match = match + weights["match.weight"] @ match + weights["match.bias"]
        whole = layer_norm(match, weights["match_norm.weight"], weights["match_norm.bias"])
        relevant = sigmoid(weights["pieces.weight"] @ query + weights["pieces.bias"])
        local = np.zeros(6)
        for drug, mask in enumerate(structures.piece_mask()):
            for piece in np.flatnonzero(mask):
                local[drug] += relevant[piece] * weights["of_pieces.weight"][drug, piece]
        person = weights["person.person.weight"] @ batch.demographics[row].numpy()
        close(found, whole * local + person)


def test_a_piece_that_a_drug_does_not_have_never_matters() -> None:
    network, batch = make(), make_batch()
    before = logits_of(network, batch)
    with torch.no_grad():
        network.of_pieces.weight[network.mask == 0] = 100.0
    assert torch.equal(logits_of(network, batch), before)


def test_it_treats_visits_as_every_network_must() -> None:
    check_padding_order_and_batch(make())
    check_current_medications_change_nothing(make())


@pytest.mark.parametrize("molecules", [True, False])
def test_gradients_reach_every_parameter(molecules: bool) -> None:
    network = make(structures=None if molecules else DrugStructures.none(CODES))
    check_gradients(network, lambda: network.loss(make_batch(), make_targets()))


def test_it_overfits_eight_instances() -> None:
    # With larger steps, whether the last two answers turn right depends on how a machine rounds.
    check_overfits(make(interactions=False), steps=240, rate=0.005)


def test_the_interaction_rate_falls_with_the_target() -> None:
    # The paper's weight is for 131 drugs, whose pairs are a hundred times as many.
    check_rate_falls(
        lambda target: SafeDrug(
            TWELVE,
            SafeDrugSettings(width=16, dropout=0.0, target_rate=target, interaction_weight=0.05),
            structures=DrugStructures.none(tuple("ABCDEFGHIJKL")),
            interactions=twelve_interactions(),
        )
    )


def test_missing_knowledge_is_in_the_name() -> None:
    knowledge = ("interactions", "molecules")
    assert variant_name("SafeDrug", knowledge, ()) == "SafeDrug"
    assert variant_name("SafeDrug", knowledge, knowledge) == "SafeDrug[no-interactions,no-molecules]"
