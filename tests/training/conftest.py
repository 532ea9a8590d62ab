"""Fixtures of the training tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Keep the tests off the other processors."""
    torch.set_num_threads(1)
