"""How much do references add with few patients, and how much with many? Curves over the number of training patients.

Training patients are drawn from the training split, smaller samples within the larger ones; validation and test stay
the same. One fit of the system ``references`` per size gives its own path and the answer with references. Two more
fits of the gates alone are its controls: references drawn at random, and the outcomes of the bank shuffled. A gain that
is due to references is not theirs. Seeds are splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments.design import FigureFile, Findings
from patients_like_me.evaluation.experiments.figures import Panel, Point, Series, draw_panels
from patients_like_me.evaluation.experiments.measured_parts import (
    differences_from,
    identity_of,
    kept_part,
    mean_difference,
    own_paths_named,
    scores_of,
    settings_of_references,
)
from patients_like_me.evaluation.experiments.result_table import Column, Number, ResultTable, TableRow
from patients_like_me.evaluation.experiments.results import METRIC_NAMES, ExperimentResults, title_of_task
from patients_like_me.evaluation.intervals import seed_spread
from patients_like_me.systems.contract import RunContext
from patients_like_me.systems.problem import only, problem_of
from patients_like_me.systems.reference_path.fitting import fit_model
from patients_like_me.systems.reference_path.model import subject_ids_of
from patients_like_me.systems.reference_path.own_parts import part_of
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.registry import find_task

#: Numbers of training patients that are tried, as far as there are enough; the whole split is always the last.
SIZES: Final = (300, 600, 1800, 6000, 18000)
OWN, WITH = "without references", "with references"
#: The controls, by their settings.
CONTROLS: Final[Mapping[str, str]] = {"references at random": "rewired", "outcomes shuffled": "shuffled"}
ROWS: Final = (OWN, WITH, *CONTROLS)

Parts = Mapping[str, Sequence[Mapping[str, Any]]]


def summarize(results: ExperimentResults) -> Findings:
    """Make a table and a figure for each cohort and task."""
    request = results.plan.request
    splits = request.seeds or (1 if request.quick else 3)
    paths = own_paths_named(request.values or (("linear",) if request.quick else ("linear", "stack")))
    settings = settings_of_references(request)
    if settings.rehearsal != "none":
        raise PlmError(
            "the learning curve has no bank that grows, so there is nothing to rehearse",
            remedy="leave references.rehearsal out",
        )
    tables: list[ResultTable] = []
    figures: list[FigureFile] = []
    several = len(results.cohorts) * len(results.tasks) > 1
    for place in results.cohorts:
        for task in results.tasks:
            about = f"{title_of_task(task)}, {place.title}"
            parts: dict[str, list[dict[str, Any]]] = {name: [] for name in paths}
            for split in range(splits):
                chosen = results.plan.task_settings[task].model_copy(update={"split_seed": split})
                instances = build_instances(place.cohort, find_task(task, place.cohort), chosen)
                for name, path in paths.items():
                    folder = request.out / "runs" / "learning-curve" / place.slug / task
                    wanted = settings.model_copy(update=path)
                    kept = folder / f"{name}-split{split}.json"
                    measured = partial(measure, instances, wanted, folder)
                    parts[name].append(kept_part(kept, identity_of(instances, wanted, __file__), measured))
            tables.append(_table(instances, parts, about, results.label(len(tables))))
            ending = f"-{place.slug}-{task}" if several else ""
            figures.append(FigureFile(ending, partial(_draw, parts, about, instances.task.metrics[0])))
    return Findings(tuple(tables), tuple(figures))


def measure(instances: Instances, settings: Any, cache: Path | None = None) -> dict[str, Any]:
    """Return scores and paired differences for every number of training patients."""
    problem = problem_of(instances)
    people, number = np.unique(subject_ids_of(instances)[problem.train], return_inverse=True)
    order = np.random.default_rng(0).permutation(len(people))[number]
    test = only(instances, problem.test)
    found: dict[str, Any] = {"sizes": [], "scores": [], "differences": [], "gates_open": []}
    for size in (*(size for size in SIZES if size < len(people)), len(people)):
        part = problem if size == len(people) else part_of(problem, problem.train[order < size])
        model, _ = fit_model(part, RunContext(settings, cache=cache))
        logits = {OWN: model.own.logits(test), WITH: model.logits(test)}
        for name, control in CONTROLS.items():
            of_control = settings.model_copy(update={"control": control})
            logits[name] = fit_model(part, RunContext(of_control, cache=cache))[0].logits(test)
        found["sizes"].append(size)
        found["scores"].append({name: scores_of(each, test) for name, each in logits.items()})
        found["differences"].append(differences_from(OWN, logits, test))
        found["gates_open"].append(model.uses_references)
    return found


def _at(parts: Sequence[Mapping[str, Any]], place: int) -> list[dict[str, Any]]:
    """Return the parts of one size in the form of :func:`mean_difference`."""
    return [{"differences": part["differences"][place]} for part in parts]


def _table(instances: Instances, parts: Parts, about: str, label: str) -> ResultTable:
    metric = instances.task.metrics[0]
    name = METRIC_NAMES.get(metric, metric)
    columns = (
        Column(name, scale=1.0, digits=4, best=None),
        Column(f"over {OWN}", scale=1.0, digits=4, best=None),
    )
    rows = []
    for path, runs in parts.items():
        for place, size in enumerate(runs[0]["sizes"]):
            for row in ROWS:
                cell = seed_spread([run["scores"][place][row][metric] for run in runs])
                gain = mean_difference(_at(runs, place), row)
                shown = Number(gain[0], None, gain[1], gain[2], signed=True) if gain and row != OWN else ""
                rows.append(TableRow((path, f"{size:,}", row), (cell, shown)))
    caption = (
        f"What references add by number of training patients. {about}, {len(next(iter(parts.values())))} splits. "
        "Mean ± standard deviation over splits; differences are means over splits, with the mean ends of their 95 % "
        "intervals over patients. References at random and outcomes shuffled are controls, with gates of their own."
    )
    return ResultTable(caption, label, ("own path", "training patients", "row"), columns, tuple(rows), title=about)


def _draw(parts: Parts, about: str, metric: str, folder: Path, name: str) -> None:
    """Draw the score over the number of training patients, with and without references."""
    sizes = next(iter(parts.values()))[0]["sizes"]
    series = []
    for path, runs in parts.items():
        for row in (OWN, WITH):
            spread = [seed_spread([run["scores"][place][row][metric] for run in runs]) for place in range(len(sizes))]
            series.append(Series(f"{path}, {row}", tuple(Point.of(each) for each in spread)))
    caption = f"{about}: score by number of training patients."
    panel = Panel(METRIC_NAMES.get(metric, metric), tuple(series), kind="lines")
    places = [f"{size:,}" for size in sizes]
    draw_panels(folder, name, places=places, axis="training patients", panels=(panel,), caption=caption)
