"""What is said about a backbone without loading it must be true of the loaded one."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModel

from patients_like_me.model.backbone_list import cost_of, measured_operations_per_second
from patients_like_me.model.backbones import KNOWN_BACKBONES
from patients_like_me.model.families import FAMILIES
from patients_like_me.model.layer_stack import LayerStack
from patients_like_me.model.loading import load_backbone
from patients_like_me.model.settings import BackboneSettings


@pytest.mark.parametrize("name", KNOWN_BACKBONES)
def test_the_stated_counts_are_those_of_the_architecture(name: str) -> None:
    preset = KNOWN_BACKBONES[name]
    shape = dict(preset.shape)
    model_type = shape.pop("model_type")
    with torch.device("meta"):
        model = AutoModel.from_config(AutoConfig.for_model(model_type, **shape))
    stack = LayerStack(model, FAMILIES[model_type])
    assert sum(value.numel() for value in stack.parameters()) == preset.parameters
    assert sum(value.numel() for value in stack.layers[-1].parameters()) == preset.parameters_per_layer


@pytest.mark.parametrize("trainable_layers", [0, 2])
def test_the_trained_parameters_are_those_that_learn(trainable_layers: int) -> None:
    settings = BackboneSettings(name="minilm", trainable_layers=trainable_layers)
    trained = sum(value.numel() for value in load_backbone(settings).trained_parameters().values())
    assert cost_of(KNOWN_BACKBONES["minilm"], settings).trained_parameters == trained


def test_adapters_are_counted() -> None:
    # q and o: 4096 to 4096; k and v: 4096 to 1024; rank 8, 32 layers.
    expected = 32 * 8 * (2 * (4096 + 4096) + 2 * (4096 + 1024))
    assert cost_of(KNOWN_BACKBONES["meerkat-8b"]).trained_parameters == expected


def test_the_cache_saves_the_frozen_layers_from_the_second_epoch_on() -> None:
    cost = cost_of(KNOWN_BACKBONES["biobert-large"])
    # 24 forward + 6 backward of double cost, against 6 of both.
    assert cost.first_epoch_operations / cost.later_epoch_operations == pytest.approx((18 + 6 * 3) / (6 * 3))
    assert cost.cache_bytes == 1000 * 256 * 1024 * 4
    assert cost_of(KNOWN_BACKBONES["minilm"]).cache_bytes == 0
    frozen = cost_of(KNOWN_BACKBONES["minilm"], BackboneSettings(trainable_layers=0))
    assert (frozen.cache_bytes, frozen.later_epoch_operations) == (1000 * 384 * 4, 0)


def test_the_machine_is_measured() -> None:
    assert measured_operations_per_second(seconds=0.02) > 1e8
