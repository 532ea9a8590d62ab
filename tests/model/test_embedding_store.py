"""The store of embeddings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from patients_like_me.errors import PlmError
from patients_like_me.model.embedding_store import EmbeddingStore


def test_live_rows_carry_the_gradient_and_the_others_do_not() -> None:
    store = EmbeddingStore(torch.arange(8.0).reshape(4, 2))
    live = torch.tensor([[10.0, 11.0], [20.0, 21.0]], requires_grad=True)
    whole = store.with_live_rows(torch.tensor([3, 1]), live)
    assert whole.tolist() == [[0, 1], [20, 21], [4, 5], [10, 11]]
    (whole * torch.tensor([[1.0], [2.0], [3.0], [4.0]])).sum().backward()
    assert live.grad.tolist() == [[4, 4], [2, 2]]
    assert store.values.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_written_rows_stay() -> None:
    store = EmbeddingStore(torch.zeros(3, 2))
    store.write(torch.tensor([2, 0]), torch.tensor([[1.0, 1.0], [2.0, 2.0]], requires_grad=True))
    assert store.values.tolist() == [[2, 2], [0, 0], [1, 1]]
    assert not store.values.requires_grad


def test_the_store_is_a_copy() -> None:
    source = torch.zeros(2, 2)
    store = EmbeddingStore(source)
    source.add_(1)
    assert store.values.sum() == 0


def test_refreshing_tells_the_drift() -> None:
    store = EmbeddingStore(torch.tensor([[3.0], [0.0]]))
    assert store.refresh(torch.tensor([[3.0], [4.0]])) == pytest.approx(0.8)
    assert store.refresh(torch.tensor([[3.0], [4.0]])) == 0


def test_saved_and_loaded(tmp_path: Path) -> None:
    store = EmbeddingStore(torch.randn(5, 3, generator=torch.Generator().manual_seed(0)))
    store.save(tmp_path / "store.safetensors")
    assert torch.equal(EmbeddingStore.load(tmp_path / "store.safetensors").values, store.values)
    (tmp_path / "store.safetensors").write_bytes(b"broken")
    with pytest.raises(PlmError, match="cannot be read"):
        EmbeddingStore.load(tmp_path / "store.safetensors")
