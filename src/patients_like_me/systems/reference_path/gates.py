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

from patients_like_me.systems.reference_path.links import Array, expected, log_loss

Floats = npt.NDArray[np.float64]

#: Penalties tried on validation: of the shared gates in units of the information sum_ik p_ik (1 - p_ik) that the
#: instances hold, and of the gates per output (sets of codes) in units of its mean per output.
SHARED_PENALTIES: Final = (1.0, 0.3, 0.1, 0.03)
OUTPUT_PENALTIES: Final[tuple[float | None, ...]] = (None, 3.0, 1.0)


@dataclass(frozen=True)
class Gates:
    """gamma_r + delta_rk [R, K] for unscaled messages, and the spread [R] by which messages were divided in the fit."""

    values: Floats
    spread: Floats

    def correction(self, messages: Array) -> Array:
        """Return sum_r (gamma_r + delta_rk) m^r_ik [N, K]."""
        total = np.zeros(messages.shape[1:], messages.dtype)
        for gate, message in zip(self.values.astype(messages.dtype), messages, strict=True):
            total += gate * message
        return total

    @property
    def strength(self) -> Floats:
        """The gates on messages of unit spread, averaged in size over the outputs [R]: 0 where a relation is unused."""
        found: Floats = np.abs(self.values * self.spread[:, None]).mean(axis=1)
        return found


@dataclass(frozen=True)
class GateSearch:
    """The chosen gates, their penalties (None: references stay out), and all trials with their scores."""

    gates: Gates
    penalties: tuple[float, float | None] | None
    score: float
    trials: list[tuple[tuple[float, float | None] | None, float]] = field(default_factory=list)


def spread_of(messages: Array) -> Floats:
    """Return the root mean square of every relation's messages [R]; 1 where all are 0."""
    squares = np.array([np.mean(message.astype(np.float64) ** 2) for message in messages])
    found: Floats = np.where(squares > 0, np.sqrt(squares), 1.0)
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
    steps: int = 20,
) -> Gates:
    """Fit the gates on instances with messages [R, N, K], own answers u and outcomes y, by Newton's method.

    The objective is convex and has few parameters per output, so a handful of steps is enough. ``per_output`` needs
    separate outputs: the classes of one answer have shared gates only.

    >>> said = np.array([[[1.0], [-1.0]] * 50])
    >>> gates = fit_gates(said, np.zeros((100, 1)), (said[0] > 0).astype(float), exclusive=False, shared=1.0)
    >>> gates.values.round(1).tolist()
    [[3.4]]
    """
    if exclusive and per_output is not None:
        raise ValueError("gates per output need separate outputs, not the classes of one answer")
    relations, _, outputs = messages.shape
    spread = spread_of(messages)
    # [K, R, N]: every product below is a matrix product per output.
    scaled = np.ascontiguousarray((messages / spread[:, None, None].astype(messages.dtype)).transpose(2, 0, 1))
    gamma, delta = np.zeros(relations), np.zeros((outputs, relations))
    if start is not None:
        first = (start.values * spread[:, None]).T
        gamma = first.mean(axis=0)
        delta = first - gamma if per_output is not None else delta

    def objective(gamma: Floats, delta: Floats) -> tuple[float, Array, Array]:
        gates = (gamma[None, :] + delta).astype(scaled.dtype)
        logits = offset + np.matmul(gates[:, None, :], scaled)[:, 0, :].T
        loss, slope = log_loss(logits, targets, exclusive)
        penalty = 0.5 * shared * float(gamma @ gamma) + 0.5 * (per_output or 0.0) * float((delta**2).sum())
        return loss + penalty, logits, slope

    value, logits, slope = objective(gamma, delta)
    for _ in range(steps):
        along = np.matmul(scaled, slope.T[:, :, None])[:, :, 0].astype(np.float64)
        step_gamma, step_delta = _newton_step(
            along, _curvature(scaled, logits, exclusive), gamma, delta, shared, per_output
        )
        length = 1.0
        while True:
            tried = objective(gamma + length * step_gamma, delta + length * step_delta)
            if tried[0] <= value or length < 1e-4:
                break
            length /= 2.0
        gain = value - tried[0]
        if gain <= 0:
            break
        gamma, delta = gamma + length * step_gamma, delta + length * step_delta
        value, logits, slope = tried
        if gain < 1e-6 * abs(value):
            break
    return Gates((gamma[None, :] + delta).T / spread[:, None], spread)


def _curvature(scaled: Array, logits: Array, exclusive: bool) -> Floats:
    """Return the Hessian of the loss by the gates: [K, R, R] per output, or [1, R, R] for classes with shared gates."""
    shares = expected(logits, exclusive).T
    if not exclusive:
        weighted = scaled * (shares * (1.0 - shares))[:, None, :]
        apart: Floats = np.matmul(weighted, scaled.transpose(0, 2, 1)).astype(np.float64)
        return apart
    centred = scaled - (scaled * shares[:, None, :]).sum(axis=0, keepdims=True)
    squares = np.matmul(centred * shares[:, None, :], centred.transpose(0, 2, 1))
    together: Floats = squares.sum(axis=0, keepdims=True).astype(np.float64)
    return together


def _newton_step(
    along: Floats, curvature: Floats, gamma: Floats, delta: Floats, shared: float, per_output: float | None
) -> tuple[Floats, Floats]:
    """Return the steps of gamma [R] and delta [K, R] for gradients ``along`` [K, R] of the loss by each output's gates.

    With H_k the curvature, the system is an arrow: gamma meets every output, the outputs meet only gamma.
    """
    one = np.eye(len(gamma))
    gradient = along.sum(axis=0) + shared * gamma
    if per_output is None:
        return -np.linalg.solve(curvature.sum(axis=0) + shared * one, gradient), np.zeros_like(delta)
    own = along + per_output * delta
    damped = curvature + per_output * one
    # H (H + t)^-1 and (H + t)^-1 g, for every output at once.
    ratio = np.linalg.solve(damped, curvature).transpose(0, 2, 1)
    solved = np.linalg.solve(damped, own[:, :, None])[:, :, 0]
    reduced = per_output * ratio.sum(axis=0) + shared * one
    rest = gradient - np.einsum("krs,ks->r", ratio, own)
    step = -np.linalg.solve(reduced, rest)
    return step, -solved - np.einsum("ksr,s->kr", ratio, step)


def fit_gates_under(
    penalties: tuple[float, float | None],
    messages: Array,
    offset: Array,
    targets: Array,
    *,
    exclusive: bool,
    start: Gates | None = None,
) -> Gates:
    """Fit gates under penalties in units of the information of the instances: of the shared gates, and per output."""
    shares = expected(offset, exclusive)
    information = float(np.sum(shares * (1.0 - shares), dtype=np.float64))
    shared, per_output = penalties
    return fit_gates(
        messages,
        offset,
        targets,
        exclusive=exclusive,
        shared=shared * information,
        per_output=None if per_output is None else per_output * information / messages.shape[2],
        start=start,
    )


def choose_gates(
    messages: Array,
    offset: Array,
    targets: Array,
    score: Callable[[Gates], float],
    *,
    exclusive: bool,
    shared: Sequence[float] = SHARED_PENALTIES,
    per_output: Sequence[float | None] = OUTPUT_PENALTIES,
    may_close: bool = True,
) -> GateSearch:
    """Fit under all penalties and keep the best score on validation; gates of 0 (no references) are one of the choices.

    Unless ``may_close`` is False, nothing is gained on paper only: without a better score the gates stay closed.

    ``score`` gives the value of gates on validation instances, the higher the better. Classes and yes-or-no answers
    have no gates per output, whatever ``per_output`` says. Penalties are in units of the information of the instances,
    so that one grid serves few and many instances, rare and frequent outputs.
    """
    relations, _, outputs = messages.shape
    closed = Gates(np.zeros((relations, outputs)), spread_of(messages))
    search = GateSearch(closed, None, score(closed))
    search.trials.append((None, search.score))
    for output_penalty in (None,) if exclusive or outputs == 1 else per_output:
        # The objective is convex: starting from the fit under the penalty before saves steps and changes nothing.
        gates: Gates | None = None
        for penalty in sorted(shared, reverse=True):
            gates = fit_gates_under(
                (penalty, output_penalty), messages, offset, targets, exclusive=exclusive, start=gates
            )
            value = score(gates)
            search.trials.append(((penalty, output_penalty), value))
            if value > search.score or (search.penalties is None and not may_close):
                search = GateSearch(gates, (penalty, output_penalty), value, search.trials)
    return search
