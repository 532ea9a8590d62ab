"""Removals on many workers: jobs of a masking as rows of files, and a pass of the network that workers share.

A worker is given a folder and a range of jobs; what it leaves are the logits of those jobs as one whole file.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from patients_like_me.errors import PlmError
from patients_like_me.explanation.attribution_blocks import KERNEL_LAYERS, attribute_in_workers
from patients_like_me.explanation.known_pass import KnownPass
from patients_like_me.explanation.masking import logits_without
from patients_like_me.explanation.network_pass import check_removals
from patients_like_me.explanation.pass_files import mapped, opened_pass, write_arrays, write_pass
from patients_like_me.explanation.target_edges import Floats, Integers, TargetEdges
from patients_like_me.files import atomic_file
from patients_like_me.workers import Progress, Workers, in_workers, threads_of_each, threads_on_worker

_JOBS_PER_BLOCK = 4096
_PASS = "pass"  # noqa: S105  the name of a folder
_opening = threading.Lock()


@dataclass(frozen=True, eq=False)
class SharedPass(KnownPass):
    """A pass whose importances and removals are computed by workers, with equal results.

    ``folder`` must be one that all workers see; what was computed there for the same network and targets is taken up.
    """

    folder: Path = field(kw_only=True)
    workers: Workers = field(kw_only=True)

    @classmethod
    def of(cls, known: KnownPass, folder: Path, workers: Workers) -> SharedPass:
        """Write a pass below a folder, named by its content."""
        digest = hashlib.sha256()
        for part in (known.logits, known.states.mixed[-1], known.graph.values):
            digest.update(np.ascontiguousarray(part).data)
        place = folder.absolute() / digest.hexdigest()[:24]
        write_pass(place / _PASS, known)
        return cls(
            known.graph,
            known.states,
            known.classifier,
            known.constant_logits,
            known.logits,
            folder=place,
            workers=workers,
        )

    def importances(
        self, edges: TargetEdges, choice: Floats, *, threads: int | None = None, progress: Progress | None = None
    ) -> Floats:
        """Return Imp(i, j) of all edges of the targets."""
        if self.layers > KERNEL_LAYERS or not edges.edges:
            return super().importances(edges, choice, threads=threads, progress=progress)
        place = self.folder / f"importances-{_digest(edges.targets, choice)}"
        return attribute_in_workers(
            self,
            edges,
            choice,
            place,
            workers=self.workers,
            passed=self.folder / _PASS,
            threads=threads,
            progress=progress,
        )

    def logits_without(
        self,
        targets: Integers,
        removed_indptr: Integers,
        removed_entries: Integers,
        *,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> Floats:
        """Return the logits [jobs, outputs] of each job's target without the job's edges."""
        targets, removed_indptr = np.asarray(targets, np.int64), np.asarray(removed_indptr, np.int64)
        removed_entries = np.asarray(removed_entries, np.int64)
        check_removals(self.graph.indptr, targets, removed_indptr, removed_entries)
        place = self.folder / f"removals-{_digest(targets, removed_indptr, removed_entries)}"
        if not place.is_dir():
            write_arrays(place, {"targets": targets, "indptr": removed_indptr, "entries": removed_entries})
        each = threads_of_each(self.workers, threads)
        parts = [
            (str(place), first, min(first + _JOBS_PER_BLOCK, len(targets)), each)
            for first in range(0, len(targets), _JOBS_PER_BLOCK)
        ]
        in_workers(
            remove_edges,
            parts,
            workers=self.workers,
            is_done=lambda part: _part_of(place, part[1], part[2]).is_file(),
            progress=progress,
        )
        found = [_read_part(_part_of(place, first, last)) for _, first, last, _ in parts]
        return np.concatenate([np.zeros((0, self.logits.shape[1])), *found])


def remove_edges(folder: str, first: int, last: int, threads: int) -> None:
    """Predict the targets of a range of jobs without their edges and write the logits. What a worker runs."""
    from safetensors.numpy import save_file

    place = Path(folder)
    with _opening:
        known = opened_pass(str(place.parent / _PASS))
    indptr = mapped(place, "indptr")[first : last + 1]
    entries = mapped(place, "entries")[int(indptr[0]) : int(indptr[-1])]
    targets = mapped(place, "targets")[first:last]
    logits = logits_without(known, targets, indptr - indptr[0], entries, threads=threads_on_worker(threads))
    with atomic_file(_part_of(place, first, last)) as temporary:
        save_file({"logits": np.ascontiguousarray(logits)}, temporary)


def _part_of(folder: Path, first: int, last: int) -> Path:
    return folder / f"jobs-{first:09d}-{last:09d}.safetensors"


def _read_part(path: Path) -> Floats:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return np.asarray(load_file(path)["logits"], dtype=np.float64)
    except (OSError, KeyError, SafetensorError) as error:
        raise PlmError(f"the part '{path}' is damaged: {error}", remedy="remove that file and run it again") from None


def _digest(*arrays: Integers | Floats) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:24]
