"""Runs side by side: the same instances, the same resamples of patients, differences with their intervals.

Runs that differ only in their seed form one row. Its value is the mean over the seeds; the standard deviation over
the seeds is what the choice of a seed does. The interval is the sampling error of that mean, given the trained
models: patients are resampled, and all runs of all rows are scored on the same resamples.

A small cohort has so few test patients that one split says nothing. ``across_splits`` takes runs on several
splits of the same cohort (``task.split_seed``): a measure is computed within each and averaged over those where it
is available. A patient who is tested in several splits is resampled, or not, in all of them at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.evaluate import measures_of_run, thresholds_of
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
from patients_like_me.runs.record import Identity
from patients_like_me.runs.run import Run, load_run
from patients_like_me.settings import differences_between
from patients_like_me.tasks.forms import Floats, MetricForm
from patients_like_me.tasks.task import Split

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore

#: What may differ between runs that are compared; everything else in the identity must be the same.
_MAY_DIFFER = ("settings", "system", "version")
#: How a prompt is worded changes neither the instances nor what may be seen of them.
_TASK_SETTINGS_THAT_MAY_DIFFER = ("prompt",)
#: The task setting that divides the patients into splits.
_SPLIT_SEED = "split_seed"


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
    """One or several runs that differ only in their seed, or in the seed of their split."""

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
    #: How many times the cohort was split; the instances of all splits are counted.
    times_split: int = 1

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
            "times_split": self.times_split,
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
    across_splits: bool = False,
    row_names: Sequence[str] | None = None,
    replicates: int = REPLICATES,
    seed: int = 0,
    store: CodeStore | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Compare runs of one task on one cohort and one split; anything else is refused with the reason.

    With ``across_splits`` the runs may come from several splits of the cohort, the same ones for every row.
    ``row_names`` gives the row of every run; else runs that differ only in seed and split are one row.
    """
    if len(folders) < 2:
        raise PlmError("one run alone cannot be compared", remedy="give two or more, or use plm evaluate")
    runs = [load_run(folder) for folder in folders]
    for run in runs[1:]:
        refuse_other_identity(runs[0], run, across_splits=across_splits)
    predictions = [read_predictions(run) for run in runs]
    chosen = [each.of_split(split) for each in predictions]
    split_seeds = [_split_seed(run) for run in runs]
    firsts = {split_seed: split_seeds.index(split_seed) for split_seed in split_seeds}
    for run, each, split_seed in zip(runs, chosen, split_seeds, strict=True):
        _refuse_other_instances(runs[firsts[split_seed]], run, chosen[firsts[split_seed]], each)
    if not all(len(each) for each in chosen):
        raise PlmError(f"the runs have no predictions for {split}", remedy="use a larger cohort or other shares")
    groups = grouped_by_seed(runs, across_splits=across_splits)
    names = distinct_names([runs[members[0]] for members in groups])
    if row_names is not None:
        names = list(dict.fromkeys(row_names))
        groups = [[number for number, each in enumerate(row_names) if each == name] for name in names]
    _refuse_uneven_splits(names, [[split_seeds[member] for member in members] for members in groups])
    patients, places = _shared_patients(chosen)
    task, codes = runs[0].identity.task, runs[0].results.task.get("label_codes")
    report(f"resampling {patients:,} patients {replicates:,} times for {len(runs)} runs")
    measured = [
        {measure.name: measure for measure in measures_of_run(part, thresholds_of(whole), codes, store)}
        for part, whole in zip(chosen, predictions, strict=True)
    ]
    forms: dict[tuple[int, str], MetricForm] = {
        (number, measure.name): _of_some_patients(measure.form, places[number])
        for number, measures in enumerate(measured)
        for measure in measures.values()
        if measure.form is not None
    }
    values = resampled_values(forms, patients, replicates=replicates, seed=seed)
    means = [
        {name: _mean(members, name, measured, values, split_seeds, replicates) for name in measured[0]}
        for members in groups
    ]
    rows = [
        Row(
            name,
            tuple(runs[member].folder for member in members),
            tuple(_cell(measured[members[0]][each], mine[each], means[0][each]) for each in measured[0]),
        )
        for name, members, mine in zip(names, groups, means, strict=True)
    ]
    instances = sum(len(chosen[first]) for first in firsts.values())
    return Comparison(task, split, instances, patients, tuple(rows), replicates, seed, len(firsts))


def refuse_other_identity(first: Run, other: Run, *, across_splits: bool = False) -> None:
    """Refuse runs of different cohorts, tasks, or task settings (splits among them, unless they may differ)."""
    ours, theirs = first.identity, other.identity
    for key, words in (("cohort", "cohorts"), ("task", "tasks")):
        mine, other_one = getattr(ours, key), getattr(theirs, key)
        if mine != other_one:
            shown = f" ('{mine}' and '{other_one}')" if key == "task" else ""
            raise PlmError(
                f"the runs '{first.folder}' and '{other.folder}' have different {words}{shown}",
                remedy="compare runs of one task on one cohort",
            )
    free = (*_TASK_SETTINGS_THAT_MAY_DIFFER, *((_SPLIT_SEED,) if across_splits else ()))
    if found := differences_between(_fixed(ours, free), _fixed(theirs, free)):
        only_split = not differences_between(_fixed(ours, (*free, _SPLIT_SEED)), _fixed(theirs, (*free, _SPLIT_SEED)))
        raise PlmError(
            f"the runs '{first.folder}' and '{other.folder}' have different task settings or splits: "
            f"{'; '.join(found)}",
            remedy="compare runs with the same ones"
            + (", or average over the splits with --across-splits" if only_split else ""),
        )


def grouped_by_seed(runs: Sequence[Run], *, across_splits: bool = False) -> list[list[int]]:
    """Gather the numbers of runs that differ only in their seed (and split), in the order of the first of each.

    A run that is given twice, or trained twice with one seed, is refused.
    """
    groups: dict[str, list[int]] = {}
    seen: dict[str, Run] = {}
    for number, run in enumerate(runs):
        identity = run.identity.without("version")
        whole = json.dumps(identity, sort_keys=True)
        if whole in seen:
            raise PlmError(
                f"the runs '{seen[whole].folder}' and '{run.folder}' are the same, seed included",
                remedy="give each run once",
            )
        seen[whole] = run
        settings = {key: value for key, value in identity["settings"].items() if key != "seed"}
        row = {**identity, "settings": settings}
        if across_splits:
            row["task_settings"] = {key: value for key, value in row["task_settings"].items() if key != _SPLIT_SEED}
        groups.setdefault(json.dumps(row, sort_keys=True), []).append(number)
    return list(groups.values())


def distinct_names(runs: Sequence[Run]) -> list[str]:
    """Name each row by its run's name; where two would have the same, the folder's name is added."""
    names = [run.name for run in runs]
    return [
        f"{name} ({run.folder.name})" if names.count(name) > 1 else name for name, run in zip(names, runs, strict=True)
    ]


def _fixed(identity: Identity, free: tuple[str, ...]) -> dict[str, Any]:
    task_settings = {key: value for key, value in identity.task_settings.items() if key not in free}
    return identity.without(*_MAY_DIFFER) | {"task_settings": task_settings}


def _split_seed(run: Run) -> int:
    return int(run.identity.task_settings[_SPLIT_SEED])


def _refuse_uneven_splits(names: Sequence[str], split_seeds: Sequence[Sequence[int]]) -> None:
    """Refuse rows that were not all trained on the same splits: they would be judged on different patients."""
    for name, mine in zip(names[1:], split_seeds[1:], strict=True):
        if set(mine) != set(split_seeds[0]):
            first, other = (", ".join(str(number) for number in sorted(set(each))) for each in (split_seeds[0], mine))
            raise PlmError(
                f"the rows '{names[0]}' and '{name}' come from different splits (split seeds {first}; {other})",
                remedy="train every row on the same ones",
            )


def _shared_patients(chosen: Sequence[Predictions]) -> tuple[int, list[npt.NDArray[np.intp]]]:
    """Number the patients of all runs together: how many there are, and the places of each run among them."""
    own = [np.unique(np.array(each.subject_ids, dtype=str)) for each in chosen]
    together = np.unique(np.concatenate(own))
    return len(together), [np.searchsorted(together, names) for names in own]


def _of_some_patients(form: MetricForm, places: npt.NDArray[np.intp]) -> MetricForm:
    """Return a form of some patients as one of all."""
    return lambda weights: form(weights[:, places])


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


@dataclass(frozen=True, eq=False)
class _Mean:
    """A measure of a row: averaged over its runs, over the splits in which all of these have it."""

    spread: SeedSpread | None
    resampled: Floats
    split_seeds: frozenset[int]


def _mean(
    members: Sequence[int],
    name: str,
    measured: Sequence[Mapping[str, Measure]],
    values: Mapping[tuple[int, str], Floats],
    split_seeds: Sequence[int],
    replicates: int,
) -> _Mean:
    lacking = {split_seeds[member] for member in members if measured[member][name].value is None}
    used = [member for member in members if split_seeds[member] not in lacking]
    spread = seed_spread([measured[member][name].value for member in used])
    if spread is None:
        return _Mean(None, np.full(replicates, np.nan), frozenset())
    stacked = np.stack([values[member, name] for member in used])
    there = ~np.isnan(stacked)
    # In a resample a split can lose its last case; the others carry it.
    with np.errstate(invalid="ignore"):
        resampled = np.where(there, stacked, 0.0).sum(axis=0) / there.sum(axis=0)
    return _Mean(spread, resampled, frozenset(split_seeds[member] for member in used))


def _cell(measure: Measure, mine: _Mean, first: _Mean) -> Cell:
    value, reference = (None if each.spread is None else each.spread.mean for each in (mine, first))
    # A measure without a better side, such as the prevalence, says nothing about one run against another.
    compared = mine is not first and measure.best is not None and mine.split_seeds == first.split_seeds
    difference = paired_difference(value, reference, mine.resampled, first.resampled) if compared else None
    return Cell(measure, value, mine.spread, None if value is None else interval_of(mine.resampled), difference)
