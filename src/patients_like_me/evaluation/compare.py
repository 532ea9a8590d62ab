"""Runs side by side: the same instances, the same resamples of patients, differences with their intervals.

Runs that differ only in their seed form one row. Its value is the mean over the seeds; the standard deviation over
the seeds is what the choice of a seed does. The interval is the sampling error of that mean, given the trained
models: patients are drawn, and all runs of all rows are judged on the drawn ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.evaluate import measures_of_run, thresholds_of
from patients_like_me.evaluation.forms import Floats, Form
from patients_like_me.evaluation.intervals import (
    REPLICATES,
    Difference,
    Interval,
    SeedSpread,
    interval_of,
    paired_difference,
    resampled_values,
    seed_spread,
)
from patients_like_me.evaluation.measures import Measure
from patients_like_me.evaluation.predictions import Predictions, read_predictions
from patients_like_me.records.prepare import differences_between
from patients_like_me.tasks.task import Split

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore
    from patients_like_me.training.run import Run

#: What may differ between runs that are compared; everything else in the identity must be the same.
_MAY_DIFFER = ("settings", "model", "version")
#: How a prompt is worded changes neither the instances nor what may be seen of them.
_TASK_SETTINGS_THAT_MAY_DIFFER = ("prompt",)


@dataclass(frozen=True)
class Cell:
    """One measure of one row: its mean over the seeds, the spread over them, and the difference from the first row."""

    measure: Measure
    value: float | None
    spread: SeedSpread | None
    interval: Interval | None
    difference: Difference | None

    def as_json(self) -> dict[str, Any]:
        """Return the cell as plain data."""
        return {
            "name": self.measure.name,
            "value": self.value,
            "interval": None if self.interval is None else self.interval.as_json(),
            "seeds": None if self.spread is None else self.spread.as_json(),
            "difference": None if self.difference is None else self.difference.as_json(),
            "unavailable": self.measure.unavailable if self.value is None else None,
        }


@dataclass(frozen=True)
class Row:
    """One or several runs that differ only in their seed."""

    name: str
    folders: tuple[Path, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Comparison:
    """Rows over the same instances; differences are against the first row."""

    task: str
    split: Split
    instances: int
    patients: int
    rows: tuple[Row, ...]
    replicates: int
    seed: int

    @property
    def names(self) -> list[str]:
        """The names of the measures, in their order."""
        return [cell.measure.name for cell in self.rows[0].cells]

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return {
            "task": self.task,
            "split": self.split,
            "instances": self.instances,
            "patients": self.patients,
            "intervals": {
                "method": "percentile bootstrap over patients, the same resamples for every run",
                "replicates": self.replicates,
                "seed": self.seed,
            },
            "differences": f"against {self.rows[0].name}",
            "definitions": {cell.measure.name: cell.measure.definition for cell in self.rows[0].cells},
            "rows": [
                {
                    "name": row.name,
                    "runs": [folder.name for folder in row.folders],
                    "measures": [cell.as_json() for cell in row.cells],
                }
                for row in self.rows
            ],
        }


def compare(
    folders: Sequence[Path],
    *,
    split: Split = "test",
    replicates: int = REPLICATES,
    seed: int = 0,
    store: CodeStore | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Compare runs of one task on one cohort and one split; anything else is refused with the reason."""
    from patients_like_me.training.run import Run

    if len(folders) < 2:
        raise PlmError("one run alone cannot be compared", remedy="give two or more, or use plm evaluate")
    runs = [Run.load(folder) for folder in folders]
    for run in runs[1:]:
        refuse_other_identity(runs[0], run)
    predictions = [read_predictions(run) for run in runs]
    chosen = [each.of_split(split) for each in predictions]
    for run, each in zip(runs[1:], chosen[1:], strict=True):
        _refuse_other_instances(runs[0], run, chosen[0], each)
    if not len(chosen[0]):
        raise PlmError(f"the runs have no predictions for {split}", remedy="use a larger cohort or other shares")
    task = str(runs[0].about["identity"]["task"])
    report(f"resampling {chosen[0].number_of_patients:,} patients {replicates:,} times for {len(runs)} runs")
    measured = [
        measures_of_run(part, thresholds_of(whole), task, store)
        for part, whole in zip(chosen, predictions, strict=True)
    ]
    forms: dict[tuple[int, str], Form] = {
        (number, measure.name): measure.form
        for number, measures in enumerate(measured)
        for measure in measures
        if measure.form is not None
    }
    values = resampled_values(forms, chosen[0].number_of_patients, replicates=replicates, seed=seed)
    groups = grouped_by_seed(runs)
    names = distinct_names([runs[members[0]] for members in groups])
    means = [_means(members, measured, values, replicates) for members in groups]
    rows = [
        Row(
            name,
            tuple(runs[member].folder for member in members),
            tuple(_cells(members, measured, mine, means[0])),
        )
        for name, members, mine in zip(names, groups, means, strict=True)
    ]
    counted = chosen[0]
    return Comparison(task, split, len(counted), counted.number_of_patients, tuple(rows), replicates, seed)


def refuse_other_identity(first: Run, other: Run) -> None:
    """Refuse runs of different cohorts, tasks, or task settings (splits among them)."""
    ours, theirs = first.about["identity"], other.about["identity"]
    for key, words in (("cohort", "cohorts"), ("task", "tasks")):
        if ours[key] != theirs[key]:
            shown = f" ('{ours[key]}' and '{theirs[key]}')" if key == "task" else ""
            raise PlmError(
                f"the runs '{first.folder}' and '{other.folder}' have different {words}{shown}",
                remedy="compare runs of one task on one cohort",
            )
    if found := differences_between(_fixed(ours), _fixed(theirs)):
        raise PlmError(
            f"the runs '{first.folder}' and '{other.folder}' have different task settings or splits: "
            f"{'; '.join(found)}",
            remedy="compare runs with the same ones",
        )


def grouped_by_seed(runs: Sequence[Run]) -> list[list[int]]:
    """Gather the numbers of runs that differ only in their seed, in the order of the first of each.

    A run that is given twice, or trained twice with one seed, is refused.
    """
    groups: dict[str, list[int]] = {}
    seen: dict[str, Run] = {}
    for number, run in enumerate(runs):
        identity = {key: value for key, value in run.about["identity"].items() if key != "version"}
        whole = json.dumps(identity, sort_keys=True)
        if whole in seen:
            raise PlmError(
                f"the runs '{seen[whole].folder}' and '{run.folder}' are the same, seed included",
                remedy="give each run once",
            )
        seen[whole] = run
        settings = {key: value for key, value in identity["settings"].items() if key != "seed"}
        groups.setdefault(json.dumps({**identity, "settings": settings}, sort_keys=True), []).append(number)
    return list(groups.values())


def distinct_names(runs: Sequence[Run]) -> list[str]:
    """Name each row by its run's name; where two would have the same, the folder's name is added."""
    names = [run.name for run in runs]
    return [
        f"{name} ({run.folder.name})" if names.count(name) > 1 else name for name, run in zip(names, runs, strict=True)
    ]


def _fixed(identity: dict[str, Any]) -> dict[str, Any]:
    task_settings = {
        key: value for key, value in identity["task_settings"].items() if key not in _TASK_SETTINGS_THAT_MAY_DIFFER
    }
    return {key: value for key, value in identity.items() if key not in _MAY_DIFFER} | {"task_settings": task_settings}


def _refuse_other_instances(first: Run, other: Run, ours: Predictions, theirs: Predictions) -> None:
    where = f"the runs '{first.folder}' and '{other.folder}'"
    remedy = "train both with the same version on the same cohort"
    if ours.outputs != theirs.outputs or ours.kind != theirs.kind:
        raise PlmError(f"{where} predict different labels", remedy=remedy)
    if ours.instance_ids != theirs.instance_ids or ours.subject_ids != theirs.subject_ids:
        shared = len(set(ours.instance_ids) & set(theirs.instance_ids))
        raise PlmError(
            f"{where} predict different instances ({len(ours):,} and {len(theirs):,}, {shared:,} in both)",
            remedy=remedy,
        )
    if not np.array_equal(ours.labels, theirs.labels):
        raise PlmError(f"{where} have different labels for the same instances", remedy=remedy)


def _means(
    members: list[int], measured: list[list[Measure]], values: dict[tuple[int, str], Floats], replicates: int
) -> dict[str, tuple[float | None, Floats]]:
    """Return value and resampled values of every measure, averaged over the seeds."""
    found: dict[str, tuple[float | None, Floats]] = {}
    for at, measure in enumerate(measured[members[0]]):
        spread = seed_spread([measured[member][at].value for member in members])
        if spread is None:
            found[measure.name] = (None, np.full(replicates, np.nan))
            continue
        found[measure.name] = (spread.mean, np.mean([values[member, measure.name] for member in members], axis=0))
    return found


def _cells(
    members: list[int],
    measured: list[list[Measure]],
    mine: dict[str, tuple[float | None, Floats]],
    first: dict[str, tuple[float | None, Floats]],
) -> list[Cell]:
    cells = []
    for at, measure in enumerate(measured[members[0]]):
        value, resampled = mine[measure.name]
        reference, references = first[measure.name]
        # A measure without a better side, such as the prevalence, says nothing about one run against another.
        compared = mine is not first and measure.best is not None
        difference = paired_difference(value, reference, resampled, references) if compared else None
        spread = seed_spread([measured[member][at].value for member in members])
        cells.append(Cell(measure, value, spread, None if value is None else interval_of(resampled), difference))
    return cells
