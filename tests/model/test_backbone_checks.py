"""The named checks that every backbone must pass: all tiny families, and the packaged MiniLM."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_backbones import SHAPES, hash_of, texts_of
from torch import Tensor

from patients_like_me.model.backbone import Backbone, Batch
from patients_like_me.model.embedding import embed_prompts
from patients_like_me.model.hidden_state_cache import HiddenStateCache
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.prompt_inputs import PromptInputs, prepare_inputs
from patients_like_me.model.randomness import seeded
from patients_like_me.model.settings import ModelSettings

TEXTS = texts_of([9, 3, 17, 1, 12, 5])
EVERY_BACKBONE = (*SHAPES, "minilm", "minilm-2")
#: With the lower layers frozen, for encoders by their last layers, for decoders by adapters in the last layer only.
CUT = {"lora_layers": 1}

pytestmark = pytest.mark.parametrize("name", EVERY_BACKBONE)
Make = Callable[..., Backbone]


def states(backbone: Backbone, ids: Tensor, mask: Tensor) -> Tensor:
    with torch.no_grad():
        return backbone.upper(backbone.lower(ids, mask), mask)


def embeddings(backbone: Backbone, inputs: PromptInputs, batches: list[list[int]]) -> Tensor:
    result = torch.zeros(len(inputs), backbone.width)
    with torch.no_grad():
        for rows in batches:
            result[rows] = backbone(inputs.batch(np.array(rows)))
    return result


def close(left: Tensor, right: Tensor, tolerance: float = 1e-5) -> bool:
    left, right = left.detach(), right.detach()
    return bool((left - right).abs().max() <= tolerance * max(1.0, float(right.abs().max())))


def test_the_split_model_equals_the_plain_one(name: str, make_backbone: Make) -> None:
    backbone = make_backbone(name, **CUT)
    prompts = prepare_inputs(backbone, TEXTS).prompts
    ids, mask = prompts.padded(np.arange(len(TEXTS)))
    if name == "roberta":
        # The plain model finds padding by its id; ours goes by the mask alone.
        ids = ids.masked_fill(~mask, backbone.stack.config.pad_token_id)
    with torch.no_grad():
        plain = backbone.stack.model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    assert 0 < backbone.frozen_layers < backbone.depth
    assert close(states(backbone, ids, mask)[mask], plain[mask])


def test_padding_is_invisible_on_both_sides(name: str, make_backbone: Make) -> None:
    backbone = make_backbone(name, **CUT)
    ids = torch.tensor([backbone.token_ids(TEXTS[:1], max_tokens=64)[0]])
    mask = torch.ones_like(ids, dtype=torch.bool)
    alone = states(backbone, ids, mask)
    for left, right in ((0, 5), (5, 0), (3, 4)):
        # The padding holds another real token: it must not be seen either way.
        padded = torch.nn.functional.pad(ids, (left, right), value=7)
        shown = torch.nn.functional.pad(mask, (left, right), value=False)
        assert close(states(backbone, padded, shown)[shown], alone[0])


def test_batch_size_and_order_change_nothing(name: str, make_backbone: Make) -> None:
    backbone = make_backbone(name, **CUT)
    inputs = prepare_inputs(backbone, TEXTS)
    one_by_one = embeddings(backbone, inputs, [[row] for row in range(6)])
    assert close(embeddings(backbone, inputs, [[5, 3, 0, 1, 4, 2]]), one_by_one)
    assert close(embeddings(backbone, inputs, [[2, 3], [0, 5], [4, 1]]), one_by_one)
    assert len({tuple(row) for row in one_by_one.tolist()}) == len(TEXTS)


def test_the_last_token_moves_the_first_ones_state(name: str, make_backbone: Make) -> None:
    backbone = make_backbone(name, **CUT)
    ids = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 8, 20]])
    first = states(backbone, ids, torch.ones_like(ids, dtype=torch.bool))[:, 0]
    assert (first[0] - first[1]).abs().max() > 1e-3


def test_only_what_is_trained_moves(name: str, make_backbone: Make) -> None:
    backbone = make_backbone(name, **CUT)
    model = PatientsLikeMeModel(backbone, ModelSettings(backbone=backbone.settings, outputs=1))
    inputs = prepare_inputs(backbone, TEXTS)
    before = {part: hash_of(model, part) for part in ("theta", "phi", "frozen")}
    theta = model.theta_parameters()
    optimiser = torch.optim.SGD(theta.values(), lr=0.1)
    model.set_training(language=True, graph=False)
    for step in range(2):
        # Two steps: the first gradient of an adapter's A is zero, since its B begins at zero.
        optimiser.zero_grad()
        with seeded(0, step):
            model.language_logits(model.embed(inputs.batch(np.arange(6)))).square().sum().backward()
        optimiser.step()
    assert {part: hash_of(model, part) == value for part, value in before.items()} == {
        "theta": False,
        "phi": True,
        "frozen": True,
    }
    # A key bias shifts all scores of a query alike, which the softmax does not see.
    seen = [key for key in theta if not key.endswith("key.bias")]
    assert [key for key in seen if theta[key].grad is None or not theta[key].grad.abs().sum() > 0] == []
    assert not any(value.requires_grad for value in backbone.stack.embeddings.parameters())


def test_the_cache_changes_no_result(name: str, make_backbone: Make, tmp_path: Path) -> None:
    backbone = make_backbone(name, **CUT)
    live = prepare_inputs(backbone, TEXTS)
    kept = prepare_inputs(backbone, TEXTS, cache=HiddenStateCache(tmp_path))
    short = prepare_inputs(backbone, TEXTS, cache=HiddenStateCache(tmp_path, dtype="float16"))
    rows = np.array([4, 1, 2])
    batches = [inputs.batch(rows) for inputs in (live, kept, short)]
    assert [batch.level for batch in batches] == ["tokens", "hidden", "hidden"]
    with torch.no_grad():
        plain, cached, rounded = (backbone(batch) for batch in batches)
    assert close(cached, plain)
    assert close(rounded, plain, 3e-2)
    backbone.train()
    gradients = []
    for batch in batches[:2]:
        backbone.zero_grad()
        with seeded(3):
            backbone(batch).square().sum().backward()
        gradients.append({key: value.grad.clone() for key, value in backbone.trained_parameters().items()})
    for key, gradient in gradients[0].items():
        assert close(gradients[1][key], gradient, 1e-4), key


def test_recomputing_layers_gives_the_same_gradient(name: str, make_backbone: Make) -> None:
    backbone = make_backbone(name, **CUT)
    batch = prepare_inputs(backbone, TEXTS).batch(np.arange(4))
    backbone.train()
    gradients = []
    for checkpointing in (False, True):
        backbone.stack.gradient_checkpointing = checkpointing
        backbone.zero_grad()
        with seeded(11):
            backbone(batch).square().sum().backward()
        gradients.append([value.grad.clone() for value in backbone.trained_parameters().values()])
    assert all(close(left, right, 1e-4) for left, right in zip(*gradients, strict=True))


def test_no_global_random_state_is_touched(name: str, make_backbone: Make) -> None:
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    backbone = make_backbone(name, **CUT)
    model = PatientsLikeMeModel(backbone, ModelSettings(backbone=backbone.settings, outputs=2))
    embed_prompts(model, prepare_inputs(backbone, TEXTS), precision="float32")
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002
    assert before[2] == random.getstate()


def test_the_same_seed_gives_the_same_model_and_the_same_dropout(name: str, make_backbone: Make) -> None:
    drawn = []
    for seed in (1, 1, 2):
        backbone = make_backbone(name, **CUT)
        model = PatientsLikeMeModel(backbone, ModelSettings(backbone=backbone.settings, outputs=1), seed=seed)
        model.set_training(language=True, graph=False)
        batch = prepare_inputs(backbone, TEXTS).batch(np.arange(3))
        with seeded(seed, 5), torch.no_grad():
            drawn.append(model.language_logits(model.embed(batch)))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_a_saved_model_gives_the_same_logits(name: str, make_backbone: Make, tmp_path: Path) -> None:
    backbone = make_backbone(name, **CUT)
    model = PatientsLikeMeModel(backbone, ModelSettings(backbone=backbone.settings, outputs=3), seed=4)
    inputs = prepare_inputs(backbone, TEXTS)
    with torch.no_grad():
        for value in model.theta_parameters().values():
            value.add_(0.05)
    model.save_pretrained(tmp_path)
    expected = embed_prompts(model, inputs, precision="float32")
    again = PatientsLikeMeModel.from_pretrained(tmp_path, backbone=make_backbone(name, **CUT))
    assert torch.equal(embed_prompts(again, inputs, precision="float32"), expected)
    assert torch.equal(again.language_logits(expected), model.language_logits(expected))


def test_pooling_ignores_what_stands_behind_the_end(name: str, make_backbone: Make) -> None:
    backbone = make_backbone(name, **CUT)
    batch = prepare_inputs(backbone, TEXTS).batch(np.arange(3))
    other = batch.values.masked_fill(~batch.mask, 9)
    with torch.no_grad():
        assert close(backbone(Batch("tokens", other, batch.mask, batch.rows)), backbone(batch))


def test_half_precision_is_the_same_with_and_without_kept_states(
    name: str, make_backbone: Make, tmp_path: Path
) -> None:
    backbone, rows = make_backbone(name, **CUT).eval(), np.arange(6)
    kept = prepare_inputs(backbone, TEXTS, cache=HiddenStateCache(tmp_path)).batch(rows)
    fresh = prepare_inputs(backbone, TEXTS).batch(rows)
    assert (kept.level, fresh.level) == ("hidden", "tokens")
    with torch.no_grad():
        assert close(backbone.pool(fresh, "bfloat16"), backbone.pool(kept, "bfloat16"), 1e-4)


def test_half_precision_arithmetic_comes_close(name: str, make_backbone: Make, tmp_path: Path) -> None:
    backbone = make_backbone(name, **CUT)
    model = PatientsLikeMeModel(backbone, ModelSettings(backbone=backbone.settings, outputs=1))
    rows = np.arange(6)
    for inputs in (prepare_inputs(backbone, TEXTS), prepare_inputs(backbone, TEXTS, cache=HiddenStateCache(tmp_path))):
        batch = inputs.batch(rows)
        plain = model.embed(batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = model.embed(batch)
        assert half.dtype == torch.float32
        assert close(half, plain, 0.1)
        half.sum().backward()


def test_weights_kept_in_half_precision_change_no_bit(name: str, make_backbone: Make) -> None:
    backbone = make_backbone(name, **CUT)
    batch = prepare_inputs(backbone, TEXTS).batch(np.arange(6))
    with torch.no_grad():
        before = backbone.pool(batch, "bfloat16")
        whole = backbone.pool(batch, "float32")
        backbone.keep_in("float32")
        assert torch.equal(backbone.pool(batch, "float32"), whole)
        backbone.keep_in("bfloat16")
        assert torch.equal(backbone.pool(batch, "bfloat16"), before)
    layers = list(backbone.stack.layers)
    kept = {module.weight.dtype for layer in layers[backbone.frozen_layers :] for module in linear_maps(layer)}
    frozen = {module.weight.dtype for layer in layers[: backbone.frozen_layers] for module in linear_maps(layer)}
    adapted = any("lora_" in parameter for parameter in backbone.trained_parameters())
    assert kept == {torch.float32 if adapted else torch.bfloat16}
    assert frozen <= {torch.float32}


def linear_maps(layer: torch.nn.Module) -> list[torch.nn.Linear]:
    return [module for module in layer.modules() if type(module) is torch.nn.Linear]


def test_threads_do_not_cut_each_others_texts(name: str, make_backbone: Make) -> None:
    backbone = make_backbone(name)
    text = " ".join(texts_of([200]) * 4)
    whole, wrong = backbone.count_tokens([text])[0], []

    def count() -> None:
        wrong.extend(found for _ in range(60) if (found := backbone.count_tokens([text])[0]) != whole)

    def cut() -> None:
        wrong.extend(found for _ in range(60) if (found := len(backbone.token_ids([text], max_tokens=16)[0])) != 16)

    threads = [threading.Thread(target=work) for work in (count, cut, count, cut)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert whole > 16
    assert wrong == []
