"""The peak memory of this process."""

from __future__ import annotations

import sys


def peak_gib() -> float:
    """Return the largest memory that this process has had, in GiB; on a graphics card, that of the card."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    import resource

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest / (2**30 if sys.platform == "darwin" else 2**20)
