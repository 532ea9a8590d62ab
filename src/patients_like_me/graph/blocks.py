"""A graph larger than memory: rows in blocks, each a file, resumed after a stop, computed by many workers.

A *plan* is a folder with the diagnosis sets, the settings and the list of blocks. Any number of processes, on one
machine or on many that see the folder, compute blocks that are missing; a block is one file that appears whole or not
at all. When all are there, they are merged into a graph folder, a stretch of nodes at a time. Rows do not influence
each other, so the graph does not depend on how it was cut.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_file, atomic_folder, read_json, waiting_writer, write_json
from patients_like_me.graph.build import Part, PartRows, log_graph, parts_of
from patients_like_me.graph.node_sets import check_sets, digest_of
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.settings import GraphSettings
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets
from patients_like_me.workers import Progress

logger = logging.getLogger("patients_like_me")

FORMAT: Final = "patients-like-me graph blocks 2"
Csr = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]


@dataclass(frozen=True)
class Block:
    """A run of rows of one part of the graph."""

    number: int
    part: int
    first: int
    last: int


@dataclass(frozen=True)
class BlockPlan:
    """What is to be computed, and where the pieces are."""

    folder: Path
    sets: DiagnosisSets
    settings: GraphSettings
    rows_per_block: int
    digest: str

    @cached_property
    def parts(self) -> list[Part]:
        """The comparisons that make up the graph."""
        return parts_of(self.sets, self.settings.references)

    @cached_property
    def mark(self) -> str:
        """What every block of this plan carries: a digest of all that decides what is in it."""
        decides = [self.digest, self.rows_per_block, self.settings.model_dump(mode="json")]
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    @cached_property
    def blocks(self) -> list[Block]:
        """All blocks, in order."""
        cuts = [
            (part, first, min(first + self.rows_per_block, len(content.rows)))
            for part, content in enumerate(self.parts)
            for first in range(0, len(content.rows), self.rows_per_block)
        ]
        return [Block(number, *cut) for number, cut in enumerate(cuts)]

    def path_of(self, block: Block) -> Path:
        """Return the file of a block."""
        return self.folder / f"block-{block.number:06d}.safetensors"

    def missing(self) -> list[Block]:
        """Return the blocks that are not there yet."""
        return [block for block in self.blocks if not self.path_of(block).is_file()]


def plan_blocks(
    sets: DiagnosisSets, settings: GraphSettings, folder: Path | str, *, rows_per_block: int = 8192
) -> BlockPlan:
    """Make a plan, or take up the one in the folder if it is for the same graph; else refuse and say why."""
    check_sets(sets)
    folder = Path(folder)
    if rows_per_block < 1:
        raise PlmError(f"rows_per_block={rows_per_block} is not possible", remedy="give 1 or more")
    plan = BlockPlan(folder, sets, settings, rows_per_block, digest_of(sets))
    plan.parts  # noqa: B018  refuses sets that do not fit the settings before anything is written
    with waiting_writer(folder):
        # Another coordinator may have made the same plan meanwhile: it is shared.
        if (folder / "plan.json").is_file():
            _refuse_other_plan(plan, read_plan(folder))
            logger.info("taking up %d of %d blocks", len(plan.blocks) - len(plan.missing()), len(plan.blocks))
        else:
            _write_plan(plan)
    return plan


def _write_plan(plan: BlockPlan) -> None:
    folder, sets, settings = plan.folder, plan.sets, plan.settings
    empty = PatientGraph(
        sets,
        settings,
        np.zeros(len(sets) + 1, dtype=np.int64),
        np.empty(0, dtype=np.int32),
        np.empty(0, dtype=np.uint8),
    )
    # A worker that is late may have left a block of an earlier plan, which nobody takes up.
    for block in folder.glob("block-*.safetensors"):
        block.unlink(missing_ok=True)
    # The nodes are kept as a graph without edges: one way of writing sets is enough.
    empty.save(folder / "nodes", replace=True)
    write_json(
        folder / "plan.json",
        {
            "format": FORMAT,
            "settings": settings.model_dump(),
            "rows_per_block": plan.rows_per_block,
            "digest": plan.digest,
            "blocks": len(plan.blocks),
        },
    )


def read_plan(folder: Path | str) -> BlockPlan:
    """Open the plan in a folder, as a further worker does."""
    folder = Path(folder)
    about = read_json(folder / "plan.json", what="plan of graph blocks")
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise PlmError(f"'{folder / 'plan.json'}' is not a plan of format '{FORMAT}'")
    nodes = PatientGraph.load(folder / "nodes")
    return BlockPlan(folder, nodes.sets, nodes.settings, int(about["rows_per_block"]), str(about["digest"]))


def compute_blocks(
    plan: BlockPlan,
    *,
    worker: int = 0,
    workers: int = 1,
    threads: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Compute the missing blocks of one worker's share and return how many these were.

    Worker ``w`` of ``n`` takes the blocks whose number leaves ``w`` when divided by ``n``.
    """
    if not 0 <= worker < workers:
        raise PlmError(f"there is no worker {worker} of {workers}", remedy=f"count from 0 to {workers - 1}")
    share = [block for block in plan.missing() if block.number % workers == worker]
    open_part, rows = -1, None
    for done, block in enumerate(share):
        if rows is None or block.part != open_part:
            open_part, rows = block.part, PartRows(plan.sets, plan.parts[block.part], plan.settings)
        write_block(plan, block, rows, threads=threads)
        if progress is not None:
            progress(done + 1, len(share))
    return len(share)


def write_block(plan: BlockPlan, block: Block, rows: PartRows, *, threads: int | None = None) -> None:
    """Find the neighbours of a block's rows and write them as its file."""
    from safetensors.numpy import save_file

    indptr, neighbors, weights = rows.find(block.first, block.last, threads=threads)
    if not plan.folder.is_dir():
        raise PlmError(f"the blocks in '{plan.folder}' were merged or removed meanwhile")
    with atomic_file(plan.path_of(block)) as temporary:
        save_file(
            {"indptr": indptr, "neighbors": neighbors, "weights": weights},
            temporary,
            metadata={"plan": plan.mark},
        )


def merge_blocks(
    plan: BlockPlan, out: Path | str, *, replace: bool = False, entries_at_once: int = 1 << 26
) -> PatientGraph:
    """Merge all blocks into a graph folder and open it, memory-mapped.

    At most about ``entries_at_once`` neighbours are in memory: the blocks are read once per stretch of that size.
    """
    from patients_like_me.graph.storage import ArrayWriter, write_about_nodes

    missing = plan.missing()
    if missing:
        raise PlmError(
            f"{len(missing)} of {len(plan.blocks)} blocks are missing, the first is number {missing[0].number}",
            remedy="compute them first",
        )
    readers = [_PartReader(plan, number, part) for number, part in enumerate(plan.parts)]
    stored = sum(reader.entries for reader in readers)
    kind = np.result_type(np.uint8, *(reader.kind for reader in readers))
    stretches = max(1, -(-2 * stored // entries_at_once))
    bounds = np.linspace(0, len(plan.sets), stretches + 1).astype(np.int64)
    with atomic_folder(Path(out), replace=replace) as temporary:
        with (
            ArrayWriter(temporary / "indptr.npy", np.int64) as indptr,
            ArrayWriter(temporary / "neighbors.npy", np.int32) as neighbors,
            ArrayWriter(temporary / "weights.npy", kind) as weights,
        ):
            indptr.append(np.zeros(1, dtype=np.int64))
            for first, last in pairwise(bounds):
                piece = _stretch(readers, int(first), int(last))
                indptr.append(neighbors.length + piece[0][1:])
                neighbors.append(piece[1])
                weights.append(piece[2])
            entries = neighbors.length
        write_about_nodes(temporary, plan.sets, plan.settings, entries=entries)
    graph = PatientGraph.load(out, verify=False)
    log_graph(graph)
    return graph


class _PartReader:
    """Read the blocks of one part of the graph, one at a time."""

    def __init__(self, plan: BlockPlan, number: int, part: Part) -> None:
        self.plan, self.part = plan, part
        self.blocks = [block for block in plan.blocks if block.part == number]
        # One block after another: all of them together may be larger than memory.
        heads = [(len(neighbors), weights.dtype) for _, _, neighbors, weights in self]
        self.entries = sum(length for length, _ in heads)
        self.kind = heads[0][1] if heads else np.dtype(np.uint8)
        self.is_merged = part.is_symmetric and plan.settings.either_end_keeps

    def __iter__(self) -> Iterator[tuple[int, Any, Any, Any]]:
        """Go through the blocks as ``(first row, indptr, neighbors, weights)``; can be done again."""
        for block in self.blocks:
            yield block.first, *_read_block(self.plan, block)

    def rows(self, first: int, last: int) -> Csr:
        """Return the rows from ``first`` to before ``last``."""
        indptrs, neighbors, weights = [np.zeros(1, dtype=np.int64)], [], []
        for block in self.blocks:
            begin, end = max(first, block.first), min(last, block.last)
            if begin >= end:
                continue
            block_indptr, block_neighbors, block_weights = _read_block(self.plan, block)
            places = block_indptr[begin - block.first : end - block.first + 1]
            indptrs.append(places[1:] - places[0] + indptrs[-1][-1])
            neighbors.append(block_neighbors[places[0] : places[-1]])
            weights.append(block_weights[places[0] : places[-1]])
        empty = np.empty(0, dtype=np.int32), np.empty(0, dtype=self.kind)
        return (
            np.concatenate(indptrs),
            np.concatenate([empty[0], *neighbors]),
            np.concatenate([empty[1], *weights]),
        )


def _stretch(readers: list[_PartReader], first: int, last: int) -> Csr:
    """Return the rows of the nodes from ``first`` to before ``last``, merged and in the order of the nodes."""
    from patients_like_me.graph.merging import incoming_edges, merged, scattered

    pieces = []
    for reader in readers:
        begin, end = (int(place) for place in np.searchsorted(reader.part.rows, [first, last]))
        own = reader.rows(begin, end)
        if reader.is_merged:
            own = merged(own, incoming_edges(reader, begin, end))
        pieces.append((reader.part.rows[begin:end] - first, own[0], reader.part.columns, own[1], own[2]))
    return scattered(pieces, last - first)


def _read_block(plan: BlockPlan, block: Block) -> Csr:
    from safetensors import SafetensorError, safe_open

    path = plan.path_of(block)
    try:
        with safe_open(path, framework="numpy") as stored:
            mark = (stored.metadata() or {}).get("plan")
            indptr, neighbors, weights = (stored.get_tensor(name) for name in ("indptr", "neighbors", "weights"))
    except (SafetensorError, OSError) as error:
        raise PlmError(
            f"the block '{path}' is damaged: {error}", remedy="remove that file and compute it again"
        ) from None
    if mark != plan.mark or len(indptr) != block.last - block.first + 1:
        raise PlmError(f"the block '{path}' belongs to another plan", remedy="remove that file and compute it again")
    return indptr, neighbors, weights


def _refuse_other_plan(wanted: BlockPlan, found: BlockPlan) -> None:
    differences = found.settings.differences(wanted.settings)
    if found.rows_per_block != wanted.rows_per_block:
        differences.append(
            f"rows_per_block is {found.rows_per_block} in the one and {wanted.rows_per_block} in the other"
        )
    if found.digest != wanted.digest:
        differences.append("the instances or their diagnoses differ")
    if differences:
        raise PlmError(
            f"'{wanted.folder}' holds blocks of another graph than the one asked for: {'; '.join(differences)}",
            remedy="choose another folder or remove it",
        )
