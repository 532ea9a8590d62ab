"""How many diagnoses should two patients share? The paper's figure of the metric and the average degree against tau."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments.design import READMISSION, Experiment, Figure, Findings, Variant

if TYPE_CHECKING:
    from patients_like_me.evaluation.experiments.results import Result, Results

_PREFIX = "tau "


def tau_row(value: str) -> Variant:
    """Make the row of one tau.

    >>> tau_row("8")
    Variant(name='tau 8', changes={'strategy': 'vem', 'graph': {'tau': 8}}, system='patients_like_me')
    """
    if not value.strip().isdigit():
        raise PlmError(f"tau={value!r} is not possible", remedy="give whole numbers, such as --values 4 --values 8")
    return Variant(f"{_PREFIX}{int(value)}", {"strategy": "vem", "graph": {"tau": int(value)}})


def average_degree(result: Result) -> float | None:
    """Return the average number of neighbours in the training graph of a run."""
    graph = result.run.results.graph
    found = None if graph is None else graph.splits.get("train")
    return None if found is None or not found.nodes else 2 * found.edges / found.nodes


def summarize(results: Results) -> Findings:
    """Show the metrics, on validation and test, and the average degree for every tau; validation alone chooses."""
    from patients_like_me.evaluation.experiments.result_table import Column, ResultTable, Row
    from patients_like_me.evaluation.experiments.results import (
        METRIC_NAMES,
        cells_of_test,
        chosen_on_validation,
        scored,
        spread,
        title_of_task,
    )

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
            Row(
                (tau.removeprefix(_PREFIX),),
                (
                    # The graph is the same for every seed.
                    average_degree(found[0]) if found else None,
                    spread(found, scored("validation", metrics[0])),
                    *cells_of_test(found, metrics),
                ),
                mark="chosen on validation" if tau == chosen else "",
            )
            for tau, found in rows.items()
        ]
        about = f"{title_of_task(task)}, {cohort}, {backbone}"
        caption = results.caption(f"Sensitivity to tau. {about}; average degree of the training graph.")
        label = "tau" if number == 0 else f"tau-{number + 1}"
        tables.append(ResultTable(caption, label, ("tau",), columns, tuple(made)))
        ending = "" if len(compared) == 1 else f"-{number + 1}"
        figures.append(Figure(ending, partial(_draw, results, cohort, task, backbone, chosen)))
        kept = next((job.settings.graph.max_neighbors for job in results.plan.jobs if job.settings), None)
        if kept is not None:
            notes.append(
                f"Degrees are those of the graph that was used: an edge stays if it is among the {kept} strongest of "
                "either end."
            )
    return Findings(tuple(tables), tuple(figures), tuple(dict.fromkeys(notes)))


def _draw(results: Results, cohort: str, task: str, backbone: str, chosen: str | None, folder: Path, name: str) -> None:
    from patients_like_me.evaluation.experiments.figures import Panel, Point, Series, draw_panels
    from patients_like_me.evaluation.experiments.results import (
        METRIC_NAMES,
        scored,
        seeds_in_words,
        spread,
        title_of_task,
    )

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
        f"graph against tau; {seeds_in_words(results.seeds)}.",
        chosen=None if chosen is None else chosen.removeprefix(_PREFIX),
        chosen_words="chosen on validation",
    )


TAU = Experiment(
    name="tau",
    question="how many diagnoses should two patients share to be linked?",
    paper="the sensitivity figure, part a (readmission)",
    summarize=summarize,
    tasks=(READMISSION,),
    grid=tuple(tau_row(str(tau)) for tau in (4, 6, 8, 10, 12)),
    quick_grid=tuple(tau_row(str(tau)) for tau in (2, 5, 8, 11)),
    variant_of=tau_row,
)
