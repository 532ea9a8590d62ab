"""Random numbers from an explicit seed, leaving the global generators untouched.

Layers of torch (initial weights, dropout) draw from torch's global generator. Whatever draws runs inside
``seeded``: the same seed gives the same numbers, and the caller's generator is not affected.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(seed: int, *parts: int) -> Iterator[None]:
    """Draw from a generator made of ``seed`` and ``parts`` (such as epoch and step) inside the block.

    >>> before = torch.random.get_rng_state()
    >>> with seeded(7, 1, 32):
    ...     first = torch.rand(2)
    >>> with seeded(7, 1, 32):
    ...     bool((first == torch.rand(2)).all())
    True
    >>> bool((before == torch.random.get_rng_state()).all())
    True
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        number = mixed_seed(seed, *parts)
        # ``torch.manual_seed`` notes the whole stack for devices that are not there, which costs more than a draw.
        torch.default_generator.manual_seed(number)
        if devices:
            torch.cuda.manual_seed_all(number)
        if torch.backends.mps.is_available():
            torch.mps.manual_seed(number)
        yield


def mixed_seed(seed: int, *parts: int) -> int:
    """Make one number of several, so that seed 1 at step 2 and seed 2 at step 1 differ.

    >>> mixed_seed(1, 2) == mixed_seed(2, 1), mixed_seed(1, 2) == mixed_seed(1, 2)
    (False, True)
    """
    return int(np.random.SeedSequence([seed, *parts]).generate_state(1, dtype=np.uint64)[0] >> np.uint64(1))
