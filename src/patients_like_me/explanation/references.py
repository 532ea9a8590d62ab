"""The references of an instance: up to ten of its neighbours in the patient graph, the nearest in embedding space."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from patients_like_me.explanation.scene import Scene

MOST_REFERENCES = 10


@dataclass(frozen=True)
class Reference:
    """A neighbour that is shown as evidence: its node, its instance row, the diagnoses shared and the cosine."""

    node: int
    row: int
    weight: int
    cosine: float


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
