"""Which training strategy is best? The paper's ablation table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patients_like_me.evaluation.experiments.design import ALL_TASKS, Experiment, Findings
from patients_like_me.evaluation.experiments.strategies import STRATEGY_ROWS

if TYPE_CHECKING:
    from patients_like_me.evaluation.experiments.results import Results


def summarize(results: Results) -> Findings:
    """Compare the strategies under each backbone, on every task."""
    from patients_like_me.evaluation.experiments.comparison import comparison

    return comparison(results, "Training strategies.", "ablation", heads=("Backbone", "Training"))


ABLATION = Experiment(
    name="ablation",
    question="which training strategy is best, everything else being equal?",
    paper="the ablation table (five strategies, two backbones, three tasks, MIMIC-IV)",
    summarize=summarize,
    tasks=ALL_TASKS,
    grid=STRATEGY_ROWS,
    paper_backbones=("bioclinical-modernbert", "meerkat-8b"),
)
