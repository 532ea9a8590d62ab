"""Cross-fitting by patient: every training instance gets an answer from a model that never saw its patient.

R_j = y_j - p(u_j) tells what the own path did not know about reference j only if u_j comes from a model that was fitted
without y_j: a model that knew the label leaves nothing in the residual. Any model can be cross-fitted; it is given as
``fit(rows)``, which fits on those rows and returns ``predict(rows) -> logits [len(rows), K]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from patients_like_me.systems.reference_path.links import Array, log_loss
from patients_like_me.tasks.instances import Rows

#: Few folds leave each instance many references of its own fold while gates are fitted; more folds leave too few.
FOLDS: Final = 3

Predict = Callable[[Rows], Array]
Fit = Callable[[Rows], Predict]


@dataclass(frozen=True)
class CrossFitted:
    """The answers of one model: out of fold for the training rows, of the fit on all of them for any row.

    ``out_of_fold`` [len(train), K] is what residuals and gates are made from; ``known`` [len(train), K] are the answers
    of the fit that saw the labels, for the control "without cross-fitting"; ``predict`` serves all other rows.
    """

    train: Rows
    fold: npt.NDArray[np.int64]
    out_of_fold: Array
    known: Array
    predict: Predict


def patient_folds(patients: npt.NDArray[Any], folds: int = FOLDS, seed: int = 0) -> npt.NDArray[np.int64]:
    """Return the fold of every instance; all instances of a patient are in one fold, folds differ by a patient at most.

    >>> patient_folds(np.array(["a", "b", "a", "c"]), 3).tolist()
    [2, 0, 2, 1]
    """
    names, place = np.unique(patients, return_inverse=True)
    if folds < 2 or folds > len(names):
        raise ValueError(f"cross-fitting needs 2 to {len(names)} folds (one patient each), got {folds}")
    shuffled: npt.NDArray[np.int64] = np.random.default_rng(seed).permutation(len(names))[place] % folds
    return shuffled


def cross_fit(
    fit: Fit, train: Rows, patients: npt.NDArray[Any], *, folds: int = FOLDS, seed: int = 0, known: bool = True
) -> CrossFitted:
    """Fit once on all training rows and once without each fold; ``patients`` names the patient of every row there is.

    ``known=False`` leaves out the answers of the full fit for its own training rows.

    >>> labels = np.array([[1.0], [0.0], [1.0], [1.0]])
    >>> def fit(rows):
    ...     return lambda wanted: np.full((len(wanted), 1), labels[rows].mean())
    >>> cross_fit(fit, np.arange(4), np.array(["a", "b", "a", "c"]), folds=3).out_of_fold.round(2).ravel().tolist()
    [0.5, 1.0, 0.5, 0.67]
    """
    fold = patient_folds(patients[train], folds, seed)
    full = fit(train)
    out_of_fold: Array | None = None
    for number in range(folds):
        held_out = fold == number
        answers = fit(train[~held_out])(train[held_out])
        if out_of_fold is None:
            out_of_fold = np.zeros((len(train), answers.shape[1]), answers.dtype)
        out_of_fold[held_out] = answers
    assert out_of_fold is not None
    return CrossFitted(train, fold, out_of_fold, full(train) if known else out_of_fold, full)


@dataclass(frozen=True)
class Stack:
    """Several own paths as one: u = c + sum_s w_s u_s with weights w >= 0 fitted on out-of-fold answers."""

    weights: npt.NDArray[np.float64]
    bias: npt.NDArray[np.float64]

    def logits(self, answers: Sequence[Array]) -> Array:
        """Return the stacked logits of the parts' logits."""
        total: Array = self.bias.astype(answers[0].dtype) + sum(
            np.asarray(weight, answer.dtype) * answer for weight, answer in zip(self.weights, answers, strict=True)
        )
        return total


def fit_stack(answers: Sequence[Array], targets: Array, *, exclusive: bool, penalty: float = 1.0) -> Stack:
    """Fit the weights on out-of-fold logits of the training rows; the ridge penalty pulls towards the plain mean.

    The bias [K], penalised too, repairs what shrunken or overconfident parts do to the level of each output.

    >>> truth = np.array([[2.0], [-2.0]] * 50)
    >>> fit_stack([truth, -truth], (truth > 0).astype(float), exclusive=False).weights.round(0)
    array([2., 0.])
    """
    parts = len(answers)
    even = np.full(parts, 1.0 / parts)

    def objective(flat: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        stack = Stack(flat[:parts], flat[parts:])
        loss, slope = log_loss(stack.logits(answers), targets, exclusive)
        loss += 0.5 * penalty * float(((stack.weights - even) ** 2).sum() + (stack.bias**2).sum())
        weights = [float(np.sum(slope * answer, dtype=np.float64)) for answer in answers]
        gradient = np.concatenate([weights, slope.sum(axis=0)]).astype(np.float64)
        return loss, gradient + penalty * np.concatenate([stack.weights - even, stack.bias])

    outputs = answers[0].shape[1]
    bounds = [(0.0, None)] * parts + [(None, None)] * outputs
    start = np.concatenate([even, np.zeros(outputs)])
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 200})
    return Stack(found.x[:parts], found.x[parts:])


def cross_fitted_stack(parts: Sequence[CrossFitted], targets: Array, *, exclusive: bool) -> tuple[CrossFitted, Stack]:
    """Stack cross-fitted models of the same training rows and folds; ``targets`` are those of the training rows."""
    if any(not np.array_equal(part.fold, parts[0].fold) for part in parts):
        raise ValueError("the parts of a stack must have the same training rows and folds")
    stack = fit_stack([part.out_of_fold for part in parts], targets, exclusive=exclusive)
    first = parts[0]
    combined = CrossFitted(
        first.train,
        first.fold,
        stack.logits([part.out_of_fold for part in parts]),
        stack.logits([part.known for part in parts]),
        lambda rows: stack.logits([part.predict(rows) for part in parts]),
    )
    return combined, stack
