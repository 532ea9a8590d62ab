"""From triples to the graph that GraphCare reads: entities as vectors of their names, clustered, joined by relations.

Entities are the codes of the training instances and whatever triples say about them. Names are read by a language model
that is not trained; names that mean nearly the same (agglomerative clustering, cosine, average linkage) become one
node, whose vector is the mean of theirs. Relations are clustered in the same way.

:func:`graph_of_triples` takes triples from anywhere: a user's file, a language model, or :func:`ontology_triples`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.systems.training_visits import TrainingVisits
from patients_like_me.systems.triples import Triple, code_entity, touching_codes

Vectors = npt.NDArray[np.float32]
#: names -> one vector each
Embedder = Callable[[Sequence[str]], Vectors]
#: Clustering compares all pairs: 10,000 entities take about 2 GiB.
MOST_ENTITIES: Final = 10_000


@dataclass(frozen=True)
class KnowledgeGraph:
    """Nodes and relations with vectors; ``edges`` [E, 3] are head, relation and tail, in both directions.

    ``node_of_code`` has per kind the node of every code of the vocabulary, in its order.
    """

    nodes: Vectors
    relations: Vectors
    edges: npt.NDArray[np.int64]
    node_of_code: Mapping[str, list[int]]
    entities: int
    #: What nodes and relations are called: the name that came first among those that mean the same.
    node_names: tuple[str, ...] = ()
    relation_names: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Say how large the graph is."""
        return (
            f"knowledge graph: {self.entities:,} entities in {len(self.nodes):,} nodes, "
            f"{len(self.edges) // 2:,} edges and {len(self.relations):,} relations"
        )


def graph_of_triples(
    triples: Iterable[Triple],
    codes: Mapping[str, Sequence[str]],
    names: Mapping[str, str],
    embed: Embedder,
    *,
    threshold: float,
    hops: int,
) -> KnowledgeGraph:
    """Build the graph around the codes; ``names`` are the words for entities, an entity without one is its own name."""
    of_codes = [code_entity(kind, code) for kind, found in codes.items() for code in found]
    near = touching_codes(triples, set(of_codes), hops)
    others = sorted({end for triple in near for end in (triple.head, triple.tail)} - set(of_codes))
    entities = [*of_codes, *others]
    if len(entities) > MOST_ENTITIES:
        raise PlmError(
            f"clustering {len(entities):,} entities would need about {8 * len(entities) ** 2 * 2.5 / 2**30:.0f} GiB",
            remedy=f"give at most {MOST_ENTITIES:,} entities, or lower hops",
        )
    if not near:
        raise PlmError(
            "no triple names a code of the training instances",
            remedy="write codes with their kind, such as diagnosis:108 or medication:A02B",
        )
    words = [names.get(entity, entity) for entity in entities]
    vectors = embed(words)
    cluster = clusters(vectors, threshold)
    kinds = sorted({triple.relation for triple in near})
    relation_vectors = embed([relation.replace("_", " ") for relation in kinds])
    relation_cluster = clusters(relation_vectors, threshold)
    node = dict(zip(entities, cluster.tolist(), strict=True))
    relation = dict(zip(kinds, relation_cluster.tolist(), strict=True))
    one_way = {(node[each.head], relation[each.relation], node[each.tail]) for each in near}
    # Within a node there is nothing to tell.
    both = {edge for head, by, tail in one_way if head != tail for edge in ((head, by, tail), (tail, by, head))}
    places = iter(cluster.tolist())
    return KnowledgeGraph(
        nodes=means(vectors, cluster),
        relations=means(relation_vectors, relation_cluster),
        edges=np.array(sorted(both), dtype=np.int64).reshape(-1, 3),
        node_of_code={kind: [next(places) for _ in found] for kind, found in codes.items()},
        entities=len(entities),
        node_names=_first_of_each(words, cluster),
        relation_names=_first_of_each([relation.replace("_", " ") for relation in kinds], relation_cluster),
    )


def _first_of_each(words: Sequence[str], cluster: npt.NDArray[np.int64]) -> tuple[str, ...]:
    """Return the first word of every cluster; clusters are numbered as they first appear."""
    found = dict(zip(cluster[::-1].tolist(), words[::-1], strict=True))
    return tuple(found[at] for at in range(len(found)))


def clusters(vectors: Vectors, threshold: float) -> npt.NDArray[np.int64]:
    """Return the cluster of each vector: average linkage by cosine distance, numbered as they first appear.

    >>> clusters(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.01]], dtype=np.float32), 0.15).tolist()
    [0, 1, 0]
    """
    if len(vectors) < 2:
        return np.zeros(len(vectors), dtype=np.int64)
    from sklearn.cluster import AgglomerativeClustering

    model = AgglomerativeClustering(n_clusters=None, metric="cosine", linkage="average", distance_threshold=threshold)
    found = model.fit_predict(vectors.astype(np.float64))
    _, first, numbered = np.unique(found, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    result: npt.NDArray[np.int64] = rank[numbered].astype(np.int64)
    return result


def means(vectors: Vectors, cluster: npt.NDArray[np.int64]) -> Vectors:
    """Return the mean vector of every cluster."""
    sums = np.zeros((int(cluster.max(initial=-1)) + 1, vectors.shape[1]))
    np.add.at(sums, cluster, vectors)
    found: Vectors = (sums / np.bincount(cluster)[:, None]).astype(np.float32)
    return found


def ontology_triples(
    visits: TrainingVisits, ancestors: Mapping[str, Mapping[str, Sequence[str]]], co_occurring: int
) -> list[Triple]:
    """Return hierarchies and co-occurrence in training as triples.

    A code belongs to its nearest group and a group to the one above; a code occurs with the codes of any kind with
    which it has the largest PMI in training visits.
    """
    found: list[Triple] = []
    for kind, of_kind in ancestors.items():
        for code, above in sorted(of_kind.items()):
            path = [code_entity(kind, code), *(group_entity(kind, group) for group in above)]
            found += [Triple(low, "belongs to", high) for low, high in pairwise(path)]
    kinds = list(visits.codes)
    for kind in kinds:
        for place, partners in enumerate(visits.partners(kind, kinds, co_occurring)):
            own = code_entity(kind, visits.codes[kind][place])
            found += [
                Triple(own, f"occurs with {other}", code_entity(other, visits.codes[other][at]))
                for other, at, _ in partners
            ]
    return list(dict.fromkeys(found))


def group_entity(kind: str, group: str) -> str:
    """Return how a group of codes is written.

    >>> group_entity("diagnosis", "7.2")
    'diagnosis group 7.2'
    """
    return f"{kind} group {group}"


def names_of_groups(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the names of groups by entity, where they have one."""
    return {
        group_entity(kind, group): str(name)
        for kind, found in groups.items()
        for group, name in found.items()
        if name and name != group
    }
