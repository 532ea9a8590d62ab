"""Backbones for the tests of this room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_backbones import tiny_backbone

from patients_like_me.model.backbone import Backbone
from patients_like_me.model.loading import load_backbone
from patients_like_me.model.settings import BackboneSettings


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Keep the tests off the other processors."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def make_backbone() -> Callable[..., Backbone]:
    """Return a function that makes a fresh backbone by name: a tiny one, or a packaged one."""

    def make(name: str, **settings: Any) -> Backbone:
        if name.startswith("minilm"):
            return load_backbone(BackboneSettings(name=name, **({"trainable_layers": 1} | settings)))
        return tiny_backbone(name, **settings)

    return make
