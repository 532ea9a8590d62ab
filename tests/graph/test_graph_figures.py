from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graph.plain_product import random_sets

from patients_like_me.graph import GraphSettings, build_graph
from patients_like_me.graph.edge_weights import analyze_edge_weights
from patients_like_me.graph.figures import draw_edge_weights, draw_graph, draw_tau_curve
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets


@pytest.mark.parametrize("instances", [0, 1, 30, 400])
def test_every_figure_is_drawn(tmp_path: Path, instances: int) -> None:
    from matplotlib.image import imread

    sets = random_sets(1, instances, splits=True)
    graph = build_graph(sets, GraphSettings(tau=2))
    analysis = analyze_edge_weights(sets)
    draw_graph(graph.statistics(), tmp_path / "graph.png")
    draw_edge_weights(analysis, tmp_path / "weights.png")
    draw_tau_curve(analysis, tmp_path / "tau.png", tau=8)
    for name in ("graph", "weights", "tau"):
        picture = imread(tmp_path / f"{name}.png")
        assert min(picture.shape[:2]) > 300
        assert np.ptp(picture[..., :3]) > 0.5


def test_a_figure_can_be_a_vector_graphic(tmp_path: Path) -> None:
    sets = DiagnosisSets.from_lists([["a"], ["a"]], patients=[0, 1])
    draw_tau_curve(analyze_edge_weights(sets), tmp_path / "tau.svg")
    assert "<svg" in (tmp_path / "tau.svg").read_text(encoding="utf-8")
