"""Encoders: which layers learn, and what the cut does not change."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tiny_backbones import ENCODERS, texts_of

from patients_like_me.errors import PlmError
from patients_like_me.model.backbone import Backbone
from patients_like_me.model.prompt_inputs import prepare_inputs

Make = Callable[..., Backbone]


@pytest.mark.parametrize("trainable_layers", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ENCODERS)
def test_exactly_the_last_layers_learn(name: str, trainable_layers: int, make_backbone: Make) -> None:
    backbone = make_backbone(name, trainable_layers=trainable_layers)
    layers = list(backbone.stack.layers)
    learning = [all(value.requires_grad for value in layer.parameters()) for layer in layers]
    resting = [not any(value.requires_grad for value in layer.parameters()) for layer in layers]
    assert learning == [place >= 3 - trainable_layers for place in range(3)]
    assert resting == [place < 3 - trainable_layers for place in range(3)]
    assert backbone.level == {0: "pooled", 3: "tokens"}.get(trainable_layers, "hidden")


@pytest.mark.parametrize("trainable_layers", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ENCODERS)
def test_the_cut_may_lie_anywhere(name: str, trainable_layers: int, make_backbone: Make) -> None:
    texts = texts_of([20, 4, 11])
    whole = make_backbone(name, trainable_layers=3)
    cut = make_backbone(name, trainable_layers=trainable_layers)
    with torch.no_grad():
        expected = whole(prepare_inputs(whole, texts).batch(np.arange(3)))
        found = cut(prepare_inputs(cut, texts).batch(np.arange(3)))
    assert (expected - found).abs().max() < 1e-5


def test_six_layers_learn_unless_there_are_fewer(make_backbone: Make) -> None:
    assert make_backbone("bert", trainable_layers=None, shape={"num_hidden_layers": 8}).frozen_layers == 2
    assert make_backbone("bert", trainable_layers=None).frozen_layers == 0


def test_more_layers_than_there_are_cannot_learn(make_backbone: Make) -> None:
    with pytest.raises(PlmError, match="'minilm-2' has 2 layers, so 6 cannot be trained; set trainable_layers to 2"):
        make_backbone("minilm-2", trainable_layers=6)


def test_minilm_2_is_the_first_two_layers_of_minilm(make_backbone: Make) -> None:
    whole, short = make_backbone("minilm"), make_backbone("minilm-2")
    ids = torch.tensor([whole.token_ids(["acute kidney failure"], max_tokens=32)[0]])
    mask = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        after_two = whole.stack.run(whole.stack.embed(ids, mask), mask, 0, 2)
        assert torch.equal(short.upper(short.lower(ids, mask), mask), after_two)
    assert whole.weights_sha256 != short.weights_sha256


def test_modernbert_sees_near_tokens_in_local_layers_and_all_in_global_ones(make_backbone: Make) -> None:
    stack = make_backbone("modernbert").stack
    ids = torch.arange(5, 25)[None, :]
    other = ids.clone()
    other[0, 19] = 30
    mask = torch.ones_like(ids, dtype=torch.bool)

    def moved(layer: int) -> list[bool]:
        with torch.no_grad():
            before, after = (stack.run(stack.embed(each, mask), mask, layer, layer + 1) for each in (ids, other))
        return ((before - after).abs().amax(dim=2)[0] > 1e-6).tolist()

    assert moved(0) == [True] * 20
    assert moved(1) == [19 - place <= stack.config.sliding_window for place in range(20)]


def test_the_frozen_layers_never_drop_and_the_trained_do(make_backbone: Make) -> None:
    backbone = make_backbone("bert", trainable_layers=1).train()
    ids = torch.arange(5, 15)[None, :]
    mask = torch.ones_like(ids, dtype=torch.bool)
    lower = [backbone.lower(ids, mask) for _ in range(2)]
    assert torch.equal(*lower)
    assert not torch.equal(backbone.upper(lower[0], mask), backbone.upper(lower[0], mask))


def test_attention_dropout_can_be_set(make_backbone: Make) -> None:
    for name in ("bert", "modernbert", "llama"):
        backbone = make_backbone(name, attention_dropout=0.5, lora_dropout=0.0).train()
        for module in backbone.stack.modules():
            # The other dropouts would hide the one in question.
            if isinstance(module, torch.nn.Dropout) and not type(module).__name__.endswith("SelfAttention"):
                module.p = 0.5 if module.p == 0.5 else 0.0
        ids = torch.arange(5, 15)[None, :]
        mask = torch.ones_like(ids, dtype=torch.bool)
        hidden = backbone.lower(ids, mask)
        assert not torch.equal(backbone.upper(hidden, mask), backbone.upper(hidden, mask)), name


def test_dropout_of_hidden_states_can_be_set(make_backbone: Make) -> None:
    ids = torch.arange(5, 15)[None, :]
    mask = torch.ones_like(ids, dtype=torch.bool)
    for name in ("bert", "modernbert"):
        noisy, clean = (make_backbone(name, dropout=rate, attention_dropout=0.0).train() for rate in (0.5, 0.0))
        hidden = noisy.lower(ids, mask)
        assert not torch.equal(noisy.upper(hidden, mask), noisy.upper(hidden, mask)), name
        assert torch.equal(clean.upper(hidden, mask), clean.upper(hidden, mask)), name
