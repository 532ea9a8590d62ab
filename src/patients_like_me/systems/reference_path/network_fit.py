"""Fitting the network over embeddings: around the own answers, without the fold whose gates read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from patients_like_me.systems.reference_path.bank import ReferenceBank
from patients_like_me.systems.reference_path.correction import Corrected
from patients_like_me.systems.reference_path.links import Array
from patients_like_me.systems.reference_path.messages import half_median_degree, messages
from patients_like_me.systems.reference_path.network import network_of
from patients_like_me.systems.reference_path.own_path import OwnPath, fit_own_path
from patients_like_me.systems.reference_path.relations import NETWORK, Neighbours, Relation
from patients_like_me.tasks.instances import Rows

#: Ridge penalty of the network's weights; the gate decides how much of it counts.
PENALTY: Final = 30.0


def network_relation(lists: Mapping[str, Neighbours], strongest: Sequence[int]) -> Relation:
    """Return along which edges the network sends: the first similarity, the middle k, weights as they are."""
    name, found = next(iter(lists.items()))
    return Relation(name, min(sorted(strongest)[len(strongest) // 2], found.columns.shape[1]), 1.0, NETWORK)


def fit_network(
    fitting: Corrected,
    relation: Relation,
    bank: ReferenceBank,
    fold: npt.NDArray[np.int64],
    places: Rows,
    *,
    exclusive: bool,
) -> tuple[Array, npt.NDArray[np.float32]]:
    """Return the network's weights [width, K], and what networks without each instance's fold make of the bank.

    ``fitting`` are the training instances at ``places`` of the bank, with references of their own fold.
    """
    assert bank.described.embeddings is not None, "a network needs embeddings"
    assert bank.centre is not None, "a network needs their mean"
    assert fitting.targets is not None, "a network is fitted to outcomes"
    embeddings = (bank.described.embeddings - bank.centre).astype(np.float32)
    shrunk = np.array([half_median_degree(fitting.lists[relation.similarity], relation)])
    said = messages(fitting.lists, [relation], shrunk, embeddings)[0]
    own, targets = fitting.own.astype(np.float32), fitting.targets

    def weights_of(rows: npt.NDArray[np.bool_]) -> Array:
        start = OwnPath(
            np.zeros(targets.shape[1], np.float32), (np.zeros((said.shape[1], targets.shape[1]), np.float32),)
        )
        found = fit_own_path(
            [said[rows]], targets[rows], [PENALTY], exclusive=exclusive, offset=own[rows], start=start, steps=30
        )
        # The bias is dropped: what nobody sends is not the references'.
        return found.weights[0]

    sent = np.zeros((len(bank), targets.shape[1]), np.float32)
    for number in np.unique(fold):
        others = fold[places] != number
        head = weights_of(others if others.any() else ~others)
        sent[fold == number] = network_of(head, bank.described.embeddings[fold == number], bank.centre)
    return weights_of(np.ones(len(places), bool)), sent
