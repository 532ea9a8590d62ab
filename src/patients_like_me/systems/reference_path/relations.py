"""Relations: in which ways two instances are alike, as lists of the strongest references of every instance.

A similarity (IDF-weighted cosine of codes, cosine of embeddings, the paper's count of shared codes) gives every
instance a list of bank instances, strongest first. A relation r reads the first k of such a list with the similarity to
a power: A^r_ij = s_ij^power. Several k and several powers are relations of their own; each gets its own gate.

Columns are bank instances only, and no list holds an instance of the same patient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.systems.reference_path.links import Array

#: Names of patients, sites or folds, one per instance; compared for equality only.
Names = npt.NDArray[Any]

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

    def __str__(self) -> str:
        return f"{self.similarity}, strongest {self.k}, power {self.power:g}"

    def weights(self, neighbours: Neighbours) -> npt.NDArray[np.float64]:
        """Return A^r_ij [N, k] for the first k columns of the lists."""
        return raised(neighbours.similarities[:, : self.k], self.power)


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


def inverse_frequencies(bank_codes: Any) -> npt.NDArray[np.float64]:
    """Return log((n + 1) / (n_c + 1)) per code from the bank's rows: codes that everybody has tell nothing.

    >>> inverse_frequencies(np.array([[1, 1], [1, 0], [1, 0]])).round(2).tolist()
    [0.0, 0.69]
    """
    present = np.asarray((bank_codes != 0).sum(axis=0)).ravel()
    found: npt.NDArray[np.float64] = np.log((bank_codes.shape[0] + 1.0) / (present + 1.0))
    return found


def weighted_codes(codes: Any, weights: npt.NDArray[np.float64]) -> Any:
    """Return presence times the code's weight as CSR rows of length 1: their products are the IDF-weighted cosines."""
    from scipy.sparse import csr_array, diags_array

    present = csr_array(codes != 0).astype(np.float32)
    weighted = csr_array(present @ diags_array(weights.astype(np.float32)))
    lengths = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel())
    return csr_array(diags_array((1.0 / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)) @ weighted)


def centred_embeddings(embeddings: Array, centre: Array) -> npt.NDArray[np.float32]:
    """Return unit rows around the bank's mean; uncentred sentence embeddings are all nearly parallel."""
    moved = embeddings - centre
    lengths = np.sqrt((moved**2).sum(axis=1, keepdims=True))
    found: npt.NDArray[np.float32] = (moved / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
    return found


def strongest(
    queries: Any,
    bank: Any,
    k: int,
    *,
    patients: tuple[Names, Names],
    at_least: float = 0.0,
    block: int = 512,
) -> Neighbours:
    """Return the bank rows with the largest products queries @ bank.T, never of the same patient.

    ``patients`` names the patient of every query and of every bank row. Products below ``at_least`` (the paper's tau)
    or not above 0 are no references. Of equal products the earlier bank row comes first among those that are kept.
    Both matrices are CSR arrays or both are numpy matrices.

    >>> codes = np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    >>> found = strongest(codes, codes, 2, patients=(np.arange(3), np.arange(3)))
    >>> found.columns.tolist(), found.similarities.tolist()
    ([[1, 2], [0, 0], [0, 0]], [[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    """
    size, most = queries.shape[0], min(k, bank.shape[0])
    columns, similarities = np.zeros((size, k), np.int32), np.zeros((size, k), np.float32)
    turned = bank.T.tocsr() if hasattr(bank, "tocsr") else bank.T
    for start in range(0, size if most else 0, block):
        rows = slice(start, min(start + block, size))
        product = queries[rows] @ turned
        full = product.toarray() if hasattr(product, "toarray") else np.array(product)
        full[patients[0][rows, None] == patients[1][None, :]] = 0
        full[full < at_least] = 0
        first = np.argpartition(-full, most - 1, axis=1)[:, :most]
        found = np.take_along_axis(full, first, axis=1)
        order = np.lexsort((first, -found), axis=1)
        falling = np.maximum(np.take_along_axis(found, order, axis=1), 0)
        similarities[rows, :most] = falling
        columns[rows, :most] = np.where(falling > 0, np.take_along_axis(first, order, axis=1), 0)
    return Neighbours(columns, similarities)


def strongest_within(
    queries: Any,
    bank: Any,
    k: int,
    *,
    patients: tuple[Names, Names],
    groups: tuple[Names, Names],
    search: Callable[..., Neighbours] = strongest,
) -> Neighbours:
    """Return the strongest references of the query's own group: its site, or its fold while gates are fitted.

    ``groups`` names the group of every query and of every bank row; each group is a search of its own in its part of
    the bank, with whatever ``search`` is given.

    >>> codes, people, sites = np.ones((4, 1)), np.arange(4), np.array(["a", "b", "a", "b"])
    >>> strongest_within(codes, codes, 1, patients=(people, people), groups=(sites, sites)).columns.ravel().tolist()
    [2, 3, 0, 1]
    """
    columns = np.zeros((queries.shape[0], k), np.int32)
    similarities = np.zeros((queries.shape[0], k), np.float32)
    for group in np.unique(groups[0]):
        rows, members = np.flatnonzero(groups[0] == group), np.flatnonzero(groups[1] == group)
        if not len(members):
            continue
        found = search(queries[rows], bank[members], k, patients=(patients[0][rows], patients[1][members]))
        similarities[rows] = found.similarities
        columns[rows] = np.where(found.similarities > 0, members[found.columns], 0)
    return Neighbours(columns, similarities)


def pairs_of_names(first: Names, second: Names) -> npt.NDArray[np.int64]:
    """Return one number per pair of names, for groups by two things: the fold and the site.

    >>> pairs_of_names(np.array(["a", "a", "b"]), np.array([0, 1, 0])).tolist()
    [0, 1, 2]
    """
    numbered = [np.unique(names, return_inverse=True)[1] for names in (first, second)]
    found: npt.NDArray[np.int64] = numbered[0] * (int(numbered[1].max(initial=0)) + 1) + numbered[1]
    return found
