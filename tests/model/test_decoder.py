"""Decoders as text encoders: both directions, low-rank adapters, merging."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tiny_backbones import DECODERS, tiny_model

from patients_like_me.errors import PlmError
from patients_like_me.model.backbone import Backbone
from patients_like_me.model.tuning import ADAPTED_MATRICES, make_bidirectional

IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]])
Make = Callable[..., Backbone]


def token_states(backbone: Backbone, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    with torch.no_grad():
        return backbone.upper(backbone.lower(ids, mask), mask)


def with_trained_adapters(backbone: Backbone) -> Backbone:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in backbone.trained_parameters().values():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return backbone


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_reads_in_both_directions(name: str, attention: str, padded: bool, make_backbone: Make) -> None:
    backbone = make_backbone(name, attention=attention, lora_layers=2)
    mask = torch.ones_like(IDS, dtype=torch.bool)
    last = -1
    if padded:
        mask[0, -2:] = False
        last = -3
    # Only the last real token changes; in a causal model the states before it could not know.
    other = IDS.clone()
    other[0, last] = 25
    moved = (token_states(backbone, IDS, mask) - token_states(backbone, other, mask)).abs().amax(dim=2)[0]
    assert (moved[:last] > 1e-4).all()


@pytest.mark.parametrize("name", DECODERS)
def test_the_plain_model_is_causal_until_it_is_told_otherwise(name: str) -> None:
    model = tiny_model(name)
    other = IDS.clone()
    other[0, -1] = 25

    def first_state(ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(input_ids=ids).last_hidden_state[0, 0]

    assert torch.equal(first_state(IDS), first_state(other))
    make_bidirectional(model.config)
    assert (first_state(IDS) - first_state(other)).abs().max() > 1e-4


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3_text"])
def test_a_sliding_window_reaches_both_ways_and_no_further(name: str, make_backbone: Make) -> None:
    backbone = make_backbone(name, lora_layers=0)
    place = 11
    other = IDS.clone()
    other[0, place] = 25
    mask = torch.ones_like(IDS, dtype=torch.bool)
    with torch.no_grad():
        before, after = (backbone.stack.run(backbone.stack.embed(ids, mask), mask, 0, 1) for ids in (IDS, other))
    moved = (before - after).abs().amax(dim=2)[0] > 1e-6
    window = backbone.stack.config.sliding_window
    assert moved.tolist() == [abs(place - token) <= window for token in range(IDS.shape[1])]


@pytest.mark.parametrize("name", DECODERS)
def test_adapters_sit_on_the_attention_matrices_of_every_layer(name: str, make_backbone: Make) -> None:
    backbone = make_backbone(name)
    names = list(backbone.trained_parameters())
    assert all(".lora_A." in key or ".lora_B." in key for key in names)
    for layer in range(3):
        for matrix in ADAPTED_MATRICES:
            shapes = [
                tuple(value.shape)
                for key, value in backbone.trained_parameters().items()
                if f"layers.{layer}.self_attn.{matrix}." in key
            ]
            assert len(shapes) == 2
            assert [8 in shape for shape in shapes] == [True, True]
    assert len(names) == 3 * 4 * 2
    assert backbone.level == "tokens"
    adapter = backbone.stack.layers[0].self_attn.q_proj
    assert (adapter.scaling["default"], adapter.lora_dropout["default"].p) == (2.0, 0.1)


@pytest.mark.parametrize("name", DECODERS)
def test_an_untrained_adapter_changes_nothing(name: str, make_backbone: Make) -> None:
    assert torch.equal(token_states(make_backbone(name), IDS), token_states(make_backbone(name, lora_layers=0), IDS))


def test_adapters_in_the_last_layers_leave_the_others_for_the_cache(make_backbone: Make) -> None:
    backbone = make_backbone("llama", lora_layers=1)
    assert (backbone.level, backbone.frozen_layers) == ("hidden", 2)
    assert all("layers.2." in key for key in backbone.trained_parameters())
    frozen = make_backbone("llama", lora_layers=0)
    assert (frozen.level, frozen.trained_parameters()) == ("pooled", {})


def test_more_adapters_than_layers_are_refused(make_backbone: Make) -> None:
    with pytest.raises(PlmError, match="has 3 layers, so 4 cannot have adapters; set lora_layers to 3 or less"):
        make_backbone("llama", lora_layers=4)
