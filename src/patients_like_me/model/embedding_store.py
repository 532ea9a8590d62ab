"""The store: what the backbone pooled for every training instance, as of the last batch that wrote it.

The projection learns a hundred times faster than the backbone. The store therefore holds vectors from before it, and
reading embeddings O projects them with the current projection: O is never older than the backbone's rows.
"""

from __future__ import annotations

import torch
from torch import Tensor


class EmbeddingStore:
    """Pooled vectors [N, width of the backbone] in memory; a batch reads all rows and writes its own back.

    >>> store = EmbeddingStore(torch.zeros(3, 1))
    >>> store.write(torch.tensor([2]), torch.ones(1, 1, requires_grad=True))
    >>> store.values.tolist()
    [[0.0], [0.0], [1.0]]
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values.detach().float().clone()

    def __len__(self) -> int:
        return len(self.values)

    def write(self, rows: Tensor, pooled: Tensor) -> None:
        """Write rows through into the store."""
        self.values.index_copy_(0, rows, pooled.detach().to(self.values.dtype))

    def refresh(self, values: Tensor) -> float:
        """Replace all rows and return how far they had drifted: ||P_new - P_old|| / ||P_new||."""
        drift = torch.linalg.norm(values - self.values) / torch.linalg.norm(values).clamp_min(1e-12)
        self.values.copy_(values)
        return float(drift)
