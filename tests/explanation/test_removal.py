"""Dropping references by what-if and removing their edges for a turning set are the same thing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from patients_like_me.explanation.decision import decision_for
from patients_like_me.explanation.explain import Explainer
from patients_like_me.explanation.scene import set_scene
from patients_like_me.explanation.what_if import without_edges
from patients_like_me.runs.run import load_run


@pytest.mark.parametrize("references", ["cohort", "bank"])
def test_sets_of_references_are_removed_as_in_the_whole_graph(
    references: str, finished_run: Callable[..., Path]
) -> None:
    scene = set_scene(load_run(finished_run("length_of_stay", references=references)))
    decision = decision_for(scene.task, scene.instances.label_vocabulary)
    tried = 0
    for row in scene.own_rows[:6].tolist():
        explainer = Explainer(scene, row, decision)
        nodes = [reference.node for reference in explainer.named.values()]
        sets = [[], nodes[:1], nodes[:3], nodes]
        for gone, probabilities in zip(sets, explainer.without(sets), strict=True):
            cut = scene.with_graph(without_edges(scene.graph, explainer.node, gone))
            assert np.allclose(probabilities, cut.probabilities(explainer.node), atol=1e-10)
            tried += len(gone)
    assert tried > 20


def test_edges_go_in_both_directions(finished_run: Callable[..., Path]) -> None:
    graph = set_scene(load_run(finished_run(references="cohort"))).graph
    node = int(np.argmax(graph.degrees))
    other = int(graph.neighbors_of(node)[0][0])
    cut = without_edges(graph, node, [other])
    assert other not in cut.neighbors_of(node)[0]
    assert node not in cut.neighbors_of(other)[0]
    assert len(cut.neighbors) == len(graph.neighbors) - 2
