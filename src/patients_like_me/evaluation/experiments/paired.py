"""Rows of one task next to each other: intervals over patients, paired differences, seconds and parameters.

One table for each cohort and task. Values are means over the seeds, and over the splits where there are several; the
differences of the first metric are taken against one row within the same resamples of patients
(:func:`patients_like_me.evaluation.compare.compare`).
"""

from __future__ import annotations

from functools import partial
from math import prod
from pathlib import Path
from typing import Literal

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.compare import Comparison, Row, compare
from patients_like_me.evaluation.experiments.design import FigureFile, Findings
from patients_like_me.evaluation.experiments.figures import Panel, Point, Series, draw_panels
from patients_like_me.evaluation.experiments.result_table import Column, Number, ResultTable, TableCell, TableRow
from patients_like_me.evaluation.experiments.results import ExperimentResults, FinishedJob, title_of_task
from patients_like_me.plain_text import counted
from patients_like_me.runs.run import Run
from patients_like_me.tasks.task import Task


def summarize(results: ExperimentResults) -> Findings:
    """Make a table for each cohort and task, and a figure of the first metric of each."""
    tables, notes = paired_tables(results)
    several = len(results.cohorts) > 1
    figures = [
        FigureFile(f"-{place.slug}" if several else "", partial(_draw, tables, place.title))
        for place in results.cohorts
    ]
    return Findings(tables, tuple(figures), notes)


def paired_tables(results: ExperimentResults) -> tuple[tuple[ResultTable, ...], tuple[str, ...]]:
    """Return a table for each cohort and task with at least two rows, and notes about what is left out."""
    tables: list[ResultTable] = []
    notes: list[str] = []
    for place in results.cohorts:
        for task in results.tasks_of(place.title):
            rows, incomplete = complete_rows(results, place.title, task)
            about = f"{title_of_task(task)}, {place.title}"
            notes += [f"{about}: no row for {name}, because not all of its runs are finished." for name in incomplete]
            if len(rows) < 2:
                notes.append(f"{about}: fewer than two rows are finished, so there is nothing to compare.")
                continue
            words = [place.slug.rsplit("-", 1)[0]] if len(results.cohorts) > 1 else []
            tables.append(_table(results, rows, about, results.label(0, *words, task)))
    return tuple(tables), tuple(notes)


def complete_rows(results: ExperimentResults, cohort: str, task: str) -> tuple[dict[str, list[FinishedJob]], list[str]]:
    """Return the finished runs of every row of a task, and the names of rows that lack some of their runs."""
    planned = [job for job in results.plan.jobs if (job.cohort, job.task) == (cohort, task)]
    several = len({job.backbone for job in planned if job.backbone}) > 1
    rows: dict[str, list[FinishedJob]] = {}
    incomplete = []
    for backbone, variant in dict.fromkeys((job.backbone, job.variant.name) for job in planned):
        name = f"{variant} ({backbone})" if several and backbone else variant
        found = results.of(cohort, task, backbone, variant)
        wanted = sum((job.backbone, job.variant.name) == (backbone, variant) for job in planned)
        if len(found) == wanted:
            rows[name] = found
        else:
            incomplete.append(name)
    return rows, incomplete


def parameters_of(run: Run) -> int | None:
    """Return how many trained weights the predictions of a run use; None where it is not known, or none by epochs.

    Of a language model these are the weights that differ from the backbone: trained layers or adapters.
    """
    from safetensors import safe_open

    if not run.capabilities.epochs or run.results.trained_weights is not None:
        return run.results.trained_weights
    model = [run.folder / "model" / f"{part}.safetensors" for part in ("theta", *(["phi"] if run.uses_graph else []))]
    found = []
    for path in model:
        if path.is_file():
            with safe_open(path, framework="np") as file:
                found += [prod(file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118
    return sum(found) if found else None


def _table(results: ExperimentResults, rows: dict[str, list[FinishedJob]], about: str, label: str) -> ResultTable:
    reference = _reference(results, list(rows))
    # Differences are against the first row.
    order = [reference, *(name for name in rows if name != reference)]
    folders = [(name, finished.run.folder) for name in order for finished in rows[name]]
    found = compare(
        [folder for _, folder in folders],
        across_splits=len(results.plan.splits) > 1,
        row_names=[name for name, _ in folders],
    )
    task = next(iter(rows.values()))[0].run.task
    names = _shown_measures(found, task)
    compared = {row.name: row for row in found.rows}
    columns = (
        *(Column(name, scale=1.0, digits=3, best=_better(found, name)) for name in names),
        Column(f"{names[0]} against {reference}", scale=1.0, digits=3, best=None),
        Column("seconds", scale=1.0, digits=0, best=None),
        Column("parameters", scale=1.0, digits=0, best=None),
    )
    made = tuple(TableRow((name,), _cells(compared[name], rows[name], names, reference)) for name in rows)
    return ResultTable(_caption(results, found, rows, about), label, ("row",), columns, made, title=about)


def _reference(results: ExperimentResults, names: list[str]) -> str:
    """Return the row that differences are against: the one asked for, or the first."""
    wanted = results.plan.request.against
    if not wanted:
        return names[0]
    for name in names:
        if name == wanted or name.startswith(f"{wanted} ("):
            return name
    raise PlmError(f"there is no row '{wanted}' to compare with", remedy=f"choose one of {', '.join(names)}")


def _shown_measures(found: Comparison, task: Task) -> list[str]:
    """Return the measures to show; one that no row has, such as interactions without their table, is left out."""
    wanted = list(task.compared)
    if not wanted:
        wanted = [cell.measure.name for cell in found.rows[0].cells if cell.measure.metric in task.metrics]
        wanted.sort(key=lambda name: task.metrics.index(name.partition("@")[0]))
    places = {name: place for place, name in enumerate(found.names)}
    return [
        name
        for number, name in enumerate(wanted)
        if name in places and (number == 0 or any(row.cells[places[name]].value is not None for row in found.rows))
    ]


def _better(found: Comparison, name: str) -> Literal["high", "low"] | None:
    best = found.rows[0].cells[found.names.index(name)].measure.best
    if best == "high":
        return "high"
    return "low" if best == "low" else None


def _cells(row: Row, runs: list[FinishedJob], names: list[str], reference: str) -> tuple[TableCell, ...]:
    measured = {cell.measure.name: cell for cell in row.cells}
    values = [Number.of(cell.value, cell.spread, cell.interval) for cell in (measured[name] for name in names)]
    difference = measured[names[0]].difference
    shown: TableCell = "" if row.name == reference else None
    if difference is not None:
        shown = Number.of(difference.value, interval=difference.interval, signed=True)
    seconds = sum(each.run.results.seconds for each in runs) / len(runs)
    parameters = parameters_of(runs[0].run)
    return (*values, shown, seconds, None if parameters is None else float(parameters))


def _caption(results: ExperimentResults, found: Comparison, rows: dict[str, list[FinishedJob]], about: str) -> str:
    """Say how much was tested, which tau was used, and what the numbers are."""
    several = found.times_split > 1
    tested = f"{about}: {found.instances:,} test instances of {counted(found.patients, 'patient')}"
    lines = [f"{tested} in {found.times_split} splits of the cohort" if several else tested]
    taus = {
        each.job.split_seed: each.job.settings.graph.tau
        for runs in rows.values()
        for each in runs
        if getattr(each.job.settings, "uses_graph", False)
    }
    if taus:
        values = [str(tau) for tau in dict.fromkeys(taus.values())]
        how = ", chosen on validation" if results.plan.request.taus else ""
        lines.append(f"tau {', '.join(values) if len(values) == 1 else ', '.join(map(str, taus.values()))}{how}")
    over = "splits and seeds" if several else "seeds"
    lines.append(
        f"mean ± standard deviation over {over} where there are several, in brackets the 95 % interval by "
        f"bootstrap over patients, {found.replicates:,} resamples, the same for all rows"
    )
    return "; ".join(lines) + "."


def _draw(tables: tuple[ResultTable, ...], cohort: str, folder: Path, name: str) -> None:
    """Draw the first metric of every task with its intervals."""
    ours = [table for table in tables if table.title.endswith(f", {cohort}")]
    places = list(dict.fromkeys(row.heads[0] for table in ours for row in table.rows))
    panels = []
    for table in ours:
        cells = {row.heads[0]: row.cells[0] for row in table.rows}
        points = tuple(
            Point(cell.mean, cell.low, cell.high) if isinstance(cell := cells.get(place), Number) else None
            for place in places
        )
        measure = f"{table.title.removesuffix(f', {cohort}')}\n{table.columns[0].name}"
        panels.append(Panel(measure, (Series("", points),)))
    caption = f"{cohort}, test split, each task's first metric with its 95\u00a0% interval over patients."
    if panels:
        draw_panels(folder, name, places=places, axis="", panels=panels, caption=caption)
