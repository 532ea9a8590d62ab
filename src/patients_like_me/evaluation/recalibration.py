"""Recalibration: fit a map from predicted to right probabilities on validation, and write it into the run's record.

The map is a :class:`patients_like_me.runs.calibration.Calibration`; no test instance has a part in it. Nothing else of
the run changes but its scores, where they depend on a threshold, and its card.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.predictions import Predictions, read_predictions
from patients_like_me.files import atomic_file
from patients_like_me.runs.calibration import Calibration, CalibrationMethod, Wanted
from patients_like_me.runs.card import model_card
from patients_like_me.runs.record import RunRecord
from patients_like_me.runs.run import Run, load_run, writing_run
from patients_like_me.tasks.forms import Floats
from patients_like_me.tasks.metrics import score
from patients_like_me.tasks.task import Split

#: A map is fitted to validation instances with at least this many of each: with and without the outcome.
FEWEST: Final = 10
_SMALLEST: Final = 1e-6
#: A flatter map would say nearly the same of everybody.
_FLATTEST: Final = 0.01
_EVALUATED: Final[tuple[Split, ...]] = ("validation", "test")


def calibrate_run(run: Run | Path, method: Wanted = "logistic", *, cohort: Path | None = None) -> Run:
    """Fit the calibration of a finished run on its validation instances, and write it into the run's record.

    A calibration from before is replaced; ``none`` removes it. Too few outcomes in validation are refused.
    """
    run = run if isinstance(run, Run) else load_run(run, cohort)
    results = run.results
    if run.bank_version is not None and run.bank_version.record.additions:
        raise PlmError(
            "the bank of this run has grown, and its scores belong to the calibration that it has",
            remedy="drop the additions, calibrate the run, and add them again",
        )
    with writing_run(run.folder):
        fitted: dict[str, Calibration | None] = {"calibration": None, "calibration_as_newcomers": None}
        if method != "none":
            fitted["calibration"] = fit_calibration(_validation(run), method)
            if run.predicts_newcomers_otherwise:
                fitted["calibration_as_newcomers"] = fit_calibration(_validation(run, newcomers=True), method)
        after = Run(run.folder, run.record.model_copy(update=fitted), run.moved_cohort)
        scores = {"scores": _scores(after)}
        if run.predicts_newcomers_otherwise:
            scores["scores_as_newcomers"] = _scores(after, newcomers=True)
        record = after.record.model_copy(update={"results": results.model_copy(update=scores)})
        _write_card(Run(run.folder, record, run.moved_cohort), record)
        record.write(run.folder)
    return Run(run.folder, record, run.moved_cohort)


def calibrate_if_possible(run: Run, method: Wanted) -> tuple[Run, str]:
    """Calibrate a run that has just been trained; where validation is too small, return the reason instead.

    A run that is calibrated already is left as it is; where that is another method, the reason says so.
    """
    if (kept := run.record.calibration) is not None:
        other = f"the run was recalibrated before ({kept.in_words()}), which stays; to change it: plm calibrate"
        return run, "" if kept.method == method else other
    if method == "none":
        return run, ""
    try:
        return calibrate_run(run, method), ""
    except PlmError as error:
        return run, f"the probabilities are not recalibrated: {error}"


def fit_calibration(validation: Predictions, method: CalibrationMethod) -> Calibration:
    """Fit a map to validation instances; test instances must not be given.

    >>> sure = Predictions.of("binary", [0, 1] * 30, [0.05, 0.95] * 24 + [0.95, 0.05] * 6)
    >>> round(fit_calibration(sure, "logistic").slope, 2)
    0.47
    """
    if set(validation.splits) - {"validation"}:
        raise PlmError("a calibration is fitted on validation alone", remedy="give the validation instances")
    targets, columns = validation.targets, validation.columns
    events = float(targets.sum()) if not validation.kind.adds_up else float(len(validation))
    others = float((1 - targets).sum())
    if min(events, others, len(validation)) < FEWEST:
        raise PlmError(
            f"validation has too few instances with or without the outcome (at least {FEWEST} of each are needed)",
            remedy="use a larger cohort, or keep the probabilities as they are",
        )
    if method == "isotonic":
        return Calibration(method=method, knots=_isotonic(columns, targets), instances=len(validation))
    intercept, slope = _temperature(columns, targets) if validation.kind.adds_up else _logistic(columns, targets)
    if not np.isfinite(slope) or slope < _FLATTEST:
        raise PlmError(
            "in validation the outcome does not become more frequent with the predicted probability",
            remedy="keep the probabilities as they are: the ranking itself is in doubt",
        )
    return Calibration(method=method, intercept=intercept, slope=slope, instances=len(validation))


def _logistic(columns: Floats, targets: Floats) -> tuple[float, float]:
    """Return a and b of logit P(y) = a + b logit p over all pairs, by maximum likelihood."""
    from scipy.optimize import minimize

    kept = np.clip(columns.ravel(), _SMALLEST, 1 - _SMALLEST)
    logits, happened = np.log(kept) - np.log1p(-kept), targets.ravel()

    def loss(parameters: Floats) -> tuple[float, Floats]:
        line = parameters[0] + parameters[1] * logits
        rest = 1 / (1 + np.exp(-np.clip(line, -500, 500))) - happened
        value = float(np.mean(np.logaddexp(0.0, line) - happened * line))
        return value, np.array([rest.mean(), (rest * logits).mean()])

    # Where a threshold separates the outcomes the likelihood grows for ever: the map stays within bounds. Where all
    # probabilities are the same there is no slope to find.
    slopes = (-5.0, 5.0) if np.ptp(logits) > _SMALLEST else (1.0, 1.0)
    found = minimize(loss, np.array([0.0, 1.0]), jac=True, method="L-BFGS-B", bounds=[(-10.0, 10.0), slopes])
    return float(found.x[0]), float(found.x[1])


def _temperature(columns: Floats, targets: Floats) -> tuple[float, float]:
    """Return 0 and b of p' in proportion to p ** b, by maximum likelihood."""
    from scipy.optimize import minimize_scalar

    logs = np.log(np.clip(columns, _SMALLEST, 1.0))

    def loss(power: float) -> float:
        scaled = np.exp(power) * logs
        return float(np.mean(np.logaddexp.reduce(scaled, axis=1) - (scaled * targets).sum(axis=1)))

    return 0.0, float(np.exp(minimize_scalar(loss, bounds=(-6.0, 2.0), method="bounded").x))


def _isotonic(columns: Floats, targets: Floats) -> tuple[tuple[float, float], ...]:
    """Return the corners of the non-decreasing map with the least squared error over all pairs.

    Nothing is certain: half an outcome keeps the map from 0 and 1.
    """
    from sklearn.isotonic import IsotonicRegression

    edge = 0.5 / (len(columns) + 1)
    fitted = IsotonicRegression(y_min=edge, y_max=1 - edge, out_of_bounds="clip").fit(columns.ravel(), targets.ravel())
    pairs = zip(fitted.X_thresholds_.tolist(), fitted.y_thresholds_.tolist(), strict=True)
    return tuple((float(predicted), float(observed)) for predicted, observed in pairs)


def _validation(run: Run, *, newcomers: bool = False) -> Predictions:
    return read_predictions(run, calibrated=False, newcomers=newcomers).of_split("validation")


def _scores(run: Run, *, newcomers: bool = False) -> dict[str, dict[str, float | None]]:
    """Return the task's metrics of the recalibrated predictions, by split."""
    found = read_predictions(run, newcomers=newcomers)
    names = tuple(run.results.task["metrics"])
    parts = {split: found.of_split(split) for split in _EVALUATED}
    return {split: score(names, part.labels, part.probabilities) for split, part in parts.items() if len(part)}


def _write_card(run: Run, record: RunRecord) -> None:
    """Write the card again; where the cohort has moved, the old card says the calibration of before."""
    try:
        instances = run.instances
    except PlmError:
        return
    with atomic_file(run.folder / "README.md") as card:
        card.write_text(model_card(record, instances), encoding="utf-8")
