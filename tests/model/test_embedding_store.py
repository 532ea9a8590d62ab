"""The store of embeddings."""

from __future__ import annotations

import pytest
import torch

from patients_like_me.model.embedding_store import EmbeddingStore


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
