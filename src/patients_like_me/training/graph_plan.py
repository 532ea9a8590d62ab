"""What the graph adds to a training: entries, memory, the time of one answer, and how seldom it need be asked.

A small graph is built and timed. Of one of all pairs with very many entries a sample of rows tells the size, and the
time is that of a graph of fewer instances with the same density, scaled by entries and by instances: products with the
graph take time in proportion to its entries, everything else in proportion to the instances.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from patients_like_me.graph.build import build_graph
from patients_like_me.graph.coverage import coverage_notes, hub_notes
from patients_like_me.graph.large import (
    ENTRY_BYTES,
    SAMPLED_ROWS,
    belongs_on_disk,
    build_copies,
    estimated_entries,
    is_of_all_pairs,
    refusal_of,
)
from patients_like_me.graph.node_sets import taken
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.propagation import LARGE, FixedPropagation, Propagation
from patients_like_me.plain_text import duration_in_words
from patients_like_me.tasks.instances import Instances, Rows
from patients_like_me.training.data import split_graph
from patients_like_me.training.preparation import patient_graph_of, place_graph_network
from patients_like_me.training.settings import TrainingSettings
from patients_like_me.training.vem import EmProblem, graph_signal

#: What the graph may add to an epoch of the language model.
MOST_GRAPH_SHARE: Final = 0.04
#: Entries of the graph that is timed in place of a larger one.
_SAMPLED_ENTRIES: Final = 12_000_000


@dataclass(frozen=True)
class GraphCost:
    """What a training's graph costs: one answer of the graph network is a forward and a backward pass over all nodes.

    ``memory_bytes`` are those that the measuring process has not taken already.
    """

    entries: int
    answer_seconds: float
    memory_bytes: float
    words: dict[str, str]


@dataclass(frozen=True)
class RefreshChoice:
    """For how many batches one answer of the graph should serve, and why, in words."""

    graph_refresh: int
    words: str


def sampled_entries(instances: Instances, settings: TrainingSettings, cache: Path | None) -> int | None:
    """Return about how many entries a graph of all pairs will have, None where it is small or has a cap of neighbours.

    One that this machine cannot hold is refused with the numbers.
    """
    sets = instances.diagnosis_sets
    if not settings.uses_graph or not is_of_all_pairs(settings.graph) or len(sets) < SAMPLED_ROWS:
        return None
    entries = estimated_entries(sets, settings.graph)
    if refusal := refusal_of(sets, settings.graph, entries, cache):
        raise refusal
    return entries


def graph_cost(
    instances: Instances,
    settings: TrainingSettings,
    model: PatientsLikeMeModel,
    cache: Path | None,
    entries: int | None,
) -> GraphCost:
    """Measure the graph of a training; ``entries`` is what :func:`sampled_entries` returned."""
    if entries is not None and entries >= LARGE:
        return _cost_from_sample(instances, settings, model, entries)
    graph = patient_graph_of(instances, settings, cache)
    train = instances.rows_of("train")
    part = split_graph(graph, train, len(train))
    place_graph_network(model, settings, len(train))
    seconds = _answer_seconds(instances, settings, model, part.propagation, train)
    needed = graph_gib(len(graph.neighbors), all_pairs=is_of_all_pairs(settings.graph))
    words = {
        "patient graph": "; ".join([f"{graph.edges:,} edges", *coverage_notes(graph), *hub_notes(graph)]),
        "memory of the graph": f"{needed:.2f} GiB for {len(graph.neighbors):,} entries",
    }
    return GraphCost(len(graph.neighbors), seconds, 0.0, words)


def _cost_from_sample(
    instances: Instances, settings: TrainingSettings, model: PatientsLikeMeModel, entries: int
) -> GraphCost:
    """Time a graph of some training instances with the density of the whole one, and scale it."""
    sets, train = instances.diagnosis_sets, instances.rows_of("train")
    of_train = _entries_in_training(instances, settings)
    density = of_train / max(len(train), 1) ** 2
    number = min(len(train), max(400, round(math.sqrt(_SAMPLED_ENTRIES / max(density, 1e-9)))))
    rows = np.sort(np.random.default_rng(0).permutation(train)[:number])
    # All of them with each other: the rounds of a cohort would make a sample of a sample.
    some = replace(taken(sets, rows), splits=None, patients=np.arange(len(rows), dtype=np.int32))
    graph = build_graph(some, settings.graph.model_copy(update={"references": "cohort"}))
    propagation = FixedPropagation.of_nodes(graph, np.arange(len(graph)))
    place_graph_network(model, settings, len(train))
    answer = _answer_seconds(instances, settings, model, propagation, rows)
    layers = 2 * settings.graph_network.layers
    products = min(answer, layers * _product_seconds(propagation, len(graph), settings.graph_network.width))
    per_entry, per_node = products / max(len(graph.neighbors), 1), (answer - products) / len(graph)
    seconds = per_entry * of_train + per_node * len(train)
    on_disk = belongs_on_disk(entries)
    copies = build_copies(sets, settings.graph)
    where = "on disk, mapped" if on_disk else "in memory" + (", twice that while it is built" if copies > 1 else "")
    return GraphCost(
        entries,
        seconds,
        0.0 if on_disk else float(copies * entries * ENTRY_BYTES),
        {
            "patient graph": f"about {entries:,} entries, from {SAMPLED_ROWS} rows; {of_train:,} of them in training",
            "memory of the graph": f"{entries * ENTRY_BYTES / 2**30:.1f} GiB {where}, 8 bits for a weight",
            "one answer of the graph": f"about {seconds:.1f} s ({per_entry * 1e9:.1f} ns per entry, from a graph of "
            f"{len(graph):,} instances and {len(graph.neighbors):,} entries)",
        },
    )


def _entries_in_training(instances: Instances, settings: TrainingSettings) -> int:
    """Return about how many entries the graph of the training split has."""
    return estimated_entries(taken(instances.diagnosis_sets, instances.rows_of("train")), settings.graph)


def _answer_seconds(
    instances: Instances,
    settings: TrainingSettings,
    model: PatientsLikeMeModel,
    propagation: Propagation,
    rows: Rows,
) -> float:
    labels = torch.from_numpy(instances.labels[rows])
    problem = EmProblem(model, propagation, labels, instances.task.kind, settings)
    pooled, seconds = torch.zeros(len(rows), model.backbone.width), 0.0
    # The first call loads compiled code and warms up; the second is what every further one takes.
    for _ in range(2):
        started = time.perf_counter()
        graph_signal(problem, pooled)
        seconds = time.perf_counter() - started
    return seconds


def _product_seconds(propagation: FixedPropagation, nodes: int, width: int) -> float:
    states: Tensor = torch.zeros(nodes, width)
    started = time.perf_counter()
    propagation.propagate(states)
    return time.perf_counter() - started


def chosen_refresh(
    answer: float, m_step: float, language: float, *, batches: int, refresh: int, steps: int
) -> RefreshChoice:
    """Choose the smallest ``graph_refresh`` with which the graph adds at most 4 % to an epoch.

    ``answer`` are the seconds of one answer of the graph, ``m_step`` those of an M-step of all its ``steps``,
    ``language`` those of the language model in an epoch of so many ``batches``; ``refresh`` is the setting. An epoch
    asks at least once, with its first batch.

    >>> chosen_refresh(1.0, 1.0, 100.0, batches=12, refresh=1, steps=200).words
    'adds 13.0 % to an epoch (M-step at most 1.0 %); --set graph_refresh=4 keeps it under 4 %'
    >>> chosen_refresh(1.0, 1.0, 100.0, batches=2, refresh=1, steps=200).words
    'adds 3.0 % to an epoch (M-step at most 1.0 %) with graph_refresh=1'
    >>> chosen_refresh(1.0, 8.0, 100.0, batches=12, refresh=1, steps=200).words
    'adds 20.0 % to an epoch (M-step at most 8.0 %); --set graph_refresh=12 --set graph_steps=75 keeps it under 4 %'
    """
    language, allowed = max(language, 1e-9), MOST_GRAPH_SHARE * max(language, 1e-9)
    in_e_step, step = answer * math.ceil(batches / refresh), m_step / steps
    share, of_m_step = (100 * seconds / language for seconds in (in_e_step + m_step, m_step))
    adds = f"adds {share:.1f} % to an epoch (M-step at most {of_m_step:.1f} %)"
    fits = in_e_step + m_step <= allowed
    if answer + step > allowed:
        return RefreshChoice(
            batches,
            f"{adds}; one answer takes {duration_in_words(answer)}, one step of an M-step {duration_in_words(step)}, "
            "both together more than 4 % of an epoch: set graph.max_neighbors=32",
        )
    fewer = ""
    if not fits and allowed - m_step < max(answer, 0.25 * allowed):
        # The M-step leaves too little: it gets three quarters of what is allowed, and the E-step the rest.
        most = max(1, int(min(0.75 * allowed, allowed - answer) / step + 1e-9))
        fewer, m_step = f" --set graph_steps={most}", most * step
    wanted = math.ceil(batches / max(1, int((allowed - m_step) / answer + 1e-9)))
    if fits:
        return RefreshChoice(wanted, f"{adds} with graph_refresh={refresh}")
    return RefreshChoice(wanted, f"{adds}; --set graph_refresh={wanted}{fewer} keeps it under 4 %")


def graph_gib(entries: int, *, all_pairs: bool) -> float:
    """Return the memory of a training's graph: of all instances, of the splits, and Â of the splits, in GiB.

    >>> round(graph_gib(1_000_000_000, all_pairs=True), 1)
    4.7
    """
    # Large ones are the counts that they are, and those of all pairs are not copied for the splits.
    per_entry = (ENTRY_BYTES if all_pairs else 3 * ENTRY_BYTES) if entries >= LARGE else 2 * ENTRY_BYTES + 20
    return entries * per_entry / 2**30
