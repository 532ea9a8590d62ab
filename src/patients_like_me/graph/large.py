"""Graphs of all pairs, which may be larger than memory: how many entries one will have, and where it is built.

Without ``max_neighbors`` the entries grow with the square of the cohort: where 5.9 % of all pairs reach tau 8, as in
the MIMIC-III demo, full MIMIC-IV would have 10^9. A sample of rows tells the number before anything is built. A
graph that would take much of the free memory is built as blocks on disk and mapped: five bytes per entry there, and in
memory only the pages that are being read.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import psutil

from patients_like_me.errors import PlmError
from patients_like_me.graph.build import PartRows, parts_of
from patients_like_me.graph.node_sets import digest_of
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.settings import GraphSettings
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets

#: The column of an entry, 32 bits, and its count, 8 bits.
ENTRY_BYTES: Final = 5
#: Rows of a graph of all pairs that tell its size.
SAMPLED_ROWS: Final = 400
#: Blocks and the merged graph are on disk at the same time.
_DISK_COPIES: Final = 2
#: The share of the free memory that a graph may take; a larger one is built on disk.
_MEMORY_SHARE: Final = 0.25
#: The share of it that a graph may take where no folder was given.
_MOST_MEMORY: Final = 0.8
_ENTRIES_PER_BLOCK: Final = 1 << 25


def is_of_all_pairs(settings: GraphSettings) -> bool:
    """Tell whether the number of entries grows with the square of the cohort; a filter of people has its own search."""
    return settings.max_neighbors is None and not settings.compares_people


def estimated_entries(sets: DiagnosisSets, settings: GraphSettings, *, rows: int = SAMPLED_ROWS) -> int:
    """Return about how many entries the graph of all pairs will have, from a sample of its rows.

    >>> from patients_like_me.graph import build_graph
    >>> from patients_like_me.graph.drawn_sets import drawn_sets
    >>> sets = drawn_sets(600)
    >>> found, whole = estimated_entries(sets, GraphSettings()), len(build_graph(sets, GraphSettings()).neighbors)
    >>> abs(found / whole - 1) < 0.2
    True
    """
    entries = 0
    for part in parts_of(sets, settings.references):
        if len(part.rows):
            wanted = max(20, rows * len(part.rows) // len(sets))
            sample = np.unique(np.linspace(0, len(part.rows) - 1, wanted).astype(np.int64))
            opened = PartRows(sets, part, settings)
            found = sum(len(opened.find(int(row), int(row) + 1, threads=1)[1]) for row in sample)
            entries += round(found / len(sample) * len(part.rows))
    return entries


def entries_on_disk(sets: DiagnosisSets, settings: GraphSettings, folder: Path | None) -> int | None:
    """Return about how many entries a graph has that belongs on disk, None where it is built in memory.

    On disk, below ``folder``, is what would take more than a quarter of the free memory. What fits neither memory nor
    disk is refused with the numbers.
    """
    if not is_of_all_pairs(settings) or len(sets) < SAMPLED_ROWS:
        return None
    entries = estimated_entries(sets, settings)
    if refusal := refusal_of(sets, settings, entries, folder):
        raise refusal
    return None if folder is None or not belongs_on_disk(entries) else entries


def build_on_disk(
    sets: DiagnosisSets,
    settings: GraphSettings,
    folder: Path,
    entries: int,
    *,
    report: Callable[[str], None] = lambda _: None,
) -> PatientGraph:
    """Build a graph of about so many entries below ``folder`` and map it.

    It is named by what it is made of: a second call finds it, or takes up the blocks of one that was stopped.
    """
    from patients_like_me.graph.block_workers import build_graph_in_blocks

    question = json.dumps(settings.model_dump(mode="json"), sort_keys=True) + digest_of(sets)
    place = folder / "graphs" / hashlib.sha256(question.encode()).hexdigest()[:32]
    if (place / "graph.json").is_file():
        return PatientGraph.load(place, verify=False)
    words = f"the graph of about {entries:,} entries is built on disk ({entries * ENTRY_BYTES / 2**30:.1f} GiB)"
    report(words)
    return build_graph_in_blocks(
        sets,
        settings,
        place,
        rows_per_block=max(64, _ENTRIES_PER_BLOCK * len(sets) // max(entries, 1)),
        progress=lambda done, of: report(f"{words}: block {done:,} of {of:,}"),
    )


def build_copies(sets: DiagnosisSets, settings: GraphSettings) -> int:
    """Return how many times its entries are in memory while a graph of all pairs is built there.

    The rows of several parts (splits, rounds, bank) are put together as a copy.

    >>> for splits in (["train", "test"], None):
    ...     build_copies(DiagnosisSets.from_lists([["2"]] * 2, patients=[0, 1], splits=splits), GraphSettings())
    2
    1
    """
    return 1 if len(parts_of(sets, settings.references)) == 1 else 2


def belongs_on_disk(entries: int) -> bool:
    """Tell whether a graph of so many entries would take more than a quarter of the free memory."""
    return bool(entries * ENTRY_BYTES > _MEMORY_SHARE * psutil.virtual_memory().available)


def refusal_of(sets: DiagnosisSets, settings: GraphSettings, entries: int, folder: Path | None) -> PlmError | None:
    """Return why a graph of so many entries cannot be had here, with the numbers; None where it can."""
    needed, memory = entries * ENTRY_BYTES / 2**30, psutil.virtual_memory().available / 2**30
    about = (
        f"the graph of {len(sets):,} instances at tau {settings.tau} without max_neighbors has about {entries:,} "
        f"entries, {needed:.1f} GiB"
    )
    remedy = "set graph.max_neighbors=32, choose a larger graph.tau, or use a machine with more of it"
    if folder is None:
        copies = build_copies(sets, settings)
        if copies * needed <= _MOST_MEMORY * memory:
            return None
        while_built = "" if copies == 1 else f", {copies * needed:.1f} GiB while it is built"
        return PlmError(
            f"{about}{while_built}, and {memory:.1f} GiB of memory are free",
            remedy=f"{remedy}; with a cache folder it is kept on disk",
        )
    if not belongs_on_disk(entries):
        return None
    there = folder if folder.is_dir() else next(each for each in folder.absolute().parents if each.is_dir())
    disk = shutil.disk_usage(there).free / 2**30
    if _DISK_COPIES * needed <= disk:
        return None
    return PlmError(
        f"{about}: too much for the {memory:.1f} GiB of memory that are free, and building it on disk needs "
        f"{_DISK_COPIES * needed:.1f} GiB of the {disk:.1f} GiB free at '{folder}'",
        remedy=remedy,
    )
