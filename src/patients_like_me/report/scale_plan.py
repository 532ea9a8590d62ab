"""What many patients would take, part by part, on paper: rates measured here, and how each part grows.

Every part is measured on this machine at a few sizes, in seconds of one core, on drawn diagnosis sets with the shape of
hospital records. Rows of the graph do not influence each other, so a sample of them against *all* columns tells the
cost of a size that would take much longer as a whole. A line through the logarithms of size and seconds gives the
growth, of all pairs a N + b N²; parts that are linear by construction are measured at one size. Nothing of size N² is
ever built.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from patients_like_me.graph.build import PartRows, build_graph, parts_of
from patients_like_me.graph.drawn_sets import drawn_sets
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.settings import GraphSettings
from patients_like_me.model.settings import GraphNetworkSettings
from patients_like_me.plain_text import duration_in_words
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets

#: The sizes at which the graph is measured, and the rows of it that are computed.
GRAPH_SIZES: Final = (20_000, 80_000, 320_000)
_SAMPLE: Final = 600
#: Sizes of whole graphs that are built, stored in memory and attributed.
_WHOLE_SIZES: Final = (5_000, 10_000)
_ATTRIBUTION_SIZES: Final = (1_000, 2_000, 4_000)
_NEWCOMERS: Final = 20
_EMBEDDING_WIDTH: Final = 128
_TOKENS: Final = 256
_GIB: Final = 2**30


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
    """Measure the parts on this machine and lay them out for a number of instances."""
    settings = settings or GraphSettings(max_neighbors=32)
    report("warming up")
    _graph_seconds(drawn_sets(1_000), settings)
    _link_seconds(drawn_sets(1_000), settings)
    graph_points, link_points = [], []
    for size in sizes:
        report(f"measuring the graph at {size:,} instances")
        sets = drawn_sets(size)
        graph_points.append((size, _graph_seconds(sets, settings)))
        link_points.append((size, _link_seconds(sets, settings)))
        del sets
    report("measuring whole graphs")
    memory, whole = _graph_memory(settings)
    entries = len(whole.neighbors) / len(whole)
    sets_bytes = (whole.sets.codes.nbytes + whole.sets.indptr.nbytes + whole.sets.patients.nbytes) / len(whole)
    graph_disk = entries * (4 + whole.weights.itemsize) + 8 + sets_bytes
    parts = [
        PartOfPlan("graph, all pairs", tuple(graph_points), True, memory, graph_disk, compares_pairs=True),
        PartOfPlan("graph, merging rows", _merge_point(whole), False, 4 * entries),
        PartOfPlan("network over all instances", _pass_point(whole), False, 6 * 4 * _EMBEDDING_WIDTH + 20 * entries),
        _bank_part(whole),
        PartOfPlan("one newcomer against the bank", tuple(link_points), False, len(whole.sets.vocabulary) / 8),
    ]
    report("measuring attribution")
    parts.append(PartOfPlan("attribution of all", _attribution_points(settings), True, _attribution_bytes(entries)))
    notes = []
    if backbone is not None:
        report(f"measuring the backbone '{backbone}'")
        parts.insert(1, _embedding_part(backbone))
    else:
        notes.append("embedding was not measured: name a backbone")
    return ScalePlan(instances, workers, tuple(parts), tuple(notes))


def _graph_seconds(sets: DiagnosisSets, settings: GraphSettings) -> float:
    """Return the seconds of one core for the whole graph, from a sample of its rows against all columns."""
    (part,) = parts_of(sets, "cohort")
    started = time.process_time()
    rows = PartRows(sets, part, settings)
    built = time.process_time() - started
    sample = min(_SAMPLE, len(sets))
    started = time.process_time()
    # Drawn instances are in random order: any run of rows is a sample.
    rows.find(0, sample, threads=1)
    return built + (time.process_time() - started) * len(sets) / sample


def _link_seconds(sets: DiagnosisSets, settings: GraphSettings) -> float:
    """Return the median seconds in which one newcomer finds the strongest references; the bit rows are ready."""
    empty = PatientGraph(
        sets, settings, np.zeros(len(sets) + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.uint8)
    )
    spent = []
    for number in range(_NEWCOMERS + 1):
        drawn = drawn_sets(1, seed=100 + number)
        newcomer = DiagnosisSets(drawn.indptr, drawn.codes, drawn.patients, (f"new {number}",), drawn.vocabulary)
        started = time.process_time()
        empty.link(newcomer, patients="new", threads=1)
        spent.append(time.process_time() - started)
    return float(np.median(spent[1:]))


def _graph_memory(settings: GraphSettings) -> tuple[float, PatientGraph]:
    """Return the bytes per instance at the peak of a build in memory, and the larger graph that was built."""
    peaks = []
    for size in _WHOLE_SIZES:
        sets = drawn_sets(size)
        tracemalloc.start()
        try:
            graph = build_graph(sets, settings, threads=1)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    # What does not grow (buffers of the kernels) cancels out; the sets themselves are there before.
    slope = (peaks[1] - peaks[0]) / (_WHOLE_SIZES[1] - _WHOLE_SIZES[0])
    kept = (sets.codes.nbytes + sets.indptr.nbytes + 80 * len(sets)) / len(sets)
    return slope + kept, graph


def _merge_point(graph: PatientGraph) -> tuple[tuple[int, float], ...]:
    """Measure how long the rows take to become a symmetric graph."""
    from patients_like_me.graph.merging import symmetrized

    started = time.process_time()
    symmetrized(graph.indptr, graph.neighbors, graph.weights)
    return ((len(graph), max(time.process_time() - started, 1e-6)),)


def _pass_point(graph: PatientGraph) -> tuple[tuple[int, float], ...]:
    """Measure three layers over a whole graph."""
    import torch

    from patients_like_me.model.gcn import GraphNetwork
    from patients_like_me.model.propagation import FixedPropagation

    network = GraphNetwork(_EMBEDDING_WIDTH, 1, GraphNetworkSettings()).eval()
    embeddings = torch.zeros(len(graph), _EMBEDDING_WIDTH)
    with torch.no_grad():
        propagation = FixedPropagation.of_graph(graph)
        network(embeddings, propagation)
        started = time.process_time()
        network(embeddings, propagation)
        return ((len(graph), max(time.process_time() - started, 1e-6)),)


def _bank_part(graph: PatientGraph) -> PartOfPlan:
    """Measure writing and reading the embeddings of a bank."""
    import tempfile
    from pathlib import Path

    from patients_like_me.graph.bank import read_embeddings, write_embeddings

    values = np.zeros((len(graph), _EMBEDDING_WIDTH), dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "embeddings.safetensors"
        started = time.process_time()
        write_embeddings(path, {"embeddings": values})
        read_embeddings(path)
        spent = max(time.process_time() - started, 1e-6)
    each = 4.0 * _EMBEDDING_WIDTH
    return PartOfPlan("bank: write and read embeddings", ((len(graph), spent),), False, each, each)


def _attribution_points(settings: GraphSettings) -> tuple[tuple[int, float], ...]:
    """Measure the importance of all references of all instances of small graphs."""
    import torch

    from patients_like_me.explanation.batch_attribution import attribute
    from patients_like_me.explanation.known_pass import known_pass
    from patients_like_me.explanation.target_edges import TargetEdges
    from patients_like_me.model.gcn import GraphNetwork
    from patients_like_me.model.randomness import seeded

    points = []
    for number, size in enumerate((_ATTRIBUTION_SIZES[0], *_ATTRIBUTION_SIZES)):
        graph = build_graph(drawn_sets(size), settings, threads=1)
        with seeded(0):
            network = GraphNetwork(_EMBEDDING_WIDTH, 1, GraphNetworkSettings()).eval()
            embeddings = torch.randn(size, _EMBEDDING_WIDTH)
        started = time.process_time()
        known = known_pass(network, graph, embeddings)
        edges = TargetEdges.of(known.graph.indptr, known.graph.columns, np.arange(size))
        attribute(known, edges, np.ones((size, 1)), threads=1)
        if number:  # the first one loads compiled code
            points.append((size, time.process_time() - started))
    return tuple(points)


def _attribution_bytes(entries: float, layers: int = 3) -> float:
    """Return the bytes per instance of a known pass and of what all blocks share, by counting their arrays."""
    # States in double precision with their patterns, adjoints of all targets, and the room of one thread.
    states = layers * _EMBEDDING_WIDTH * 17 + 4 * _EMBEDDING_WIDTH * 8
    # Rows, columns and both orders of the graph, and four results per entry.
    return states + entries * (7 * 8 + 2 * 4 + 5 * 8)


def _embedding_part(name: str) -> PartOfPlan:
    """Measure a backbone without a gradient on a few prompts of usual length."""
    import torch

    from patients_like_me.model.backbone import Batch
    from patients_like_me.model.loading import load_backbone
    from patients_like_me.model.settings import BackboneSettings

    backbone: Any = load_backbone(BackboneSettings(name=name, trainable_layers=0))
    ids = torch.full((8, _TOKENS), 5)
    batch = Batch("tokens", ids, torch.ones(8, _TOKENS, dtype=torch.bool), torch.arange(8))
    with torch.inference_mode():
        backbone(batch)
        started = time.process_time()
        backbone(batch)
        spent = time.process_time() - started
    disk = 4.0 * backbone.width
    return PartOfPlan(f"embedding ({_TOKENS} tokens each)", ((8, spent),), True, 0.0, disk)


def _size_in_words(number: float) -> str:
    """Return bytes as GiB; a dash where there are none.

    >>> _size_in_words(3 * 2**29), _size_in_words(0)
    ('1.5 GiB', '-')
    """
    if not number:
        return "-"
    return f"{number / _GIB:,.1f} GiB" if number > _GIB / 10 else f"{number / 2**20:,.0f} MiB"
