"""The patient graph: instances as nodes, shared diagnoses as weighted edges, in compressed rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from patients_like_me.graph.settings import GraphSettings
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets

if TYPE_CHECKING:
    from patients_like_me.graph.extend import Links
    from patients_like_me.graph.statistics import GraphStatistics


@dataclass(frozen=True, eq=False)
class PatientGraph:
    """Row ``i`` holds the nodes from which node ``i`` receives, in rising order, and the diagnoses shared with each.

    With references ``cohort`` the matrix is symmetric and has a block per split and round: the first instances of all
    patients, the second ones, and so on, so that no path leads from one instance of a patient to another. With ``bank``
    every instance receives from training instances and no row holds an evaluated one; the block of the training
    instances is symmetric without ``max_neighbors``, and with it each of them receives from its own strongest, as
    newcomers do. So a training instance has the same neighbours and the same degree no matter who is evaluated, and no
    message passes from one evaluated instance to another, over however many layers. The degree that a normalisation
    needs is the sum of a row.

    The graph keeps the diagnosis sets it was made of, so it can take in newcomers (:meth:`extend`, :meth:`link`).
    """

    sets: DiagnosisSets
    settings: GraphSettings
    indptr: npt.NDArray[np.int64]
    neighbors: npt.NDArray[np.int32]
    weights: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __repr__(self) -> str:
        chosen = ", ".join(f"{name}={value}" for name, value in self.settings)
        return f"PatientGraph({len(self):,} nodes, {self.edges:,} edges; {chosen})"

    @property
    def instance_ids(self) -> tuple[str, ...]:
        """The instance of every node."""
        return self.sets.instance_ids

    @cached_property
    def node_of_instance(self) -> dict[str, int]:
        """The node of every instance id."""
        return {instance: node for node, instance in enumerate(self.instance_ids)}

    @property
    def splits(self) -> npt.NDArray[np.str_] | None:
        """The split of every node, if the instances have splits."""
        return self.sets.splits

    @property
    def cohort_hash(self) -> str:
        """The hash of the cohort that the instances come from."""
        return self.sets.cohort_hash

    @cached_property
    def degrees(self) -> npt.NDArray[np.int64]:
        """The number of neighbours of every node, itself not counted."""
        return np.diff(self.indptr)

    @cached_property
    def own_codes(self) -> npt.NDArray[np.int64]:
        """The number of diagnoses of every node."""
        return np.diff(self.sets.indptr)

    @cached_property
    def evaluated(self) -> npt.NDArray[np.bool_]:
        """Which nodes only receive: with references ``bank`` those outside of the training split."""
        if self.settings.references == "cohort" or self.sets.splits is None:
            return np.zeros(len(self), dtype=bool)
        return np.asarray(self.sets.splits != "train")

    @cached_property
    def bank_nodes(self) -> npt.NDArray[np.int64]:
        """The nodes that newcomers can be linked to: those of the training split; all where there are no splits."""
        if self.sets.splits is None:
            return np.arange(len(self))
        return np.flatnonzero(self.sets.splits == "train")

    @cached_property
    def number_of_patients(self) -> int:
        """One more than the largest number of a patient."""
        return int(self.sets.patients.max(initial=-1)) + 1

    @cached_property
    def edges(self) -> int:
        """The number of edges: pairs that are linked, in whichever direction."""
        if self.settings.is_directed:
            return int(self.first_of_pair().sum())
        received = int(self.degrees[self.evaluated].sum())
        return received + (len(self.neighbors) - received) // 2

    def first_of_pair(self) -> npt.NDArray[np.bool_]:
        """Mark one entry of every linked pair, whether one or both of the two receive from the other."""
        from patients_like_me.graph.sub_rows import first_of_pairs

        marked: npt.NDArray[np.bool_] = first_of_pairs(self.indptr, self.neighbors)
        return marked

    def neighbors_of(self, node: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
        """Return the neighbours of one node and the number of diagnoses shared with each."""
        row = slice(self.indptr[node], self.indptr[node + 1])
        return self.neighbors[row], self.weights[row]

    def self_loop_weights(self) -> npt.NDArray[np.int64]:
        """Return the weight of every node's edge to itself.

        ``one`` is the paper's. ``own_codes`` is the natural diagonal, the number of its own diagnoses; a node
        without any gets 1, so that it keeps its own embedding.
        """
        if self.settings.self_loop == "one":
            return np.ones(len(self), dtype=np.int64)
        return np.maximum(self.own_codes, 1)

    def to_scipy(self, *, self_loops: bool = False) -> Any:
        """Return the weights as a scipy CSR array, with the self-loops of the settings if wanted."""
        from scipy.sparse import csr_array, diags_array

        shape = (len(self), len(self))
        matrix = csr_array((self.weights.astype(np.float32), self.neighbors, self.indptr), shape=shape)
        if not self_loops:
            return matrix
        loops = diags_array(self.self_loop_weights().astype(np.float32), format="csr")
        whole = csr_array(matrix + loops)
        whole.sort_indices()
        return whole

    def sub_graph(self, nodes: npt.NDArray[np.int64]) -> PatientGraph:
        """Return the graph of some nodes and the edges among them, renumbered in the order given."""
        from patients_like_me.graph.node_sets import taken

        nodes = np.asarray(nodes, dtype=np.int64)
        if len(np.unique(nodes)) != len(nodes):
            raise ValueError("a node was named twice")
        number_of = np.full(len(self), -1, dtype=np.int64)
        number_of[nodes] = np.arange(len(nodes))
        if (np.diff(nodes) > 0).all():
            from patients_like_me.graph.sub_rows import rows_among

            found = rows_among(self.indptr, self.neighbors, self.weights, nodes, number_of)
            return PatientGraph(taken(self.sets, nodes), self.settings, *found)
        degrees = self.degrees[nodes]
        places = np.arange(degrees.sum()) + np.repeat(self.indptr[:-1][nodes] - np.cumsum(degrees) + degrees, degrees)
        columns = number_of[self.neighbors[places]]
        rows = np.repeat(np.arange(len(nodes)), degrees)
        inside = columns >= 0
        rows, columns, weights = rows[inside], columns[inside], self.weights[places][inside]
        order = np.lexsort((columns, rows))
        counts = np.bincount(rows, minlength=len(nodes))
        return PatientGraph(
            sets=taken(self.sets, nodes),
            settings=self.settings,
            indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            neighbors=columns[order].astype(np.int32),
            weights=weights[order],
        )

    def statistics(self) -> GraphStatistics:
        """Return degrees, isolated share, components and the histogram of weights."""
        from patients_like_me.graph.statistics import statistics_of

        return statistics_of(self)

    def link(self, newcomers: DiagnosisSets, **options: Any) -> Links:
        """Return the neighbours of newcomers in this graph; see :func:`patients_like_me.graph.extend.link`."""
        from patients_like_me.graph.extend import link

        return link(self, newcomers, **options)

    def extend(self, newcomers: DiagnosisSets, **options: Any) -> PatientGraph:
        """Return the graph with newcomers in it; see :func:`patients_like_me.graph.extend.extend`."""
        from patients_like_me.graph.extend import extend

        return extend(self, newcomers, **options)

    def save(self, folder: Path | str, *, replace: bool = False) -> None:
        """Write the graph as a folder, at once or not at all; see :mod:`patients_like_me.graph.storage`."""
        from patients_like_me.graph.storage import save_graph

        save_graph(self, Path(folder), replace=replace)

    @classmethod
    def load(cls, folder: Path | str, *, verify: bool = True) -> PatientGraph:
        """Open a saved graph, memory-mapped; ``verify=False`` skips the checks that read every byte."""
        from patients_like_me.graph.storage import load_graph

        return load_graph(Path(folder), verify=verify)
