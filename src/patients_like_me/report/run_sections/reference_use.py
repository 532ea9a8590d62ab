"""Who serves as a reference for whom, counted over all evaluated instances at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from patients_like_me.explanation.references import MOST_REFERENCES, shown_places
from patients_like_me.explanation.scene import Scene
from patients_like_me.explanation.target_edges import TargetEdges

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ReferenceUse:
    """The shown references of every evaluated instance, an entry for each pair.

    ``target`` numbers the evaluated instances from 0; ``target_patient``, ``reference_patient`` and ``reference`` (a
    node) say who is shown to whom. ``neighbors`` counts the neighbours of every evaluated instance, shown or not;
    ``diagnoses`` the distinct diagnoses of every node; ``candidates`` are the nodes that could be shown.
    """

    target: Integers
    reference: Integers
    target_patient: Integers
    reference_patient: Integers
    neighbors: Integers
    patients: Integers
    candidates: Integers
    diagnoses: Integers

    @property
    def edges(self) -> int:
        """The number of shown pairs."""
        return len(self.target)

    @cached_property
    def shown(self) -> Integers:
        """How many references each evaluated instance shows."""
        return np.bincount(self.target, minlength=len(self.neighbors)).astype(np.int64)

    @cached_property
    def audiences(self) -> dict[int, int]:
        """To how many evaluated patients each reference patient is shown, the most used first."""
        pairs = np.unique(np.stack([self.reference_patient, self.target_patient]), axis=1)
        people, counts = np.unique(pairs[0], return_counts=True)
        order = np.lexsort((people, -counts))
        return dict(zip(people[order].tolist(), counts[order].tolist(), strict=True))


def reference_use(scene: Scene, *, most: int = MOST_REFERENCES) -> ReferenceUse:
    """Count the references of all evaluated instances; the same as one by one with ``references_of``.

    Of references that bring their outcomes these are the most similar, who are behind support and counted outcomes.
    """
    graph = scene.graph
    own = np.arange(len(graph) - len(scene.own_rows), len(graph))
    edges = TargetEdges.of(graph.indptr, graph.neighbors, own)
    numbers, weights = edges.target_of_edge, graph.weights[edges.entries].astype(np.int64)
    kept = shown_places(edges, weights, scene.compared, most=most)
    patients = np.asarray(graph.sets.patients, dtype=np.int64)
    return ReferenceUse(
        target=numbers[kept],
        reference=edges.neighbors[kept],
        target_patient=patients[own][numbers[kept]],
        reference_patient=patients[edges.neighbors[kept]],
        neighbors=np.diff(edges.indptr),
        patients=patients,
        candidates=np.flatnonzero(~graph.evaluated),
        diagnoses=np.asarray(graph.own_codes, dtype=np.int64),
    )
