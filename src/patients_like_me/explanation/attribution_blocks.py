"""Attribution on many workers: the pass of the network as files, blocks of nodes as rows of them, parts as files.

The pass is written once as plain arrays, which every worker maps into its memory; what a worker is given is that folder
and a range of nodes. The arrays hold states of the network and numbers of nodes, no ids and no text.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from patients_like_me.errors import PlmError
from patients_like_me.explanation.batch_attribution import AttributionWork, combined, last_adjoint
from patients_like_me.explanation.known_pass import KnownPass, LayerStates, NormalisedGraph
from patients_like_me.explanation.target_edges import Floats, TargetEdges
from patients_like_me.files import atomic_file, atomic_folder
from patients_like_me.workers import Progress, Workers, in_workers, number_of_threads

_LAYERS = 3
_opening = threading.Lock()


def attribute_in_workers(
    known: KnownPass,
    edges: TargetEdges,
    choice: Floats,
    folder: Path | str,
    *,
    workers: Workers,
    nodes_per_block: int = 2048,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Floats:
    """Return what :func:`~patients_like_me.explanation.batch_attribution.attribute` returns, computed by workers.

    ``folder`` must be new, or hold the unfinished parts of the same attribution, which are taken up.
    """
    if known.layers > _LAYERS:
        raise PlmError(
            f"a network of {known.layers} layers is attributed one target at a time, on one machine",
            remedy="attribute it without workers",
        )
    folder = Path(folder).absolute()
    if not folder.is_dir():
        _write_question(folder, known, edges, choice)
    work = _work_in(str(folder))
    if not np.array_equal(work.edges.targets, edges.targets) or not np.array_equal(work.known.logits, known.logits):
        raise PlmError(f"'{folder}' holds another attribution", remedy="choose another folder or remove it")
    if threads is None:
        threads = max(1, number_of_threads() // workers) if isinstance(workers, int) else 1
    ranges = [
        (str(folder), first, min(first + nodes_per_block, len(work.nodes)), threads)
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
    direct, own, effects = work.compute(work.blocks_of(nodes), threads=threads)
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


def _write_question(folder: Path, known: KnownPass, edges: TargetEdges, choice: Floats) -> None:
    arrays: dict[str, Any] = {
        **{f"graph.{name}": value for name, value in known.graph._asdict().items()},
        **{f"states.{name}": value for name, value in known.states._asdict().items()},
        "classifier": known.classifier,
        "constant_logits": known.constant_logits,
        "logits": known.logits,
        "targets": edges.targets,
        "choice": choice.astype(np.float64),
    }
    with atomic_folder(folder) as temporary:
        for name, value in arrays.items():
            np.save(temporary / f"{name}.npy", value, allow_pickle=False)


@lru_cache(maxsize=1)
def _work_in(folder: str) -> AttributionWork:
    """Open a question: its arrays are mapped, pages of them are read when they are needed."""

    def mapped(name: str) -> Any:
        # Copy on write: kernels are compiled for arrays that may be written, and nothing reaches the file.
        return np.asarray(np.load(Path(folder) / f"{name}.npy", mmap_mode="c", allow_pickle=False))

    known = KnownPass(
        NormalisedGraph(**{name: mapped(f"graph.{name}") for name in NormalisedGraph._fields}),
        LayerStates(**{name: mapped(f"states.{name}") for name in LayerStates._fields}),
        mapped("classifier"),
        mapped("constant_logits"),
        mapped("logits"),
    )
    edges = TargetEdges.of(known.graph.indptr, known.graph.columns, mapped("targets"))
    return AttributionWork(known, edges, last_adjoint(known, edges, mapped("choice")))


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
