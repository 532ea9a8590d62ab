"""``logistic``: scikit-learn's logistic regression on the bag; one per code for sets, multinomial for classes.

A label that all or no training instances have cannot be learned and gets its rate. One inverse penalty C serves all
codes of a task; it is chosen on validation by the task's first metric.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from patients_like_me.errors import PlmError
from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.bags import BagSettings, bag_of, bag_with
from patients_like_me.systems.contract import Candidate, Fitted, RunContext, System, SystemSettings, choose
from patients_like_me.systems.problem import Logits, Problem
from patients_like_me.tasks.instances import Instances

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class LogisticSettings(SystemSettings):
    """Logistic regression: the inverse penalties are tried on validation, the strongest penalty first."""

    bag: BagSettings = BagSettings()
    inverse_penalty: tuple[Positive, ...] = Field(
        (0.003, 0.01, 0.03, 0.1, 0.3, 1.0), min_length=1, description="scikit-learn's C, from strong to weak penalty"
    )
    max_iterations: int = Field(1000, ge=1, description="most steps of the solver per label")


def fit(problem: Problem, run: RunContext) -> Fitted:
    """Fit under every penalty of the grid and keep the best on validation."""
    settings: LogisticSettings = run.settings
    bag = bag_of(problem.instances, problem.train, settings.bag)
    if not bag.features:
        raise PlmError(
            "no feature is left for the logistic regression",
            remedy=f"lower bag.minimum_instances, which is {settings.bag.minimum_instances:,}",
        )
    inputs, wanted = bag.values[problem.train], bag.values[problem.validation]
    unfinished: set[float] = set()

    def candidates() -> Iterator[Candidate]:
        fits = _class_fits(problem) if problem.kind.adds_up else _column_fits(problem)
        # Each penalty starts from the coefficients of the one before, which saves half of the steps.
        solvers: list[Any] = [None] * len(fits)
        for inverse_penalty in settings.inverse_penalty:
            run.report(f"logistic regression with C = {inverse_penalty:g}")
            weights, intercepts = _rates_alone(problem, inputs.shape[1])
            for number, (columns, labels) in enumerate(fits):
                solver = solvers[number] = _solver(solvers[number], inverse_penalty, settings)
                if not _fitted(solver, inputs, labels):
                    unfinished.add(inverse_penalty)
                weights[columns], intercepts[columns] = _coefficients(solver, len(columns))
            found = problem.kind.probabilities(wanted @ weights.T + intercepts)
            yield Candidate({"C": inverse_penalty}, found, {"weights": weights, "intercepts": intercepts})

    best, account = choose(problem, candidates())
    notes = [*account.notes, *_notes(problem)]
    if unfinished:
        notes.append(f"the solver reached its {settings.max_iterations} steps for C = {sorted(unfinished)}")
    return Fitted(settings, best.arrays, {"features": list(bag.features)}, replace(account, notes=notes))


def predict(fitted: Fitted, instances: Instances) -> Logits:
    """Return the logits of the linear model."""
    bag = bag_with(instances, fitted.facts["features"], fitted.settings.bag)
    logits: Logits = bag.values @ fitted.arrays["weights"].T + fitted.arrays["intercepts"]
    return logits


Fit = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


def _column_fits(problem: Problem) -> list[Fit]:
    """Return one fit per label that has both positives and negatives: its output column, its training labels."""
    return [
        (np.array([column]), labels.astype(np.int64))
        for column, labels in enumerate(problem.targets.T)
        if 0 < labels.sum() < len(labels)
    ]


def _class_fits(problem: Problem) -> list[Fit]:
    """Return the one fit over all classes that occur in training."""
    classes = np.flatnonzero(problem.rates > 0)
    return [(classes, problem.targets.argmax(axis=1))] if len(classes) > 1 else []


def _rates_alone(problem: Problem, features: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return coefficients that predict the rates, for every output that is not fitted; rates of 0 and 1 stay finite."""
    rates = problem.rates
    if problem.kind.adds_up:
        # Beside fitted classes, whose logits are of the order of 1, a class never seen must stay near 0.
        return np.zeros((len(rates), features)), np.where(rates > 0, 0.0, -50.0)
    held = np.clip(rates, 1e-9, 1 - 1e-9)
    return np.zeros((len(rates), features)), np.log(held / (1 - held))


def _solver(before: Any, inverse_penalty: float, settings: LogisticSettings) -> Any:
    from sklearn.linear_model import LogisticRegression

    if before is None:
        return LogisticRegression(C=inverse_penalty, max_iter=settings.max_iterations, warm_start=True)
    return before.set_params(C=inverse_penalty)


def _fitted(solver: Any, inputs: Any, labels: npt.NDArray[np.int64]) -> bool:
    """Fit, and tell whether the solver came to its end."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        solver.fit(inputs, labels)
    return not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)


def _coefficients(solver: Any, outputs: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return weights and intercepts per output; two classes are fitted as one, the other one's logit being 0."""
    weights, intercepts = solver.coef_, solver.intercept_
    if len(weights) == outputs:
        return weights, intercepts
    return np.concatenate([np.zeros_like(weights), weights]), np.concatenate([np.zeros_like(intercepts), intercepts])


def _notes(problem: Problem) -> list[str]:
    one_sided = int(((problem.rates == 0) | (problem.rates == 1)).sum())
    if not one_sided:
        return []
    return [f"{one_sided} of {len(problem.rates)} labels are the same for all training instances and get their rate"]


SYSTEM = System(
    name="logistic",
    description="logistic regression on a bag of the inputs (one per code, or multinomial)",
    settings=LogisticSettings,
    capabilities=Capabilities(newcomers=True),
    fit=fit,
    predict=predict,
    settled=lambda settings, chosen: settings.model_copy(update={"inverse_penalty": (chosen["C"],)}),
)
