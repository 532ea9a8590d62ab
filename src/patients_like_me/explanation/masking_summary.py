"""``plm experiment masking``: the paper's figure of faithfulness over all tasks, from the runs of an experiment.

Three of the references that a page shows are removed from every test instance: those with the largest importance,
those with the largest edge weight, or any three. What falls is the AUPRC of the task. The experiment is declared here
and not among those of the room ``evaluation``, which knows nothing of explanations; the command line adds it.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from patients_like_me.evaluation.experiments.catalogue import VEM_ROW
from patients_like_me.evaluation.experiments.design import PAPER_TASKS, Experiment, FigureFile, Findings
from patients_like_me.evaluation.experiments.figures import Panel, Point, Series, draw_panels
from patients_like_me.evaluation.experiments.result_table import Column, Number, ResultTable, TableCell, TableRow
from patients_like_me.evaluation.experiments.results import (
    ExperimentResults,
    FinishedJob,
    averaged_in_words,
    title_of_task,
)
from patients_like_me.evaluation.intervals import seed_spread

if TYPE_CHECKING:
    from patients_like_me.explanation.masking_experiment import MaskedChange

#: The paper's three rows, by the method behind each.
METHODS: Final = {"gradient": "importance", "edge_weight": "edge weight", "random": "random"}
REMOVED: Final = 3
_AUPRC, _PROBABILITIES = "AUPRC", "probabilities"


def summarize(results: ExperimentResults) -> Findings:
    """Mask the test instances of every run; return a table per cohort and a figure of all cohorts and tasks."""
    tables, notes = [], []
    compared = [(place, backbone) for place in results.cohorts for backbone in results.backbones]
    for number, (place, backbone) in enumerate(compared):
        tasks = results.tasks_of(place.title)
        columns = tuple(
            Column(name, (title_of_task(task),), digits=2, best="low" if name == _AUPRC else None)
            for task in tasks
            for name in (_AUPRC, _PROBABILITIES)
        )
        rows = tuple(
            TableRow(
                (words,),
                tuple(
                    _cell(results.of(place.title, task, backbone, VEM_ROW.name), method, name)
                    for task in tasks
                    for name in (_AUPRC, _PROBABILITIES)
                ),
            )
            for method, words in METHODS.items()
        )
        caption = (
            f"Masking: {REMOVED} of the references that are shown are removed from every test instance, by each way "
            f"of choosing them; {place.title}, {backbone}. Change of the AUPRC of the task and mean absolute change of "
            f"the probabilities, both in points; {averaged_in_words(results, whiskers=False)}, with the 95 % interval "
            "over patients where there is one run."
        )
        tables.append(ResultTable(caption, results.label(number), ("Removed first",), columns, rows))
    several = len(results.backbones) > 1
    figures = tuple(
        FigureFile(f"-{number + 1}" if several else "", partial(_draw, results, backbone))
        for number, backbone in enumerate(results.backbones)
    )
    if any(not result.run.uses_graph for result in results.finished):
        notes.append("A run without a graph has no references to remove.")
    return Findings(tuple(tables), figures, tuple(notes))


def _cell(found: list[FinishedJob], method: str, name: str) -> TableCell:
    """Return a change over the runs of a row: mean and spread, or value and interval of a single one."""
    changes = [change for result in found if (change := _changes(result.run.folder).get((method, name))) is not None]
    if not changes or len(changes) < len(found):
        return None
    if len(changes) == 1:
        return Number.of(changes[0].value, interval=changes[0].interval, signed=True)
    spread = seed_spread([change.value for change in changes])
    return None if spread is None else Number.of(spread.mean, spread, signed=True)


@cache
def _changes(folder: Path) -> dict[tuple[str, str], MaskedChange]:
    """Mask the test instances of one run; return the change of AUPRC and probabilities by each method."""
    from patients_like_me.explanation.faithfulness import assess_faithfulness
    from patients_like_me.explanation.masking_experiment import PROBABILITY, Masking
    from patients_like_me.runs.run import load_run

    run = load_run(folder)
    if not run.uses_graph:
        return {}
    result = assess_faithfulness([run], Masking([REMOVED]), methods=list(METHODS)).masking[0]
    names = {_AUPRC: result.measures[0], _PROBABILITIES: PROBABILITY}
    return {
        (method, name): result.change(method, REMOVED, measure)
        for method in METHODS
        for name, measure in names.items()
        if method in result.methods
    }


def _draw(results: ExperimentResults, backbone: str, folder: Path, name: str) -> None:
    """Draw the change of the AUPRC of every task of every cohort, over one axis."""
    places = [(place.title, task) for place in results.cohorts for task in results.tasks_of(place.title)]

    def points(method: str) -> tuple[Point | None, ...]:
        found = (results.of(cohort, task, backbone, VEM_ROW.name) for cohort, task in places)
        return tuple(_point(_cell(each, method, _AUPRC)) for each in found)

    several = len(results.cohorts) > 1
    cohorts = ", ".join(place.title for place in results.cohorts)
    draw_panels(
        folder,
        name,
        places=[f"{title_of_task(task)}\n{cohort}" if several else title_of_task(task) for cohort, task in places],
        axis="task and cohort" if several else "task",
        panels=(
            Panel(
                "change of AUPRC (points)", tuple(Series(words, points(method)) for method, words in METHODS.items())
            ),
        ),
        caption=f"{cohorts}, {backbone}: {REMOVED} of the shown references removed from every test instance; "
        f"{averaged_in_words(results)}, with one run its 95 % interval over patients. Lower: what was removed mattered "
        "more.",
    )


def _point(cell: TableCell) -> Point | None:
    if not isinstance(cell, Number):
        return None
    low, high = cell.low, cell.high
    if cell.sd is not None:
        low, high = cell.mean - cell.sd, cell.mean + cell.sd
    return Point(100 * cell.mean, None if low is None else 100 * low, None if high is None else 100 * high)


EXPERIMENT: Final = Experiment(
    name="masking",
    question="do predictions lean on the references that are shown?",
    paper="the figure of faithfulness (three tasks, MIMIC-IV, top three of the references)",
    summarize=summarize,
    tasks=PAPER_TASKS,
    grid=(VEM_ROW,),
    quick_seeds=1,
    every_cohort=True,
)
