"""The own path theta: u_i = c + V b_i + L l_i + W o_i, penalised linear terms on blocks of inputs.

b is the bag of codes, demographics, counts and site; l the answer of the visit before with a flag "has history"; o the
language model's embedding. Every block has its own ridge penalty. Weights start at 0 and the bias c at the label
rates, so the first answer is the base rate; with the bag alone it is logistic regression, with l alone ``repeat``.

The fit minimises

    sum_i loss(y_i, offset_i + u_i) + 1/2 sum_blocks penalty_b |W_b|^2

by L-BFGS over weights scaled by their curvature at the base rates, which makes frequent and rare codes converge alike.
The offset is 0, or the references' correction when theta is refitted with the correction held fixed (the E-step).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from scipy.optimize import minimize

from patients_like_me.systems.reference_path.links import Array, expected, first_intercepts, log_loss
from patients_like_me.tasks.instances import Rows

#: Ridge penalties that are tried on validation, from strong to weak, and the factors tried for each block afterwards.
PENALTIES: Final = (100.0, 30.0, 10.0, 3.0, 1.0)
BLOCK_FACTORS: Final = (1 / 5, 5.0)

#: A block of inputs: a scipy CSR array or a numpy matrix, one row per instance.
Block = Any


@dataclass(frozen=True)
class OwnPath:
    """The fitted own path: bias c [K] and one weight matrix [features, K] per block."""

    bias: Array
    weights: tuple[Array, ...]

    def logits(self, blocks: Sequence[Block]) -> Array:
        """Return u [N, K] for the rows of the blocks."""
        u: Array = np.repeat(self.bias[None, :], blocks[0].shape[0], axis=0)
        for block, weights in zip(blocks, self.weights, strict=True):
            u += block @ weights
        return u


@dataclass(frozen=True)
class PenaltySearch:
    """The chosen penalty of every block, its own path, and all trials with their scores on validation."""

    penalties: tuple[float, ...]
    path: OwnPath
    score: float
    trials: list[tuple[tuple[float, ...], float]] = field(default_factory=list)


def fit_own_path(
    blocks: Sequence[Block],
    targets: Array,
    penalties: Sequence[float],
    *,
    exclusive: bool,
    offset: Array | None = None,
    start: OwnPath | None = None,
    steps: int = 60,
) -> OwnPath:
    """Fit theta on all rows of the blocks; ``start`` continues from an earlier fit.

    >>> bag = np.array([[1.0, 0.0], [0.0, 1.0]] * 20)
    >>> path = fit_own_path([bag], bag[:, :1], [1.0], exclusive=False)
    >>> path.logits([np.eye(2)]).round(1).ravel().tolist()
    [2.1, -2.1]
    """
    outputs = targets.shape[1]
    dtype = np.result_type(targets.dtype, np.float32)
    start = start or OwnPath(
        first_intercepts(targets, exclusive).astype(dtype),
        tuple(np.zeros((block.shape[1], outputs), dtype) for block in blocks),
    )
    scales = _curvature_scales(blocks, targets, penalties, exclusive)
    first = [start.bias, *start.weights]
    ends = np.cumsum([part.size for part in first])[:-1]
    shapes = [part.shape for part in first]
    transposed = [block.T.tocsr() if hasattr(block, "tocsr") else block.T for block in blocks]

    def path_of(flat: Array) -> OwnPath:
        parts = [
            (part.reshape(shape) * scale).astype(dtype)
            for part, shape, scale in zip(np.split(flat, ends), shapes, scales, strict=True)
        ]
        return OwnPath(parts[0], tuple(parts[1:]))

    def objective(flat: Array) -> tuple[float, Array]:
        path = path_of(flat)
        logits = path.logits(blocks)
        loss, slope = log_loss(logits if offset is None else logits + offset, targets, exclusive)
        gradient = [slope.sum(axis=0) * scales[0]]
        for block, weights, penalty, scale in zip(transposed, path.weights, penalties, scales[1:], strict=True):
            loss += 0.5 * penalty * float(np.sum(weights * weights, dtype=np.float64))
            gradient.append((block @ slope + penalty * weights) * scale)
        return loss, np.concatenate([part.ravel() for part in gradient]).astype(np.float64)

    flat = np.concatenate([(part / scale).ravel() for part, scale in zip(first, scales, strict=True)])
    found = minimize(
        objective,
        flat.astype(np.float64),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": steps, "ftol": 1e-7, "gtol": 1e-3, "maxcor": 10},
    )
    return path_of(found.x)


def choose_penalties(
    blocks: Sequence[Block],
    targets: Array,
    train: Rows,
    validation: Rows,
    score: Callable[[Array], float],
    *,
    exclusive: bool,
    grid: Sequence[float] = PENALTIES,
    factors: Sequence[float] = BLOCK_FACTORS,
    steps: int = 60,
) -> PenaltySearch:
    """Choose one penalty per block by the score of the validation rows' logits (the higher the better).

    First one penalty for all blocks goes through the grid, from strong to weak, each fit starting from the one before;
    then each block's penalty is multiplied by the factors while the others stay.
    """
    seen, wanted = [block[train] for block in blocks], [block[validation] for block in blocks]
    trials: list[tuple[tuple[float, ...], float]] = []

    def tried(penalties: tuple[float, ...], start: OwnPath | None) -> PenaltySearch:
        path = fit_own_path(seen, targets[train], penalties, exclusive=exclusive, start=start, steps=steps)
        value = score(path.logits(wanted))
        trials.append((penalties, value))
        return PenaltySearch(penalties, path, value)

    best: PenaltySearch | None = None
    last: OwnPath | None = None
    for penalty in sorted(grid, reverse=True):
        found = tried((penalty,) * len(blocks), last)
        last = found.path
        if best is None or found.score > best.score:
            best = found
    assert best is not None, "the grid of penalties is empty"
    for number in range(len(blocks) if len(blocks) > 1 else 0):
        for factor in factors:
            penalties = list(best.penalties)
            penalties[number] *= factor
            found = tried(tuple(penalties), best.path)
            if found.score > best.score:
                best = found
    return PenaltySearch(best.penalties, best.path, best.score, trials)


def _curvature_scales(
    blocks: Sequence[Block], targets: Array, penalties: Sequence[float], exclusive: bool
) -> list[Array]:
    """Return 1 / sqrt of the diagonal of the Hessian at the base rates: for the bias, then for every block."""
    rates = expected(first_intercepts(targets, exclusive)[None, :], exclusive)[0]
    variance = rates * (1.0 - rates)
    scales = [1.0 / np.sqrt(len(targets) * variance)]
    for block, penalty in zip(blocks, penalties, strict=True):
        squares = np.asarray(block.multiply(block).sum(axis=0) if hasattr(block, "multiply") else (block**2).sum(0))
        scales.append(1.0 / np.sqrt(penalty + squares.reshape(-1, 1) * variance[None, :]))
    return scales
