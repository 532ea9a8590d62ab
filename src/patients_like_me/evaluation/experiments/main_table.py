"""How well does the method predict? The paper's main table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patients_like_me.evaluation.experiments.design import ALL_TASKS, DRUGS, Experiment, Findings
from patients_like_me.evaluation.experiments.strategies import LM_ONLY_ROW, STRATEGY_ROWS, VEM_ROW

if TYPE_CHECKING:
    from patients_like_me.evaluation.experiments.results import Results


def summarize(results: Results) -> Findings:
    """Make the paper's two tables: readmission and length of stay, then drugs."""
    from patients_like_me.evaluation.experiments.comparison import comparison

    parts = [tuple(task for task in results.tasks if task != DRUGS), tuple(t for t in results.tasks if t == DRUGS)]
    return comparison(
        results, "Clinical prediction performance.", "main", heads=("Model",), tables=[part for part in parts if part]
    )


MAIN = Experiment(
    name="main",
    question="how well are readmission, length of stay and drugs predicted, on every cohort?",
    paper="the main table (three tasks, MIMIC-III and MIMIC-IV, 10 seeds)",
    summarize=summarize,
    tasks=ALL_TASKS,
    grid=STRATEGY_ROWS,
    quick_grid=(VEM_ROW, LM_ONLY_ROW),
    paper_backbones=("bioclinical-modernbert", "meerkat-8b"),
    every_cohort=True,
    takes_baselines=True,
)
