"""Dropout for the graph network, whose full-batch steps would otherwise spend a quarter of their time drawing numbers.

torch draws one number after another on a CPU. Here sixteen random bits decide about a value, drawn in bulk by a
generator that is seeded from torch's: inside ``randomness.seeded`` the same seed drops the same values.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

_STEPS = 1 << 16


def dropout(states: Tensor, share: float, training: bool) -> Tensor:
    """Set a share of the values to zero and scale the others, so that the mean stays; nothing outside of training.

    The share is rounded to a multiple of 2^-16, and the scale fits the rounded one.

    >>> dropout(torch.ones(2, 3), 0.5, training=False).sum().item()
    6.0
    """
    if not training or share == 0:
        return states
    if states.device.type != "cpu":
        return nn.functional.dropout(states, share)
    dropped = round(share * _STEPS)
    if dropped == _STEPS:
        return states * 0.0
    seed = int(torch.randint(1 << 62, ()))
    drawn = np.random.Generator(np.random.SFC64(seed)).bytes(2 * states.numel())
    kept = np.frombuffer(drawn, dtype=np.uint16) >= dropped
    mask = np.multiply(kept, _STEPS / (_STEPS - dropped), dtype=np.float32)
    return states * torch.from_numpy(mask).to(states.dtype).reshape(states.shape)
