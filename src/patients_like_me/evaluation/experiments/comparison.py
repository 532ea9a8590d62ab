"""Rows against rows on every task and cohort: the form that the main, the ablation and the backbone table share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from patients_like_me.evaluation.experiments.design import Figure, Findings
from patients_like_me.evaluation.experiments.figures import Panel, Point, Series, draw_panels
from patients_like_me.evaluation.experiments.result_table import Column, ResultTable, Row
from patients_like_me.evaluation.experiments.results import (
    METRIC_NAMES,
    Results,
    cells_of_test,
    scored,
    seeds_in_words,
    spread,
    title_of_task,
)


def comparison(
    results: Results,
    words: str,
    label: str,
    *,
    heads: tuple[str, ...],
    tables: Sequence[tuple[str, ...]] | None = None,
) -> Findings:
    """Return tables with a row per variant and a figure of each task's first metric.

    ``heads`` are the headings of the rows: backbone and variant, or one for both. ``tables`` says which tasks stand in
    which table; not given, all stand in one.
    """
    made = []
    for number, tasks in enumerate(tables or [results.tasks]):
        columns: list[Column] = []
        for task in tasks:
            for place in results.cohorts:
                above = (place.title,) if len(results.cohorts) > 1 else ()
                columns += results.metric_columns(task, title_of_task(task), *above)
        rows = [
            Row(
                row_heads(backbone, variant, heads),
                tuple(
                    cell
                    for task in tasks
                    for place in results.cohorts
                    for cell in cells_of_test(
                        results.of(place.title, task, backbone, variant), results.metrics_of(task)
                    )
                ),
            )
            for backbone, variant in results.rows
        ]
        where = ", ".join(place.title for place in results.cohorts)
        caption = results.caption(f"{words} {where}.")
        name = label if number == 0 else f"{label}-{number + 1}"
        made.append(ResultTable(caption, name, heads, tuple(columns), tuple(rows)))
    figures = [
        Figure("" if len(results.cohorts) == 1 else f"-{place.slug}", partial(_draw, results, place.title, words))
        for place in results.cohorts
    ]
    return Findings(tuple(made), tuple(figures))


def row_heads(backbone: str, variant: str, heads: tuple[str, ...]) -> tuple[str, ...]:
    """Name a row: backbone and variant apart, or as one.

    >>> row_heads("minilm", "VEM", ("Model",)), row_heads("", "logistic", ("Model",))
    (('VEM (minilm)',), ('logistic',))
    """
    if len(heads) > 1:
        return backbone, variant
    return (f"{variant} ({backbone})" if backbone else variant,)


def _draw(results: Results, cohort: str, words: str, folder: Path, name: str) -> None:
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
    caption = f"{words} {cohort}, test split, each task's first metric; {seeds_in_words(results.seeds)}."
    draw_panels(folder, name, places=results.variants, axis="", panels=panels, caption=caption)
