"""The figures of a graph, as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from patients_like_me.drawing import COLOURS, new_figure, say_empty, write_figure
from patients_like_me.graph.edge_weights import BINS

if TYPE_CHECKING:
    from patients_like_me.graph.edge_weights import EdgeWeightAnalysis
    from patients_like_me.graph.statistics import GraphStatistics


def draw_graph(statistics: GraphStatistics, path: Path) -> None:
    """Draw how many neighbours the nodes have, and how many diagnoses the edges stand for."""
    figure, (left, right) = _figure(columns=2)
    _degree_bars(left, statistics.degree_histogram)
    whole = statistics.whole
    left.set_title(
        f"{whole.nodes:,} nodes, {whole.isolated_share:.1%} isolated, average degree {whole.average_degree:.1f}",
        fontsize=10,
    )
    left.set_xlabel("neighbours of a node")
    left.set_ylabel("nodes")
    weights = np.flatnonzero(statistics.weight_histogram)
    if len(weights):
        right.bar(weights, statistics.weight_histogram[weights], color=COLOURS[0], width=0.8)
        right.xaxis.get_major_locator().set_params(integer=True)
        right.set_yscale("log")
    else:
        _say_empty(right)
    right.set_title(f"{whole.edges:,} edges", fontsize=10)
    right.set_xlabel("diagnoses shared by the two ends")
    right.set_ylabel("edges")
    write_figure(figure, path)


def draw_edge_weights(analysis: EdgeWeightAnalysis, path: Path) -> None:
    """Draw the distribution of edge weights of every split at tau 1, as the paper's figure."""
    figure, (axes,) = _figure(columns=1)
    groups = [group for group in analysis.groups if group.binned.sum()]
    width = 0.8 / max(len(groups), 1)
    for number, group in enumerate(groups):
        places = np.arange(len(BINS)) + (number - (len(groups) - 1) / 2) * width
        axes.bar(
            places,
            100 * group.shares,
            width=width,
            color=COLOURS[number % len(COLOURS)],
            label=f"{group.name}: {group.nodes:,} nodes, {int(group.binned.sum()):,} edges",
        )
    if groups:
        axes.legend(frameon=False)
    else:
        _say_empty(axes)
    axes.set_xticks(np.arange(len(BINS)), BINS)
    axes.set_xlabel("diagnoses shared by the two ends (edge weight)")
    axes.set_ylabel("share of edges at tau 1 (%)")
    if analysis.comparison is not None:
        found = analysis.comparison
        axes.set_title(
            f"training against test: Jensen-Shannon divergence {found.jensen_shannon_divergence:.5f} bits "
            f"(distance {found.jensen_shannon_distance:.4f}),\ntotal variation {found.total_variation:.4f}, "
            f"Cramér's V {found.cramers_v:.4f}",
            fontsize=10,
        )
    write_figure(figure, path)


def draw_tau_curve(analysis: EdgeWeightAnalysis, path: Path, *, tau: int | None = None) -> None:
    """Draw edges and average degree against tau, a line per split; ``tau`` is marked."""
    figure, (left, right) = _figure(columns=2)
    for axes, column, label in ((left, "edges", "edges"), (right, "average_degree", "average degree")):
        drawn = False
        for number, group in enumerate(analysis.groups):
            curve = [point for point in group.tau_curve() if point[column] > 0]
            if curve:
                drawn = True
                axes.plot(
                    [point["tau"] for point in curve],
                    [point[column] for point in curve],
                    marker="o",
                    markersize=3,
                    color=COLOURS[number % len(COLOURS)],
                    label=group.name,
                )
        axes.set_xlabel("tau (diagnoses that an edge needs)")
        axes.set_ylabel(label)
        if not drawn:
            _say_empty(axes)
            continue
        axes.set_yscale("log")
        axes.xaxis.get_major_locator().set_params(integer=True)
        if tau is not None:
            axes.axvline(tau, color="black", linewidth=0.8, linestyle="--", label=f"tau {tau}")
        axes.legend(frameon=False)
    write_figure(figure, path)


def _degree_bars(axes: Any, histogram: npt.NDArray[np.int64]) -> None:
    """Draw degrees as bars: single ones where they are few, else in bins that grow, with the isolated apart."""
    if not histogram.sum():
        _say_empty(axes)
        return
    if len(histogram) <= 64:
        axes.bar(np.arange(len(histogram)), histogram, color=COLOURS[0], width=0.8)
        axes.xaxis.get_major_locator().set_params(integer=True)
        return
    edges = np.unique(np.concatenate([[0, 1], np.geomspace(1, len(histogram), 40).round()])).astype(int)
    counts = np.add.reduceat(histogram, edges[:-1])
    axes.bar(np.arange(len(counts)), counts, color=COLOURS[0], width=0.9)
    shown = [place for place in range(len(counts)) if place % 6 == 0]
    names = [
        f"{edges[place]}" if edges[place + 1] - edges[place] == 1 else f"{edges[place]:,}–{edges[place + 1] - 1:,}"
        for place in shown
    ]
    axes.set_xticks(shown, names, rotation=30, ha="right")


def _say_empty(axes: Any) -> None:
    say_empty(axes, "no edges")


def _figure(*, columns: int) -> Any:
    return new_figure(width=5.4 * columns if columns > 1 else 8, height=4, columns=columns)
