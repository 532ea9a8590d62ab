"""The patient graph the plain way: a sparse product, then loops. Slow, short, and the measure of the kernels."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from patients_like_me.graph import GraphSettings, PatientGraph
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets

Edges = dict[tuple[int, int], int]


def overlaps(sets: DiagnosisSets) -> np.ndarray:
    """Return the matrix of shared diagnoses; zero between instances of one patient."""
    ones = np.ones(len(sets.codes), dtype=np.int32)
    matrix = csr_matrix((ones, sets.codes, sets.indptr), shape=(len(sets), max(len(sets.vocabulary), 1)))
    product = (matrix @ matrix.T).toarray()
    product[sets.patients[:, None] == sets.patients[None, :]] = 0
    return product


def plain_edges(sets: DiagnosisSets, settings: GraphSettings) -> Edges:
    """Return every stored entry (row, neighbour) with its weight."""
    product = overlaps(sets)
    sizes = np.diff(sets.indptr)
    splits = np.full(len(sets), "all") if sets.splits is None else sets.splits
    seen: dict[int, int] = {}
    rounds = np.array([seen.update({who: seen.get(who, -1) + 1}) or seen[who] for who in sets.patients.tolist()])
    kept: Edges = {}
    for row in range(len(sets)):
        allowed = splits == ("train" if settings.references == "bank" else splits[row])
        if settings.references == "cohort" and sets.splits is not None:
            allowed &= rounds == rounds[row]
        candidates = [int(other) for other in np.flatnonzero(allowed) if product[row, other] >= max(settings.tau, 1)]
        candidates.sort(key=lambda other: (-product[row, other], sizes[other], other))
        for other in candidates[: settings.max_neighbors]:
            kept[row, other] = int(product[row, other])
            if settings.references == "cohort":
                kept[other, row] = int(product[row, other])
    return kept


def stored_edges(graph: PatientGraph) -> Edges:
    """Return the entries of a graph in the same form, checking that rows are sorted."""
    edges: Edges = {}
    for row in range(len(graph)):
        neighbors, weights = graph.neighbors_of(row)
        assert (np.diff(neighbors) > 0).all()
        edges.update({(row, int(other)): int(weight) for other, weight in zip(neighbors, weights, strict=True)})
    return edges


def random_sets(
    seed: int,
    instances: int,
    *,
    codes: int = 60,
    mean_size: float = 12,
    patients: int | None = None,
    splits: bool = False,
) -> DiagnosisSets:
    """Draw sets of skewed popularity; patients have their instances anywhere, and share a split."""
    generator = np.random.default_rng(seed)
    popularity = np.exp(-np.arange(codes) / (codes / 4))
    sizes = np.minimum(generator.poisson(mean_size, instances), codes)
    rows = [np.sort(generator.choice(codes, size, replace=False, p=popularity / popularity.sum())) for size in sizes]
    people = generator.integers(patients or max(instances, 1), size=instances).astype(np.int32)
    return DiagnosisSets(
        indptr=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        codes=np.concatenate([*rows, np.empty(0)]).astype(np.int32),
        patients=people,
        instance_ids=tuple(f"visit {number}" for number in range(instances)),
        vocabulary=tuple(f"c{code}" for code in range(codes)),
        splits=np.array(["train", "validation", "train", "test"])[people % 4] if splits else None,
        cohort_hash="made up",
    )


@st.composite
def diagnosis_sets(draw: st.DrawFn, *, splits: bool = False, largest: int = 40) -> DiagnosisSets:
    """Draw a cohort: also empty ones, empty sets, one node, and patients with many instances."""
    return random_sets(
        draw(st.integers(0, 2**32 - 1)),
        draw(st.integers(0, largest)),
        codes=draw(st.sampled_from([1, 7, 64, 65, 1200])),
        mean_size=draw(st.sampled_from([0.5, 4, 20, 90])),
        patients=draw(st.sampled_from([None, 1, 5, 20])),
        splits=splits,
    )


graph_settings = st.builds(
    GraphSettings, tau=st.sampled_from([1, 2, 3, 8, 30, 70]), max_neighbors=st.sampled_from([None, 1, 2, 5, 100])
)
