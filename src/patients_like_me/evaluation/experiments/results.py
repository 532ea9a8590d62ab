"""The finished runs of an experiment, and their numbers over seeds and splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

from patients_like_me.evaluation.definitions import DEFINITIONS
from patients_like_me.evaluation.experiments.jobs import CohortPlace, Job, Plan
from patients_like_me.evaluation.experiments.result_table import Column
from patients_like_me.evaluation.intervals import SeedSpread, seed_spread
from patients_like_me.runs.run import Run
from patients_like_me.tasks.registry import all_tasks

METRIC_NAMES: Final[Mapping[str, str]] = {each.metric: each.short_title for each in DEFINITIONS}


def title_of_task(task: str) -> str:
    """Return a task's short title; an own task is called by its name.

    >>> title_of_task("length_of_stay"), title_of_task("mortality")
    ('LOS', 'mortality')
    """
    known = all_tasks().get(task)
    return task if known is None or not known.short_title else known.short_title


@dataclass(frozen=True)
class FinishedJob:
    """A job and its finished run."""

    job: Job
    run: Run

    def score(self, split: str, metric: str) -> float | None:
        """Return one metric of a split, None where it is not available."""
        value = self.run.results.scores.get(split, {}).get(metric)
        return None if value is None else float(value)

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """The records of the epochs; a system without epochs has none."""
        return self.run.epoch_records()


@dataclass(frozen=True)
class ExperimentResults:
    """What an experiment has to make its table from."""

    plan: Plan
    finished: tuple[FinishedJob, ...]
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def cohorts(self) -> tuple[CohortPlace, ...]:
        """The cohorts, in the order in which they were given."""
        return self.plan.cohorts

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks, in their order."""
        return self.plan.tasks

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """Backbone and name of every row, in their order; also of those whose runs failed."""
        return tuple(dict.fromkeys((job.backbone, job.variant.name) for job in self.plan.jobs))

    @property
    def variants(self) -> tuple[str, ...]:
        """The names of the grid's rows."""
        return tuple(dict.fromkeys(name for _, name in self.rows))

    @property
    def backbones(self) -> tuple[str, ...]:
        """The backbones, in their order."""
        return tuple(dict.fromkeys(backbone for backbone, _ in self.rows))

    @property
    def seeds(self) -> int:
        """How many seeds were asked for."""
        return 1 + max((job.seed for job in self.plan.jobs), default=0)

    @property
    def repeats(self) -> str:
        """How often a row was run, in words."""
        return repeats_in_words(self.seeds, len(self.plan.splits))

    def metrics_of(self, task: str) -> tuple[str, ...]:
        """Return the metrics of a task, the first being the one that choices are made by."""
        for result in self.finished:
            if result.job.task == task:
                return tuple(result.run.results.task["metrics"])
        known = all_tasks().get(task)
        return () if known is None else known.metrics

    def of(self, cohort: str, task: str, backbone: str, variant: str) -> list[FinishedJob]:
        """Return the runs of one row, cohort and task: one per split and seed."""
        return [
            result
            for result in self.finished
            if (result.job.cohort, result.job.task, result.job.backbone, result.job.variant.name)
            == (cohort, task, backbone, variant)
        ]

    def label(self, number: int = 0, *words: str) -> str:
        """Return the label of a table: the experiment's name, further words, and a number from the second on."""
        return "-".join([self.plan.name, *words, *([str(number + 1)] if number else [])])

    def tasks_of(self, cohort: str) -> tuple[str, ...]:
        """Return the tasks that a cohort has labels for, in their order."""
        planned = {job.task for job in self.plan.jobs if job.cohort == cohort}
        return tuple(task for task in self.tasks if task in planned or not self.plan.jobs)

    def settings_compared(self) -> Iterator[tuple[str, str, str]]:
        """Yield cohort, task and backbone of every comparison."""
        for place in self.cohorts:
            for task in self.tasks_of(place.title):
                for backbone in self.backbones:
                    yield place.title, task, backbone

    def metric_columns(
        self, task: str, *groups: str, best: Literal["high", "low"] | None = "high"
    ) -> tuple[Column, ...]:
        """Return a column per metric of a task; ``best`` says which value is marked."""
        return tuple(Column(METRIC_NAMES.get(name, name), groups, best=best) for name in self.metrics_of(task))

    def caption(self, words: str, *, defines_metrics: bool = True) -> str:
        """Return a table's caption: what it shows, how often it was run, and, unless the words say it, its metrics."""
        once = self.seeds == 1 and len(self.plan.splits) < 2
        shown = "one seed, so no spread is known" if once else f"mean ± standard deviation over {self.repeats}"
        lines = [f"{words} Test split; metrics in %; {shown}."]
        known = all_tasks()
        if defines_metrics:
            lines += [known[task].metrics_note for task in self.tasks if task in known and known[task].metrics_note]
        if self.failed:
            lines.append(f"{len(self.failed)} of {len(self.plan.jobs)} runs failed and are not counted.")
        return " ".join(lines)


def repeats_in_words(seeds: int, splits: int = 1) -> str:
    """Say how often a row was run.

    >>> repeats_in_words(3), repeats_in_words(1), repeats_in_words(2, 10)
    ('3 seeds', 'one seed', '2 seeds in each of 10 splits')
    """
    words = "one seed" if seeds == 1 else f"{seeds} seeds"
    return words if splits < 2 else f"{words} in each of {splits} splits"


def averaged_in_words(results: ExperimentResults, *, whiskers: bool = True) -> str:
    """Say over what a figure's points are averaged, and what its whiskers are."""
    if results.seeds == 1 and len(results.plan.splits) < 2:
        return "one seed"
    return f"mean of {results.repeats}" + (", whiskers one standard deviation" if whiskers else "")


def scored(split: str, metric: str) -> Callable[[FinishedJob], float | None]:
    """Return the function that reads a metric of a split."""
    return lambda result: result.score(split, metric)


def spread(results: list[FinishedJob], value: Callable[[FinishedJob], float | None]) -> SeedSpread | None:
    """Return mean and deviation of a value over runs; None where any of them lacks it."""
    return seed_spread([value(result) for result in results])


def cells_of_test(results: list[FinishedJob], metrics: tuple[str, ...]) -> tuple[SeedSpread | None, ...]:
    """Return every metric of the test split over the runs of one row."""
    return tuple(spread(results, scored("test", metric)) for metric in metrics)


def chosen_on_validation(rows: Mapping[str, list[FinishedJob]], metric: str) -> str | None:
    """Return the row with the best mean of a metric on validation; the first of equals, None where none has it."""
    best: tuple[float, str] | None = None
    for name, results in rows.items():
        found = spread(results, scored("validation", metric))
        if found is not None and (best is None or found.mean > best[0]):
            best = (found.mean, name)
    return None if best is None else best[1]
