"""What does a lower target for interactions cost? The interaction rate and Jaccard of recommended sets against it.

GAMENet, SafeDrug, MICRON and MoleRec look in training at the set of drugs with a probability of 0.5 or more: where more
of its pairs interact than the target allows, the loss gives way to that of interactions. Under a target of 1 it never
does, so this row is the system without the mechanism. Rates and Jaccard are those of the same sets on the test split,
and of those at the threshold with the best F1 on validation, which undoes a part of what lower probabilities did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from patients_like_me.codes.interactions import Interactions
from patients_like_me.errors import PlmError
from patients_like_me.evaluation.drug_interactions import interaction_rate_form
from patients_like_me.evaluation.experiments.design import FigureFile, Findings
from patients_like_me.evaluation.experiments.figures import Panel, Point, Series, draw_panels
from patients_like_me.evaluation.experiments.result_table import Column, Number, ResultTable, TableCell, TableRow
from patients_like_me.evaluation.experiments.results import (
    ExperimentResults,
    FinishedJob,
    averaged_in_words,
    title_of_task,
)
from patients_like_me.evaluation.intervals import SeedSpread, seed_spread
from patients_like_me.evaluation.predictions import Predictions, read_predictions
from patients_like_me.evaluation.thresholds import tuned_threshold
from patients_like_me.tasks.forms import jaccard_per_instance_form, value_of

#: From this probability on a drug is in the set that the losses look at.
OF_THE_LOSS: Final = 0.5


@dataclass(frozen=True)
class Sets:
    """The recommended sets at one threshold: how often their pairs interact, and how well they agree with the truth."""

    rate: float | None
    jaccard: float | None

    @classmethod
    def of(cls, predictions: Predictions, interactions: Interactions, threshold: float) -> Sets:
        """Measure the sets of all instances."""
        return cls(
            value_of(interaction_rate_form(predictions, interactions, threshold), predictions),
            value_of(jaccard_per_instance_form(predictions, threshold), predictions),
        )


@dataclass(frozen=True)
class Step:
    """One target of one system, over its runs: sets at the threshold of the loss, and at the tuned one."""

    system: str
    target: float
    fixed: tuple[Sets, ...]
    tuned: tuple[Sets, ...]

    def of_loss(self, measure: str) -> SeedSpread | None:
        """Return the spread of the rate or of Jaccard at the threshold of the loss."""
        return seed_spread([getattr(each, measure) for each in self.fixed])

    def of_tuned(self, measure: str) -> SeedSpread | None:
        """Return the spread of the rate or of Jaccard at the tuned threshold."""
        return seed_spread([getattr(each, measure) for each in self.tuned])


Curves = Mapping[str, tuple[Step, ...]]


def summarize(results: ExperimentResults) -> Findings:
    """Make a table and a figure for each cohort and task: a curve for every system, from the highest target down."""
    interactions = Interactions.installed()
    if interactions is None:
        raise PlmError("no interactions (atc3_interactions) are installed", remedy="see: plm codes status")
    tables: list[ResultTable] = []
    figures: list[FigureFile] = []
    several = len(results.cohorts) * len(results.tasks) > 1
    for place in results.cohorts:
        for task in results.tasks:
            about = f"{title_of_task(task)}, {place.title}"
            found = [each for each in results.finished if (each.job.cohort, each.job.task) == (place.title, task)]
            if not found:
                continue
            curves = curves_of(found, interactions)
            prescribed = rate_of_truth(found[0], interactions)
            label = results.label(0, *([place.slug.rsplit("-", 1)[0], task] if several else []))
            tables.append(_table(results, curves, prescribed, about, label))
            draw = partial(_draw, curves, f"{about}, test split, {averaged_in_words(results)}")
            figures.append(FigureFile(f"-{place.slug}-{task}" if several else "", draw))
    return Findings(tuple(tables), tuple(figures))


def curves_of(finished: list[FinishedJob], interactions: Interactions) -> dict[str, tuple[Step, ...]]:
    """Return the steps of every system, the highest target first."""
    steps: dict[tuple[str, float], list[tuple[Sets, Sets]]] = {}
    for each in finished:
        predictions = read_predictions(each.run, calibrated=False)
        test, tuned = predictions.of_split("test"), tuned_threshold(predictions.of_split("validation")).value
        at_loss = Sets.of(test, interactions, OF_THE_LOSS)
        at_tuned = Sets(None, None) if tuned is None else Sets.of(test, interactions, tuned)
        step = (each.run.record.system.title, float(each.job.settings.target_rate))
        steps.setdefault(step, []).append((at_loss, at_tuned))
    curves: dict[str, tuple[Step, ...]] = {}
    for (system, target), runs in sorted(steps.items(), key=lambda item: -item[0][1]):
        fixed, tuned_sets = zip(*runs, strict=True)
        curves[system] = (*curves.get(system, ()), Step(system, target, fixed, tuned_sets))
    return curves


def rate_of_truth(finished: FinishedJob, interactions: Interactions) -> float | None:
    """Return the interaction rate of what was prescribed in the test split."""
    test = read_predictions(finished.run).of_split("test")
    return value_of(interaction_rate_form(test, interactions, None), test)


def _table(results: ExperimentResults, curves: Curves, prescribed: float | None, about: str, label: str) -> ResultTable:
    columns = (
        Column("interaction rate", ("At 0.5",), best=None),
        Column("Jaccard", ("At 0.5",), best=None),
        Column("cost in Jaccard", ("At 0.5",), best=None),
        Column("interaction rate", ("Tuned",), best=None),
        Column("Jaccard", ("Tuned",), best=None),
    )
    rows = []
    for system, steps in curves.items():
        first = steps[0].of_loss("jaccard")
        for step in steps:
            rate, jaccard = step.of_loss("rate"), step.of_loss("jaccard")
            cost: TableCell = ""
            if step is not steps[0]:
                cost = Number(jaccard.mean - first.mean, signed=True) if jaccard is not None and first else None
            of_tuned = (step.of_tuned("rate"), step.of_tuned("jaccard"))
            rows.append(TableRow((system, f"{step.target:g}"), (rate, jaccard, cost, *of_tuned)))
    truth = "" if prescribed is None else f" What was prescribed has an interaction rate of {100 * prescribed:.1f} %."
    caption = results.caption(
        f"Interactions against their target. {about}. Interacting pairs among the known pairs of the recommended sets "
        "and Jaccard per instance, at the probability 0.5 that the losses look at and at the threshold tuned on "
        f"validation; cost: Jaccard less that under the highest target.{truth}",
        defines_metrics=False,
    )
    return ResultTable(caption, label, ("system", "target"), columns, tuple(rows), title=about)


def _draw(curves: Curves, about: str, folder: Path, name: str) -> None:
    """Draw the rate and Jaccard over the targets, a line for every system."""
    targets = sorted({step.target for steps in curves.values() for step in steps}, reverse=True)

    def lines(measure: str) -> tuple[Series, ...]:
        series = []
        for system, steps in curves.items():
            found = {step.target: Point.of(step.of_loss(measure), 100) for step in steps}
            series.append(Series(system, tuple(found.get(target) for target in targets)))
        return tuple(series)

    draw_panels(
        folder,
        name,
        places=[f"{target:g}" for target in targets],
        axis="target for the interaction rate (1: no target)",
        panels=(
            Panel("interaction rate (%)", lines("rate"), "lines"),
            Panel("Jaccard (%)", lines("jaccard"), "lines"),
        ),
        caption=f"{about}: interaction rate and Jaccard of the sets at probability 0.5 against the target.",
    )
