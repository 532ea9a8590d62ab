"""Does the bank of a run still serve? Drift of patients against it, calibration since the training, and a verdict.

A run is to be trained again where what it says is no longer right (calibration, ranking), or where patients have moved
away from what it knows (codes, distance, nobody to refer to). Each rule has a limit, and chance must not explain the
difference: the interval over patients of the change against the run's own test patients leaves out no change at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.bank_drift import (
    REPLICATES,
    CodeShift,
    code_drift,
    last_of_each,
    share_with_interval,
)
from patients_like_me.evaluation.calibration import slope_form
from patients_like_me.evaluation.intervals import Interval, interval_of, resampled_values
from patients_like_me.evaluation.measures import measures_of
from patients_like_me.evaluation.predictions import Predictions, read_predictions
from patients_like_me.plain_text import SMALLEST_SHOWN, is_small, percent
from patients_like_me.records.cohort import Cohort
from patients_like_me.runs.bank_versions import BankVersion
from patients_like_me.runs.predictions import ids_of
from patients_like_me.runs.run import Run
from patients_like_me.systems.growing import growing_system
from patients_like_me.systems.joining_checks import settled_instances
from patients_like_me.systems.keeping import load_fitted
from patients_like_me.tasks.forms import MetricForm, ratio_form, value_of
from patients_like_me.tasks.instances import Instances, build_instances, instances_to_predict
from patients_like_me.tasks.joining import only

BankVerdict = Literal["keep", "retrain"]

#: The most instances of validation and test that say what is usual.
MOST_USUAL: Final = 500
#: Limits of the rules.
MOVED_CODES: Final = 0.25
UNKNOWN_CODES: Final = 0.10
FAR: Final = 0.20
WITHOUT: Final = 0.10
RATE_RATIO: Final = 1.25
SLOPE: Final = 0.8
RANKING: Final = 0.05
#: Calibration is judged on at least this many instances.
FEWEST_KNOWN: Final = 50


#: Findings that are shares, and written as such.
SHARES: Final = frozenset({"moved_codes", "unknown_codes", "far", "without_references"})


@dataclass(frozen=True)
class BankFinding:
    """One number of a check: what is usual, what is now, and the limit; ``now`` is None where it is hidden."""

    name: str
    title: str
    usual: float | None
    now: float | None
    interval: Interval | None
    limit: str
    beyond: bool
    hidden: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class BankCheck:
    """What a check of a bank found; ``reasons`` say why it should be trained again, and are empty where not."""

    about: str
    instances: int
    patients: int
    references: int
    verdict: BankVerdict
    reasons: tuple[str, ...]
    cautions: tuple[str, ...]
    findings: tuple[BankFinding, ...]
    codes: tuple[CodeShift, ...]

    @property
    def sentence(self) -> str:
        """The verdict with its reasons in one sentence."""
        if self.verdict == "retrain":
            return f"retrain: {'; '.join(self.reasons)}"
        return "keep: nothing is beyond its limit" + (f" ({'; '.join(self.cautions)})" if self.cautions else "")

    def table(self) -> pl.DataFrame:
        """Return one row per finding."""
        schema: dict[str, Any] = {
            "finding": pl.String,
            "usual": pl.Float64,
            "now": pl.Float64,
            "low": pl.Float64,
            "high": pl.Float64,
            "limit": pl.String,
            "beyond": pl.Boolean,
        }
        rows = [
            {
                "finding": each.title,
                "usual": each.usual,
                "now": each.now,
                "low": None if each.interval is None else each.interval.low,
                "high": None if each.interval is None else each.interval.high,
                "limit": each.limit,
                "beyond": each.beyond,
            }
            for each in self.findings
        ]
        return pl.DataFrame(rows, schema=schema)

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {**asdict(self), "sentence": self.sentence}


@dataclass(frozen=True)
class _Looked:
    """Some instances as a run sees them: probabilities, numbers of references, likeness of the nearest."""

    instances: Instances
    predicted: npt.NDArray[np.float64]
    linked: npt.NDArray[np.int64]
    nearest: npt.NDArray[np.float64]

    @property
    def people(self) -> npt.NDArray[Any]:
        return ids_of(self.instances)["subject_id"].to_numpy().astype(str)


def check_bank(
    run: Run,
    cohort: Cohort | None = None,
    report: Callable[[str], None] = lambda _: None,
    *,
    last_visits: bool = False,
) -> BankCheck:
    """Compare patients with the bank of a run, and what was predicted with what became known.

    Without a cohort these are the patients of the latest addition, against the bank before it; what became known are
    all additions, each as it was predicted before it joined. A cohort is compared with the bank as it is: its labelled
    instances, or each patient's last visit where nothing is labelled. With ``last_visits`` drift is that of the last
    visits in any case: they are what is predicted of patients who are in hospital today.
    """
    growing_system(run)
    labelled = True
    known: Predictions | None = None
    if cohort is None:
        before, now, known, about = _latest(run)
    else:
        before, about = run, "the given cohort"
        instances, labelled = _instances_of(run, cohort)
        looked = now = _looked(before, instances, report)
        if labelled and last_visits:
            last = instances_to_predict(cohort, run.task, run.task_settings, run.label_vocabulary)
            now = _looked(before, last, report)
        if labelled:
            # What the model was fitted to says nothing about its calibration.
            fitted_to = {run.instances.instance_ids[row] for row in run.rows_of("train")}
            unseen = np.array([name not in fitted_to for name in instances.instance_ids], dtype=bool)
            known = _as_predictions(looked).take(unseen)
            labelled = not last_visits
    people = len(set(now.people.tolist()))
    if people < SMALLEST_SHOWN:
        raise PlmError(
            f"fewer than {SMALLEST_SHOWN} patients cannot be compared with the bank", remedy="give more patients"
        )
    report("looking at validation and test, which say what is usual")
    usual_rows = np.concatenate([run.rows_of("validation"), run.rows_of("test")])
    if not labelled:
        usual_rows = usual_rows[last_of_each(only(run.instances, usual_rows))]
    drawn = np.sort(np.random.default_rng(0).permutation(usual_rows)[:MOST_USUAL])
    usual = _looked(before, only(run.instances, drawn), report)
    report("comparing")
    bank = before.reference_instances
    if not labelled:
        bank = only(bank, last_of_each(bank))
    findings, codes = _drift(bank, now, usual)
    cautions = []
    if known is None or not _is_enough(known):
        cautions.append("too little became known to judge calibration")
    else:
        findings += _calibration(known, read_predictions(run).of_split("test"), run)
    reasons = tuple(_in_words(each) for each in findings if each.beyond)
    return BankCheck(
        about,
        len(now.instances),
        people,
        len(before.reference_instances),
        "retrain" if reasons else "keep",
        reasons,
        tuple(cautions),
        tuple(findings),
        codes,
    )


def without_addition(run: Run, number: int) -> Run:
    """Return the run with the bank as it would be without one addition; nothing is written."""
    assert run.bank_version is not None
    record = run.bank_version.record
    kept = tuple(each for each in record.additions if each.number != number)
    left = record.model_copy(update={"additions": kept, "digests": {}})
    return Run(run.folder, run.record, run.moved_cohort, {"bank version": BankVersion(run.folder, left)})


def _latest(run: Run) -> tuple[Run, _Looked, Predictions, str]:
    if not run.additions:
        raise PlmError(
            "nothing has been added to the bank since the training",
            remedy="give a cohort that is to be compared with it",
        )
    looked = [_kept(added) for added in run.additions]
    last = run.additions[-1]
    known = [_as_predictions(each) for each in looked]
    return without_addition(run, last.record.number), looked[-1], _together(known), f"addition {last.record.number}"


def _kept(added: Any) -> _Looked:
    arrays = added.arrays
    return _Looked(added.instances, arrays["predicted"].astype(np.float64), arrays["linked"], arrays["nearest"])


def _instances_of(run: Run, cohort: Cohort) -> tuple[Instances, bool]:
    """Return the labelled instances of a cohort, or the last visit of each patient, and whether they are labelled."""
    try:
        found = build_instances(cohort, run.instances.task, run.task_settings, label_vocabulary=run.label_vocabulary)
        settled = settled_instances(found)[0]
    except PlmError:
        settled = np.zeros(0, np.int64)
    if len(settled):
        return only(found, settled), True
    return instances_to_predict(cohort, run.task, run.task_settings, run.label_vocabulary), False


def _looked(run: Run, instances: Instances, report: Callable[[str], None]) -> _Looked:
    report(f"comparing {len(instances):,} instances with the bank")
    system = growing_system(run)
    assert system.growth is not None
    # What a system finds of labels is not used here.
    blank = replace(instances, labels=np.zeros_like(instances.labels))
    found = system.growth.join(load_fitted(system, run), blank)
    predicted = run.calibrated(run.task.kind.probabilities(found.logits), newcomers=True)
    return _Looked(instances, np.asarray(predicted, np.float64), found.linked, found.nearest)


def _as_predictions(looked: _Looked) -> Predictions:
    kind = looked.instances.task.kind
    return Predictions.of(kind, looked.instances.labels, kind.in_shape(looked.predicted), looked.people)


def _together(parts: list[Predictions]) -> Predictions:
    """Return several additions as one; a patient who came again is counted as another one."""
    first = parts[0]
    shifts = np.cumsum([0, *(part.number_of_patients for part in parts[:-1])])
    return Predictions(
        first.kind,
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.probabilities for part in parts]),
        np.concatenate([part.patients + shift for part, shift in zip(parts, shifts, strict=True)]),
    )


def _drift(bank: Instances, now: _Looked, usual: _Looked) -> tuple[list[BankFinding], tuple[CodeShift, ...]]:
    codes = code_drift(bank, now.instances)
    findings = [
        BankFinding(
            "moved_codes",
            "codes whose rates have moved, part of all codes",
            0.0,
            codes.share,
            None,
            f"above {percent(MOVED_CODES)}",
            codes.share > MOVED_CODES,
        ),
        BankFinding(
            "unknown_codes",
            "codes that no reference has, part of all codes",
            0.0,
            codes.unknown,
            None,
            f"above {percent(UNKNOWN_CODES)}",
            codes.unknown > UNKNOWN_CODES,
        ),
    ]
    if usual.nearest.any():
        edge = float(np.quantile(usual.nearest, 0.05))
        far = now.nearest < edge
        findings.append(
            _share(
                "far",
                "farther from the nearest reference than 95 % of validation and test were",
                far,
                usual.nearest < edge,
                now,
                FAR,
            )
        )
    if usual.linked.any():
        alone, usually = now.linked == 0, usual.linked == 0
        findings.append(_share("without_references", "without references", alone, usually, now, WITHOUT))
    return findings, codes.moved


def _share(
    name: str, title: str, holds: npt.NDArray[np.bool_], usually: npt.NDArray[np.bool_], now: _Looked, limit: float
) -> BankFinding:
    """Return a share that is beyond its limit if even the lower end of its interval is above half of the limit."""
    share, interval = share_with_interval(holds, now.people)
    usual = float(usually.mean())
    people = len(set(now.people[holds].tolist()))
    hidden = is_small(people) or is_small(len(set(now.people.tolist())) - people)
    beyond = share > usual + limit and interval is not None and interval.low > usual + limit / 2
    return BankFinding(
        name,
        title,
        usual,
        None if hidden else share,
        None if hidden else interval,
        f"{100 * limit:.0f} points above what is usual",
        beyond,
        hidden,
    )


def _calibration(known: Predictions, test: Predictions, run: Run) -> list[BankFinding]:
    """Compare what was predicted with what became known: rate, slope and ranking, each with an interval."""
    metric = "auroc" if "auroc" in run.task.metrics else run.task.metrics[0]
    titles = {each.name: each.title for each in measures_of(known, only=(metric,))}
    # What test says is an estimate too: the change is resampled on both sides.
    now, then = _forms_of(known, metric), _forms_of(test, metric)
    values, usual = (
        resampled_values(forms, each.number_of_patients, replicates=REPLICATES)
        for forms, each in ((now, known), (then, test))
    )
    found = []
    for name in now:
        if name not in then:
            continue
        value, before = value_of(now[name], known), value_of(then[name], test)
        interval, change = interval_of(values[name]), interval_of(values[name] - usual[name])
        title, limit = {
            "rate": ("observed over predicted rate, since training", f"outside {1 / RATE_RATIO:.2f} to {RATE_RATIO}"),
            "slope": ("calibration slope, since training", f"below {SLOPE} of that of test, or of 1"),
        }.get(name, (f"{titles.get(name, name)}, since training", f"{RANKING} below that of test"))
        beyond = _is_worse(name, value, interval, before, change)
        found.append(BankFinding(name, title, before, value, interval, limit, beyond))
    return found


def _forms_of(predictions: Predictions, metric: str) -> dict[str, MetricForm]:
    """Return what is compared of predictions: slope, rate where there is one, and the metric of the ranking."""
    found: dict[str, MetricForm] = {"slope": slope_form(predictions)}
    if not predictions.kind.adds_up:
        found["rate"] = _rate_form(predictions)
    measured = measures_of(predictions, only=(metric,))
    if measured and measured[0].form is not None:
        found[metric] = measured[0].form
    return found


def _is_enough(known: Predictions) -> bool:
    """Tell whether calibration can be judged, and shown: enough instances, with and without the outcome."""
    happened = known.targets.sum()
    return bool(len(known) >= FEWEST_KNOWN and min(happened, known.targets.size - happened) >= SMALLEST_SHOWN)


def _rate_form(predictions: Predictions) -> MetricForm:
    return ratio_form(predictions, predictions.targets.sum(axis=1), predictions.columns.sum(axis=1))


def _is_worse(
    name: str, value: float | None, interval: Interval | None, before: float | None, change: Interval | None
) -> bool:
    """Tell whether a number is worse by a size that matters, and neither it nor its change can be chance.

    ``interval`` is that of the number, ``change`` that of its difference from test. A slope or a rate of 1 is right,
    whatever it was on test.

    >>> lower = Interval(-0.5, -0.2, 0.95, 500, 0)
    >>> [_is_worse("slope", 0.65, Interval(0.6, high, 0.95, 500, 0), 1.0, lower) for high in (0.7, 1.1)]
    [True, False]
    """
    if value is None or interval is None or before is None or change is None:
        return False
    if name == "rate":
        outside = not 1 / RATE_RATIO <= value <= RATE_RATIO
        return outside and not interval.low <= 1 <= interval.high and not change.low <= 0 <= change.high
    if name == "slope":
        return value < SLOPE * min(before, 1.0) and interval.high < 1 and change.high < 0
    return value < before - RANKING and change.high < 0


def _in_words(finding: BankFinding) -> str:
    if finding.hidden or finding.now is None:
        return f"{finding.title}: beyond its limit ({finding.limit})"
    usual = "" if finding.usual is None else f", usual {finding.usual:.2f}"
    interval = "" if finding.interval is None else f" ({finding.interval.low:.2f} to {finding.interval.high:.2f})"
    return f"{finding.title}: {finding.now:.2f}{interval}{usual}, limit {finding.limit}"
