"""Attribution on many workers: the pass of the network as files, blocks of nodes as rows of them, parts as files.

What a worker is given is the folder of a question, next to or within which is that of the pass, and a range of nodes.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from patients_like_me.errors import PlmError
from patients_like_me.explanation.batch_attribution import AttributionWork, combined, last_adjoint
from patients_like_me.explanation.known_pass import KnownPass
from patients_like_me.explanation.pass_files import mapped, opened_pass, write_arrays, write_pass
from patients_like_me.explanation.target_edges import Floats, TargetEdges
from patients_like_me.files import atomic_file, read_json, write_json
from patients_like_me.workers import Progress, Workers, in_workers, threads_of_each, threads_on_worker

#: Networks of more layers are attributed one target at a time.
KERNEL_LAYERS = 3
_QUESTION = "question.json"
_opening = threading.Lock()


def attribute_in_workers(
    known: KnownPass,
    edges: TargetEdges,
    choice: Floats,
    folder: Path | str,
    *,
    workers: Workers,
    passed: Path | None = None,
    nodes_per_block: int = 2048,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Floats:
    """Return what :func:`~patients_like_me.explanation.batch_attribution.attribute` returns, computed by workers.

    ``folder`` must be new, or hold the unfinished parts of the same attribution, which are taken up. ``passed`` is a
    folder that has the pass already; else it is written here.
    """
    if known.layers > KERNEL_LAYERS:
        raise PlmError(
            f"a network of {known.layers} layers is attributed one target at a time, on one machine",
            remedy="attribute it without workers",
        )
    folder = Path(folder).absolute()
    if not (folder / _QUESTION).is_file():
        place = folder / "pass" if passed is None else passed
        write_pass(place, known)
        write_arrays(folder / "asked", {"targets": edges.targets, "choice": choice.astype(np.float64)})
        write_json(folder / _QUESTION, {"pass": str(place)})
    work = _work_in(str(folder))
    asked = (
        (work.edges.targets, edges.targets),
        (work.known.logits, known.logits),
        (mapped(folder / "asked", "choice"), choice),
    )
    if not all(np.array_equal(found, wanted) for found, wanted in asked):
        raise PlmError(f"'{folder}' holds another attribution", remedy="choose another folder or remove it")
    each = threads_of_each(workers, threads)
    ranges = [
        (str(folder), first, min(first + nodes_per_block, len(work.nodes)), each)
        for first in range(0, len(work.nodes), nodes_per_block)
    ]
    in_workers(
        attribute_nodes,
        ranges,
        workers=workers,
        is_done=lambda part: _part_of(folder, part[1], part[2]).is_file(),
        progress=progress,
    )
    direct, own, effects = np.zeros(edges.edges), np.zeros(len(edges)), np.zeros(len(known.graph.columns))
    for _, first, last, _ in ranges:
        part = _read_part(_part_of(folder, first, last))
        direct[part["edges"]] = part["direct"]
        own[part["targets"]] = part["own"]
        effects[part["entries"]] = part["effects"]
    return combined(known, edges, direct, own, effects[edges.entries])


def attribute_nodes(folder: str, first: int, last: int, threads: int) -> None:
    """Compute the part of a range of nodes and write it as a file. What a worker runs."""
    from safetensors.numpy import save_file

    with _opening:
        work = _work_in(folder)
    nodes = work.nodes[first:last]
    direct, own, effects = work.compute(work.blocks_of(nodes), threads=threads_on_worker(threads))
    graph, edges = work.known.graph, work.edges
    numbers = work.targets.number_of[nodes]
    targets = numbers[numbers >= 0]
    own_edges = _ranges(edges.indptr[targets], edges.indptr[targets + 1])
    entries = graph.receiver_entries[_ranges(graph.receiver_indptr[nodes], graph.receiver_indptr[nodes + 1])]
    with atomic_file(_part_of(Path(folder), first, last)) as temporary:
        save_file(
            {
                "edges": own_edges,
                "direct": direct[own_edges],
                "targets": targets,
                "own": own[targets],
                "entries": entries,
                "effects": effects[entries],
            },
            temporary,
        )


@lru_cache(maxsize=1)
def _work_in(folder: str) -> AttributionWork:
    """Open a question."""
    place = Path(folder)
    known = opened_pass(str(read_json(place / _QUESTION, what="question about importances")["pass"]))
    edges = TargetEdges.of(known.graph.indptr, known.graph.columns, mapped(place / "asked", "targets"))
    return AttributionWork(known, edges, last_adjoint(known, edges, mapped(place / "asked", "choice")))


def _part_of(folder: Path, first: int, last: int) -> Path:
    return folder / f"nodes-{first:09d}-{last:09d}.safetensors"


def _read_part(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise PlmError(f"the part '{path}' is damaged: {error}", remedy="remove that file and run it again") from None


def _ranges(starts: Any, ends: Any) -> Any:
    """Return the numbers of all ranges, one after another.

    >>> _ranges(np.array([3, 7]), np.array([5, 8])).tolist()
    [3, 4, 7]
    """
    counts = ends - starts
    return np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)
