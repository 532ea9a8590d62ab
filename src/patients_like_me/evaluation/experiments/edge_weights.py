"""Are the training and the test graph alike? The paper's figure of edge weights; no run is needed.

The paper draws 6,000 training and 2,000 test patients. With ``--sample 6000,2000`` so does this, with one node for each
patient (the last instance, which has the longest history), once for each seed; without it every instance is a node.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from patients_like_me.evaluation.experiments.design import PAPER_SEEDS, FigureFile, Findings
from patients_like_me.evaluation.experiments.result_table import Column, ResultTable, TableCell, TableRow
from patients_like_me.evaluation.experiments.results import ExperimentResults, title_of_task
from patients_like_me.evaluation.intervals import seed_spread
from patients_like_me.graph.edge_weights import BINS, EdgeWeightAnalysis, Overlaps, analyze_edge_weights
from patients_like_me.graph.node_sets import taken
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task

_COMPARED = ("train", "test")


def summarize(results: ExperimentResults) -> Findings:
    """Count the edges of the training and the test graph by weight, and say how far the two are apart."""
    request = results.plan.request
    draws = PAPER_SEEDS if request.seeds is None else request.seeds
    tables: list[ResultTable] = []
    figures: list[FigureFile] = []
    notes: list[str] = []
    for place in results.cohorts:
        for task in results.tasks:
            settings = results.plan.task_settings[task]
            sets = build_instances(place.cohort, find_task(task, place.cohort), settings).diagnosis_sets
            about = f"{title_of_task(task)}, {place.title}"
            if request.sample is None:
                chosen, how = [sets], ""
            else:
                chosen = [drawn_patients(sets, request.sample, seed) for seed in range(draws)]
                how = f" One node per patient; patients were drawn {draws} times: mean ± standard deviation."
                notes += _small_samples(about, chosen[0], request.sample)
            analyses = [_analysis(each) for each in chosen]
            columns = tuple(Column(name, ("Edge weight",), digits=2, best=None) for name in BINS)
            rows = tuple(
                _row([each.groups[place_of] for each in analyses]) for place_of in range(len(analyses[0].groups))
            )
            caption = (
                f"Edge weights of the training and the test graph at tau 1. {about}. Share of edges in % by the number "
                f"of diagnoses that two nodes share.{how}"
            )
            tables.append(ResultTable(caption, results.label(len(tables)), ("Graph", "Nodes", "Edges"), columns, rows))
            notes.append(_comparison_in_words(about, analyses))
            several = len(results.cohorts) * len(results.tasks) > 1
            ending = f"-{place.slug}-{task}" if several else ""
            figures.append(FigureFile(ending, partial(_draw, analyses[0])))
    return Findings(tuple(tables), tuple(figures), tuple(notes))


def drawn_patients(sets: DiagnosisSets, sample: tuple[int, int], seed: int) -> DiagnosisSets:
    """Draw training and test patients, at most as many as there are, and keep the last instance of each.

    >>> splits = ["train", "train", "test"]
    >>> sets = DiagnosisSets.from_lists([["a"], ["a", "b"], ["b"]], patients=[0, 0, 1], splits=splits)
    >>> drawn_patients(sets, (5, 5), seed=0).instance_ids
    ('1', '2')
    """
    assert sets.splits is not None, "the instances of a task have splits"
    generator = np.random.default_rng(seed)
    chosen: list[npt.NDArray[np.int64]] = []
    for split, wanted in zip(_COMPARED, sample, strict=True):
        rows = np.flatnonzero(sets.splits == split)
        # Instances of a patient follow each other in time: the last of each in the reversed order is the first.
        patients, last = np.unique(sets.patients[rows][::-1], return_index=True)
        nodes = rows[::-1][last]
        chosen.append(np.sort(generator.choice(nodes, min(wanted, len(patients)), replace=False)))
    return taken(sets, np.concatenate(chosen))


def _small_samples(about: str, sets: DiagnosisSets, sample: tuple[int, int]) -> list[str]:
    assert sets.splits is not None
    found = [int((sets.splits == split).sum()) for split in _COMPARED]
    return [
        f"{about}: the cohort has {there:,} {split} patients, fewer than the {wanted:,} to draw; all were taken."
        for split, there, wanted in zip(_COMPARED, found, sample, strict=True)
        if there < wanted
    ]


def _analysis(sets: DiagnosisSets) -> EdgeWeightAnalysis:
    found = analyze_edge_weights(sets)
    return EdgeWeightAnalysis(tuple(group for group in found.groups if group.name in _COMPARED), found.comparison)


def _row(groups: list[Overlaps]) -> TableRow:
    """Return the row of one graph: one analysis, or several draws of it."""
    edges = sum(group.edges_at(1) for group in groups) / len(groups)
    heads = (groups[0].name, f"{groups[0].nodes:,}", f"{edges:,.0f}")
    cells: list[TableCell] = []
    for place in range(len(BINS)):
        values = [float(group.shares[place]) for group in groups]
        cells.append(values[0] if len(values) == 1 else seed_spread(values))
    return TableRow(heads, tuple(cells))


def _comparison_in_words(about: str, analyses: list[EdgeWeightAnalysis]) -> str:
    found = [each.comparison for each in analyses if each.comparison is not None]
    if len(found) < len(analyses):
        return f"{about}: one of the two graphs has no edges, so they are not compared."
    first = found[0]
    if len(found) > 1:
        divergence = seed_spread([each.jensen_shannon_divergence for each in found])
        variation = seed_spread([each.total_variation for each in found])
        assert divergence is not None
        assert variation is not None
        return (
            f"{about}, {len(found)} draws: Jensen-Shannon divergence {divergence.mean:.4f} ± "
            f"{divergence.deviation:.4f} bits, total variation {variation.mean:.4f} ± {variation.deviation:.4f}."
        )
    return (
        f"{about}: Jensen-Shannon divergence {first.jensen_shannon_divergence:.4f} bits (distance "
        f"{first.jensen_shannon_distance:.4f}), total variation {first.total_variation:.4f}, G-test "
        f"{first.g_statistic:,.1f} with {first.degrees_of_freedom} degrees of freedom (p {first.p_value:.3g}; pairs "
        f"are not independent: read the distances), Cramér's V {first.cramers_v:.4f}."
    )


def _draw(analysis: EdgeWeightAnalysis, folder: Path, name: str) -> None:
    from patients_like_me.graph.figures import draw_edge_weights

    for kind in ("svg", "png"):
        draw_edge_weights(analysis, folder / f"{name}.{kind}")
