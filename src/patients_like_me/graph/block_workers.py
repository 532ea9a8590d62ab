"""Building a graph on disk with many workers: local processes, or a cluster that sees the same folder.

What a worker is given is the folder of a plan and the number of a block; what it leaves is the file of that block. So a
worker that is lost costs one block, a second call takes up what is there, and two coordinators share the work.
"""

from __future__ import annotations

import shutil
import threading
from functools import lru_cache
from pathlib import Path
from uuid import uuid4

from patients_like_me.errors import PlmError
from patients_like_me.files import read_json, waiting_writer
from patients_like_me.graph.blocks import BlockPlan, compute_blocks, merge_blocks, plan_blocks, read_plan, write_block
from patients_like_me.graph.build import PartRows
from patients_like_me.graph.node_sets import digest_of
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.settings import GraphSettings
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets
from patients_like_me.workers import Progress, Workers, in_workers, read_workers, threads_of_each, threads_on_worker

#: Opening a plan and building its bit rows is done once per process, whichever thread asks first.
_opening = threading.Lock()


def build_graph_in_blocks(
    sets: DiagnosisSets,
    settings: GraphSettings,
    out: Path | str,
    *,
    rows_per_block: int = 8192,
    workers: Workers = 1,
    threads: int | None = None,
    progress: Progress | None = None,
    replace: bool = False,
) -> PatientGraph:
    """Build a graph on disk and open it; the blocks are in ``<out>.blocks`` until it is whole.

    Call it again with the same arguments after a stop: finished blocks are not computed again. ``workers`` is a number
    of local processes, ``dask://HOST:PORT`` or any executor; ``threads`` are those of each worker, on a cluster by
    default what its ``OMP_NUM_THREADS`` says. The graph is the same however it was computed.
    """
    workers = read_workers(workers) if isinstance(workers, int | str) else workers
    out = Path(out)
    folder = Path(f"{out}.blocks").absolute()
    earlier = _version_of(out)
    plan = plan_blocks(sets, settings, folder, rows_per_block=rows_per_block)
    try:
        if workers == 1:
            compute_blocks(plan, threads=threads, progress=progress)
        else:
            compute_in_workers(plan, workers, threads=threads, progress=progress)
        with waiting_writer(folder):
            graph = merge_blocks(plan, out, replace=replace)
            _remove(folder)
    except (PlmError, OSError):
        # Another coordinator of the same graph may have been first: it has merged the blocks and removed them.
        if _version_of(out) in (None, earlier):
            raise
        graph = PatientGraph.load(out, verify=False)
        if graph.settings != settings or digest_of(graph.sets) != plan.digest:
            raise
    return graph


def _remove(folder: Path) -> None:
    """Remove a folder into which a worker that is late may still write."""
    # Under another name it is out of reach, so that it does not fill up again while it is emptied.
    removed = folder.with_name(f".{folder.name}.{uuid4().hex[:8]}.removed")
    folder.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def compute_in_workers(
    plan: BlockPlan, workers: Workers, *, threads: int | None = None, progress: Progress | None = None
) -> int:
    """Compute the missing blocks of a plan on workers; return how many these were."""
    each = threads_of_each(workers, threads)
    blocks = {block.number: block for block in plan.blocks}
    return in_workers(
        compute_block,
        [(str(plan.folder), number, each) for number in blocks],
        workers=workers,
        is_done=lambda part: plan.path_of(blocks[part[1]]).is_file(),
        progress=progress,
    )


def compute_block(folder: str, number: int, threads: int) -> int:
    """Compute one block of the plan in a folder, unless it is there; return its number. What a worker runs."""
    about = Path(folder) / "plan.json"
    written = about.stat().st_mtime_ns if about.is_file() else 0
    with _opening:
        plan = _plan_in(folder, written)
        block = plan.blocks[number]
        rows = _rows_of(folder, written, block.part)
    if not plan.path_of(block).is_file():
        write_block(plan, block, rows, threads=threads_on_worker(threads))
    return number


@lru_cache(maxsize=1)
def _plan_in(folder: str, written: int) -> BlockPlan:
    del written  # part of the key: a folder may hold another plan later
    return read_plan(folder)


@lru_cache(maxsize=1)
def _rows_of(folder: str, written: int, part: int) -> PartRows:
    plan = _plan_in(folder, written)
    return PartRows(plan.sets, plan.parts[part], plan.settings)


def _version_of(out: Path) -> str | None:
    """Return what tells one graph in a folder from the next; None where there is none."""
    path = out / "graph.json"
    return f"{path.stat().st_mtime_ns} {read_json(path, what='graph')['sha256']}" if path.is_file() else None
