"""A changed byte in what a run keeps is found when it is read, with the name of the file."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from patients_like_me.errors import PlmError
from patients_like_me.explanation.scene import graph_model_of
from patients_like_me.runs.run import load_run
from patients_like_me.systems.contract import RunContext

FILES = [
    "predictions.parquet",
    "embeddings.safetensors",
    "epochs.json",
    "bank/embeddings.safetensors",
    "bank/instances.parquet",
    "model/theta.safetensors",
    "model/phi.safetensors",
]


@pytest.fixture
def run(finished_run: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run(references="bank"), tmp_path / "run"))


def read(run: Path, file: str) -> None:
    opened = load_run(run)
    if file == "predictions.parquet":
        opened.predictions()
    elif file == "epochs.json":
        opened.epoch_records()
    elif file == "embeddings.safetensors":
        opened.embeddings_of("test")
    elif file.startswith("bank/"):
        _ = load_run(run).graph_bank
    else:
        _ = graph_model_of(opened).graph_network


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_bit_is_found(run: Path, file: str) -> None:
    assert file in load_run(run).record.digests
    path, draw = run / file, random.Random(file)
    whole = path.read_bytes()
    read(run, file)
    for _ in range(8):
        content = bytearray(whole)
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        with pytest.raises(PlmError, match=f"'.*{file}' is damaged"):
            read(run, file)


@pytest.mark.parametrize("key", ["settings", "backbone", "sha256", "format"])
def test_a_model_description_without_a_key_ends_in_a_sentence(run: Path, key: str) -> None:
    from patients_like_me.model.joint import PatientsLikeMeModel

    path = next((run / "model").glob("*.json"))
    content = json.loads(path.read_text())
    for damaged in ({**content, key: None}, {name: value for name, value in content.items() if name != key}, [], 7):
        path.write_text(json.dumps(damaged))
        with pytest.raises(PlmError, match=r"not complete|has format"):
            PatientsLikeMeModel.from_pretrained(run / "model")
        with pytest.raises(PlmError, match=f"{path.name}' is damaged"):
            _ = graph_model_of(load_run(run)).graph_network


def test_no_digest_is_kept_of_what_changes_or_is_removed(run: Path) -> None:
    kept = load_run(run).record.digests
    assert "run.json" not in kept
    assert "checkpoint.safetensors" not in kept
    assert not [name for name in kept if name.endswith(".partial")]


def test_another_number_in_the_record_is_found(run: Path) -> None:
    path = run / "run.json"
    content = json.loads(path.read_text())
    content["results"]["scores"]["test"] = dict.fromkeys(content["results"]["scores"]["test"], 0.99)
    path.write_text(json.dumps(content))
    with pytest.raises(PlmError, match=r"run\.json' is damaged: its content is not what was written"):
        load_run(run)


def test_a_changed_checkpoint_is_refused(tmp_path: Path) -> None:
    context = RunContext(None, folder=tmp_path)
    context.save_checkpoint({"weights": np.arange(6.0)}, {"epoch": 1})
    kept = context.load_checkpoint()
    assert kept is not None
    assert kept[1] == {"epoch": 1}
    path = tmp_path / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)
    with pytest.raises(PlmError, match="its content is not what was written"):
        context.load_checkpoint()
