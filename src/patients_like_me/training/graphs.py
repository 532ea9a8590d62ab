"""From the patient graph to what the graph network runs on: one propagation per split."""

from __future__ import annotations

from collections.abc import Mapping

from patients_like_me.graph.bank import nodes_of_split
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.model.propagation import FixedPropagation
from patients_like_me.tasks.instances import Rows
from patients_like_me.tasks.task import Split
from patients_like_me.training.data import SplitGraph


def graphs_of_splits(graph: PatientGraph, splits: Mapping[Split, Rows]) -> dict[Split, SplitGraph]:
    """Cut the graph of all instances into the graph of each split.

    In ``cohort`` mode a split's graph has its own instances only. In ``bank`` mode the graph of validation and test
    also has the training instances, from which the evaluated ones receive and to which they send nothing.
    """
    return {
        split: split_graph(graph, nodes_of_split(graph.settings.references, splits, split), len(rows))
        for split, rows in splits.items()
        if len(rows)
    }


def split_graph(graph: PatientGraph, nodes: Rows, evaluated: int) -> SplitGraph:
    """Return the graph of some nodes, of which the last ``evaluated`` are looked at."""
    part = graph.sub_graph(nodes)
    propagation = FixedPropagation.of_graph(part)
    return SplitGraph(nodes, evaluated, propagation, edges=part.edges)
