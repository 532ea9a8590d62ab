"""What a fit minimises: the loss of logits, its gradient, and the expected targets behind both.

``exclusive`` says what the outputs are: False for one yes-or-no answer and for sets of codes (a sigmoid per output),
True for the classes of one answer (a softmax over the outputs). What a prediction means is decided by the kind of label
(:mod:`patients_like_me.tasks.kinds`); these functions are evaluated hundreds of times in a fit, in the precision of the
arrays they get.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_softmax, softmax

Array = npt.NDArray[np.floating[Any]]


def expected(logits: Array, exclusive: bool) -> Array:
    """Return the expected targets p(u) for logits u of shape [N, K].

    >>> expected(np.zeros((1, 2)), exclusive=True), expected(np.zeros((1, 1)), exclusive=False)
    (array([[0.5, 0.5]]), array([[0.5]]))
    """
    found: Array = softmax(logits, axis=1) if exclusive else expit(logits)
    return found


def log_loss(logits: Array, targets: Array, exclusive: bool) -> tuple[float, Array]:
    """Return the summed negative log likelihood of targets y and its gradient p(u) - y, which is -R.

    >>> loss, gradient = log_loss(np.zeros((1, 1)), np.ones((1, 1)), exclusive=False)
    >>> round(loss, 4), gradient.tolist()
    (0.6931, [[-0.5]])
    """
    if exclusive:
        logs = log_softmax(logits, axis=1)
        return -float(np.sum(logs * targets, dtype=np.float64)), np.exp(logs) - targets
    # log(1 + exp(u)) without overflow for large u.
    softplus = np.maximum(logits, 0) + np.log1p(np.exp(-np.abs(logits)))
    return float(np.sum(softplus - logits * targets, dtype=np.float64)), expit(logits) - targets


def first_intercepts(targets: Array, exclusive: bool) -> Array:
    """Return where the intercepts of a fit begin: at the logits of the label rates; half a count keeps them finite.

    >>> first_intercepts(np.array([[1.0], [0.0]]), exclusive=False)
    array([0.])
    """
    rates = (targets.sum(axis=0) + 0.5) / (len(targets) + 1.0)
    found: Array = np.log(rates) if exclusive else np.log(rates / (1.0 - rates))
    return found


def residuals(targets: Array, logits: Array, exclusive: bool) -> Array:
    """Return R = y - p(u): what the answer u did not know.

    >>> residuals(np.ones((1, 1)), np.zeros((1, 1)), exclusive=False)
    array([[0.5]])
    """
    found: Array = targets - expected(logits, exclusive)
    return found
