"""Building the patient graph of a cohort: one graph per split, or evaluated instances against the bank."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.graph.node_sets import check_sets, rounds_of, split_names, taken
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.settings import GraphSettings
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets

logger = logging.getLogger("patients_like_me")


@dataclass(frozen=True)
class Part:
    """Which nodes are compared with which; ``rows`` and ``columns`` are in rising order."""

    name: str
    rows: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]

    @property
    def is_symmetric(self) -> bool:
        """Whether the nodes are compared with each other."""
        return self.rows is self.columns


def parts_of(sets: DiagnosisSets, references: str) -> list[Part]:
    """Return the comparisons that make up a graph.

    ``cohort``: in every split the first instances of all patients with each other, then the second ones, and so on: a
    later instance holds the answer of an earlier one of its patient in its text, and so no path, over however many
    others, leads from the one to the other. Without splits, where nothing is evaluated, all instances with each other.
    ``bank``: training instances with each other, and all others with the training instances.

    >>> sets = DiagnosisSets.from_lists([["2"]] * 3, patients=[0, 1, 2], splits=["train", "test", "train"])
    >>> [(part.name, part.rows.tolist(), part.columns.tolist()) for part in parts_of(sets, "bank")]
    [('train', [0, 2], [0, 2]), ('evaluated', [1], [0, 2])]
    """
    if references == "bank":
        if sets.splits is None or not (sets.splits == "train").any():
            raise PlmError(
                "references 'bank' needs instances of the split 'train', and there are none",
                remedy="use references 'cohort', or sets with splits",
            )
        bank = np.flatnonzero(sets.splits == "train")
        return [Part("train", bank, bank), Part("evaluated", np.flatnonzero(sets.splits != "train"), bank)]
    if sets.splits is None:
        everyone = np.arange(len(sets))
        return [Part("all", everyone, everyone)]
    rounds = rounds_of(sets)
    parts = []
    for name in split_names(sets):
        members = np.flatnonzero(sets.splits == name)
        for number in np.unique(rounds[members]):
            nodes = members[rounds[members] == number]
            parts.append(Part(name if number == 0 else f"{name}, instance {number + 1} of its patient", nodes, nodes))
    return parts


def build_graph(
    sets: DiagnosisSets,
    settings: GraphSettings | None = None,
    *,
    threads: int | None = None,
    progress: Any = None,
) -> PatientGraph:
    """Build the patient graph in memory.

    Two instances are linked if they share at least ``tau`` diagnoses, never two of one patient. With
    ``max_neighbors`` every instance keeps its strongest (ties: the higher cosine of the two sets, then the lower
    index). ``same_sex`` and ``max_age_difference`` say who may be linked at all. In ``cohort`` mode an edge stays if
    either end keeps it; in ``bank`` mode every instance, of training or evaluated, receives from those that it keeps: a
    newcomer has as many neighbours as a training instance had.
    ``progress(done, all)`` is called as the rows are finished, once per part of the graph.

    >>> sets = DiagnosisSets.from_lists([["2", "50"], ["2", "50", "9"], ["9"]], patients=[0, 1, 2])
    >>> graph = build_graph(sets, GraphSettings(tau=1))
    >>> graph.neighbors_of(1)[0].tolist(), graph.neighbors_of(1)[1].tolist()
    ([0, 2], [2, 1])
    """
    from patients_like_me.graph.merging import scattered, symmetrized

    settings = settings or GraphSettings()
    check_sets(sets)
    pieces = []
    for part in parts_of(sets, settings.references):
        rows = PartRows(sets, part, settings)
        indptr, neighbors, weights = rows.find(0, len(part.rows), threads=threads, progress=progress)
        if part.is_symmetric and settings.either_end_keeps:
            indptr, neighbors, weights = symmetrized(indptr, neighbors, weights)
        pieces.append((part.rows, indptr, part.columns, neighbors, weights))
    indptr, neighbors, weights = scattered(pieces, len(sets))
    graph = PatientGraph(sets, settings, indptr, neighbors, weights)
    log_graph(graph)
    return graph


class PartRows:
    """Find the neighbours of any run of rows of a part; the bit rows of its columns are built once."""

    def __init__(self, sets: DiagnosisSets, part: Part, settings: GraphSettings) -> None:
        from patients_like_me.graph.bit_index import BitIndex

        self.settings = settings
        columns = taken(sets, part.columns)
        self.people = None
        if settings.compares_people:
            self.people = columns, columns if part.is_symmetric else taken(sets, part.rows)
            return
        self.index = BitIndex.build(
            columns.indptr,
            columns.codes,
            columns.patients,
            len(sets.vocabulary),
            order="index" if settings.max_neighbors is None else "preference",
            shared_codes_only=part.is_symmetric,
        )
        rows = columns if part.is_symmetric else taken(sets, part.rows)
        self.rows = self.index.rows(rows.indptr, rows.codes, rows.patients)

    def find(
        self,
        first: int,
        last: int,
        *,
        threads: int | None = None,
        progress: Any = None,
        statistics: npt.NDArray[np.int64] | None = None,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[Any]]:
        """Return as CSR the kept neighbours of the rows, as numbers among the columns of the part."""
        from patients_like_me.graph.neighbors import find_neighbors
        from patients_like_me.graph.person_filter import find_allowed

        if self.people is not None:
            return find_allowed(*self.people, np.arange(first, last), self.settings, threads=threads, progress=progress)
        return find_neighbors(
            self.index,
            self.rows,
            np.arange(first, last),
            tau=self.settings.tau,
            max_neighbors=self.settings.max_neighbors,
            threads=threads,
            progress=progress,
            statistics=statistics,
        )


def log_graph(graph: PatientGraph) -> None:
    """Say what was built and by which rule; no ids."""
    settings = graph.settings
    kept = "all" if settings.max_neighbors is None else f"the strongest {settings.max_neighbors} of each node"
    logger.info(
        "patient graph: %d nodes, %d edges; tau %d, neighbours kept: %s, references: %s, self-loop: %s",
        len(graph),
        graph.edges,
        settings.tau,
        kept,
        settings.references,
        settings.self_loop,
    )
