"""Rates of the parts of a plan, measured on this machine in seconds of one core, on drawn diagnosis sets."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any, Final

import numpy as np

from patients_like_me.graph.build import PartRows, build_graph, parts_of
from patients_like_me.graph.drawn_sets import drawn_sets
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.settings import GraphSettings
from patients_like_me.model.settings import GraphNetworkSettings
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets

Points = tuple[tuple[int, float], ...]
#: The sizes at which the graph is measured, and the rows of it that are computed. Fewer rows would not share out what
#: it costs to read a block of columns: a plan from 600 was a third too slow.
GRAPH_SIZES: Final = (20_000, 80_000, 320_000)
_SAMPLE: Final = 2_400
#: Sizes of whole graphs that are built, stored in memory and attributed.
_WHOLE_SIZES: Final = (5_000, 10_000)
_ATTRIBUTION_SIZES: Final = (1_000, 2_000, 4_000)
#: The size of the graph that tells what keeping all neighbours would take.
_ALL_PAIRS_SIZE: Final = 6_000
_NEWCOMERS: Final = 20
_INGEST_SIZES: Final = (4_000, 20_000)
EMBEDDING_WIDTH: Final = 128
TOKENS: Final = 256


def all_pairs_rates(settings: GraphSettings) -> tuple[float, float]:
    """Return the share of all pairs that a graph without a cap links, and the seconds of an entry in an answer."""
    import torch

    from patients_like_me.model.gcn import GraphNetwork
    from patients_like_me.model.propagation import FixedPropagation

    graph = build_graph(drawn_sets(_ALL_PAIRS_SIZE), settings)
    network = GraphNetwork(EMBEDDING_WIDTH, 1, GraphNetworkSettings()).eval()
    propagation = FixedPropagation.of_nodes(graph, np.arange(len(graph)))
    states, started = torch.zeros(len(graph), EMBEDDING_WIDTH, requires_grad=True), 0.0
    for _ in range(2):
        started = time.process_time()
        torch.autograd.grad(network(states, propagation).sum(), states)
    entries = len(graph.neighbors)
    return entries / len(graph) ** 2, (time.process_time() - started) / max(entries, 1)


def ingest_point() -> tuple[Points, float]:
    """Measure ``plm prepare`` of own tables, what does not grow left out; return also the bytes of a visit on disk."""
    import tempfile
    from pathlib import Path

    from patients_like_me.codes.store import CodeStore
    from patients_like_me.records.prepare import prepare

    spent, size = [], 0.0
    for visits in (_INGEST_SIZES[0], *_INGEST_SIZES):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            _write_tables(place / "tables", drawn_sets(visits))
            started = time.process_time()
            cohort = prepare("tables", place / "tables", place / "cohort", store=CodeStore(place / "codes")).folder
            spent.append(time.process_time() - started)
            size = sum(path.stat().st_size for path in cohort.rglob("*") if path.is_file()) / visits
    # The first one loads libraries.
    return ((_INGEST_SIZES[1] - _INGEST_SIZES[0], max(spent[2] - spent[1], 1e-6)),), size


def _write_tables(folder: Any, sets: DiagnosisSets) -> None:
    import polars as pl

    folder.mkdir()
    names = pl.DataFrame({"number": np.arange(len(sets))}).select(
        subject_id=pl.format("p{}", "number"), visit_id=pl.format("v{}", "number"), order=pl.lit(1)
    )
    names.write_parquet(folder / "visits.parquet")
    owners = np.repeat(np.arange(len(sets)), np.diff(sets.indptr))
    pl.DataFrame({"number": owners, "code": sets.codes}).select(
        visit_id=pl.format("v{}", "number"), kind=pl.lit("diagnosis/own"), code=pl.format("c{}", "code")
    ).write_parquet(folder / "events.parquet")


def graph_seconds(sets: DiagnosisSets, settings: GraphSettings) -> float:
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


def link_seconds(sets: DiagnosisSets, settings: GraphSettings) -> float:
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


def graph_memory(settings: GraphSettings) -> tuple[float, PatientGraph]:
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


def merge_point(graph: PatientGraph) -> Points:
    """Measure how long the rows take to become a symmetric graph."""
    from patients_like_me.graph.merging import symmetrized

    started = time.process_time()
    symmetrized(graph.indptr, graph.neighbors, graph.weights)
    return ((len(graph), max(time.process_time() - started, 1e-6)),)


def pass_point(graph: PatientGraph) -> Points:
    """Measure three layers over a whole graph."""
    import torch

    from patients_like_me.model.gcn import GraphNetwork
    from patients_like_me.model.propagation import FixedPropagation

    network = GraphNetwork(EMBEDDING_WIDTH, 1, GraphNetworkSettings()).eval()
    embeddings = torch.zeros(len(graph), EMBEDDING_WIDTH)
    with torch.no_grad():
        propagation = FixedPropagation.of_graph(graph)
        network(embeddings, propagation)
        started = time.process_time()
        network(embeddings, propagation)
        return ((len(graph), max(time.process_time() - started, 1e-6)),)


def bank_point(graph: PatientGraph) -> Points:
    """Measure writing and reading the embeddings of a bank."""
    import tempfile
    from pathlib import Path

    from patients_like_me.graph.bank import read_embeddings, write_embeddings

    values = np.zeros((len(graph), EMBEDDING_WIDTH), dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "embeddings.safetensors"
        started = time.process_time()
        write_embeddings(path, {"embeddings": values})
        read_embeddings(path)
        spent = max(time.process_time() - started, 1e-6)
    return ((len(graph), spent),)


def attribution_points(settings: GraphSettings) -> Points:
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
            network = GraphNetwork(EMBEDDING_WIDTH, 1, GraphNetworkSettings()).eval()
            embeddings = torch.randn(size, EMBEDDING_WIDTH)
        started = time.process_time()
        known = known_pass(network, graph, embeddings)
        edges = TargetEdges.of(known.graph.indptr, known.graph.columns, np.arange(size))
        attribute(known, edges, np.ones((size, 1)), threads=1)
        if number:  # the first one loads compiled code
            points.append((size, time.process_time() - started))
    return tuple(points)


def attribution_bytes(entries: float, layers: int = 3) -> float:
    """Return the bytes per instance of a known pass and of what all blocks share, by counting their arrays."""
    # States in double precision with their patterns, adjoints of all targets, and the room of one thread.
    states = layers * EMBEDDING_WIDTH * 17 + 4 * EMBEDDING_WIDTH * 8
    # Rows, columns and both orders of the graph, and four results per entry.
    return states + entries * (7 * 8 + 2 * 4 + 5 * 8)


def embedding_point(name: str) -> tuple[Points, int]:
    """Measure a backbone without a gradient on a few prompts of usual length; return also its width."""
    import torch

    from patients_like_me.model.backbone import Batch
    from patients_like_me.model.loading import load_backbone
    from patients_like_me.model.settings import BackboneSettings

    backbone: Any = load_backbone(BackboneSettings(name=name, trainable_layers=0))
    ids = torch.full((8, TOKENS), 5)
    batch = Batch("tokens", ids, torch.ones(8, TOKENS, dtype=torch.bool), torch.arange(8))
    with torch.inference_mode():
        backbone(batch)
        started = time.process_time()
        backbone(batch)
        spent = time.process_time() - started
    return ((8, spent),), int(backbone.width)
