"""Newcomers: linking them to a bank that exists, exactly as building the graph again would.

Newcomers are evaluated instances: they receive from the nodes of the bank and send nothing, so no other row changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.graph.node_sets import aligned, check_sets, joined, taken
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.sub_rows import continued
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets

Numbering = Literal["shared", "new"]


@dataclass(frozen=True, eq=False)
class Links:
    """The neighbours of newcomers in a graph, as CSR: row ``i`` is newcomer ``i``, columns are nodes of the graph.

    ``sets`` are the newcomers in the vocabulary, numbering and splits of the graph.
    """

    sets: DiagnosisSets
    indptr: npt.NDArray[np.int64]
    neighbors: npt.NDArray[np.int32]
    weights: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.indptr) - 1


def link(
    graph: PatientGraph, newcomers: DiagnosisSets, *, patients: Numbering = "shared", threads: int | None = None
) -> Links:
    """Find the neighbours of newcomers among the training instances of a bank, without touching the graph.

    A graph without splits is a bank as a whole. Newcomers are not linked to each other. The first call builds the bit
    rows of the bank; later ones take milliseconds. ``patients='shared'``: the patient numbers of the newcomers mean the
    same persons as those of the graph, so nobody is linked to an earlier instance of the same patient. ``'new'``: none
    of the newcomers is in the graph.
    """
    from patients_like_me.graph.neighbors import find_neighbors
    from patients_like_me.graph.person_filter import find_allowed

    newcomers = _prepared(graph, newcomers, patients)
    bank = graph.bank_nodes
    settings = graph.settings
    if settings.compares_people:
        selection = np.arange(len(newcomers))
        indptr, neighbors, weights = find_allowed(
            taken(graph.sets, bank), newcomers, selection, settings, threads=threads
        )
        return Links(newcomers, indptr, bank[neighbors].astype(np.int32), weights)
    index = _index_of(graph, bank)
    rows = index.rows(newcomers.indptr, newcomers.codes, newcomers.patients)
    indptr, neighbors, weights = find_neighbors(
        index,
        rows,
        np.arange(len(newcomers)),
        tau=settings.tau,
        max_neighbors=settings.max_neighbors,
        threads=threads,
    )
    return Links(newcomers, indptr, bank[neighbors].astype(np.int32), weights)


def extend(
    graph: PatientGraph, newcomers: DiagnosisSets, *, patients: Numbering = "shared", threads: int | None = None
) -> PatientGraph:
    """Return a graph of references ``bank`` with the newcomers as further evaluated nodes; see :func:`link`."""
    if graph.settings.references != "bank":
        raise PlmError(
            "a graph with references 'cohort' accepts no newcomers: they would change the neighbours of others",
            remedy="build the graph again with them, or use references 'bank'",
        )
    links = link(graph, newcomers, patients=patients, threads=threads)
    return PatientGraph(
        joined(graph.sets, links.sets),
        graph.settings,
        np.concatenate([graph.indptr, graph.indptr[-1] + links.indptr[1:]]),
        continued(graph.neighbors, links.neighbors),
        continued(graph.weights, links.weights),
    )


def _prepared(graph: PatientGraph, newcomers: DiagnosisSets, patients: Numbering) -> DiagnosisSets:
    """Check newcomers and convert them to the graph's vocabulary, numbering and splits; without a split: ``test``."""
    check_sets(newcomers)
    known = sum(instance in graph.node_of_instance for instance in newcomers.instance_ids)
    if known:
        raise PlmError(
            f"{known:,} of the {len(newcomers):,} newcomers have the id of an instance in the graph",
            remedy="give newcomers ids of their own",
        )
    newcomers = aligned(newcomers, graph.sets.vocabulary)
    if patients == "new":
        beyond = graph.number_of_patients
        numbers = np.unique(newcomers.patients, return_inverse=True)[1]
        newcomers = replace(newcomers, patients=(beyond + numbers).astype(np.int32))
    if graph.splits is None:
        return replace(newcomers, splits=None)
    if newcomers.splits is None:
        newcomers = replace(newcomers, splits=np.full(len(newcomers), "test"))
    if np.any(newcomers.splits == "train"):
        raise PlmError(
            "a newcomer to a bank is evaluated and has no known outcome, so its split cannot be 'train'",
            remedy="build the graph again to take labelled instances into the bank",
        )
    return newcomers


def _index_of(graph: PatientGraph, bank: npt.NDArray[np.int64]) -> Any:
    """Return the bit rows of the bank; they are kept on the graph."""
    from patients_like_me.graph.bit_index import BitIndex

    if "_kept_index" not in graph.__dict__:
        sets = taken(graph.sets, bank)
        # Codes of a single node have a bit row here: a newcomer may share them.
        graph.__dict__["_kept_index"] = BitIndex.build(
            sets.indptr,
            sets.codes,
            sets.patients,
            len(sets.vocabulary),
            order="index" if graph.settings.max_neighbors is None else "preference",
            shared_codes_only=False,
        )
    return graph.__dict__["_kept_index"]
