"""Does the graph help every language model? The paper's table of backbones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patients_like_me.evaluation.experiments.design import ALL_TASKS, Experiment, Findings
from patients_like_me.evaluation.experiments.strategies import LM_ONLY_ROW, VEM_ROW

if TYPE_CHECKING:
    from patients_like_me.evaluation.experiments.results import Results


def summarize(results: Results) -> Findings:
    """Put VEM beside the language model alone, for every backbone."""
    from patients_like_me.evaluation.experiments.comparison import comparison

    found = comparison(
        results, "Language models with and without the patient graph.", "backbones", heads=("Backbone", "Training")
    )
    notes = tuple(f"Not on this machine: {name}; {remedy}." for name, remedy in results.plan.skipped.items())
    return Findings(found.tables, found.figures, notes)


BACKBONES = Experiment(
    name="backbones",
    question="does the patient graph help every language model?",
    paper="the table of backbones (two encoders, two decoders, three tasks, MIMIC-IV)",
    summarize=summarize,
    tasks=ALL_TASKS,
    grid=(VEM_ROW, LM_ONLY_ROW),
    paper_backbones=("bioclinical-modernbert", "meerkat-8b", "biobert-large", "biomistral-7b"),
    backbones=("minilm-2", "minilm", "smollm2-135m"),
)
