"""One run evaluated: every measure with its interval, the strata, and how well the probabilities are calibrated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patients_like_me.codes.interactions import Interactions
from patients_like_me.errors import PlmError
from patients_like_me.evaluation.calibration import BINS, Bin, bin_forms, calibration_bins
from patients_like_me.evaluation.intervals import LEVEL, REPLICATES, interval_of, resampled_values
from patients_like_me.evaluation.measures import Measure, interaction_measures, measures_of
from patients_like_me.evaluation.predictions import Predictions, read_predictions
from patients_like_me.evaluation.strata import Dimension, dimensions_of
from patients_like_me.evaluation.subgroups import Subgroup, metrics_by_stratum, subgroups_of
from patients_like_me.evaluation.thresholds import FIXED, Threshold, tuned_threshold
from patients_like_me.plain_text import SMALLEST_SHOWN
from patients_like_me.runs.run import Run, load_run
from patients_like_me.tasks.forms import MetricForm
from patients_like_me.tasks.task import Split

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore
    from patients_like_me.workers import Workers

FORMAT = 1
#: The measures that recalibration is about.
CALIBRATION_METRICS = ("brier", "calibration_slope", "calibration_intercept", "calibration_error")


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of the predictions of one run for one split.

    Where the run was recalibrated all measures are of the recalibrated probabilities; ``calibration`` says how, and
    ``before_calibration`` holds the measures of calibration of the probabilities as the system said them.
    """

    run: str
    folder: Path
    task: str
    split: Split
    predictions: Predictions = field(repr=False)
    primary: tuple[str, ...]
    measures: tuple[Measure, ...]
    thresholds: tuple[Threshold, ...]
    dimensions: tuple[Dimension, ...]
    subgroups: tuple[Subgroup, ...]
    replicates: int
    seed: int
    notes: tuple[str, ...] = ()
    calibration: str = ""
    before_calibration: tuple[Measure, ...] = ()

    def measure(self, name: str) -> Measure:
        """Return a measure by its name, such as ``auprc`` or ``f1_per_instance@tuned``."""
        for measure in self.measures:
            if measure.name == name:
                return measure
        names = ", ".join(measure.name for measure in self.measures)
        raise PlmError(f"there is no measure '{name}' of the task '{self.task}'", remedy=f"choose one of {names}")

    @cached_property
    def bins(self) -> list[Bin]:
        """The bins of the calibration curve, each with the interval of its observed share over patients."""
        forms = bin_forms(self.predictions)
        patients = self.predictions.number_of_patients
        values = resampled_values(forms, patients, replicates=self.replicates, seed=self.seed)
        return [
            replace(each, interval=interval_of(values[round(each.low * BINS)]))
            for each in calibration_bins(self.predictions)
        ]

    @property
    def by_stratum(self) -> tuple[str, ...]:
        """The metrics that are given by stratum."""
        return metrics_by_stratum(self.predictions.kind, self.primary)

    def as_json(self) -> dict[str, Any]:
        """Return everything but the predictions as plain data."""
        return {
            "format": FORMAT,
            "run": self.run,
            "task": self.task,
            "split": self.split,
            "instances": len(self.predictions),
            "patients": self.predictions.number_of_patients,
            "primary": list(self.primary),
            "intervals": {
                "method": "percentile bootstrap over patients, with all instances of a resampled patient",
                "level": LEVEL,
                "replicates": self.replicates,
                "seed": self.seed,
            },
            "thresholds": [threshold.as_json() for threshold in self.thresholds],
            "measures": [measure.as_json() for measure in self.measures],
            "calibration": {
                "words": self.calibration or "none: probabilities as the system says them",
                "before": [measure.as_json() for measure in self.before_calibration],
            },
            "subgroups": {
                "smallest_shown": SMALLEST_SHOWN,
                "not_available": {each.name: each.unavailable for each in self.dimensions if each.unavailable},
                "strata": [subgroup.as_json() for subgroup in self.subgroups],
            },
            "notes": list(self.notes),
        }


def evaluate(
    run: Path | Run,
    *,
    cohort: Path | None = None,
    split: Split = "test",
    replicates: int = REPLICATES,
    seed: int = 0,
    store: CodeStore | None = None,
    shared: tuple[Path, Workers] | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Evaluation:
    """Evaluate a finished run on a split; ``cohort`` is where its cohort is now, if it has moved.

    Nothing is written; see :func:`patients_like_me.evaluation.writing.write_evaluation`. Without the cohort the strata
    are not available, and a note says so. Thresholds are tuned on validation alone. ``shared`` is a folder that workers
    see, and these workers, who resample the measures of all patients.
    """
    run = run if isinstance(run, Run) else load_run(run)
    predictions = read_predictions(run)
    chosen = predictions.of_split(split)
    if not len(chosen):
        raise PlmError(
            f"the run '{run.folder}' has no predictions for {split}", remedy="use a larger cohort or other shares"
        )
    thresholds = thresholds_of(predictions)
    report(f"resampling the {chosen.number_of_patients:,} patients of {split} {replicates:,} times")
    task = run.identity.task
    measures = measures_of_run(chosen, thresholds, run.results.task.get("label_codes"), store)
    if shared is None or chosen.number_of_patients < 2:
        measures = with_intervals(measures, chosen.number_of_patients, replicates=replicates, seed=seed)
    else:
        from patients_like_me.evaluation.bootstrap_blocks import resampled_in_workers

        values = resampled_in_workers(
            run,
            split,
            measures,
            shared[0],
            workers=shared[1],
            replicates=replicates,
            seed=seed,
            progress=lambda done, of: report(f"resampling the patients of {split}: block {done:,} of {of:,}"),
        )
        measures = [each.with_interval(values[each.name]) if each.name in values else each for each in measures]
    before: list[Measure] = []
    if run.record.calibration is not None:
        raw = measures_of(read_predictions(run, calibrated=False).of_split(split), only=CALIBRATION_METRICS)
        before = with_intervals(raw, chosen.number_of_patients, replicates=replicates, seed=seed)
    opened, notes = _opened(run, cohort)
    primary = tuple(run.results.task["metrics"])
    by_stratum = metrics_by_stratum(chosen.kind, primary)
    dimensions, subgroups = [], []
    if opened is not None:
        if outside := opened.instances.labels_outside_vocabulary:
            notes.append(f"{outside:,} labels of validation and test that no training patient has count in no metric")
        dimensions = dimensions_of(opened, chosen, split)
        for dimension in dimensions:
            report(f"strata by {dimension.title.lower()}")
            subgroups += subgroups_of(chosen, dimension, by_stratum, thresholds[:1], replicates=replicates, seed=seed)
    if chosen.number_of_patients < 2:
        notes.append(f"{split} has one patient only: no interval is available")
    return Evaluation(
        run=run.name,
        folder=run.folder,
        task=task,
        split=split,
        predictions=chosen,
        primary=primary,
        measures=tuple(measures),
        thresholds=thresholds,
        dimensions=tuple(dimensions),
        subgroups=tuple(subgroups),
        replicates=replicates,
        seed=seed,
        notes=tuple(notes),
        calibration="" if run.record.calibration is None else run.record.calibration.in_words(),
        before_calibration=tuple(before),
    )


def thresholds_of(predictions: Predictions) -> tuple[Threshold, ...]:
    """Return the fixed threshold and the one tuned on the validation instances among these predictions."""
    if not predictions.kind.has_threshold:
        return ()
    return (FIXED, tuned_threshold(predictions.of_split("validation")))


def measures_of_run(
    predictions: Predictions,
    thresholds: Sequence[Threshold],
    label_codes: str | None = None,
    store: CodeStore | None = None,
) -> list[Measure]:
    """Return every measure of a task: those of its kind, and where labels are drugs the interactions of their sets."""
    found = measures_of(predictions, thresholds)
    if label_codes == "medication":
        found += interaction_measures(predictions, thresholds, Interactions.installed(store))
    return found


def with_intervals(
    measures: Sequence[Measure], patients: int, *, replicates: int = REPLICATES, seed: int = 0
) -> list[Measure]:
    """Return measures with their intervals, all over the same resamples."""
    forms: dict[str, MetricForm] = {measure.name: measure.form for measure in measures if measure.form is not None}
    values = resampled_values(forms, patients, replicates=replicates, seed=seed)
    return [each.with_interval(values[each.name]) if each.name in values else each for each in measures]


def _opened(run: Run, cohort: Path | None) -> tuple[Run | None, list[str]]:
    """Open the cohort of a run; a cohort that was not asked for by name may be missing."""
    opened = run if cohort is None or cohort == run.moved_cohort else load_run(run.folder, cohort)
    try:
        _ = opened.instances
        return opened, []
    except PlmError as error:
        if opened.moved_cohort is not None:
            raise
        return None, [f"no strata: {error}"]
