"""Saving and loading: same logits, only what was trained, and no loading onto another backbone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tiny_backbones import hash_of, texts_of, tiny_model, tiny_tokenizer

from patients_like_me.errors import PlmError
from patients_like_me.model.backbone import Backbone
from patients_like_me.model.embedding import embed_prompts
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.prompt_inputs import prepare_inputs
from patients_like_me.model.settings import BackboneSettings, ModelSettings

Make = Callable[..., Backbone]
TEXTS = texts_of([4, 9])


def make_model(backbone: Backbone, **settings: object) -> PatientsLikeMeModel:
    return PatientsLikeMeModel(backbone, ModelSettings(backbone=backbone.settings, outputs=2, **settings), seed=1)


@pytest.fixture
def folder_backbone(tmp_path: Path) -> Path:
    """Return a folder with a tiny BERT, as a user would have one."""
    folder = tmp_path / "tiny"
    tiny_model("bert").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_a_run_loads_back_with_one_call(folder_backbone: Path, tmp_path: Path) -> None:
    settings = ModelSettings(backbone=BackboneSettings(name=str(folder_backbone), trainable_layers=2), outputs=2)
    model = PatientsLikeMeModel.build(settings, seed=5)
    with torch.no_grad():
        for value in (*model.theta_parameters().values(), *model.phi_parameters().values()):
            value.add_(0.01)
    model.save_pretrained(tmp_path / "run")
    again = PatientsLikeMeModel.from_pretrained(tmp_path / "run")
    assert [hash_of(again, part) for part in ("theta", "phi", "frozen")] == [
        hash_of(model, part) for part in ("theta", "phi", "frozen")
    ]
    inputs = prepare_inputs(model.backbone, TEXTS)
    assert torch.equal(
        embed_prompts(again, inputs, precision="float32"), embed_prompts(model, inputs, precision="float32")
    )
    assert again.settings == settings


def test_a_backbone_that_moved_is_found_by_its_new_name(folder_backbone: Path, tmp_path: Path) -> None:
    settings = ModelSettings(backbone=BackboneSettings(name=str(folder_backbone), trainable_layers=1), outputs=1)
    PatientsLikeMeModel.build(settings).save_pretrained(tmp_path / "run")
    moved = folder_backbone.rename(tmp_path / "elsewhere")
    with pytest.raises(PlmError, match="there is no backbone"):
        PatientsLikeMeModel.from_pretrained(tmp_path / "run")
    assert PatientsLikeMeModel.from_pretrained(tmp_path / "run", backbone_name=str(moved)).backbone.name == str(moved)


@pytest.mark.parametrize(("name", "part"), [("bert", "encoder.layer.2."), ("llama", ".lora_")])
def test_only_what_was_trained_is_written(name: str, part: str, make_backbone: Make, tmp_path: Path) -> None:
    make_model(make_backbone(name)).save_pretrained(tmp_path)
    with safe_open(tmp_path / "theta.safetensors", "pt") as file:
        names = list(file.keys())
    assert all(part in name or name.startswith(("projection.", "language_head.")) for name in names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "phi.safetensors", "theta.safetensors"]


def test_another_backbone_is_refused(make_backbone: Make, tmp_path: Path) -> None:
    make_model(make_backbone("bert")).save_pretrained(tmp_path)
    with pytest.raises(PlmError, match=r"the weights of the backbone 'tiny-bert' on this machine are not those"):
        PatientsLikeMeModel.from_pretrained(tmp_path, backbone=make_backbone("bert", seed=9))
    with pytest.raises(PlmError, match="loaded with other settings"):
        PatientsLikeMeModel.from_pretrained(tmp_path, backbone=make_backbone("bert", trainable_layers=2))


def test_another_tokenizer_is_refused(make_backbone: Make, tmp_path: Path) -> None:
    make_model(make_backbone("bert")).save_pretrained(tmp_path)
    other = make_backbone("bert")
    other.tokenizer_sha256 = "0" * 64
    with pytest.raises(PlmError, match="the tokenizer of the backbone"):
        PatientsLikeMeModel.from_pretrained(tmp_path, backbone=other)


@pytest.mark.parametrize("part", ["theta", "phi"])
def test_damaged_or_foreign_weights_are_refused(part: str, make_backbone: Make, tmp_path: Path) -> None:
    backbone = make_backbone("bert")
    make_model(backbone).save_pretrained(tmp_path)
    path = tmp_path / f"{part}.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(PlmError, match=rf"{part}.safetensors' are missing or damaged"):
        PatientsLikeMeModel.from_pretrained(tmp_path, backbone=backbone)
    path.unlink()
    with pytest.raises(PlmError, match="missing or damaged"):
        PatientsLikeMeModel.from_pretrained(tmp_path, backbone=backbone)


def test_a_folder_without_a_model_and_a_broken_one(make_backbone: Make, tmp_path: Path) -> None:
    with pytest.raises(PlmError, match="no saved model at"):
        PatientsLikeMeModel.from_pretrained(tmp_path / "nothing")
    make_model(make_backbone("bert")).save_pretrained(tmp_path)
    content = json.loads((tmp_path / "model.json").read_text())
    for broken, message in (
        ({"format": 1}, "is not complete"),
        (content | {"format": 99}, "has format 99, this version reads 1"),
        (content | {"settings": content["settings"] | {"surprise": 1}}, "is not complete"),
    ):
        (tmp_path / "model.json").write_text(json.dumps(broken))
        with pytest.raises(PlmError, match=message):
            PatientsLikeMeModel.from_pretrained(tmp_path)
