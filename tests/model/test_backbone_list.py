"""``plm backbones``: the list, and adding from a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from patients_like_me.cli.backbones import backbones_app
from patients_like_me.model.backbone_list import list_backbones
from patients_like_me.model.backbones import KNOWN_BACKBONES


@pytest.fixture(autouse=True)
def empty_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLM_BACKBONES", str(tmp_path / "added"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "added"


def test_every_preset_is_listed_with_what_is_missing() -> None:
    rows = {row.name: row for row in list_backbones()}
    assert set(rows) == set(KNOWN_BACKBONES)
    assert {name for name, row in rows.items() if row.missing is None} == {"minilm", "minilm-2"}
    for row in rows.values():
        assert row.licence
        assert row.trained_parameters
    assert "BioMistral/BioMistral-7B" in str(rows["biomistral-7b"].missing)


def test_what_a_user_added_is_listed(empty_folders: Path) -> None:
    folder = empty_folders / "my-llama"
    folder.mkdir(parents=True)
    about = {"model_type": "llama", "source": "my.gguf", "parameters": 1000, "licence": "not known"}
    (folder / "backbone.json").write_text(json.dumps(about))
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 2, "hidden_size": 16}))
    row = list_backbones()[-1]
    assert (row.name, row.title, row.layers, row.width, row.missing) == ("my-llama", "added from my.gguf", 2, 16, None)


def test_the_command_shows_names_costs_and_the_way_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    result = CliRunner().invoke(backbones_app, [])
    assert result.exit_code == 0
    for word in (*KNOWN_BACKBONES, "7.5 B", "28x1024", "plm backbones add", "Apache-2.0", "thomas-sounack"):
        assert word in result.output
    assert "…" not in result.output


def test_adding_something_else_is_one_sentence(tmp_path: Path) -> None:
    from patients_like_me.errors import PlmError

    result = CliRunner().invoke(backbones_app, ["add", str(tmp_path / "absent.gguf")])
    assert isinstance(result.exception, PlmError)
    assert "is not a file" in str(result.exception)


def test_listing_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from patients_like_me.model.backbone_list import list_backbones; list_backbones(); "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
