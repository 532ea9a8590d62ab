"""Relations: in which ways two instances are alike, as lists of the strongest references of every instance.

A similarity (IDF-weighted cosine of codes, cosine of embeddings, the paper's count of shared codes) gives every
instance a list of bank instances, strongest first. A relation r reads the first k of such a list with the similarity to
a power: A^r_ij = s_ij^power. Several k and several powers are relations of their own; each gets its own gate.

Columns are bank instances only, and no list holds an instance of the same patient. The lists come from the exact
kernels of :mod:`patients_like_me.graph.weighted_index` and :mod:`patients_like_me.graph.dense_neighbors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.graph.weighted_index import Strongest
from patients_like_me.graph.weighted_rows import WeightedRows
from patients_like_me.systems.reference_path.links import Array

#: Names of patients, sites or folds, one per instance; compared for equality only.
Names = npt.NDArray[Any]

OUTCOMES: Final = "outcomes"
NETWORK: Final = "network"
#: What the instances of a bank send [J, K]: one thing for all relations, or by :attr:`Relation.sends`.
Sent = Array | Mapping[str, Array]

STRONGEST: Final = (30, 100, 300)
POWERS: Final = (3.0,)


@dataclass(frozen=True)
class Neighbours:
    """The strongest references of every instance: places in the bank [N, k] and similarities [N, k], falling.

    A similarity of 0 marks an unused place (its column is 0).
    """

    columns: npt.NDArray[np.int32]
    similarities: npt.NDArray[np.float32]

    def rows(self, rows: npt.NDArray[Any]) -> Neighbours:
        """Return the lists of some instances."""
        return Neighbours(self.columns[rows], self.similarities[rows])


@dataclass(frozen=True)
class Relation:
    """The strongest ``k`` of one similarity, weighted by the similarity to a power.

    >>> str(Relation("all codes", 30, 3.0))
    'all codes, strongest 30, power 3'
    """

    similarity: str
    k: int
    power: float = 1.0
    #: What its references send: their outcomes (residuals), or what a network makes of their embeddings.
    sends: str = OUTCOMES

    def __str__(self) -> str:
        network = "" if self.sends == OUTCOMES else f", {self.sends}"
        return f"{self.similarity}, strongest {self.k}, power {self.power:g}{network}"

    def weights(self, neighbours: Neighbours) -> npt.NDArray[np.float64]:
        """Return A^r_ij [N, k] for the first k columns of the lists."""
        return raised(neighbours.similarities[:, : self.k], self.power)


def sent_by(sent: Sent, relation: Relation) -> Array:
    """Return what the references of a relation send."""
    return sent[relation.sends] if isinstance(sent, Mapping) else sent


def raised(similarities: Array, power: float) -> npt.NDArray[np.float64]:
    """Return similarities to a power; unused places stay 0."""
    found: npt.NDArray[np.float64] = similarities.astype(np.float64) ** power
    return found


def relations_of(
    lists: Mapping[str, Neighbours], strongest: tuple[int, ...] = STRONGEST, powers: tuple[float, ...] = POWERS
) -> tuple[Relation, ...]:
    """Return every combination of similarity, k and power; a k above the lists' length is cut to it, once.

    >>> lists = {"codes": Neighbours(np.zeros((1, 5), np.int32), np.ones((1, 5), np.float32))}
    >>> [str(relation) for relation in relations_of(lists, (2, 10, 30), (1.0,))]
    ['codes, strongest 2, power 1', 'codes, strongest 5, power 1']
    """
    return tuple(
        Relation(name, k, power)
        for name, found in lists.items()
        for power in powers
        for k in sorted({min(k, found.columns.shape[1]) for k in strongest})
    )


def neighbours_of(found: Strongest, at_least: float = 0.0) -> Neighbours:
    """Return what the kernels found as lists; similarities below ``at_least`` (the paper's tau) are not references.

    >>> found = Strongest(np.array([[2, -1]], np.int32), np.array([[0.5, 0.0]], np.float32))
    >>> neighbours_of(found).columns.tolist()
    [[2, 0]]
    """
    used = (found.neighbors >= 0) & (found.similarities > 0) & (found.similarities >= at_least)
    return Neighbours(
        np.where(used, found.neighbors, 0).astype(np.int32), np.where(used, found.similarities, 0).astype(np.float32)
    )


def inverse_frequencies(bank_codes: Any) -> npt.NDArray[np.float64]:
    """Return log((n + 1) / (n_c + 1)) per code from the bank's rows: codes that everybody has tell nothing.

    >>> inverse_frequencies(np.array([[1, 1], [1, 0], [1, 0]])).round(2).tolist()
    [0.0, 0.69]
    """
    present = np.asarray((bank_codes != 0).sum(axis=0)).ravel()
    found: npt.NDArray[np.float64] = np.log((bank_codes.shape[0] + 1.0) / (present + 1.0))
    return found


def weighted_codes(codes: Any, weights: npt.NDArray[np.float64]) -> WeightedRows:
    """Return presence times the code's weight as rows of length 1: their overlaps are the IDF-weighted cosines."""
    from scipy.sparse import csr_array

    rows = csr_array(codes)
    present = WeightedRows.of(rows.indptr, rows.indices, rows.data != 0, number_of_codes=rows.shape[1])
    return present.times(weights).normalised()


def centred_embeddings(embeddings: Array, centre: Array) -> npt.NDArray[np.float32]:
    """Return unit rows around the bank's mean; uncentred sentence embeddings are all nearly parallel."""
    moved = embeddings - centre
    lengths = np.sqrt((moved**2).sum(axis=1, keepdims=True))
    found: npt.NDArray[np.float32] = (moved / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
    return found


def numbered(names: Sequence[Any], known: Sequence[Any]) -> npt.NDArray[np.int64]:
    """Return the place of every name among the distinct known ones, -1 for one that is not among them or missing.

    >>> numbered(["b", None, "x"], ["a", "b", None]).tolist()
    [1, -1, -1]
    """
    return looked_up(names, places_of(known))


def places_of(known: Sequence[Any]) -> dict[Any, int]:
    """Return the place of every distinct name in the order of their first appearance; None is not a name."""
    return {name: number for number, name in enumerate(dict.fromkeys(name for name in known if name is not None))}


def looked_up(names: Sequence[Any], places: Mapping[Any, int]) -> npt.NDArray[np.int64]:
    """Return the place of every name, -1 for one that has none."""
    return np.array([places.get(name, -1) for name in names], dtype=np.int64)


def pairs_of_names(first: Names, second: Names) -> npt.NDArray[np.int64]:
    """Return one number per pair of names, for groups by two things: the fold and the site.

    >>> pairs_of_names(np.array(["a", "a", "b"]), np.array([0, 1, 0])).tolist()
    [0, 1, 2]
    """
    numbered = [np.unique(names, return_inverse=True)[1] for names in (first, second)]
    found: npt.NDArray[np.int64] = numbered[0] * (int(numbered[1].max(initial=0)) + 1) + numbered[1]
    return found
