"""A decoder in this process and a real server of one: the same words, and log-probabilities that add up."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from patients_like_me.errors import PlmError
from patients_like_me.model.llm.client import LLMClient
from patients_like_me.model.llm.decoder import load_language_head_model, weights_digest
from patients_like_me.model.llm.endpoint import Endpoint
from patients_like_me.model.llm.settings import LLMSettings


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLM_LLM_CACHE", str(tmp_path / "answers"))


def test_it_answers_the_three_questions(decoder_folder: Path) -> None:
    client = LLMClient.of(LLMSettings(backend="decoder", model=str(decoder_folder), new_tokens=5))
    words = client.complete("patient with heart failure")
    assert words
    again = LLMClient.of(client.settings)
    assert again.complete("patient with heart failure") == words
    assert again.usage.calls == 0
    assert client.embed(["heart failure", "asthma"]).shape == (2, 32)
    logs = client.label_logprobs("patient with heart failure", ["yes", "kidney", "heart failure"])
    assert (logs < 0).all()
    # The probabilities of all single tokens add up to one.
    loaded = load_language_head_model(str(decoder_folder))
    every = [[token] for token in range(loaded.model.config.vocab_size)]
    with torch.no_grad():
        ids = loaded.prompt_ids("patient with heart failure", 100)
        single = loaded.label_logprobs([ids], every)[0]
        pair = loaded.label_logprobs([ids], [loaded.answer_ids("heart failure")])[0]
    assert float(single.exp().sum()) == pytest.approx(1, abs=1e-5)
    assert logs[2] == pytest.approx(float(pair[0]), abs=1e-5)


def test_padding_changes_no_log_probability(decoder_folder: Path) -> None:
    loaded = load_language_head_model(str(decoder_folder))
    prompts = [loaded.prompt_ids(text, 100) for text in ("heart", "kidney failure and stroke and pain")]
    labels = [loaded.answer_ids("no"), loaded.answer_ids("days")]
    with torch.no_grad():
        together = loaded.label_logprobs(prompts, labels)
        alone = torch.cat([loaded.label_logprobs([prompt], labels) for prompt in prompts])
        summed = -loaded.losses(prompts, [labels[0]] * 2)
    assert torch.allclose(together, alone, atol=1e-5)
    assert torch.allclose(summed, together[:, 0], atol=1e-5)


def test_long_prompts_are_cut_in_the_middle(decoder_folder: Path) -> None:
    loaded = load_language_head_model(str(decoder_folder))
    ids = loaded.prompt_ids("\n".join(["patient", *["heart"] * 300, "days"]), 40)
    assert len(ids) <= 40


def test_encoders_and_missing_models_are_refused(tiny_folder: Path) -> None:
    with pytest.raises(PlmError, match="is an encoder"):
        load_language_head_model(str(tiny_folder))
    with pytest.raises(PlmError, match="there is no backbone"):
        LLMClient.of(LLMSettings(backend="decoder", model="nowhere"))


def test_other_weights_in_the_same_place_have_another_digest(decoder_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(decoder_folder, tmp_path / "copy"))
    before = weights_digest(str(folder))
    assert before == weights_digest(str(decoder_folder))
    (folder / "model.safetensors").write_bytes(b"other weights")
    assert weights_digest(str(folder)) != before


@pytest.fixture
def served(decoder_folder: Path) -> Iterator[str]:
    """Return the address of transformers' own server with the tiny decoder."""
    from transformers.utils.import_utils import is_serve_available

    if not is_serve_available():
        pytest.skip("'transformers serve' is not installed: pip install -c constraints.txt openai")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["serve", str(decoder_folder), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    program = "import sys; from transformers.cli.transformers import main; sys.exit(main())"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(3000):
            if process.poll() is not None:
                pytest.fail(f"'transformers serve' ended with {process.returncode}")
            with socket.socket() as attempt:
                if attempt.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        else:
            pytest.fail("'transformers serve' did not start")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(20)


def test_a_real_server_answers(served: str, decoder_folder: Path) -> None:
    model = str(decoder_folder)
    settings = LLMSettings(backend="endpoint", model=model, address=served, new_tokens=6)
    answer = Endpoint(settings).complete("patient with heart failure", 6)
    assert answer.value
    assert 0 < answer.written <= 6
    assert answer.read > 3
    # The same question gets the same answer: nothing is drawn at random.
    assert Endpoint(settings).complete("patient with heart failure", 6).value == answer.value
    with pytest.raises(PlmError, match=r"no log-probabilities|error 4"):
        Endpoint(settings).label_logprobs("patient", ["0", "1"])


@pytest.mark.parametrize("name", ["smollm2-135m"])
def test_a_real_decoder_ranks_a_sensible_answer_first(name: str) -> None:
    from patients_like_me.model.backbones import locate

    if locate(name) is None:
        pytest.skip("SmolLM2 is not installed: 'plm backbones' says how to get it")
    client = LLMClient.of(LLMSettings(backend="decoder", model=name))
    logs = client.label_logprobs("Is Paris the capital of France? Answer with yes or no.", ["Yes", "Tomato"])
    assert logs[0] > logs[1]
    assert np.isfinite(logs).all()
