"""The tables and figures that several experiments share, and those of the two smallest ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from patients_like_me.evaluation.experiments.design import DRUGS, FigureFile, Findings
from patients_like_me.evaluation.experiments.figures import Panel, Point, Series, draw_panels
from patients_like_me.evaluation.experiments.jobs import CohortPlace
from patients_like_me.evaluation.experiments.result_table import Column, ResultTable, TableRow
from patients_like_me.evaluation.experiments.results import (
    METRIC_NAMES,
    ExperimentResults,
    FinishedJob,
    averaged_in_words,
    cells_of_test,
    scored,
    spread,
    title_of_task,
)


def performance(
    results: ExperimentResults,
    words: str,
    *,
    heads: tuple[str, ...] = ("Backbone", "Training"),
    tables: Sequence[tuple[str, ...]] | None = None,
) -> Findings:
    """Return tables with a row per variant, all tasks and cohorts as columns, and a figure of each task's first metric.

    ``heads`` are the headings of the rows: backbone and variant, or one for both. ``tables`` says which tasks are in
    which table; not given, all are in one.
    """
    made = []
    for number, tasks in enumerate(tables or [results.tasks]):
        columns: list[Column] = []
        for task in tasks:
            for place in _cohorts_with(results, task):
                above = (place.title,) if len(results.cohorts) > 1 else ()
                columns += results.metric_columns(task, title_of_task(task), *above)
        rows = [
            TableRow(
                row_heads(backbone, variant, heads),
                tuple(
                    cell
                    for task in tasks
                    for place in _cohorts_with(results, task)
                    for cell in cells_of_test(
                        results.of(place.title, task, backbone, variant), results.metrics_of(task)
                    )
                ),
            )
            for backbone, variant in results.rows
        ]
        where = ", ".join(place.title for place in results.cohorts)
        caption = results.caption(f"{words} {where}.")
        made.append(ResultTable(caption, results.label(number), heads, tuple(columns), tuple(rows)))
    figures = [
        FigureFile(
            "" if len(results.cohorts) == 1 else f"-{place.slug}", partial(_draw_tasks, results, place.title, words)
        )
        for place in results.cohorts
    ]
    return Findings(tuple(made), tuple(figures))


def _cohorts_with(results: ExperimentResults, task: str) -> list[CohortPlace]:
    """Return the cohorts that have labels for a task."""
    return [place for place in results.cohorts if task in results.tasks_of(place.title)]


def row_heads(backbone: str, variant: str, heads: tuple[str, ...]) -> tuple[str, ...]:
    """Name a row: backbone and variant apart, or as one.

    >>> row_heads("minilm", "VEM", ("Model",)), row_heads("", "logistic", ("Model",))
    (('VEM (minilm)',), ('logistic',))
    """
    if len(heads) > 1:
        return backbone, variant
    return (f"{variant} ({backbone})" if backbone else variant,)


def main_tables(results: ExperimentResults) -> Findings:
    """Make the paper's two tables (readmission and length of stay, then drugs), and each task with its differences."""
    from patients_like_me.evaluation.experiments.paired import paired_tables

    parts = [tuple(task for task in results.tasks if task != DRUGS), tuple(t for t in results.tasks if t == DRUGS)]
    found = performance(
        results, "Clinical prediction performance.", heads=("Model",), tables=[part for part in parts if part]
    )
    paired, notes = paired_tables(results)
    return Findings((*found.tables, *paired), found.figures, notes)


def ablation(results: ExperimentResults) -> Findings:
    """Compare the strategies under each backbone, on every task."""
    return performance(results, "Training strategies.")


def backbones(results: ExperimentResults) -> Findings:
    """Put VEM next to the language model alone, for every backbone."""
    return performance(results, "Language models with and without the patient graph.")


def mc_samples(results: ExperimentResults) -> Findings:
    """Show the test metrics for every number of samples."""
    weight = next((job.settings.coupling for job in results.plan.jobs if job.settings.coupling), 0)
    tables = []
    for number, (cohort, task, backbone) in enumerate(results.settings_compared()):
        metrics = results.metrics_of(task)
        rows = tuple(
            TableRow((name,), cells_of_test(results.of(cohort, task, backbone, name), metrics))
            for name in results.variants
        )
        about = f"{title_of_task(task)}, {cohort}, {backbone}; weight of the coupling {weight:g}"
        caption = results.caption(f"Number of Monte Carlo samples in the E-step. {about}.")
        columns = results.metric_columns(task)
        tables.append(ResultTable(caption, results.label(number), ("Number of MC samples",), columns, rows))
    note = (
        "The samples act in the coupling alone: labels drawn from the graph network and scored by the language model's "
        "own head. 'Without coupling' is the same training without that term."
    )
    return Findings(tuple(tables), _figures(results, _draw_samples), (note,))


def seconds_per_epoch(finished: FinishedJob) -> float | None:
    """Return the whole time of the training over the epochs of the language model.

    The second stage of two-stage training, which has no epochs of the language model, counts in the time.
    """
    epochs = [record for record in finished.epochs if record["stage"] == "language"]
    return sum(record["seconds"] for record in finished.epochs) / len(epochs) if epochs else None


def peak_memory(finished: FinishedJob) -> float | None:
    """Return the peak memory of the run's process in GiB."""
    return finished.run.results.peak_gib


def efficiency(results: ExperimentResults) -> Findings:
    """Show time, memory and test metrics of every strategy."""
    tables = []
    for number, (cohort, task, backbone) in enumerate(results.settings_compared()):
        rows = []
        for name in results.variants:
            found = results.of(cohort, task, backbone, name)
            costs = (spread(found, seconds_per_epoch), spread(found, peak_memory))
            rows.append(TableRow((name,), (*costs, *cells_of_test(found, results.metrics_of(task)))))
        columns = (
            Column("Time (s)", scale=1.0, digits=1, best="low"),
            Column("Memory (GiB)", scale=1.0, digits=2, best="low"),
            *results.metric_columns(task),
        )
        caption = results.caption(
            f"Efficiency. {title_of_task(task)}, {cohort}, {backbone}. Time per epoch of the language model and "
            "peak memory, every run in a fresh process, one at a time; frozen layers were computed before."
        )
        tables.append(ResultTable(caption, results.label(number), ("Training",), columns, tuple(rows)))
    return Findings(tuple(tables), _figures(results, _draw_costs))


def _figures(
    results: ExperimentResults, draw: Callable[[ExperimentResults, str, str, str, Path, str], None]
) -> tuple[FigureFile, ...]:
    """Return a figure for every cohort, task and backbone."""
    compared = list(results.settings_compared())
    return tuple(
        FigureFile("" if len(compared) == 1 else f"-{number + 1}", partial(draw, results, *each))
        for number, each in enumerate(compared)
    )


def _draw_tasks(results: ExperimentResults, cohort: str, words: str, folder: Path, name: str) -> None:
    """Draw the first metric of every task: rows along the axis, a series per backbone."""
    panels = []
    for task in results.tasks:
        metrics = results.metrics_of(task)
        if not metrics:
            continue
        series = []
        for backbone in results.backbones:
            points = []
            for variant in results.variants:
                found = spread(results.of(cohort, task, backbone, variant), scored("test", metrics[0]))
                points.append(Point.of(found, 100))
            label = backbone or "other systems"
            series.append(Series(label if len(results.backbones) > 1 else "", tuple(points)))
        measure = f"{title_of_task(task)}\n{METRIC_NAMES.get(metrics[0], metrics[0])} (%)"
        panels.append(Panel(measure, tuple(series)))
    caption = f"{words} {cohort}, test split, each task's first metric; {averaged_in_words(results)}."
    draw_panels(folder, name, places=results.variants, axis="", panels=panels, caption=caption)


def _draw_samples(results: ExperimentResults, cohort: str, task: str, backbone: str, folder: Path, name: str) -> None:
    metrics = results.metrics_of(task)
    rows = [cells_of_test(results.of(cohort, task, backbone, variant), metrics) for variant in results.variants]
    panels = [
        Panel(
            f"{METRIC_NAMES.get(metric, metric)} (%)", (Series("", tuple(Point.of(row[place], 100) for row in rows)),)
        )
        for place, metric in enumerate(metrics)
    ]
    about = f"{title_of_task(task)}, {cohort}, {backbone}, test split"
    caption = f"{about}: samples in the E-step; {averaged_in_words(results)}."
    draw_panels(folder, name, places=results.variants, axis="", panels=panels, caption=caption)


def _draw_costs(results: ExperimentResults, cohort: str, task: str, backbone: str, folder: Path, name: str) -> None:
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
        f"memory; every run in a fresh process, one at a time; {averaged_in_words(results, whiskers=False)}.",
    )
