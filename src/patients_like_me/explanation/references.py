"""The references of an instance: up to ten of its neighbours in the patient graph, the nearest in embedding space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from patients_like_me.explanation.scene import Scene
from patients_like_me.explanation.target_edges import TargetEdges

MOST_REFERENCES = 10
_EDGES_AT_ONCE = 100_000


@dataclass(frozen=True)
class Reference:
    """A neighbour that is shown as evidence: its node, its instance row, the diagnoses shared and the cosine."""

    node: int
    row: int
    weight: int
    cosine: float


def shown_places(
    edges: TargetEdges,
    weights: npt.NDArray[np.int64],
    directions: Any,
    *,
    most: int = MOST_REFERENCES,
) -> npt.NDArray[np.int64]:
    """Return the places of the edges to the references of many targets at once, as :func:`references_of` chooses them.

    ``weights`` belong to the edges, ``directions`` are the embeddings of all nodes scaled to length 1: an array, or
    sparse rows. The places are ordered by target, then by cosine.
    """
    numbers = edges.target_of_edge
    cosines = np.empty(edges.edges)
    for start in range(0, edges.edges, _EDGES_AT_ONCE):
        part = slice(start, start + _EDGES_AT_ONCE)
        ends = directions[edges.targets[numbers[part]]], directions[edges.neighbors[part]]
        if isinstance(directions, np.ndarray):
            cosines[part] = np.einsum("ef,ef->e", *ends)
        else:
            cosines[part] = ends[0].multiply(ends[1]).sum(axis=1)
    order = np.lexsort((edges.neighbors, -weights, -cosines, numbers))
    rank = np.arange(edges.edges) - edges.indptr[:-1][numbers[order]]
    return np.asarray(order[rank < most], dtype=np.int64)


def references_of(scene: Scene, node: int, *, most: int = MOST_REFERENCES) -> list[Reference]:
    """Return the references of a node, the highest cosine first.

    All neighbours where there are at most ``most``, else those whose embeddings have the highest cosine with the
    node's own; equal cosines go by the diagnoses shared, then by the order of the nodes.
    """
    neighbors, weights = scene.graph.neighbors_of(node)
    if not len(neighbors):
        return []
    cosines = scene.cosines_to(node)[neighbors]
    order = np.lexsort((neighbors, -weights.astype(np.int64), -cosines))[:most]
    return [
        Reference(int(neighbors[place]), int(scene.rows[neighbors[place]]), int(weights[place]), float(cosines[place]))
        for place in order
    ]
