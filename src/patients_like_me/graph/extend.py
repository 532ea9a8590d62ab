"""Newcomers: linking them to a graph that exists, exactly as building it anew would."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.graph.node_sets import aligned, check_sets, joined, taken
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets

Numbering = Literal["shared", "new"]


@dataclass(frozen=True, eq=False)
class Links:
    """The neighbours of newcomers in a graph, as CSR: row ``i`` is newcomer ``i``, columns are nodes of the graph."""

    instance_ids: tuple[str, ...]
    indptr: npt.NDArray[np.int64]
    neighbors: npt.NDArray[np.int32]
    weights: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def neighbors_of(self, newcomer: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
        """Return the neighbours of one newcomer and the number of diagnoses shared with each."""
        row = slice(self.indptr[newcomer], self.indptr[newcomer + 1])
        return self.neighbors[row], self.weights[row]


def link(
    graph: PatientGraph, newcomers: DiagnosisSets, *, patients: Numbering = "shared", threads: int | None = None
) -> Links:
    """Find the neighbours of newcomers among the nodes they may be linked to, without touching the graph.

    These are the training instances in ``bank`` mode, else the instances of the newcomers' split. Newcomers are not
    linked to each other. The first call builds the bit rows of those nodes; later ones take milliseconds.

    Newcomers without splits count as ``test``. ``patients='shared'``: their patient numbers mean the same persons as
    those of the graph, so nobody is linked to an earlier instance of the same patient. ``'new'``: none of the newcomers
    is in the graph.
    """
    newcomers = _prepared(graph, newcomers, patients)
    columns = _linkable_nodes(graph, newcomers)
    indptr, neighbors, weights = _against(graph, columns, newcomers, threads)
    return Links(newcomers.instance_ids, indptr, columns[neighbors].astype(np.int32), weights)


def extend(
    graph: PatientGraph, newcomers: DiagnosisSets, *, patients: Numbering = "shared", threads: int | None = None
) -> PatientGraph:
    """Return the graph with the newcomers as further nodes, equal to building it anew from all instances.

    In ``bank`` mode the newcomers are evaluated instances: they receive from the bank, and no other row changes. In
    ``cohort`` mode they join the graph of their split: they are linked to its nodes and to each other, and where
    ``max_neighbors`` is set a newcomer may take the place of a weaker neighbour. ``patients`` as in :func:`link`.
    """
    newcomers = _prepared(graph, newcomers, patients)
    sets = joined(graph.sets, newcomers)
    if graph.settings.references == "bank":
        return _with_evaluated(graph, newcomers, sets, threads)
    return _with_members(graph, newcomers, sets, threads)


def _prepared(graph: PatientGraph, newcomers: DiagnosisSets, patients: Numbering) -> DiagnosisSets:
    """Check newcomers and bring them to the graph's vocabulary, numbering and splits."""
    check_sets(newcomers)
    for instance in newcomers.instance_ids:
        if instance in graph.node_of_instance:
            raise PlmError(
                f"the instance '{instance}' is in the graph already", remedy="give newcomers ids of their own"
            )
    newcomers = aligned(newcomers, graph.sets.vocabulary)
    if patients == "new":
        beyond = int(graph.sets.patients.max(initial=-1)) + 1
        numbers = np.unique(newcomers.patients, return_inverse=True)[1]
        newcomers = replace(newcomers, patients=(beyond + numbers).astype(np.int32))
    if graph.splits is None:
        return replace(newcomers, splits=None)
    if newcomers.splits is None:
        newcomers = replace(newcomers, splits=np.full(len(newcomers), "test"))
    if graph.settings.references == "bank" and np.any(newcomers.splits == "train"):
        raise PlmError(
            "a newcomer to a bank is evaluated and has no known outcome, so its split cannot be 'train'",
            remedy="build the graph again to take labelled instances into the bank",
        )
    return newcomers


def _linkable_nodes(graph: PatientGraph, newcomers: DiagnosisSets) -> npt.NDArray[np.int64]:
    if graph.splits is None:
        return np.arange(len(graph))
    if graph.settings.references == "bank":
        return np.flatnonzero(graph.splits == "train")
    wanted = np.unique(newcomers.splits) if newcomers.splits is not None else np.array(["test"])
    if len(wanted) > 1:
        raise PlmError(
            f"the newcomers are of {len(wanted)} splits, which are separate graphs here",
            remedy="link the newcomers of one split at a time",
        )
    return np.flatnonzero(graph.splits == wanted[0]) if len(wanted) else np.arange(0)


def _against(
    graph: PatientGraph, columns: npt.NDArray[np.int64], rows: DiagnosisSets, threads: int | None
) -> tuple[Any, Any, Any]:
    """Find the kept neighbours of rows among nodes of the graph, with bit rows that stay with the graph."""
    from patients_like_me.graph.neighbors import find_neighbors

    index = _index_of(graph, columns)
    places = index.rows(rows.indptr, rows.codes, rows.patients)
    return find_neighbors(
        index,
        places,
        np.arange(len(rows)),
        tau=graph.settings.tau,
        max_neighbors=graph.settings.max_neighbors,
        threads=threads,
    )


def _index_of(graph: PatientGraph, columns: npt.NDArray[np.int64]) -> Any:
    """Return the bit rows of some nodes; those of the last set of nodes are kept on the graph."""
    kept = graph.__dict__.get("_kept_index")
    if kept is not None and np.array_equal(kept[0], columns):
        return kept[1]
    index = _index(taken(graph.sets, columns), graph)
    graph.__dict__["_kept_index"] = (columns, index)
    return index


def _index(sets: DiagnosisSets, graph: PatientGraph) -> Any:
    from patients_like_me.graph.bit_index import BitIndex

    # Codes of a single node have a bit row here: a newcomer may share them.
    return BitIndex.build(
        sets.indptr,
        sets.codes,
        sets.patients,
        len(sets.vocabulary),
        order="index" if graph.settings.max_neighbors is None else "preference",
        shared_codes_only=False,
    )


def _with_evaluated(
    graph: PatientGraph, newcomers: DiagnosisSets, sets: DiagnosisSets, threads: int | None
) -> PatientGraph:
    columns = _linkable_nodes(graph, newcomers)
    indptr, neighbors, weights = _against(graph, columns, newcomers, threads)
    return PatientGraph(
        sets,
        graph.settings,
        np.concatenate([graph.indptr, graph.indptr[-1] + indptr[1:]]),
        np.concatenate([graph.neighbors, columns[neighbors].astype(np.int32)]),
        np.concatenate([graph.weights, weights]),
    )


def _with_members(
    graph: PatientGraph, newcomers: DiagnosisSets, sets: DiagnosisSets, threads: int | None
) -> PatientGraph:
    """Extend the graph of each split that newcomers join; the others stay as they are."""
    from patients_like_me.graph.merging import scattered

    groups = ["all"] if sets.splits is None else [str(name) for name in np.unique(sets.splits)]
    pieces = []
    for group in groups:
        every = np.arange(len(sets)) if sets.splits is None else np.flatnonzero(sets.splits == group)
        old, new = every[every < len(graph)], every[every >= len(graph)]
        local = graph if len(old) == len(graph) else graph.sub_graph(old)
        csr = (local.indptr, local.neighbors, local.weights)
        if len(new):
            csr = _joined_rows(local, taken(sets, new), taken(sets, every), threads)
        pieces.append((every, csr[0], every, csr[1], csr[2]))
    return PatientGraph(sets, graph.settings, *scattered(pieces, len(sets)))


def _joined_rows(
    graph: PatientGraph, newcomers: DiagnosisSets, together: DiagnosisSets, threads: int | None
) -> tuple[Any, Any, Any]:
    """Return the rows of one split's graph with its newcomers numbered after its nodes.

    What a node keeps is the best of what it kept and of the newcomers. What it kept is found again in its row: the row
    also holds the nodes that keep *it*, but all of them are candidates, so the best of the row are the best of all.
    """
    from patients_like_me.graph.merging import best_of, side_by_side, symmetrized
    from patients_like_me.graph.neighbors import find_neighbors

    settings = graph.settings
    old = len(graph)
    to_old = _against(graph, np.arange(old), newcomers, threads)
    index = _index(newcomers, graph)
    rows = index.rows(together.indptr, together.codes, together.patients)
    to_new = find_neighbors(
        index,
        rows,
        np.arange(len(together)),
        tau=settings.tau,
        max_neighbors=settings.max_neighbors,
        threads=threads,
    )
    to_new = (to_new[0], (to_new[1] + old).astype(np.int32), to_new[2])
    known = (
        np.concatenate([graph.indptr, graph.indptr[-1] + to_old[0][1:]]),
        np.concatenate([graph.neighbors, to_old[1]]),
        np.concatenate([graph.weights, to_old[2]]),
    )
    candidates = side_by_side(known, to_new)
    if settings.max_neighbors is None:
        return candidates
    return symmetrized(*best_of(candidates, np.diff(together.indptr), settings.max_neighbors))
