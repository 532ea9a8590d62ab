"""Measure what grows: a hospital of 1.4 million instances from ingest to pages, a cluster, explanations, and the plan.

Run ``python benchmarks/scale.py`` (up to an hour; ``--only`` names parts) or ``python benchmarks/scale.py --quick``
(smaller sizes, under a minute, the same names). The last line is JSON. Every size and stage runs in a fresh process,
so that nothing else counts into its memory.

What is measured
- ``dask``: ``dask_overhead``, the same graph blocks by two local processes and by two workers of a Dask cluster on this
  machine, both started and warm, one after the other, in blocks of the usual size; the median of the ratios of five
  rounds. None without Dask. The files of both must be equal byte for byte.
- ``cluster``: ``cluster_graph_equal``, a graph of 139,000 instances by four workers of a Dask cluster and in one
  process, compared bit for bit.
- ``million``: own tables of 1.4 million visits (22 diagnoses on average; tau 8, strongest 32, references bank).
  ``ingest_*``: ``plm prepare``. ``instances``, ``graph_seconds``, ``graph_peak_gib``, ``graph_disk_gib``: blocks on
  disk, merged into a folder that is opened memory-mapped; with ``--rows R`` only about R rows, spread over all, are
  compared with all columns, ``graph_seconds`` is scaled to all rows (``graph_rows_measured`` says how many were
  compared), and the stages after it are left out. ``graph_cpu_seconds`` are those of all threads together, which a busy
  machine does not change much. ``prediction_seconds``: a network of three layers of width 128 over the whole graph.
  ``bank_*``: a run folder with the bank. ``newcomer_ms``: one unseen instance finds its references in that bank, the
  median of many; the bit rows are ready. ``predict_ms_each``: ``plm predict`` with its language model.
  ``page_ms``: predict and explain one newcomer and write the page. ``report_*``: ``plm report`` on the run.
- ``attribution``: ``attribution_peak_gib`` at ``attribution_instances`` (20,000), and ``attribution_large_peak_gib`` at
  ``attribution_large_instances`` (139,000): the largest memory of a process that attributes all references of all
  instances, with its seconds. With ``--attribution-blocks B`` only B blocks of nodes, spread over all, are computed and
  the seconds are scaled; everything that is kept for all targets is allocated and touched, so the peak is that of the
  whole. ``attribution_share_of_nodes`` tells what was computed.
- ``dense``: a graph without a cap of neighbours, 40,000 instances at the tau whose density is nearest to 5.9 %, built
  in blocks on disk and mapped: entries, seconds of one answer of the graph network (forward and backward, three
  layers), peak memory, and both extrapolated to 139,000 instances at the same density. Of the peak, ``dense_entries``
  times five bytes are pages of the mapped file, which the system may take back.
- ``plan``: what the plan says on paper against what is measured, three sizes each: whole graphs (seconds of one core,
  peak memory), and epochs of trainings on synthetic hospitals. ``plan_worst`` is the largest relative difference.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _cluster import measure_equality, measure_overhead
from _growth import (
    MIMIC,
    measure_attribution,
    measure_dense,
    measured_graph,
    measured_training,
    plan_of_graph,
    planned_training,
    prepared_hospital,
)
from _measure import close_with, machine
from _million import STAGES

from patients_like_me.workers import number_of_threads

PARTS = ("dask", "cluster", "million", "attribution", "dense", "plan")
MILLION = 1_400_000


def in_fresh_process(task: str, *words: object) -> dict[str, Any]:
    """Run one task in a process of its own and return what it printed."""
    command = [sys.executable, __file__, "--task", task, *(str(word) for word in words)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"{task} failed:\n{found.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return result


def run_task(options: argparse.Namespace) -> Any:
    """Do one task in this process."""
    folder, size = options.folder, options.instances
    tasks: dict[str, Any] = {
        "ingest": lambda: STAGES["ingest"](folder, size),
        "graph": lambda: STAGES["graph"](folder, options.rows),
        "bank": lambda: STAGES["bank"](folder),
        "use": lambda: STAGES["use"](folder),
        "report": lambda: STAGES["report"](folder),
        "attribution": lambda: measure_attribution(size, options.attribution_blocks),
        "dense": lambda: measure_dense(size, folder),
        "plan of graph": lambda: {"rows": plan_of_graph(options.sizes[:3], tuple(options.sizes[3:]))},
        "measured graph": lambda: measured_graph(size),
        "hospital": lambda: prepared_hospital(folder, size),
        "plan of training": lambda: planned_training(folder),
        "measured training": lambda: measured_training(folder),
    }
    return tasks[options.task]()


def chosen_names(words: str, known: Collection[str], option: str) -> list[str]:
    """Return the names that an option lists with commas between; a name that nobody knows is refused."""
    names = [name.strip() for name in words.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"{option} does not know '{unknown[0]}'; choose from {', '.join(known)}")
    return names


def measure_million(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Go through the stages of a large hospital that were asked for; each reads what those before it left there."""
    found: dict[str, Any] = {}
    for stage in STAGES:
        if stage not in options.stages or (options.rows and stage not in ("ingest", "graph")):
            continue
        words = ["--folder", folder, "--instances", 20_000 if options.quick else MILLION]
        words += ["--rows", options.rows] if options.rows else []
        measured = in_fresh_process(stage, *words)
        print(f"{stage}: {measured}", flush=True)
        found |= {name: round(value, 3) if isinstance(value, float) else value for name, value in measured.items()}
    return found


def measure_explanations(options: argparse.Namespace) -> dict[str, Any]:
    """Attribute the instances of a smaller and of a larger graph."""
    found: dict[str, Any] = {}
    sizes = (1_000, 2_000) if options.quick else (20_000, MIMIC)
    blocks = ["--attribution-blocks", options.attribution_blocks] if options.attribution_blocks else []
    for name, instances in zip(("attribution", "attribution_large"), sizes, strict=True):
        measured = in_fresh_process("attribution", "--instances", instances, *blocks)
        print(f"attribution at {instances:,}: {measured}", flush=True)
        found |= {
            f"{name}_peak_gib": round(measured["peak"], 2),
            f"{name}_instances": instances,
            f"{name}_seconds": round(measured["seconds"], 1),
            f"{name}_share_of_nodes": round(measured["share_of_nodes"], 4),
        }
    return found


def measure_dense_graph(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure a graph without a cap of neighbours, in blocks on disk."""
    size = 4_000 if options.quick else options.dense_instances
    return in_fresh_process("dense", "--instances", size, "--folder", folder)


def measure_plan(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Compare what is planned with what is measured, and print both as the rows of a table."""
    whole, smaller = ([30_000, 60_000, 139_000], [10_000, 20_000, 40_000])
    hospitals = [150, 300, 600]
    if options.quick:
        whole, smaller, hospitals = [3_000, 6_000, 12_000], [1_000, 2_000, 4_000], [60]
    rows = [("graph", plan, in_fresh_process("measured graph", "--instances", int(plan["instances"])))
            for plan in in_fresh_process("plan of graph", "--sizes", *whole, *smaller)["rows"]]  # fmt: skip
    for patients in hospitals:
        place = folder / f"hospital of {patients}"
        in_fresh_process("hospital", "--folder", place, "--instances", patients)
        planned = in_fresh_process("plan of training", "--folder", place)
        measured = in_fresh_process("measured training", "--folder", place)
        rows.append(("epoch", {**planned, "instances": measured["instances"]}, measured))
    worst = 0.0
    for what, planned, measured in rows:
        differences = {name: planned[name] / measured[name] - 1 for name in ("seconds", "gib")}
        worst = max(worst, *map(abs, differences.values()))
        print(
            f"| {what} | {measured['instances']:,} | {planned['seconds']:.2f} | {measured['seconds']:.2f} | "
            f"{differences['seconds']:+.0%} | {planned['gib']:.2f} GiB | {measured['gib']:.2f} GiB | "
            f"{differences['gib']:+.0%} |",
            flush=True,
        )
    return {"plan_worst": round(worst, 3), "plan_rows": len(rows)}


def main() -> None:
    """Measure everything and print it, the last line as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes, under a minute")
    parser.add_argument("--only", help=f"names of parts, with commas: {', '.join(PARTS)}")
    parser.add_argument("--stages", default=",".join(STAGES), help="million: which stages, after those before")
    parser.add_argument("--folder", type=Path, help="million: where its folders are kept; default: a temporary one")
    parser.add_argument("--rows", type=int, help="million: compare only about this many rows of the graph")
    parser.add_argument("--attribution-blocks", type=int, help="attribute only so many blocks of nodes")
    parser.add_argument("--dense-instances", type=int, default=40_000, help="dense: how many instances")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--instances", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", type=int, nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        close_with(run_task(options))
        return
    # A training of three sizes and two cluster starts take longer than the short form may.
    usual = [part for part in PARTS if not (options.quick and part in ("cluster", "plan"))]
    wanted = chosen_names(options.only, PARTS, "--only") if options.only else usual
    options.stages = chosen_names(options.stages, STAGES, "--stages")
    print(f"{machine()}, {number_of_threads()} threads")
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        temporary = Path(place)
        if "dask" in wanted:
            figures |= measure_overhead(40_000 if options.quick else MIMIC, 1 if options.quick else 5)
            print(figures, flush=True)
        if "cluster" in wanted:
            figures |= measure_equality(5_000 if options.quick else MIMIC)
        parts = {
            "million": lambda: measure_million(options, options.folder or temporary / "million"),
            "attribution": lambda: measure_explanations(options),
            "dense": lambda: measure_dense_graph(options, temporary / "dense"),
        }
        chosen = [measured for name, measured in parts.items() if name in wanted]
        # The short form shows that everything runs: two parts at a time.
        with ThreadPoolExecutor(2 if options.quick else 1) as together:
            for found in together.map(lambda measured: measured(), chosen):
                figures |= found
        if "plan" in wanted:
            figures |= measure_plan(options, temporary / "plan")
    close_with(figures)


if __name__ == "__main__":
    main()
