"""The store: what the backbone pooled for every training instance, as of the last batch that wrote it.

The projection learns a hundred times faster than the backbone. The store therefore holds vectors from before it, and
whoever reads embeddings O projects them with the projection of the moment: O is never older than the backbone's rows.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_file


class EmbeddingStore:
    """Pooled vectors [N, width of the backbone] in memory; a batch reads all rows and writes its own back.

    >>> store = EmbeddingStore(torch.zeros(3, 1))
    >>> live = torch.ones(1, 1, requires_grad=True)
    >>> store.with_live_rows(torch.tensor([2]), live).tolist(), store.values.tolist()
    ([[0.0], [0.0], [1.0]], [[0.0], [0.0], [0.0]])
    >>> store.write(torch.tensor([2]), live)
    >>> store.values.tolist()
    [[0.0], [0.0], [1.0]]
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values.detach().float().clone()

    def __len__(self) -> int:
        return len(self.values)

    def with_live_rows(self, rows: Tensor, pooled: Tensor) -> Tensor:
        """Return all rows, some of them replaced by vectors that carry a gradient; the store itself stays."""
        return self.values.index_copy(0, rows, pooled.to(self.values.dtype))

    def write(self, rows: Tensor, pooled: Tensor) -> None:
        """Write rows through into the store."""
        self.values.index_copy_(0, rows, pooled.detach().to(self.values.dtype))

    def refresh(self, values: Tensor) -> float:
        """Replace all rows and return how far they had drifted: ||P_new - P_old|| / ||P_new||."""
        drift = torch.linalg.norm(values - self.values) / torch.linalg.norm(values).clamp_min(1e-12)
        self.values.copy_(values)
        return float(drift)

    def save(self, path: Path) -> None:
        """Write the store as safetensors, atomically."""
        from safetensors.torch import save_file

        with atomic_file(path) as temporary:
            save_file({"embeddings": self.values.cpu().contiguous()}, temporary)

    @classmethod
    def load(cls, path: Path) -> EmbeddingStore:
        """Read a store written by ``save``."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return cls(load_file(path)["embeddings"])
        except (OSError, KeyError, SafetensorError) as error:
            raise PlmError(
                f"the embeddings '{path}' cannot be read ({error})", remedy="the file is damaged: train the run again"
            ) from None
