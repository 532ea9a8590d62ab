"""The frozen-layer cache: computed once, found by content, safe against a kill and a full disk."""

from __future__ import annotations

import errno
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from tiny_backbones import texts_of

from patients_like_me.errors import PlmError
from patients_like_me.model import hidden_state_cache
from patients_like_me.model.backbone import Backbone
from patients_like_me.model.batching import TokenizedPrompts
from patients_like_me.model.hidden_state_cache import HiddenStateCache
from patients_like_me.model.prompt_inputs import prepare_inputs

TEXTS = texts_of([9, 3, 17, 1, 12, 5])
Make = Callable[..., Backbone]


def prompts_of(backbone: Backbone, texts: list[str]) -> TokenizedPrompts:
    return TokenizedPrompts.from_lists(backbone.token_ids(texts, max_tokens=64))


def counting(backbone: Backbone) -> list[int]:
    """Count the prompts that run through the frozen layers."""
    calls: list[int] = []
    original = backbone.lower

    def lower(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        calls.append(len(ids))
        return original(ids, mask)

    backbone.lower = lower  # type: ignore[method-assign]
    return calls


def test_every_prompt_is_computed_once_whoever_asks(make_backbone: Make, tmp_path: Path) -> None:
    backbone = make_backbone("bert")
    calls = counting(backbone)
    prompts = prompts_of(backbone, [*TEXTS, TEXTS[0]])
    first = HiddenStateCache(tmp_path).fill(backbone, prompts)
    assert sum(calls) == len(TEXTS)
    # Another run, another order, one new prompt: only that one is computed.
    other = prompts_of(backbone, ["sepsis with fever", *reversed(TEXTS)])
    second = HiddenStateCache(tmp_path).fill(backbone, other)
    assert sum(calls) == len(TEXTS) + 1
    assert torch.equal(first.gather(np.array([2]))[0], second.gather(np.array([4]))[0])


def test_real_tokens_only_are_kept(make_backbone: Make, tmp_path: Path) -> None:
    backbone = make_backbone("bert")
    prompts = prompts_of(backbone, TEXTS)
    cache = HiddenStateCache(tmp_path)
    expected = int(prompts.lengths.sum()) * 32 * 4
    assert cache.bytes_for(backbone, prompts) == expected
    cache.fill(backbone, prompts)
    assert cache.bytes_for(backbone, prompts) == 0
    kept = [safetensors.numpy.load_file(path)["states"] for path in cache.folder_of(backbone).glob("*.safetensors")]
    assert sum(states.nbytes for states in kept) == expected


def test_weights_cut_and_format_have_folders_of_their_own(make_backbone: Make, tmp_path: Path) -> None:
    cache = HiddenStateCache(tmp_path)
    folders = {
        cache.folder_of(make_backbone("bert")),
        cache.folder_of(make_backbone("bert", trainable_layers=2)),
        cache.folder_of(make_backbone("bert", trainable_layers=0)),
        cache.folder_of(make_backbone("bert", seed=1)),
        HiddenStateCache(tmp_path, dtype="float16").folder_of(make_backbone("bert")),
    }
    assert len(folders) == 5
    assert cache.folder_of(make_backbone("bert")) in folders


def test_training_above_the_cut_leaves_the_cache_valid(make_backbone: Make, tmp_path: Path) -> None:
    backbone = make_backbone("bert")
    before = HiddenStateCache(tmp_path).folder_of(backbone)
    with torch.no_grad():
        for value in backbone.trained_parameters().values():
            value.add_(1.0)
    assert HiddenStateCache(tmp_path).folder_of(backbone) == before


def test_a_killed_run_goes_on_where_it_was(
    make_backbone: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = make_backbone("bert")
    prompts = prompts_of(backbone, TEXTS)
    small = HiddenStateCache(tmp_path, segment_bytes=1)
    calls = counting(backbone)
    done: list[int] = []

    def stop_after_three(number: int) -> None:
        done.append(number)
        if sum(done) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small.fill(backbone, prompts, tokens_per_batch=1, progress=stop_after_three)
    assert len(small.missing(backbone, prompts)) == 4
    states = small.fill(backbone, prompts, tokens_per_batch=1)
    assert sum(calls) == 3 + 4
    whole = HiddenStateCache(tmp_path / "other").fill(backbone, prompts)
    rows = np.arange(len(TEXTS))
    assert torch.allclose(states.gather(rows)[0], whole.gather(rows)[0], atol=1e-5)


def test_a_damaged_segment_is_computed_anew(make_backbone: Make, tmp_path: Path) -> None:
    backbone = make_backbone("bert")
    prompts = prompts_of(backbone, TEXTS)
    cache = HiddenStateCache(tmp_path)
    expected = cache.fill(backbone, prompts).gather(np.arange(6))[0]
    (segment,) = cache.folder_of(backbone).glob("*.safetensors")
    segment.write_bytes(segment.read_bytes()[:-40])
    assert len(cache.missing(backbone, prompts)) == 6
    assert torch.equal(cache.fill(backbone, prompts).gather(np.arange(6))[0], expected)


def test_a_flipped_bit_in_a_segment_is_found(make_backbone: Make, tmp_path: Path) -> None:
    backbone = make_backbone("bert")
    prompts = prompts_of(backbone, TEXTS)
    expected = HiddenStateCache(tmp_path).fill(backbone, prompts).gather(np.arange(6))[0]
    (segment,) = HiddenStateCache(tmp_path).folder_of(backbone).glob("*.safetensors")
    content = bytearray(segment.read_bytes())
    content[-7] ^= 64
    segment.write_bytes(content)
    assert torch.equal(HiddenStateCache(tmp_path).fill(backbone, prompts).gather(np.arange(6))[0], expected)


def test_too_little_disk_is_said_before_anything_is_computed(
    make_backbone: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = make_backbone("bert")
    calls = counting(backbone)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(hidden_state_cache.shutil, "disk_usage", lambda _: usage(100, 100, 10))
    with pytest.raises(PlmError, match=r"needs 0\.0 GB more and has 0\.0 GB free; free some space"):
        HiddenStateCache(tmp_path).fill(backbone, prompts_of(backbone, TEXTS))
    assert calls == []


def test_a_disk_that_fills_up_ends_in_a_sentence_and_leaves_no_half_file(
    make_backbone: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    backbone = make_backbone("bert")
    cache = HiddenStateCache(tmp_path)
    with pytest.raises(PlmError, match="GB free"):
        cache.fill(backbone, prompts_of(backbone, TEXTS))
    assert [path.name for path in cache.folder_of(backbone).iterdir()] == ["about.json"]


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_wholly_frozen_backbone_keeps_one_vector_per_prompt(name: str, make_backbone: Make, tmp_path: Path) -> None:
    backbone = make_backbone(name, **({"trainable_layers": 0} if name == "bert" else {"lora_layers": 0}))
    live = make_backbone(name, **({"trainable_layers": 1} if name == "bert" else {"lora_layers": 1}))
    rows = np.array([5, 0, 2])
    with torch.no_grad():
        expected = live(prepare_inputs(live, TEXTS).batch(rows))
    for cache in (None, HiddenStateCache(tmp_path)):
        batch = prepare_inputs(backbone, TEXTS, cache=cache).batch(rows)
        assert batch.level == "pooled"
        assert batch.values.shape == (3, 32)
        assert torch.allclose(backbone(batch), expected, atol=1e-5)
    assert HiddenStateCache(tmp_path / "new").bytes_for(backbone, prompts_of(backbone, TEXTS)) == 6 * 32 * 4


def test_a_wholly_trained_backbone_keeps_nothing_and_says_so(make_backbone: Make, tmp_path: Path) -> None:
    backbone = make_backbone("bert", trainable_layers=3)
    inputs = prepare_inputs(backbone, TEXTS, cache=HiddenStateCache(tmp_path))
    assert inputs.batch(np.array([0])).level == "tokens"
    assert "no hidden states can be kept" in inputs.note
    assert list(tmp_path.iterdir()) == []


def test_the_note_says_what_is_kept(make_backbone: Make, tmp_path: Path) -> None:
    backbone = make_backbone("bert")
    assert "output of 2 frozen layers kept in" in prepare_inputs(backbone, TEXTS, cache=HiddenStateCache(tmp_path)).note
    assert "output of 2 frozen layers is computed in every epoch" in prepare_inputs(backbone, TEXTS).note


def test_no_prompts_at_all_are_no_trouble(make_backbone: Make, tmp_path: Path) -> None:
    assert len(prepare_inputs(make_backbone("bert"), [], cache=HiddenStateCache(tmp_path))) == 0


def test_states_of_half_precision_weights_are_kept_exactly(make_backbone: Make, tmp_path: Path) -> None:
    backbone = make_backbone("llama", lora_layers=1)
    backbone.stack.to(torch.bfloat16)
    rows = np.arange(6)
    live = prepare_inputs(backbone, TEXTS).batch(rows)
    kept = prepare_inputs(backbone, TEXTS, cache=HiddenStateCache(tmp_path)).batch(rows)
    with torch.no_grad():
        assert torch.allclose(backbone(kept), backbone(live), atol=0.05)
        lower = backbone.lower(live.values, live.mask).float()
    assert (kept.values - lower)[live.mask].abs().max() <= 0.02 * lower.abs().max()
