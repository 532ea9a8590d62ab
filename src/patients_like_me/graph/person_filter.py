"""Only references of the same sex, or of about the same age: a rule of the graph, before the strongest are kept.

Rows of one sex and age have the same candidates, so each such group is compared with its own candidates alone: the
strongest k of a row are the strongest among those who are allowed, not what is left of the strongest among all. A sex
or an age that is not recorded sets nobody apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.graph.node_sets import taken
from patients_like_me.graph.people import fitting
from patients_like_me.graph.settings import GraphSettings
from patients_like_me.tasks.diagnosis_sets import UNKNOWN, DiagnosisSets

Csr = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[Any]]


def allowed(columns: DiagnosisSets, sex: int, age: int, settings: GraphSettings) -> npt.NDArray[np.bool_]:
    """Tell which columns may be references of an instance of this sex and age.

    >>> sets = DiagnosisSets.from_lists([["2"]] * 3, patients=[0, 1, 2], sexes=[0, 1, -1], ages=[60, 60, 75])
    >>> allowed(sets, 0, 62, GraphSettings(same_sex=True)).tolist()
    [True, False, True]
    >>> allowed(sets, 0, 62, GraphSettings(max_age_difference=10)).tolist()
    [True, True, False]
    """
    rule = settings.person_rule
    return fitting(rule.bounds([sex], [age], reach=True), rule.bounds(*people_of(columns)))


def people_of(sets: DiagnosisSets) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int16]]:
    """Return sex and age of every node; sets without them are refused."""
    if sets.sexes is None or sets.ages is None:
        raise PlmError(
            "the graph compares sex or age, which these diagnosis sets do not have",
            remedy="leave out graph.same_sex and graph.max_age_difference, or train the run again",
        )
    return sets.sexes, sets.ages


def find_allowed(
    columns: DiagnosisSets,
    rows: DiagnosisSets,
    selection: npt.NDArray[np.int64],
    settings: GraphSettings,
    *,
    threads: int | None = None,
    progress: Any = None,
) -> Csr:
    """Return as CSR the kept neighbours of the selected rows, as numbers among the columns."""
    from patients_like_me.graph.bit_index import BitIndex
    from patients_like_me.graph.neighbors import find_neighbors

    sexes, ages = people_of(rows)
    keys = np.stack([sexes[selection] if settings.same_sex else np.full(len(selection), UNKNOWN), ages[selection]])
    if settings.max_age_difference is None:
        keys[1] = UNKNOWN
    groups, group_of = np.unique(keys, axis=1, return_inverse=True)
    counts = np.zeros(len(selection), dtype=np.int64)
    found: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[Any]]] = []
    for number, (sex, age) in enumerate(groups.T.tolist()):
        places = np.flatnonzero(group_of.ravel() == number)
        candidates = np.flatnonzero(allowed(columns, sex, age, settings))
        chosen, own = taken(columns, candidates), taken(rows, selection[places])
        index = BitIndex.build(
            chosen.indptr,
            chosen.codes,
            chosen.patients,
            len(columns.vocabulary),
            order="index" if settings.max_neighbors is None else "preference",
            shared_codes_only=False,
        )
        indptr, neighbors, weights = find_neighbors(
            index,
            index.rows(own.indptr, own.codes, own.patients),
            np.arange(len(places)),
            tau=settings.tau,
            max_neighbors=settings.max_neighbors,
            threads=threads,
        )
        counts[places] = np.diff(indptr)
        found.append((places, candidates[neighbors].astype(np.int32), weights))
        if progress is not None:
            progress(number + 1, groups.shape[1])
    return _gathered(counts, found)


def _gathered(counts: npt.NDArray[np.int64], found: list[Any]) -> Csr:
    """Put the rows of all groups in the order of the selection."""
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    kind = max((weights.dtype for _, _, weights in found), key=lambda each: each.itemsize, default=np.dtype(np.uint8))
    neighbors, weights = np.empty(indptr[-1], dtype=np.int32), np.empty(indptr[-1], dtype=kind)
    for places, own_neighbors, own_weights in found:
        lengths = counts[places]
        ends = np.cumsum(lengths)
        targets = np.arange(len(own_neighbors)) + np.repeat(indptr[places] - ends + lengths, lengths)
        neighbors[targets], weights[targets] = own_neighbors, own_weights
    return indptr, neighbors, weights
