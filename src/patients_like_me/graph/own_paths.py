"""Whether a path of the patient graph leads from an instance to another one of its patient.

A later instance of a patient holds the answer of an earlier one in its text. Two instances of one patient are never
linked, but a message could come from the one to the other over others. This is looked for in the finished graph, edge
by edge, not concluded from the way in which it was built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.plain_text import shown_count
from patients_like_me.tasks.audit_findings import Finding, finding

#: Searches through the graph, one node after another, for training instances that no cycle leads back to.
_SEARCHES: Final = 200


@dataclass(frozen=True)
class OwnPaths:
    """How many instances have another one of their patient, and how many of these receive from it over any path.

    ``is_least`` says that the number of training instances is a least one: not all were searched.
    """

    evaluated: int
    evaluated_reached: int
    training: int
    training_reached: int
    is_least: bool = False


def own_paths(graph: PatientGraph) -> OwnPaths:
    """Count the instances that receive, over however many others, from another instance of their patient.

    >>> from patients_like_me.graph import GraphSettings, build_graph
    >>> from patients_like_me.tasks.diagnosis_sets import DiagnosisSets
    >>> codes, splits = [["2"], ["2", "9"], ["9"]], ["train"] * 3
    >>> own_paths(build_graph(DiagnosisSets.from_lists(codes, patients=[0, 1, 0], splits=splits),
    ...           GraphSettings(tau=1, references="bank"))).training_reached
    2
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    patients = graph.sets.patients.astype(np.int64)
    training = np.ones(len(graph), dtype=bool) if graph.splits is None else np.asarray(graph.splits == "train")
    several = np.bincount(patients, minlength=1)[patients] > 1 if len(patients) else np.zeros(0, dtype=bool)
    links = csr_array(
        (np.ones(len(graph.neighbors), dtype=np.int8), graph.neighbors, graph.indptr), shape=(len(graph),) * 2
    )
    # In a ring of messages everyone receives from everyone.
    _, ring = connected_components(links, directed=True, connection="strong")
    _, place, sizes = np.unique(np.stack([patients, ring]), axis=1, return_inverse=True, return_counts=True)
    reached = sizes[place.ravel()] > 1
    # Who sends to nobody is received by nobody: only others of the patient who send can be reached.
    sends = np.zeros(len(graph), dtype=bool)
    sends[graph.neighbors] = True
    senders = np.bincount(patients, weights=sends, minlength=1)[patients] - sends if len(patients) else sends
    open_ones = np.flatnonzero(several & ~reached & (senders > 0) & (np.diff(graph.indptr) > 0))
    # All evaluated instances, and as many of training as there is time for.
    searched = np.concatenate([open_ones[~training[open_ones]], open_ones[training[open_ones]][:_SEARCHES]])
    for node in searched.tolist():
        reached[node] = _receives_from_own(links, node, patients)
    return OwnPaths(
        int((several & ~training).sum()),
        int((reached & ~training).sum()),
        int((several & training).sum()),
        int((reached & training).sum()),
        is_least=len(searched) < len(open_ones),
    )


def _receives_from_own(links: Any, node: int, patients: npt.NDArray[np.int64]) -> bool:
    from scipy.sparse.csgraph import breadth_first_order

    heard = breadth_first_order(links, node, directed=True, return_predecessors=False)
    return bool((patients[heard[1:]] == patients[node]).any())


def audit_own_paths(graph: PatientGraph) -> tuple[Finding, list[str]]:
    """Return what the leakage audit says about the paths of a run's patient graph: a check, and what else to know.

    A path to an evaluated instance is a leak, and so is any in ``cohort`` mode, which promises that there is none. With
    references ``bank`` there may be paths between training instances. They let a network listen in training for answers
    that newcomers do not have, and change no evaluated prediction; they are counted and said.
    """
    found = own_paths(graph)
    is_bank = graph.settings.references == "bank"
    check = finding(
        "no path to another instance of the patient",
        found.evaluated + (0 if is_bank else found.training),
        found.evaluated_reached + (0 if is_bank else found.training_reached),
        f"{'evaluated ' if is_bank else ''}instances that receive from another one of their patient, over any path of "
        "the run's patient graph",
        because="no such instance has another one of its patient",
    )
    if not is_bank or not found.training:
        return check, []
    number = f"{'at least ' if found.is_least else ''}{shown_count(found.training_reached)}"
    note = (
        f"References 'bank': {number} of {shown_count(found.training)} training instances that have another one of "
        "their patient receive from it over other training instances; a later one holds the answer of an earlier one "
        "in its text. A network may learn from this in training. References 'cohort' have no such path."
    )
    return check, [note]
