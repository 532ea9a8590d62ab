"""The store O: the embedding of every training instance, as of the last batch that wrote it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_file


class EmbeddingStore:
    """Embeddings O [N, width] in memory; a batch reads all rows and writes its own back.

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

    def with_live_rows(self, rows: Tensor, embeddings: Tensor) -> Tensor:
        """Return O with some rows replaced by embeddings that carry a gradient; the store itself stays."""
        return self.values.index_copy(0, rows, embeddings.to(self.values.dtype))

    def write(self, rows: Tensor, embeddings: Tensor) -> None:
        """Write rows through into the store."""
        self.values.index_copy_(0, rows, embeddings.detach().to(self.values.dtype))

    def refresh(self, values: Tensor) -> float:
        """Replace all rows and return how far they had drifted: ||O_new - O_old|| / ||O_new||."""
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
