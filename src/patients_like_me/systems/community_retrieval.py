r"""Communities of a knowledge graph, and which of them a patient needs: KARE's retrieval.

Communities come from Louvain's method; one that is larger than allowed is divided again. For a patient with the nodes
D of the record and the nodes I next to them, the score of a community C is

.. math:: \Big(\frac{|C \cap D|}{|D|} + \alpha \frac{|C \cap I|}{|I|}\Big)
          \prod_{v \in C \cap (D \cup I)} \beta^{h(v)}\
          (1 + \lambda_1 \cos(s_C, x))\ (1 + \lambda_2 \bar t_C)\ (1 + \lambda_3 \max_z \cos(s_C, z))

with h(v) how often a node was hit by communities chosen before, s_C, x and z the vectors of summary, record and themes
of the task, and t the place of the last visit that has a hit node of the record, averaged. The best is taken, hits are
counted, and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from patients_like_me.records.ids import KnownPeople

Floats = npt.NDArray[np.float64]


class RetrievalSettings(BaseModel):
    """The weights of the five factors; the defaults are those of KARE's public code."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    chosen: int = Field(10, ge=0, description="communities per patient")
    indirect: float = Field(0.8, ge=0, description="weight of nodes next to those of the record")
    repeated: float = Field(0.5, gt=0, le=1, description="factor for each time a node was hit before")
    coherence: float = Field(0.1, ge=0, lt=1, description="weight of the likeness of summary and record")
    recency: float = Field(0.1, ge=0, description="weight of the place of the last visit of hit nodes")
    theme: float = Field(0.1, ge=0, lt=1, description="weight of the likeness of summary and the task's themes")


def communities_of(edges: Iterable[tuple[int, int]], nodes: int, most: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """Return communities of at most ``most`` nodes, in a stable order; nodes without an edge are in none.

    >>> communities_of([(0, 1), (1, 2), (0, 2), (3, 4), (2, 3)], 6, 3, seed=0)
    ((0, 1, 2), (3, 4))
    """
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from(sorted({(min(edge), max(edge)) for edge in edges if edge[0] != edge[1]}))
    graph.remove_nodes_from([node for node in range(nodes) if not graph.degree(node)])
    found: list[tuple[int, ...]] = []
    waiting = [tuple(sorted(graph.nodes))] if len(graph) else []
    while waiting:
        members = waiting.pop()
        if len(members) <= most and len(members) < len(graph):
            found.append(members)
            continue
        parts = [tuple(sorted(part)) for part in nx.community.louvain_communities(graph.subgraph(members), seed=seed)]
        if len(parts) == 1:
            # What cannot be told apart by its edges is cut by size.
            parts = [members[at : at + most] for at in range(0, len(members), most)]
            found += parts
        else:
            waiting += parts
    return tuple(sorted(found))


@dataclass(frozen=True)
class Retriever:
    """The communities as a 0/1 matrix [C, V], with vectors of length 1 of their summaries and of the themes."""

    member: Floats
    summaries: Floats
    themes: Floats
    settings: RetrievalSettings

    @classmethod
    def of(
        cls,
        communities: Sequence[Sequence[int]],
        nodes: int,
        summaries: npt.NDArray[np.floating],
        themes: npt.NDArray[np.floating],
        settings: RetrievalSettings,
    ) -> Retriever:
        """Make the matrix, and vectors of length 1."""
        member = np.zeros((len(communities), nodes))
        for at, members in enumerate(communities):
            member[at, list(members)] = 1
        return cls(member, unit(summaries), unit(themes), settings)

    def scores(self, last_visit: Floats, indirect: npt.NDArray[np.bool_], times_hit: Floats, record: Floats) -> Floats:
        """Return the score of every community for one patient.

        ``last_visit`` [V] is the place, from 1, of the last visit that has a node, 0 where the record has it not;
        ``indirect`` [V] marks the nodes next to those of the record, ``times_hit`` [V] counts earlier hits, and
        ``record`` is the record's vector of length 1.
        """
        settings = self.settings
        direct = last_visit > 0
        of_record = self.member @ direct
        near = self.member @ indirect
        base = of_record / max(1, int(direct.sum())) + settings.indirect * near / max(1, int(indirect.sum()))
        repeated = settings.repeated ** (self.member @ (times_hit * (direct | indirect)))
        place = (self.member @ last_visit) / np.maximum(of_record, 1)
        coherence = 1 + settings.coherence * (self.summaries @ record)
        theme = 1 + settings.theme * self._theme
        found: Floats = base * repeated * coherence * (1 + settings.recency * place) * theme
        return found

    @cached_property
    def _theme(self) -> Floats:
        if not len(self.themes):
            return np.zeros(len(self.summaries))
        found: Floats = (self.summaries @ self.themes.T).max(axis=1)
        return found

    def chosen(self, last_visit: Floats, indirect: npt.NDArray[np.bool_], record: Floats) -> list[int]:
        """Return the communities of one patient, the best first; of equal ones the first."""
        times_hit = np.zeros(self.member.shape[1])
        near = (last_visit > 0) | indirect
        left = np.ones(len(self.member), dtype=bool)
        found: list[int] = []
        while len(found) < min(self.settings.chosen, len(self.member)):
            scores = np.where(left, self.scores(last_visit, indirect, times_hit, record), 0.0)
            best = int(scores.argmax())
            if scores[best] <= 0:
                break
            found.append(best)
            left[best] = False
            times_hit += self.member[best] * near
        return found


def unit(vectors: npt.NDArray[np.floating]) -> Floats:
    """Return vectors of length 1; those of nothing stay 0."""
    given = np.asarray(vectors, dtype=np.float64)
    found: Floats = given / np.maximum(np.linalg.norm(given, axis=-1, keepdims=True), 1e-12)
    return found


def nearest_of_each_class(
    queries: Floats,
    query_people: Sequence[str],
    bank: Floats,
    bank_people: Sequence[str],
    bank_labels: npt.NDArray[np.int64],
    shown: int,
    rows_per_block: int = 512,
) -> list[list[int]]:
    """Return for every query the nearest bank row of each class, and of these the ``shown`` nearest, nearest first.

    A row of the same person is never taken. Nothing is known about the label of a query.

    >>> places = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    >>> nearest_of_each_class(places[:1], ["a"], unit(places), ["a", "b", "c"], np.array([0, 0, 1]), 2)
    [[1, 2]]
    """
    number = {person: at for at, person in enumerate(dict.fromkeys(bank_people))}
    of_bank = np.array([number[person] for person in bank_people], dtype=np.int64)
    known = KnownPeople(number)
    classes = np.unique(bank_labels)
    found: list[list[int]] = []
    for first in range(0, len(queries), rows_per_block):
        block = queries[first : first + rows_per_block]
        numbers = [known.number_of(person) for person in query_people[first : first + rows_per_block]]
        people = np.array([-1 if same is None else same for same in numbers])
        alike = np.where(of_bank[None, :] == people[:, None], -np.inf, block @ bank.T)
        best = [np.flatnonzero(bank_labels == label) for label in classes]
        nearest = np.stack([rows[alike[:, rows].argmax(axis=1)] for rows in best], axis=1)
        values = np.take_along_axis(alike, nearest, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")[:, :shown]
        found += [
            [int(nearest[row, at]) for at in order[row] if np.isfinite(values[row, at])] for row in range(len(block))
        ]
    return found
