"""What many patients would take, part by part, on paper: rates measured here, and how each part grows.

Every part is measured on this machine at a few sizes, in seconds of one core, on drawn diagnosis sets with the shape of
hospital records. Rows of the graph do not influence each other, so a sample of them against *all* columns tells the
cost of a size that would take much longer as a whole. A line through the logarithms of size and seconds gives the
growth, of all pairs a N + b N²; parts that are linear by construction are measured at one size. Nothing of size N² is
ever built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from patients_like_me.graph.drawn_sets import drawn_sets
from patients_like_me.graph.large import ENTRY_BYTES
from patients_like_me.graph.settings import GraphSettings
from patients_like_me.plain_text import duration_in_words
from patients_like_me.report.scale_rates import (
    EMBEDDING_WIDTH,
    GRAPH_SIZES,
    TOKENS,
    all_pairs_rates,
    attribution_bytes,
    attribution_points,
    bank_point,
    embedding_point,
    graph_memory,
    graph_seconds,
    ingest_point,
    link_seconds,
    merge_point,
    pass_point,
)
from patients_like_me.workers import peak_gib

_GIB: Final = 2**30
#: Neighbours that are kept where the settings keep all.
_KEPT: Final = 32


@dataclass(frozen=True)
class PartOfPlan:
    """One kind of work: measured points (instances, seconds of one core), and whether workers share it.

    ``memory_bytes`` (on each machine) and ``disk_bytes`` are those of one instance. A part that compares pairs has
    a cost for every row and one for every pair; of others the growth is one power.
    """

    name: str
    points: tuple[tuple[int, float], ...]
    is_shared: bool
    memory_bytes: float = 0.0
    disk_bytes: float = 0.0
    compares_pairs: bool = False

    def growth(self, instances: int) -> float:
        """Return the exponent p of seconds ~ N^p at a number of instances; 1 where it was measured at one size.

        >>> round(PartOfPlan("walks", ((10, 1.0), (100, 100.0)), True).growth(1000), 6)
        2.0
        """
        if len(self.points) < 2:
            return 1.0
        if self.compares_pairs:
            linear, square = self._linear_and_square()
            return (linear + 2 * square * instances) / max(linear + square * instances, 1e-300)
        sizes, seconds = np.log(np.array(self.points, dtype=np.float64)).T
        return float(np.polyfit(sizes, seconds, 1)[0])

    def seconds(self, instances: int) -> float:
        """Return the seconds of one core for a number of instances.

        >>> round(PartOfPlan("walks", ((10, 1.0), (100, 100.0)), True).seconds(1000))
        10000
        >>> round(PartOfPlan("pairs", ((10, 11.0), (100, 200.0)), True, compares_pairs=True).seconds(1000))
        11000
        """
        if self.compares_pairs and len(self.points) > 1:
            linear, square = self._linear_and_square()
            return linear * instances + square * instances**2
        size, seconds = self.points[-1]
        return float(seconds * (instances / size) ** self.growth(instances))

    def _linear_and_square(self) -> tuple[float, float]:
        """Fit seconds = a N + b N², neither negative, so that the relative errors are smallest."""
        from scipy.optimize import nnls

        sizes, seconds = np.array(self.points, dtype=np.float64).T
        (linear, square), _ = nnls(np.stack([sizes, sizes**2], axis=1) / seconds[:, None], np.ones(len(sizes)))
        return float(linear), float(square)

    def wall_seconds(self, instances: int, workers: int) -> float:
        """Return the seconds with workers of one core each."""
        return self.seconds(instances) / (workers if self.is_shared else 1)


@dataclass(frozen=True)
class ScalePlan:
    """The parts, for a number of instances and workers."""

    instances: int
    workers: int
    parts: tuple[PartOfPlan, ...]
    notes: tuple[str, ...] = ()
    #: What a process takes for its libraries, before any part.
    process_gib: float = 0.0

    @property
    def fastest_growing(self) -> PartOfPlan:
        """The part whose share of the whole rises with the number of patients."""
        return max(self.parts, key=lambda part: part.growth(self.instances))

    def table(self) -> list[tuple[str, ...]]:
        """Return the lines of a table, the heading first."""
        head = ("part", "one core", f"{self.workers} workers", "memory each", "disk", "growth", "measured at")
        lines = [
            (
                part.name,
                duration_in_words(part.seconds(self.instances)),
                duration_in_words(part.wall_seconds(self.instances, self.workers)),
                _size_in_words(part.memory_bytes * self.instances),
                _size_in_words(part.disk_bytes * self.instances),
                f"N^{part.growth(self.instances):.2f}",
                ", ".join(f"{size:,}: {seconds:.3g} s" for size, seconds in part.points),
            )
            for part in self.parts
        ]
        return [head, *lines]


def plan_scale(
    instances: int,
    workers: int,
    *,
    settings: GraphSettings | None = None,
    backbone: str | None = None,
    sizes: tuple[int, ...] = GRAPH_SIZES,
    report: Callable[[str], None] = lambda _: None,
) -> ScalePlan:
    """Measure the parts on this machine and lay them out for a number of instances.

    Without ``max_neighbors`` a note says what a graph of all pairs would take; the parts are those of the strongest 32.
    """
    settings = settings or GraphSettings(max_neighbors=_KEPT)
    notes = []
    if settings.max_neighbors is None:
        report("measuring a graph of all pairs")
        notes.append(_all_pairs_in_words(instances, settings))
        settings = settings.model_copy(update={"max_neighbors": _KEPT})
    report("warming up")
    graph_seconds(drawn_sets(1_000), settings)
    link_seconds(drawn_sets(1_000), settings)
    process = peak_gib()
    graph_points, link_points = [], []
    for size in sizes:
        report(f"measuring the graph at {size:,} instances")
        sets = drawn_sets(size)
        graph_points.append((size, graph_seconds(sets, settings)))
        link_points.append((size, link_seconds(sets, settings)))
        del sets
    report("measuring ingest")
    ingest, cohort_bytes = ingest_point()
    report("measuring whole graphs")
    memory, whole = graph_memory(settings)
    entries = len(whole.neighbors) / len(whole)
    sets_bytes = (whole.sets.codes.nbytes + whole.sets.indptr.nbytes + whole.sets.patients.nbytes) / len(whole)
    graph_disk = entries * (4 + whole.weights.itemsize) + 8 + sets_bytes
    each = 4.0 * EMBEDDING_WIDTH
    parts = [
        PartOfPlan("ingest of own tables, one visit each", ingest, False, 0.0, cohort_bytes),
        PartOfPlan("graph, all pairs", tuple(graph_points), True, memory, graph_disk, compares_pairs=True),
        PartOfPlan("graph, merging rows", merge_point(whole), False, 4 * entries),
        PartOfPlan("network over all instances", pass_point(whole), False, 6 * 4 * EMBEDDING_WIDTH + 20 * entries),
        PartOfPlan("bank: write and read embeddings", bank_point(whole), False, each, each),
        PartOfPlan("one newcomer against the bank", tuple(link_points), False, len(whole.sets.vocabulary) / 8),
    ]
    report("measuring attribution")
    parts.append(PartOfPlan("attribution of all", attribution_points(settings), True, attribution_bytes(entries)))
    notes += [f"every process takes {process:.1f} GiB for its libraries besides; the memory of ingest is not planned"]
    if backbone is not None:
        report(f"measuring the backbone '{backbone}'")
        points, width = embedding_point(backbone)
        parts.insert(2, PartOfPlan(f"embedding ({TOKENS} tokens each)", points, True, 0.0, 4.0 * width))
    else:
        notes.append("embedding was not measured: name a backbone")
    return ScalePlan(instances, workers, tuple(parts), tuple(notes), process)


def _all_pairs_in_words(instances: int, settings: GraphSettings) -> str:
    """Say what a graph without a cap of neighbours would take, from the density and the time of a small one."""
    share, seconds = all_pairs_rates(settings)
    entries = share * instances**2
    return (
        f"without max_neighbors {share:.1%} of all pairs of such records are linked at tau {settings.tau}: "
        f"{entries:.3g} entries, {_size_in_words(entries * ENTRY_BYTES)} on disk, and "
        f"{duration_in_words(seconds * entries)} of one core for every answer of the graph network in training; the "
        f"plan is for the strongest {_KEPT} of each instance (--set graph.max_neighbors={_KEPT})"
    )


def _size_in_words(number: float) -> str:
    """Return bytes as GiB; a dash where there are none.

    >>> _size_in_words(3 * 2**29), _size_in_words(0)
    ('1.5 GiB', '-')
    """
    if not number:
        return "-"
    return f"{number / _GIB:,.1f} GiB" if number > _GIB / 10 else f"{number / 2**20:,.0f} MiB"
