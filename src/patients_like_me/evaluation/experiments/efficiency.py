"""What does a strategy cost? The paper's table of time per epoch and peak memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from patients_like_me.evaluation.experiments.design import DRUGS, Experiment, Figure, Findings
from patients_like_me.evaluation.experiments.strategies import STRATEGY_ROWS

if TYPE_CHECKING:
    from patients_like_me.evaluation.experiments.results import Result, Results


def seconds_per_epoch(result: Result) -> float | None:
    """Return the whole time of the training over the epochs of the language model.

    The second stage of two-stage training, which has no epochs of the language model, counts in the time.
    """
    epochs = [record for record in result.epochs if record["stage"] == "language"]
    return sum(record["seconds"] for record in result.epochs) / len(epochs) if epochs else None


def peak_memory(result: Result) -> float | None:
    """Return the peak memory of the run's process in GiB."""
    return result.run.results.peak_gib


def summarize(results: Results) -> Findings:
    """Show time, memory and test metrics of every strategy."""
    from patients_like_me.evaluation.experiments.result_table import Column, ResultTable, Row
    from patients_like_me.evaluation.experiments.results import cells_of_test, spread, title_of_task

    tables, figures = [], []
    compared = list(results.settings_compared())
    for number, (cohort, task, backbone) in enumerate(compared):
        rows = []
        for name in results.variants:
            found = results.of(cohort, task, backbone, name)
            costs = (spread(found, seconds_per_epoch), spread(found, peak_memory))
            rows.append(Row((name,), (*costs, *cells_of_test(found, results.metrics_of(task)))))
        columns = (
            Column("Time (s)", scale=1.0, digits=1, best="low"),
            Column("Memory (GiB)", scale=1.0, digits=2, best="low"),
            *results.metric_columns(task),
        )
        caption = results.caption(
            f"Efficiency. {title_of_task(task)}, {cohort}, {backbone}. Time per epoch of the language model and "
            "peak memory, every run in a fresh process, one at a time; frozen layers were computed before."
        )
        label = "efficiency" if number == 0 else f"efficiency-{number + 1}"
        tables.append(ResultTable(caption, label, ("Training",), columns, tuple(rows)))
        ending = "" if len(compared) == 1 else f"-{number + 1}"
        figures.append(Figure(ending, partial(_draw, results, cohort, task, backbone)))
    return Findings(tuple(tables), tuple(figures))


def _draw(results: Results, cohort: str, task: str, backbone: str, folder: Path, name: str) -> None:
    from patients_like_me.evaluation.experiments.figures import Panel, Point, Series, draw_panels
    from patients_like_me.evaluation.experiments.results import seeds_in_words, spread, title_of_task

    rows = [results.of(cohort, task, backbone, variant) for variant in results.variants]
    times = tuple(Point.of(spread(found, seconds_per_epoch)) for found in rows)
    memory = tuple(Point.of(spread(found, peak_memory)) for found in rows)
    draw_panels(
        folder,
        name,
        places=results.variants,
        axis="training strategy",
        panels=(
            Panel("seconds per epoch", (Series("", times),), "bars"),
            Panel("peak memory (GiB)", (Series("", memory),), "bars", digits=2),
        ),
        caption=f"{title_of_task(task)}, {cohort}, {backbone}: time per epoch of the language model and peak "
        f"memory; every run in a fresh process, one at a time; {seeds_in_words(results.seeds, whiskers=False)}.",
    )


EFFICIENCY = Experiment(
    name="efficiency",
    question="what do the strategies cost in time and memory?",
    paper="the efficiency table (drug recommendation, MIMIC-IV, Meerkat 8B)",
    summarize=summarize,
    tasks=(DRUGS,),
    grid=STRATEGY_ROWS,
    seeds=1,
    quick_seeds=1,
    paper_backbones=("meerkat-8b",),
    alone=True,
    all_epochs=True,
)
