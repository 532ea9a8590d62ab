"""What each reference gives to an answer: exact shares of the correction, and the importance of an edge.

    share_ijk = sum_r (gamma_r + delta_rk) A^r_ij R_jk / (d^r_i + lambda_r)        sum_j share_ijk = z_ik - u_ik
    Imp^r_ijk = dz_ik / dA^r_ij = (gamma_r + delta_rk) (R_jk - m^r_ik) / (d^r_i + lambda_r)

A share tells how much of the correction comes from a reference; the importance tells how the answer would change if the
two patients were slightly more alike. Both are closed forms: nothing is sampled or approximated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from patients_like_me.systems.reference_path.gates import Gates
from patients_like_me.systems.reference_path.links import Array
from patients_like_me.systems.reference_path.relations import Neighbours, Relation, Sent, raised, sent_by


@dataclass(frozen=True)
class ReferenceShares:
    """The references of one instance: places in the bank [J], their shares [J, K] and importances [R, J, K].

    The importance is 0 for a relation in which the instance does not have that reference.
    """

    references: npt.NDArray[np.int64]
    shares: npt.NDArray[np.float64]
    importance: npt.NDArray[np.float64]

    def strongest(self, output: int, most: int) -> npt.NDArray[np.int64]:
        """Return the positions of the references with the largest shares in size, for one output."""
        order: npt.NDArray[np.int64] = np.argsort(-np.abs(self.shares[:, output]), kind="stable")[:most]
        return order


def reference_shares(
    instance: int,
    lists: Mapping[str, Neighbours],
    relations: Sequence[Relation],
    lambdas: npt.NDArray[np.float64],
    sent: Sent,
    gates: Gates,
) -> ReferenceShares:
    """Return shares and importances of all references of one instance, strongest total share first."""
    outputs = gates.values.shape[1]
    # Where all gates are closed nobody was looked for.
    nobody = np.zeros(0, np.int64), np.zeros(0)
    members = [
        _members(lists[relation.similarity], instance, relation.k) if lists else nobody for relation in relations
    ]
    references = np.unique(np.concatenate([nobody[0], *(columns for columns, _ in members)]))
    shares = np.zeros((len(references), outputs))
    importance = np.zeros((len(relations), len(references), outputs))
    for number, (relation, (columns, similarities)) in enumerate(zip(relations, members, strict=True)):
        weights = raised(similarities, relation.power)[:, None]
        said = sent_by(sent, relation)[columns].astype(np.float64)
        denominator = weights.sum() + lambdas[number]
        message = (weights * said).sum(axis=0) / denominator
        places = np.searchsorted(references, columns)
        np.add.at(shares, places, gates.values[number] * weights * said / denominator)
        importance[number, places] = gates.values[number] * (said - message) / denominator
    order = np.argsort(-np.abs(shares).sum(axis=1), kind="stable")
    return ReferenceShares(references[order], shares[order], importance[:, order])


def _members(neighbours: Neighbours, instance: int, k: int) -> tuple[npt.NDArray[np.int64], Array]:
    """Return the first k references of an instance, without the unused places: places in the bank, similarities."""
    similarities = neighbours.similarities[instance, :k]
    used = similarities > 0
    return neighbours.columns[instance, :k][used].astype(np.int64), similarities[used]
