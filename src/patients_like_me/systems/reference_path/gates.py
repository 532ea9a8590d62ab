"""Gates: how much the answer uses each relation, z_ik = u_ik + sum_r (gamma_r + delta_rk) m^r_ik.

gamma_r is shared by all outputs, delta_rk belongs to one; both start at 0, where z = u. They minimise

    sum_i loss(y_i, z_i) + 1/2 shared sum_r gamma_r^2 + 1/2 per_output sum_rk delta_rk^2

with messages scaled to unit spread over the training instances, so that one range of penalties fits all tasks. delta
is off (``per_output=None``) for one yes-or-no answer and for classes. The stored gates act on unscaled messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from patients_like_me.systems.reference_path.links import Array, log_loss

#: Penalties tried on validation, from strong to weak: of the shared gates, and of the gates per output (sets of codes).
SHARED_PENALTIES: Final = (300.0, 30.0, 3.0)
OUTPUT_PENALTIES: Final[tuple[float | None, ...]] = (None, 300.0, 100.0, 30.0, 10.0)


@dataclass(frozen=True)
class Gates:
    """gamma_r + delta_rk [R, K] for unscaled messages, and the spread [R] by which messages were divided in the fit."""

    values: npt.NDArray[np.float64]
    spread: npt.NDArray[np.float64]

    def correction(self, messages: Array) -> Array:
        """Return sum_r (gamma_r + delta_rk) m^r_ik [N, K]."""
        total = np.zeros(messages.shape[1:], messages.dtype)
        for gate, message in zip(self.values.astype(messages.dtype), messages, strict=True):
            total += gate * message
        return total

    @property
    def strength(self) -> npt.NDArray[np.float64]:
        """The gates on messages of unit spread, averaged in size over the outputs [R]: 0 where a relation is unused."""
        found: npt.NDArray[np.float64] = np.abs(self.values * self.spread[:, None]).mean(axis=1)
        return found


@dataclass(frozen=True)
class GateSearch:
    """The chosen gates, their penalties (None: references stay out), and all trials with their scores."""

    gates: Gates
    penalties: tuple[float, float | None] | None
    score: float
    trials: list[tuple[tuple[float, float | None] | None, float]] = field(default_factory=list)


def spread_of(messages: Array) -> npt.NDArray[np.float64]:
    """Return the root mean square of every relation's messages [R]; 1 where all are 0."""
    squares = np.array([np.mean(message.astype(np.float64) ** 2) for message in messages])
    found: npt.NDArray[np.float64] = np.where(squares > 0, np.sqrt(squares), 1.0)
    return found


def fit_gates(
    messages: Array,
    offset: Array,
    targets: Array,
    *,
    exclusive: bool,
    shared: float,
    per_output: float | None = None,
    start: Gates | None = None,
    steps: int = 100,
) -> Gates:
    """Fit the gates on instances with messages [R, N, K], own answers u and outcomes y.

    >>> said = np.array([[[1.0], [-1.0]] * 50])
    >>> gates = fit_gates(said, np.zeros((100, 1)), (said[0] > 0).astype(float), exclusive=False, shared=1.0)
    >>> gates.values.round(1).tolist()
    [[3.4]]
    """
    relations, _, outputs = messages.shape
    spread = spread_of(messages)
    scaled = messages / spread[:, None, None].astype(messages.dtype)
    if start is None:
        start = Gates(np.zeros((relations, outputs)), spread)
    first = start.values * spread[:, None]
    shared_part = first.mean(axis=1)
    parameters = [shared_part] if per_output is None else [shared_part, (first - shared_part[:, None]).ravel()]

    def split(flat: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        gamma = flat[:relations]
        return gamma, flat[relations:].reshape(relations, outputs) if per_output is not None else np.zeros((1, 1))

    def objective(flat: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        gamma, delta = split(flat)
        gates = np.broadcast_to(gamma[:, None] + delta, (relations, outputs)).astype(scaled.dtype)
        logits = offset.copy()
        for gate, message in zip(gates, scaled, strict=True):
            logits += gate * message
        loss, slope = log_loss(logits, targets, exclusive)
        along = np.stack([np.einsum("nk,nk->k", message, slope) for message in scaled]).astype(np.float64)
        loss += 0.5 * shared * float(gamma @ gamma) + 0.5 * (per_output or 0.0) * float((delta**2).sum())
        gradient = [along.sum(axis=1) + shared * gamma]
        if per_output is not None:
            gradient.append((along + per_output * delta).ravel())
        return loss, np.concatenate(gradient)

    found = minimize(
        objective,
        np.concatenate(parameters),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": steps, "ftol": 1e-9, "gtol": 1e-3},
    )
    gamma, delta = split(found.x)
    return Gates(np.broadcast_to(gamma[:, None] + delta, (relations, outputs)) / spread[:, None], spread)


def choose_gates(
    messages: Array,
    offset: Array,
    targets: Array,
    score: Callable[[Gates], float],
    *,
    exclusive: bool,
    shared: Sequence[float] = SHARED_PENALTIES,
    per_output: Sequence[float | None] = OUTPUT_PENALTIES,
) -> GateSearch:
    """Fit under all penalties and keep the best score on validation; gates of 0 (no references) are one of the choices.

    ``score`` gives the value of gates on validation instances, the higher the better. Classes and yes-or-no answers
    have no gates per output, whatever ``per_output`` says.
    """
    relations, _, outputs = messages.shape
    closed = Gates(np.zeros((relations, outputs)), spread_of(messages))
    search = GateSearch(closed, None, score(closed))
    search.trials.append((None, search.score))
    for output_penalty in (None,) if exclusive or outputs == 1 else per_output:
        gates: Gates | None = None
        for penalty in sorted(shared, reverse=True):
            gates = fit_gates(
                messages, offset, targets, exclusive=exclusive, shared=penalty, per_output=output_penalty, start=gates
            )
            value = score(gates)
            search.trials.append(((penalty, output_penalty), value))
            if value > search.score:
                search = GateSearch(gates, (penalty, output_penalty), value, search.trials)
    return search
