"""Do more samples in the E-step help? The paper's table of Monte Carlo samples."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments.design import READMISSION, Experiment, Figure, Findings, Variant

if TYPE_CHECKING:
    from patients_like_me.evaluation.experiments.results import Results

_NAMES = {"1": "Single sample", "5": "Five samples", "exact": "Exact expectation"}


def samples_row(value: str) -> Variant:
    """Make the row of a number of samples, or of the closed form.

    >>> samples_row("5")
    Variant(name='Five samples', changes={'strategy': 'vem', 'mc_samples': 5}, system='patients_like_me')
    """
    value = value.strip()
    if value != "exact" and not value.isdigit():
        raise PlmError(f"mc_samples={value!r} is not possible", remedy="give whole numbers, or exact")
    samples = value if value == "exact" else int(value)
    return Variant(_NAMES.get(value, f"{value} samples"), {"strategy": "vem", "mc_samples": samples})


def summarize(results: Results) -> Findings:
    """Show the test metrics for every number of samples."""
    from patients_like_me.evaluation.experiments.result_table import ResultTable, Row
    from patients_like_me.evaluation.experiments.results import cells_of_test, title_of_task

    tables, figures = [], []
    compared = list(results.settings_compared())
    for number, (cohort, task, backbone) in enumerate(compared):
        metrics = results.metrics_of(task)
        rows = tuple(
            Row((name,), cells_of_test(results.of(cohort, task, backbone, name), metrics)) for name in results.variants
        )
        weight = next((job.settings.coupling for job in results.plan.jobs if job.settings and job.settings.coupling), 0)
        about = f"{title_of_task(task)}, {cohort}, {backbone}; weight of the coupling {weight:g}"
        caption = results.caption(f"Number of Monte Carlo samples in the E-step. {about}.")
        label = "mc-samples" if number == 0 else f"mc-samples-{number + 1}"
        columns = results.metric_columns(task)
        tables.append(ResultTable(caption, label, ("Number of MC samples",), columns, rows))
        ending = "" if len(compared) == 1 else f"-{number + 1}"
        figures.append(Figure(ending, partial(_draw, results, cohort, task, backbone)))
    note = (
        "The samples act in the coupling alone: labels drawn from the graph network and scored by the language model's "
        "own head. 'Without coupling' is the same training without that term."
    )
    return Findings(tuple(tables), tuple(figures), (note,))


def _draw(results: Results, cohort: str, task: str, backbone: str, folder: Path, name: str) -> None:
    from patients_like_me.evaluation.experiments.figures import Panel, Point, Series, draw_panels
    from patients_like_me.evaluation.experiments.results import (
        METRIC_NAMES,
        cells_of_test,
        seeds_in_words,
        title_of_task,
    )

    metrics = results.metrics_of(task)
    rows = [cells_of_test(results.of(cohort, task, backbone, variant), metrics) for variant in results.variants]
    panels = [
        Panel(
            f"{METRIC_NAMES.get(metric, metric)} (%)", (Series("", tuple(Point.of(row[place], 100) for row in rows)),)
        )
        for place, metric in enumerate(metrics)
    ]
    about = f"{title_of_task(task)}, {cohort}, {backbone}, test split"
    caption = f"{about}: samples in the E-step; {seeds_in_words(results.seeds)}."
    draw_panels(folder, name, places=results.variants, axis="", panels=panels, caption=caption)


MC_SAMPLES = Experiment(
    name="mc-samples",
    question="do more samples of the E-step's coupling help?",
    paper="the table of Monte Carlo samples (readmission, MIMIC-IV, BioBERT)",
    summarize=summarize,
    tasks=(READMISSION,),
    grid=(
        *(samples_row(value) for value in ("1", "5", "exact")),
        Variant("Without coupling", {"strategy": "vem", "coupling": 0.0}),
    ),
    # Without the coupling the number of samples would change nothing.
    base={"coupling": 1.0},
    paper_backbones=("biobert-large",),
    variant_of=samples_row,
)
