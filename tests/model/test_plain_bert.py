"""The plain BERT is Hugging Face's: the same numbers, hashes and tokens, and what it does not know it leaves alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_backbones import tiny_model, tiny_tokenizer

from patients_like_me.model import loading
from patients_like_me.model.backbone import Backbone
from patients_like_me.model.loading import load_backbone
from patients_like_me.model.plain_bert import PlainBert, plain_bert
from patients_like_me.model.settings import BackboneSettings

TEXTS = ["sepsis diabetes", "renal failure " * 30, "heart"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bert") / "tiny"
    tiny_model("bert", max_position_embeddings=128).save_pretrained(place)
    tiny_tokenizer().save_pretrained(place)
    return place


def both(name: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[Backbone, Backbone]:
    wanted = BackboneSettings(name=name, trainable_layers=1, **settings)
    plain = load_backbone(wanted)
    monkeypatch.setattr(loading, "plain_bert", lambda *_, **__: None)
    return plain, load_backbone(wanted)


@pytest.mark.parametrize("training", [False, True])
def test_it_computes_what_transformers_computes(folder: Path, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, usual = both(str(folder), monkeypatch, attention_dropout=0.2)
    assert isinstance(plain.stack.model, PlainBert)
    assert not isinstance(usual.stack.model, PlainBert)
    assert plain.weights_sha256 == usual.weights_sha256
    assert plain.tokenizer_sha256 == usual.tokenizer_sha256
    assert plain.token_ids(TEXTS, max_tokens=20) == usual.token_ids(TEXTS, max_tokens=20)
    assert plain.count_tokens(TEXTS) == usual.count_tokens(TEXTS)
    ids = plain.token_ids(TEXTS, max_tokens=20)
    longest = max(len(each) for each in ids)
    mask = torch.tensor([[place < len(each) for place in range(longest)] for each in ids])
    padded = torch.tensor([each + [0] * (longest - len(each)) for each in ids])
    found = []
    for backbone in (plain, usual):
        backbone.train(training)
        torch.manual_seed(3)
        found.append(backbone.upper(backbone.lower(padded, mask), mask)[mask])
    # The same numbers are drawn for dropout, in the same order.
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "change", [{"hidden_act": "relu"}, {"position_embedding_type": "relative_key"}, {"model_type": "roberta"}]
)
def test_anything_else_is_left_to_transformers(folder: Path, change: dict[str, str], tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert plain_bert(folder, attention="sdpa", dtype="float32") is not None
    assert plain_bert(folder, attention="eager", dtype="float32") is None
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    assert plain_bert(tmp_path, attention="sdpa", dtype="float32") is None


def test_the_default_backbone_is_read_without_transformers() -> None:
    code = (
        "import sys; from patients_like_me.model.loading import load_backbone; "
        "from patients_like_me.model.settings import BackboneSettings; "
        "load_backbone(BackboneSettings(name='minilm-2', trainable_layers=1)); "
        "print([name for name in ('transformers', 'peft', 'sklearn', 'torch_geometric') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stdout.strip() == "[]", ended.stderr
