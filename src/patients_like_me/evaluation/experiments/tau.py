"""How many diagnoses should two patients share? The paper's figure of the metric and the average degree against tau."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from patients_like_me.evaluation.experiments.design import FigureFile, Findings
from patients_like_me.evaluation.experiments.figures import Panel, Point, Series, draw_panels
from patients_like_me.evaluation.experiments.result_table import Column, ResultTable, TableCell, TableRow
from patients_like_me.evaluation.experiments.results import (
    METRIC_NAMES,
    ExperimentResults,
    FinishedJob,
    averaged_in_words,
    cells_of_test,
    chosen_on_validation,
    scored,
    spread,
    title_of_task,
)
from patients_like_me.graph.settings import GraphSettings

_PREFIX = "tau "


def average_degree(result: FinishedJob) -> float | None:
    """Return the average number of neighbours in the training graph of a run."""
    graph = result.run.results.graph
    found = None if graph is None else graph.splits.get("train")
    return None if found is None or not found.nodes else 2 * found.edges / found.nodes


def degrees_in_words(graph: GraphSettings) -> str:
    """Say which edges a degree counts where a node keeps its strongest neighbours only.

    >>> degrees_in_words(GraphSettings(max_neighbors=32, references="cohort"))
    'Degrees are those of the graph that was used: an edge stays if it is among the 32 strongest of either end.'
    """
    kept = graph.max_neighbors
    if graph.references == "bank":
        return (
            f"An instance receives messages from its own {kept} strongest neighbours; degrees count a linked pair for "
            "both of its ends."
        )
    stays = f"an edge stays if it is among the {kept} strongest of either end"
    return f"Degrees are those of the graph that was used: {stays}."


def _degree(found: list[FinishedJob], *, several_splits: bool) -> TableCell:
    """Return the average degree of a row; the graph is the same for every seed of a split."""
    if several_splits:
        return spread(found, average_degree)
    return average_degree(found[0]) if found else None


def summarize(results: ExperimentResults) -> Findings:
    """Show the metrics, on validation and test, and the average degree for every tau; validation alone chooses."""
    tables, figures, notes = [], [], []
    compared = list(results.settings_compared())
    for number, (cohort, task, backbone) in enumerate(compared):
        metrics = results.metrics_of(task)
        rows = {tau: results.of(cohort, task, backbone, tau) for tau in results.variants}
        chosen = chosen_on_validation(rows, metrics[0])
        validation = Column(METRIC_NAMES.get(metrics[0], metrics[0]), ("Validation",), best=None)
        columns = (
            Column("degree", ("Average",), scale=1.0, best=None),
            validation,
            *(Column(METRIC_NAMES.get(metric, metric), ("Test",), best=None) for metric in metrics),
        )
        made = [
            TableRow(
                (tau.removeprefix(_PREFIX),),
                (
                    _degree(found, several_splits=len(results.plan.splits) > 1),
                    spread(found, scored("validation", metrics[0])),
                    *cells_of_test(found, metrics),
                ),
                mark="chosen on validation" if tau == chosen else "",
            )
            for tau, found in rows.items()
        ]
        about = f"{title_of_task(task)}, {cohort}, {backbone}"
        caption = results.caption(f"Sensitivity to tau. {about}; average degree of the training graph.")
        tables.append(ResultTable(caption, results.label(number), ("tau",), columns, tuple(made)))
        ending = "" if len(compared) == 1 else f"-{number + 1}"
        figures.append(FigureFile(ending, partial(_draw, results, cohort, task, backbone, chosen)))
        graph = next((job.settings.graph for job in results.plan.jobs if job.settings), None)
        if graph is not None and graph.max_neighbors is not None:
            notes.append(degrees_in_words(graph))
    return Findings(tuple(tables), tuple(figures), tuple(dict.fromkeys(notes)))


def _draw(
    results: ExperimentResults, cohort: str, task: str, backbone: str, chosen: str | None, folder: Path, name: str
) -> None:
    metric = results.metrics_of(task)[0]
    rows = [results.of(cohort, task, backbone, tau) for tau in results.variants]

    def line(split: str) -> tuple[Point | None, ...]:
        return tuple(Point.of(spread(found, scored(split, metric)), 100) for found in rows)

    degrees = tuple(Point.of(spread(found, average_degree)) for found in rows)
    title = METRIC_NAMES.get(metric, metric)
    draw_panels(
        folder,
        name,
        places=[tau.removeprefix(_PREFIX) for tau in results.variants],
        axis="tau (diagnoses that two instances must share)",
        panels=(
            Panel(f"{title} (%)", (Series("test", line("test")), Series("validation", line("validation"))), "lines"),
            Panel("average degree", (Series("", degrees),), "bars"),
        ),
        caption=f"{title_of_task(task)}, {cohort}, {backbone}: {title} and average degree of the training "
        f"graph against tau; {averaged_in_words(results)}.",
        chosen=None if chosen is None else chosen.removeprefix(_PREFIX),
        chosen_words="chosen on validation",
    )
