"""What grows with the cohort: attribution, a graph of all neighbours, and whether the plan of both is right."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from graph import own_peak_gib, seconds_of

from patients_like_me.graph import GraphSettings, build_graph
from patients_like_me.graph.block_workers import build_graph_in_blocks
from patients_like_me.graph.drawn_sets import drawn_sets
from patients_like_me.graph.large import ENTRY_BYTES

WIDTH, LAYERS = 128, 3
#: The share of all pairs that reach tau 8 in the MIMIC-III demo, and the instances of full MIMIC-IV.
DENSITY, MIMIC = 0.059, 139_000


def _network() -> Any:
    from patients_like_me.model.gcn import GraphNetwork
    from patients_like_me.model.settings import GraphNetworkSettings

    return GraphNetwork(WIDTH, 1, GraphNetworkSettings(layers=LAYERS, width=WIDTH)).eval()


def measure_attribution(instances: int, blocks: int | None) -> dict[str, Any]:
    """Attribute all instances, or the first blocks of nodes, and return seconds and the peak of this process."""
    import torch

    from patients_like_me.explanation.batch_attribution import AttributionWork, combined, last_adjoint
    from patients_like_me.explanation.known_pass import known_pass
    from patients_like_me.explanation.target_edges import TargetEdges

    graph = build_graph(drawn_sets(instances), GraphSettings(tau=8, max_neighbors=32))
    built, known = seconds_of(lambda: known_pass(_network(), graph, torch.randn(instances, WIDTH)))
    edges = TargetEdges.of(known.graph.indptr, known.graph.columns, np.arange(instances))
    opened, work = seconds_of(
        lambda: AttributionWork(known, edges, last_adjoint(known, edges, np.ones((instances, 1))))
    )
    chosen = work.blocks_of(work.nodes)
    if blocks is not None and blocks < len(chosen):
        # Spread over all nodes: those with many neighbours come anywhere.
        chosen_now = [chosen[int(place)] for place in np.linspace(0, len(chosen) - 1, blocks)]
    else:
        chosen_now = chosen
    work.compute(chosen_now[:1])
    seconds, (direct, own, effects) = seconds_of(lambda: work.compute(chosen_now))
    for touched in (direct, own, effects):
        touched += 1.0
    combined(known, edges, direct, own, effects[edges.entries])
    share = sum(len(part) for part in chosen_now) / len(work.nodes)
    return {
        "peak": own_peak_gib(),
        "seconds": built + opened + seconds * len(chosen) / len(chosen_now),
        "share_of_nodes": share,
        "references": edges.edges,
    }


def measure_dense(instances: int, folder: Path | None) -> dict[str, Any]:
    """Build a graph of all neighbours at the paper's density and run one answer of the graph network over it.

    With a folder it is built there as blocks and mapped, as a training does where memory is short.
    """
    import torch

    from patients_like_me.graph.histogram import overlap_histogram
    from patients_like_me.model.propagation import FixedPropagation

    sets, sample = drawn_sets(instances), drawn_sets(3_000, seed=7)
    counted = overlap_histogram(sample.indptr, sample.codes, sample.patients, len(sample.vocabulary))
    shares = np.cumsum(counted[::-1])[::-1] / counted.sum()
    tau = int(np.argmin(np.abs(shares - DENSITY)))
    settings = GraphSettings(tau=tau)
    build_graph(sample, settings)
    seconds, graph = seconds_of(
        lambda: (
            build_graph(sets, settings)
            if folder is None
            else build_graph_in_blocks(sets, settings, folder / "graph", rows_per_block=4_096)
        )
    )
    graph_peak = own_peak_gib()
    entries = len(graph.neighbors)
    network, propagation = _network(), FixedPropagation.of_nodes(graph, np.arange(instances))
    embeddings = torch.randn(instances, WIDTH).requires_grad_()
    network(embeddings[:0].new_zeros(instances, WIDTH), propagation)
    cpu = time.process_time()
    answer, _ = seconds_of(lambda: torch.autograd.grad(network(embeddings, propagation).sum(), embeddings))
    cpu = time.process_time() - cpu
    larger = DENSITY * MIMIC**2 / entries
    return {
        "dense_instances": instances,
        "dense_tau": tau,
        "dense_density": round(entries / instances**2, 4),
        "dense_entries": entries,
        "dense_on_disk": folder is not None,
        "dense_graph_seconds": round(seconds, 1),
        "dense_graph_peak_gib": round(graph_peak, 2),
        "dense_answer_seconds": round(answer, 2),
        "dense_answer_cpu_seconds": round(cpu, 2),
        "dense_ns_per_entry": round(1e9 * cpu / (2 * LAYERS * entries), 2),
        "dense_peak_gib": round(own_peak_gib(), 2),
        "dense_mimic_entries": round(DENSITY * MIMIC**2),
        "dense_mimic_answer_seconds": round(answer * larger, 1),
        "dense_mimic_graph_gib": round(DENSITY * MIMIC**2 * ENTRY_BYTES / 2**30, 1),
    }


def plan_of_graph(instances: list[int], sizes: tuple[int, ...]) -> list[dict[str, float]]:
    """Say on paper what the graphs of some sizes take, from smaller ones."""
    from patients_like_me.report.scale_plan import plan_scale

    plan = plan_scale(max(instances), 1, settings=GraphSettings(max_neighbors=32), sizes=sizes)
    pairs, merging = plan.parts[1:3]
    return [
        {
            "instances": size,
            "seconds": pairs.seconds(size) + merging.seconds(size),
            "gib": plan.process_gib + pairs.memory_bytes * size / 2**30,
        }
        for size in instances
    ]


def measured_graph(instances: int) -> dict[str, float]:
    """Build a whole graph in memory with one thread; return the seconds of one core and the peak of this process."""
    build_graph(drawn_sets(1_000), GraphSettings(max_neighbors=32), threads=1)
    sets = drawn_sets(instances)
    cpu = time.process_time()
    build_graph(sets, GraphSettings(max_neighbors=32), threads=1)
    return {"instances": instances, "seconds": time.process_time() - cpu, "gib": own_peak_gib()}


def prepared_hospital(folder: Path, patients: int) -> dict[str, float]:
    """Write a synthetic hospital and prepare its cohort."""
    from patients_like_me.codes.store import CodeStore
    from patients_like_me.records.prepare import prepare
    from patients_like_me.records.synthetic import write_synthetic_hospital

    write_synthetic_hospital(folder / "hospital", patients=patients)
    prepare("mimic4", folder / "hospital", folder / "cohort", store=CodeStore(folder / "codes"))
    return {"patients": patients}


def _training(folder: Path) -> Any:
    """Return cohort, task and settings of a training in which every M-step takes all its steps."""
    from patients_like_me.systems.choosing import chosen_settings

    changes = {"epochs": 3, "patience": 3, "graph_steps": 40, "graph_patience": 1_000}
    settings, of_task = chosen_settings("readmission", "quick", system="patients_like_me", changes=changes)
    return folder / "cohort", "readmission", settings, of_task


def planned_training(folder: Path) -> dict[str, float]:
    """Plan a training, as ``plm plan COHORT`` does; return the seconds of an epoch and the memory that it expects."""
    from patients_like_me.records.cohort import Cohort
    from patients_like_me.tasks.instances import build_instances
    from patients_like_me.tasks.registry import find_task
    from patients_like_me.training.plan import estimate_training

    place, task, settings, of_task = _training(folder)
    cohort = Cohort.load(place)
    plan = estimate_training(build_instances(cohort, find_task(task, cohort), of_task), settings)
    return {
        "instances": len(cohort.visits),
        "seconds": plan.language_seconds_per_epoch + plan.graph_seconds_per_epoch,
        "gib": plan.memory_gib,
    }


def measured_training(folder: Path) -> dict[str, float]:
    """Train, and return the mean seconds of the epochs after the first, and the peak of this process."""
    from patients_like_me.runs.run import load_run
    from patients_like_me.systems.train import train

    place, task, settings, of_task = _training(folder)
    train(place, task, folder / "run", settings=settings, task_settings=of_task, cache=folder / "cache")
    run = load_run(folder / "run")
    # The first epoch warms up through the own head, without an answer of the graph.
    later = [epoch["seconds"] for epoch in run.epoch_records()[1:]]
    return {"instances": sum(run.results.instances.values()), "seconds": float(np.mean(later)), "gib": own_peak_gib()}
