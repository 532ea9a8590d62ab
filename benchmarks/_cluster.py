"""A Dask cluster of worker processes on this machine against local processes: the same result, and at what price."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from graph import seconds_of

from patients_like_me.graph import GraphSettings, build_graph
from patients_like_me.graph.block_workers import build_graph_in_blocks, compute_in_workers
from patients_like_me.graph.blocks import plan_blocks
from patients_like_me.graph.drawn_sets import drawn_sets
from patients_like_me.workers import Workers, executor_for


def started_cluster(workers: int) -> Any:
    """Return a cluster of worker processes with one thread each; None without Dask."""
    try:
        from distributed import LocalCluster
    except ImportError:
        return None
    return LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50)


def address_of(cluster: Any) -> str:
    """Return what ``--workers`` is given."""
    return str(cluster.scheduler_address).replace("tcp://", "dask://")


def measure_overhead(instances: int, rounds: int) -> dict[str, Any]:
    """Compare two local processes with two workers of a local Dask cluster on the blocks of one graph."""
    started = started_cluster(2)
    if started is None:
        return {"dask_overhead": None}
    sets = drawn_sets(instances)
    local, dask = [], []
    with (
        tempfile.TemporaryDirectory() as place,
        started as cluster,
        executor_for(2) as processes,
        executor_for(address_of(cluster)) as workers,
    ):

        def blocks_by(executor: Workers, name: str) -> float:
            plan = plan_blocks(sets, GraphSettings(max_neighbors=32), Path(place) / name)
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


def measure_equality(instances: int) -> dict[str, Any]:
    """Build one graph by four workers of a cluster and in this process, and compare them bit for bit."""
    started = started_cluster(4)
    if started is None:
        return {"cluster_graph_equal": None}
    sets, settings = drawn_sets(instances), GraphSettings(max_neighbors=32)
    with tempfile.TemporaryDirectory() as place, started as cluster:
        seconds, shared = seconds_of(
            lambda: build_graph_in_blocks(sets, settings, Path(place) / "graph", workers=address_of(cluster))
        )
        local = build_graph(sets, settings)
        equal = all(
            np.array_equal(getattr(shared, name), getattr(local, name)) for name in ("indptr", "neighbors", "weights")
        )
    return {
        "cluster_graph_equal": equal,
        "cluster_graph_instances": instances,
        "cluster_graph_entries": len(local.neighbors),
        "cluster_graph_seconds": round(seconds, 1),
    }
