"""Are the training and the test graph alike? The paper's figure of edge weights; no run is needed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from patients_like_me.evaluation.experiments.design import READMISSION, Experiment, Figure, Findings

if TYPE_CHECKING:
    from patients_like_me.evaluation.experiments.results import Results
    from patients_like_me.graph.edge_weights import EdgeWeightAnalysis

_COMPARED = ("train", "test")


def summarize(results: Results) -> Findings:
    """Count the edges of the training and the test graph by weight, and say how far the two are apart."""
    from patients_like_me.evaluation.experiments.result_table import Column, ResultTable, Row
    from patients_like_me.evaluation.experiments.results import title_of_task
    from patients_like_me.graph.edge_weights import BINS, EdgeWeightAnalysis, analyze_edge_weights
    from patients_like_me.tasks.instances import build_instances
    from patients_like_me.tasks.registry import find_task

    tables: list[ResultTable] = []
    figures: list[Figure] = []
    notes: list[str] = []
    for place in results.cohorts:
        for task in results.tasks:
            sets = build_instances(
                place.cohort, find_task(task, place.cohort), results.plan.task_settings[task]
            ).diagnosis_sets
            found = analyze_edge_weights(sets)
            groups = tuple(group for group in found.groups if group.name in _COMPARED)
            analysis = EdgeWeightAnalysis(groups, found.comparison)
            columns = (*(Column(name, ("Edge weight",), digits=2, best=None) for name in BINS),)
            rows = tuple(
                Row((group.name, f"{group.nodes:,}", f"{group.edges_at(1):,}"), tuple(map(float, group.shares)))
                for group in groups
            )
            about = f"{title_of_task(task)}, {place.title}"
            caption = (
                f"Edge weights of the training and the test graph at tau 1. {about}. Share of edges in % by the number "
                "of diagnoses that the two instances share."
            )
            label = "edge-weights" if not tables else f"edge-weights-{len(tables) + 1}"
            tables.append(ResultTable(caption, label, ("Graph", "Instances", "Edges"), columns, rows))
            notes.append(_comparison_in_words(about, analysis))
            several = len(results.cohorts) * len(results.tasks) > 1
            ending = f"-{place.slug}-{task}" if several else ""
            figures.append(Figure(ending, partial(_draw, analysis)))
    return Findings(tuple(tables), tuple(figures), tuple(notes))


def _comparison_in_words(about: str, analysis: EdgeWeightAnalysis) -> str:
    found = analysis.comparison
    if found is None:
        return f"{about}: one of the two graphs has no edges, so they are not compared."
    return (
        f"{about}: Jensen-Shannon divergence {found.jensen_shannon_divergence:.4f} bits (distance "
        f"{found.jensen_shannon_distance:.4f}), total variation {found.total_variation:.4f}, G-test "
        f"{found.g_statistic:,.1f} with {found.degrees_of_freedom} degrees of freedom (p {found.p_value:.3g}; pairs "
        f"are not independent: read the distances), Cramér's V {found.cramers_v:.4f}."
    )


def _draw(analysis: EdgeWeightAnalysis, folder: Path, name: str) -> None:
    from patients_like_me.graph.figures import draw_edge_weights

    for kind in ("svg", "png"):
        draw_edge_weights(analysis, folder / f"{name}.{kind}")


EDGE_WEIGHTS = Experiment(
    name="edge-weights",
    question="are the training and the test graph alike?",
    paper="the figure of edge weights (MIMIC-III, 6,000 and 2,000 patients)",
    summarize=summarize,
    tasks=(READMISSION,),
    every_cohort=True,
)
