"""Measure what grows: the graph, the bank and newcomers at 1.4 million instances, a cluster, and explanations.

Run ``python benchmarks/scale.py`` (up to an hour) or ``python benchmarks/scale.py --quick`` (smaller sizes, under a
minute). The last line is JSON. Every size runs in a fresh process, so that nothing else counts into its memory.

What is measured
- ``dask_overhead``: the same graph blocks by two local processes and by two workers of a Dask cluster on this machine,
  both started and warm, one after the other; the median of the ratios of three rounds. None without Dask. The files of
  both must be equal byte for byte.
- ``instances``, ``graph_seconds``, ``graph_peak_gib``, ``graph_disk_gib``: drawn instances (22 diagnoses on average,
  tau 8, strongest 32, references bank) as blocks on disk, merged into a folder that is opened memory-mapped. With
  ``--rows R`` only about R rows, spread over all, are compared with all columns: ``graph_seconds`` is then their time
  scaled to all rows (``graph_rows_measured`` says how many), the merge is not counted and nothing is on disk.
  ``graph_cpu_seconds`` are those of all threads together, which a busy machine does not change much.
- ``newcomer_ms``: one unseen instance against that bank, the median of many; the bit rows are ready.
- ``prediction_seconds``: a network of three layers of width 128 over the whole graph; None with ``--rows``.
- ``attribution_peak_gib``: the largest memory of a process that attributes 20,000 and 139,000 instances. With
  ``--attribution-blocks B`` only the first B blocks of nodes are computed; everything that is kept for all targets is
  allocated and touched, so the peak is that of the whole, and the time is not reported.
- ``dense_*``: a graph without a cap of neighbours, 40,000 instances at the tau whose density is nearest to 5.9 %:
  entries, seconds of one signal of the graph (forward and backward, three layers), peak memory, and both extrapolated
  to 139,000 instances at the same density.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _measure import close_with, machine
from graph import own_peak_gib, seconds_of

from patients_like_me.graph import GraphSettings, PatientGraph
from patients_like_me.graph.block_workers import compute_in_workers
from patients_like_me.graph.blocks import compute_blocks, merge_blocks, plan_blocks
from patients_like_me.graph.build import PartRows, build_graph, parts_of
from patients_like_me.graph.drawn_sets import drawn_sets
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets
from patients_like_me.workers import Workers, executor_for, number_of_threads

SETTINGS = GraphSettings(tau=8, max_neighbors=32, references="bank")
WIDTH, LAYERS = 128, 3
DENSITY = 0.059
MIMIC = 139_000


def bank_of(instances: int) -> DiagnosisSets:
    """Draw a bank: every instance is of the training split."""
    drawn = drawn_sets(instances)
    return DiagnosisSets(
        drawn.indptr,
        drawn.codes,
        drawn.patients,
        drawn.instance_ids,
        drawn.vocabulary,
        splits=np.full(instances, "train"),
    )


def measure_graph(instances: int, rows: int | None) -> dict[str, Any]:
    """Build the graph on disk, or compare a sample of its rows with all columns; then newcomers and a prediction."""
    build_graph(bank_of(1_000), SETTINGS)
    sets = bank_of(instances)
    found: dict[str, Any] = {"instances": instances, "graph_rows_measured": rows or instances}
    with tempfile.TemporaryDirectory() as place:
        folder, cpu = Path(place), time.process_time()
        if rows is None:
            started = time.perf_counter()
            plan = plan_blocks(sets, SETTINGS, folder / "blocks", rows_per_block=65_536)
            compute_blocks(plan)
            graph = merge_blocks(plan, folder / "graph")
            found["graph_seconds"] = time.perf_counter() - started
            found["graph_cpu_seconds"] = time.process_time() - cpu
            found["graph_entries"] = len(graph.neighbors)
            written = sum(path.stat().st_size for path in (folder / "graph").iterdir())
            found["graph_disk_gib"] = written / 2**30
        else:
            part = parts_of(sets, "bank")[0]
            built, opened = seconds_of(lambda: PartRows(sets, part, SETTINGS))
            built_cpu = time.process_time() - cpu
            spent, cpu, step = 0.0, time.process_time(), 2048
            firsts = np.linspace(0, instances - step, max(1, rows // step)).astype(int)
            for first in firsts:
                spent += seconds_of(lambda first=first: opened.find(int(first), int(first) + step))[0]
            scale = instances / (len(firsts) * step)
            found["graph_rows_measured"] = len(firsts) * step
            found["graph_seconds"] = built + spent * scale
            found["graph_cpu_seconds"] = built_cpu + (time.process_time() - cpu) * scale
            # The answer as a whole is held while a graph is built in memory: it counts into the peak.
            kept = np.ones(instances * 32, dtype=np.int32), np.ones(instances * 32, dtype=np.uint8)
            graph = PatientGraph(
                sets, SETTINGS, np.zeros(instances + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.uint8)
            )
            del opened, kept
        found["graph_peak_gib"] = own_peak_gib()
        found["newcomer_ms"] = 1000 * newcomer_seconds(graph)
        found["prediction_seconds"] = None if rows else prediction_seconds(graph)
        found["whole_peak_gib"] = own_peak_gib()
    return found


def newcomer_seconds(graph: PatientGraph, number: int = 60) -> float:
    """Return the median seconds in which one unseen instance finds its references."""
    spent = []
    for place in range(number + 1):
        drawn = drawn_sets(1, seed=500 + place)
        one = DiagnosisSets(drawn.indptr, drawn.codes, drawn.patients, (f"new {place}",), drawn.vocabulary)
        spent.append(seconds_of(lambda one=one: graph.link(one, patients="new"))[0])
    return statistics.median(spent[1:])


def prediction_seconds(graph: PatientGraph) -> float:
    """Return the seconds of one pass of the network over a whole graph."""
    import torch

    from patients_like_me.model.propagation import FixedPropagation

    network = _network()
    embeddings = torch.zeros(len(graph), WIDTH)
    with torch.no_grad():
        propagation = FixedPropagation.of_graph(graph)
        return seconds_of(lambda: network(embeddings, propagation))[0]


def _network() -> Any:
    from patients_like_me.model.gcn import GraphNetwork
    from patients_like_me.model.settings import GraphNetworkSettings

    return GraphNetwork(WIDTH, 1, GraphNetworkSettings(layers=LAYERS, width=WIDTH)).eval()


def measure_attribution(instances: int, blocks: int | None) -> dict[str, Any]:
    """Attribute all instances, or the first blocks of nodes, and return the peak of this process."""
    import torch

    from patients_like_me.explanation.batch_attribution import AttributionWork, combined, last_adjoint
    from patients_like_me.explanation.known_pass import known_pass
    from patients_like_me.explanation.target_edges import TargetEdges

    graph = build_graph(drawn_sets(instances), GraphSettings(tau=8, max_neighbors=32))
    known = known_pass(_network(), graph, torch.randn(instances, WIDTH))
    edges = TargetEdges.of(known.graph.indptr, known.graph.columns, np.arange(instances))
    work = AttributionWork(known, edges, last_adjoint(known, edges, np.ones((instances, 1))))
    chosen = work.blocks_of(work.nodes)
    seconds, (direct, own, effects) = seconds_of(lambda: work.compute(chosen[:blocks]))
    for touched in (direct, own, effects):
        touched += 1.0
    combined(known, edges, direct, own, effects[edges.entries])
    share = sum(len(part) for part in chosen[:blocks]) / len(work.nodes)
    return {"peak": own_peak_gib(), "seconds": seconds, "share_of_nodes": share, "references": edges.edges}


def measure_dense(instances: int) -> dict[str, Any]:
    """Build a graph of all neighbours at the paper's density and run one signal of the graph network over it."""
    import torch

    from patients_like_me.graph.histogram import overlap_histogram
    from patients_like_me.model import propagation as forms
    from patients_like_me.model.propagation import FixedPropagation

    sets, sample = drawn_sets(instances), drawn_sets(3_000, seed=7)
    counted = overlap_histogram(sample.indptr, sample.codes, sample.patients, len(sample.vocabulary))
    shares = np.cumsum(counted[::-1])[::-1] / counted.sum()
    tau = int(np.argmin(np.abs(shares - DENSITY)))
    graph = build_graph(sets, GraphSettings(tau=tau))
    entries, density = len(graph.neighbors), len(graph.neighbors) / instances**2
    # Also where a smaller size is measured: the form of large graphs is what is asked about.
    forms.LARGE = min(forms.LARGE, entries)
    network, propagation = _network(), FixedPropagation.of_graph(graph)
    embeddings = torch.randn(instances, WIDTH).requires_grad_()
    network(embeddings[:0].new_zeros(instances, WIDTH), propagation)
    cpu = time.process_time()
    seconds, _ = seconds_of(lambda: torch.autograd.grad(network(embeddings, propagation).sum(), embeddings))
    cpu = time.process_time() - cpu
    larger = DENSITY * MIMIC**2 / entries
    return {
        "dense_instances": instances,
        "dense_tau": tau,
        "dense_density": round(density, 4),
        "dense_entries": entries,
        "dense_signal_seconds": round(seconds, 2),
        "dense_signal_cpu_seconds": round(cpu, 2),
        "dense_peak_gib": round(own_peak_gib(), 2),
        "dense_mimic_entries": round(DENSITY * MIMIC**2),
        "dense_mimic_signal_cpu_seconds": round(cpu * larger, 1),
        "dense_mimic_graph_gib": round(DENSITY * MIMIC**2 * 5 / 2**30, 1),
    }


def dask_overhead(instances: int, rounds: int) -> dict[str, Any]:
    """Compare two local processes with two workers of a local Dask cluster on the blocks of one graph."""
    try:
        from distributed import LocalCluster
    except ImportError:
        return {"dask_overhead": None}
    sets = drawn_sets(instances)
    local, dask = [], []
    with (
        tempfile.TemporaryDirectory() as place,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50) as cluster,
        executor_for(2) as processes,
        executor_for(str(cluster.scheduler_address).replace("tcp://", "dask://")) as workers,
    ):

        def blocks_by(executor: Workers, name: str) -> float:
            plan = plan_blocks(sets, GraphSettings(max_neighbors=32), Path(place) / name, rows_per_block=2_048)
            return seconds_of(lambda: compute_in_workers(plan, executor, threads=1))[0]

        blocks_by(processes, "warm processes")
        blocks_by(workers, "warm workers")
        for number in range(rounds):
            local.append(blocks_by(processes, f"processes {number}"))
            dask.append(blocks_by(workers, f"workers {number}"))
        kept = [Path(place) / name for name in ("processes 0", "workers 0")]
        equal = all(
            (kept[1] / path.name).read_bytes() == path.read_bytes() for path in kept[0].glob("block-*.safetensors")
        )
        assert equal, "a block of the cluster differs from that of the local processes"
    ratio = statistics.median(there / here for there, here in zip(dask, local, strict=True))
    return {
        "dask_overhead": round(ratio, 3),
        "dask_seconds": round(statistics.median(dask), 2),
        "local_seconds": round(statistics.median(local), 2),
    }


def in_fresh_process(task: str, *words: str) -> dict[str, Any]:
    """Run one task in a process of its own and return what it printed."""
    command = [sys.executable, __file__, "--task", task, *words]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Measure everything and print it, the last line as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes, under a minute")
    parser.add_argument("--rows", type=int, help="compare only about this many rows of the large graph")
    parser.add_argument("--attribution-blocks", type=int, help="attribute only the first blocks of nodes")
    parser.add_argument("--only", help="names of parts, with commas: dask, graph, attribution, dense")
    parser.add_argument("--task", choices=("graph", "attribution", "dense"), help=argparse.SUPPRESS)
    parser.add_argument("--instances", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task == "graph":
        close_with(measure_graph(options.instances, options.rows))
        return
    if options.task == "attribution":
        close_with(measure_attribution(options.instances, options.attribution_blocks))
        return
    if options.task == "dense":
        close_with(measure_dense(options.instances))
        return
    quick = options.quick
    wanted = (options.only or "dask,graph,attribution,dense").split(",")
    print(f"{machine()}, {number_of_threads()} threads")
    figures: dict[str, Any] = {}
    if "dask" in wanted:
        figures |= dask_overhead(12_000 if quick else 60_000, 1 if quick else 3)
        print(figures)
    if "graph" in wanted:
        words = ["--instances", str(30_000 if quick else 1_400_000)]
        found = in_fresh_process("graph", *words, *(["--rows", str(options.rows)] if options.rows else []))
        figures |= {name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()}
        print(found)
    if "attribution" in wanted:
        blocks = ["--attribution-blocks", str(options.attribution_blocks)] if options.attribution_blocks else []
        for instances in (1_000, 2_000) if quick else (20_000, MIMIC):
            found = in_fresh_process("attribution", "--instances", str(instances), *blocks)
            figures[f"attribution_peak_gib_{instances}"] = round(found["peak"], 2)
            figures[f"attribution_share_of_nodes_{instances}"] = round(found["share_of_nodes"], 4)
            print(f"attribution at {instances:,}: {found}")
    if "dense" in wanted:
        figures |= in_fresh_process("dense", "--instances", str(4_000 if quick else 40_000))
    close_with(figures)


if __name__ == "__main__":
    main()
