"""Does tau fit the records? How many evaluated instances have a reference, and at which tau most of them would.

Records with few diagnoses share few: at a tau made for others the graph is nearly empty. The overlap of each instance
with its strongest neighbour tells the coverage at every tau at once: the share of strongest overlaps of at least tau.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.graph.build import Part, PartRows, parts_of
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.settings import GraphSettings
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets

#: Below this share of evaluated instances with a reference a run warns, and a smaller tau is suggested.
WANTED_COVERAGE: Final = 0.8
#: Where fewer than this share of the patients who could be a reference make up half of all references, a run warns;
#: among fewer candidates than this, a share says nothing.
HUB_SHARE: Final = 0.05
FEWEST_CANDIDATES: Final = 100
#: Where fewer than this share of evaluated instances has a reference the graph is almost empty: few references come
#: from few patients, which does not make them hubs.
ALMOST_EMPTY: Final = 0.2


@dataclass(frozen=True)
class Coverage:
    """How many instances of each split have a neighbour, and how many instances there are."""

    linked: dict[str, int]
    instances: dict[str, int]

    def share(self, split: str) -> float:
        """Return the share of a split's instances that have a neighbour; 1 where there is nobody to link."""
        return self.linked[split] / self.instances[split] if self.instances[split] else 1.0

    @property
    def evaluated(self) -> tuple[str, ...]:
        """The splits that are evaluated; all nodes where there are no splits."""
        return tuple(split for split in self.instances if split != "train")


def coverage_of(graph: PatientGraph) -> Coverage:
    """Count the instances with a neighbour by split.

    >>> from patients_like_me.graph import build_graph
    >>> sets = DiagnosisSets.from_lists([["2"], ["2"], ["9"]], patients=[0, 1, 2], splits=["train", "train", "test"])
    >>> coverage_of(build_graph(sets, GraphSettings(tau=1))).share("test")
    0.0
    """
    splits = np.full(len(graph), "all") if graph.splits is None else np.asarray(graph.splits)
    names = [str(name) for name in dict.fromkeys(splits.tolist())]
    linked = graph.degrees > 0
    return Coverage(
        {name: int(linked[splits == name].sum()) for name in names},
        {name: int((splits == name).sum()) for name in names},
    )


def strongest_overlaps(
    sets: DiagnosisSets, settings: GraphSettings, *, split: str = "validation", threads: int | None = None
) -> npt.NDArray[np.int64]:
    """Return how many diagnoses each instance of a split (in rising order) shares with its strongest neighbour.

    Without that split, all rows of the graph are looked at.
    """
    chosen = settings.model_copy(update={"tau": 1, "max_neighbors": 1})
    rows, overlaps = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for part in parts_of(sets, settings.references):
        wanted = part.rows if sets.splits is None else part.rows[np.asarray(sets.splits)[part.rows] == split]
        if len(wanted):
            rows.append(wanted)
            overlaps.append(_strongest(sets, Part(part.name, wanted, part.columns), chosen, threads))
    return np.concatenate(overlaps)[np.argsort(np.concatenate(rows))]


def _strongest(sets: DiagnosisSets, part: Part, settings: GraphSettings, threads: int | None) -> Any:
    indptr, _, weights = PartRows(sets, part, settings).find(0, len(part.rows), threads=threads)
    overlaps = np.zeros(len(part.rows), dtype=np.int64)
    overlaps[np.diff(indptr) > 0] = weights
    return overlaps


def suggested_tau(overlaps: npt.NDArray[np.int64], *, coverage: float = WANTED_COVERAGE) -> int | None:
    """Return the largest tau at which this share of instances has a neighbour; None if even tau 1 is too large.

    >>> suggested_tau(np.array([0, 2, 3, 3, 5])), suggested_tau(np.array([0, 0, 1]))
    (2, None)
    """
    if not len(overlaps):
        return None
    needed = int(np.ceil(coverage * len(overlaps)))
    tau = int(np.sort(overlaps)[::-1][needed - 1])
    return tau if tau >= 1 else None


def coverage_notes(graph: PatientGraph, *, wanted: float = WANTED_COVERAGE) -> list[str]:
    """Say in sentences (without a full stop) where too few evaluated instances have a reference, and what would help.

    The suggestion looks at validation alone: a setting must not be chosen on test.
    """
    coverage, tau = coverage_of(graph), graph.settings.tau
    low = [split for split in coverage.evaluated if coverage.share(split) < wanted]
    notes = [
        f"only {coverage.share(split):.0%} of the {coverage.instances[split]:,} {split} instances have a reference at "
        f"tau {tau}: {'the others are' if coverage.linked[split] else 'all are'} predicted from their own record alone"
        for split in low
    ]
    return [*notes, tau_advice(graph.sets, graph.settings)] if notes else []


def suppliers_of_half(times: npt.NDArray[np.int64]) -> int:
    """Return how many of those who are used most make up half of all uses.

    >>> suppliers_of_half(np.array([1, 6, 1, 2])), suppliers_of_half(np.array([], dtype=np.int64))
    (1, 0)
    """
    most_first = np.sort(times)[::-1]
    return int(np.searchsorted(np.cumsum(most_first), most_first.sum() / 2) + 1) if len(times) else 0


def are_hubs(suppliers: int, candidates: int) -> bool:
    """Tell whether so few of the patients who could be a reference make up half of all that it deserves a warning."""
    return candidates >= FEWEST_CANDIDATES and suppliers < HUB_SHARE * candidates


def is_almost_empty(references: npt.NDArray[np.integer[Any]]) -> bool:
    """Tell from the number of references of every evaluated instance whether nearly all have none.

    >>> is_almost_empty(np.array([0, 0, 0, 0, 0, 0, 9])), is_almost_empty(np.array([0, 1, 1]))
    (True, False)
    """
    return bool(len(references)) and float(np.mean(references > 0)) < ALMOST_EMPTY


def hub_notes(graph: PatientGraph) -> list[str]:
    """Say in a sentence (without a full stop) where few patients supply half of the links of validation and test."""
    if graph.splits is None:
        return []
    evaluated = np.isin(np.asarray(graph.splits), ("validation", "test"))
    patients = np.unique(graph.sets.patients, return_inverse=True)[1]
    uses = np.zeros(len(graph), dtype=np.int64)
    # Row by row: an index over all entries would be larger than the graph.
    for node in np.flatnonzero(evaluated):
        uses[graph.neighbors[graph.indptr[node] : graph.indptr[node + 1]]] += 1
    times = np.bincount(patients, weights=uses).astype(np.int64)
    sources = ~evaluated if graph.settings.references == "bank" else evaluated
    candidates = len(np.unique(patients[sources]))
    suppliers = suppliers_of_half(times[times > 0])
    if not suppliers or not are_hubs(suppliers, candidates) or is_almost_empty(graph.degrees[evaluated]):
        return []
    shown = "fewer than 11" if suppliers < 11 else f"{suppliers:,}"
    words = (
        f"hub patients: {shown} of the {candidates:,} patients who could be a reference supply half of all references "
        "of validation and test; a mistake in one of their records reaches many predictions"
    )
    return [words]


def tau_advice(sets: DiagnosisSets, settings: GraphSettings) -> str:
    """Say which tau the overlaps suggest."""
    overlaps = strongest_overlaps(sets, settings)
    found = suggested_tau(overlaps)
    if found is None or not len(overlaps):
        most = f"{float((overlaps >= 1).mean()):.0%}" if len(overlaps) else "none"
        return f"no tau gives {WANTED_COVERAGE:.0%} of the validation instances a reference (tau 1: {most})"
    if found >= settings.tau:
        return f"tau {settings.tau} covers {float((overlaps >= settings.tau).mean()):.0%} of the validation instances"
    share = float((overlaps >= found).mean())
    return f"graph.tau={found} would give {share:.0%} of the validation instances a reference"
