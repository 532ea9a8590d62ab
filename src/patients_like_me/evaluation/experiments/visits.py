"""Does the method need long histories? The paper's figure of drug recommendation by number of visits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from patients_like_me.evaluation.experiments.catalogue import VEM_ROW
from patients_like_me.evaluation.experiments.design import FigureFile, Findings
from patients_like_me.evaluation.experiments.figures import Panel, Point, Series, draw_panels
from patients_like_me.evaluation.experiments.result_table import Column, ResultTable, TableRow
from patients_like_me.evaluation.experiments.results import (
    METRIC_NAMES,
    ExperimentResults,
    FinishedJob,
    averaged_in_words,
    title_of_task,
)
from patients_like_me.evaluation.intervals import seed_spread
from patients_like_me.evaluation.predictions import read_predictions
from patients_like_me.evaluation.strata import dimensions_of
from patients_like_me.evaluation.subgroups import Subgroup, subgroups_of
from patients_like_me.evaluation.thresholds import FIXED
from patients_like_me.runs.run import load_run


@dataclass(frozen=True)
class Stratum:
    """The instances with one number of visits: the same group in the run of every seed."""

    name: str
    groups: tuple[Subgroup, ...]

    @property
    def counts(self) -> str:
        """Instances and patients, hidden where they are few."""
        first = self.groups[0]
        return "hidden" if first.is_hidden else f"{first.instances:,} / {first.patients:,}"

    def values(self, metric: str) -> list[float | None]:
        """Return a metric of every seed."""
        return [next((each.value for each in group.measures if each.metric == metric), None) for group in self.groups]

    def interval(self, metric: str) -> tuple[float, float] | None:
        """Return the interval over patients, its ends averaged over seeds."""
        found = [each.interval for group in self.groups for each in group.measures if each.metric == metric]
        ends = [(interval.low, interval.high) for interval in found if interval is not None]
        if not ends or len(ends) < len(self.groups):
            return None
        return sum(low for low, _ in ends) / len(ends), sum(high for _, high in ends) / len(ends)


def strata_by_visits(results: Sequence[FinishedJob]) -> list[Stratum]:
    """Return the test metrics by number of visits, with intervals over patients."""
    found: dict[str, list[Subgroup]] = {}
    for result in results:
        opened = load_run(result.run.folder, result.job.cohort_folder)
        predictions = read_predictions(result.run).of_split("test")
        visits = next(each for each in dimensions_of(opened, predictions, "test") if each.name == "visits")
        for group in subgroups_of(predictions, visits, opened.results.task["metrics"], [FIXED]):
            found.setdefault(group.stratum, []).append(group)
    return [Stratum(name, tuple(groups)) for name, groups in found.items()]


def summarize(results: ExperimentResults) -> Findings:
    """Show every metric of the task by the number of visits that an instance has."""
    tables, figures = [], []
    compared = list(results.settings_compared())
    for number, (cohort, task, backbone) in enumerate(compared):
        metrics = results.metrics_of(task)
        strata = strata_by_visits(results.of(cohort, task, backbone, VEM_ROW.name))
        rows = tuple(
            TableRow((each.name,), (each.counts, *(seed_spread(each.values(metric)) for metric in metrics)))
            for each in strata
        )
        columns = (Column("Instances / patients", best=None), *results.metric_columns(task, best=None))
        about = f"{title_of_task(task)}, {cohort}, {backbone}"
        caption = results.caption(
            f"Performance by number of visits. {about}. Hidden: fewer than 11 patients or instances, or needed to hide "
            "such a stratum."
        )
        tables.append(ResultTable(caption, results.label(number), ("Visits",), columns, rows))
        ending = "" if len(compared) == 1 else f"-{number + 1}"
        figures.append(
            FigureFile(ending, partial(_draw, strata, metrics, about, averaged_in_words(results, whiskers=False)))
        )
    return Findings(tuple(tables), tuple(figures))


def _draw(
    strata: Sequence[Stratum], metrics: tuple[str, ...], about: str, averaged: str, folder: Path, name: str
) -> None:
    def point(stratum: Stratum, metric: str) -> Point | None:
        mean, ends = seed_spread(stratum.values(metric)), stratum.interval(metric)
        if mean is None:
            return None
        return Point(100 * mean.mean, *(() if ends is None else (100 * ends[0], 100 * ends[1])))

    series = tuple(
        Series(METRIC_NAMES.get(metric, metric), tuple(point(stratum, metric) for stratum in strata))
        for metric in metrics
    )
    draw_panels(
        folder,
        name,
        places=[f"{stratum.name}\n({stratum.counts.split(' / ')[0]})" for stratum in strata],
        axis="visits of the instance, the current one among them (instances below)",
        panels=(Panel("test metric (%)", series, "points"),),
        caption=f"{about}: metrics by number of visits, {averaged}; whiskers: 95\u00a0% "
        "intervals by bootstrap over patients.",
    )
