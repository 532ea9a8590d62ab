"""The client of generative language models: protocol, kept answers, counts, and what must never leave the machine."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from model.llm.fake_server import FakeServer, fake_server
from pydantic import ValidationError

from patients_like_me.errors import PlmError
from patients_like_me.model.llm.client import LLMClient
from patients_like_me.model.llm.deterministic import Deterministic
from patients_like_me.model.llm.endpoint import Endpoint, is_this_machine
from patients_like_me.model.llm.kept_answers import KeptAnswers
from patients_like_me.model.llm.settings import CONSENT, LLMSettings
from patients_like_me.model.llm.shortening import shortened

RECORD = "Mrs Example has sepsis"


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLM_LLM_CACHE", str(tmp_path / "answers"))
    return tmp_path / "answers"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as found:
        yield found


def client_of(server: FakeServer, **changes: object) -> LLMClient:
    settings = LLMSettings(backend="endpoint", model="tiny", address=server.address, **changes)
    return LLMClient(settings, Endpoint(settings, pauses=(0.0, 0.0)), KeptAnswers(_folder(), "tiny"))


def _folder() -> Path:
    from patients_like_me.model.llm.kept_answers import answers_folder

    return answers_folder()


def test_the_three_questions_reach_the_server(server: FakeServer) -> None:
    client, same = client_of(server), Deterministic()
    assert client.complete("Say:\n- sepsis") == "sepsis"
    assert np.allclose(client.label_logprobs("Q", ["0", "1"]), same.label_logprobs("Q", ["0", "1"]).value)
    assert np.allclose(client.embed(["heart", "lung"]), [same.embed("heart").value, same.embed("lung").value])
    paths = [path for path, _ in server.asked]
    assert paths == ["/v1/chat/completions"] * 2 + ["/v1/embeddings"] * 2
    assert server.asked[0][1]["temperature"] == 0
    # A label that the server does not offer is less probable than those that it does.
    offered = client.label_logprobs("Q2", ["0", "1", "2"])
    assert offered[2] < offered[:2].min()


def test_answers_are_kept_and_counted_and_nothing_is_asked_twice(server: FakeServer, kept: Path) -> None:
    first = client_of(server)
    words = [first.complete(f"Say:\n- {RECORD}"), first.complete(f"Say:\n- {RECORD}"), first.complete("Say:\n- b")]
    assert len(server.asked) == first.usage.calls == 2
    again = client_of(server)
    assert [again.complete(f"Say:\n- {RECORD}"), again.complete("Say:\n- b")] == [words[0], words[2]]
    assert len(server.asked) == 2
    assert (again.usage.calls, len(again.usage.questions)) == (0, 2)
    # What was read and written is the same, whoever asked first.
    assert (again.usage.read, again.usage.written) == (first.usage.read, first.usage.written)
    # Another length or another model is another question.
    client_of(server, new_tokens=3).complete("Say:\n- b")
    assert len(server.asked) == 3
    files = list(kept.iterdir())
    assert [file.name for file in files] == ["tiny.sqlite"]
    assert files[0].stat().st_mode & 0o077 == 0
    assert b"Say:" not in files[0].read_bytes()


def test_another_model_under_the_same_name_answers_for_itself(server: FakeServer) -> None:
    asked = []
    for created, size in ((1, 90), (2, 90), (3, 145)):
        server.models = [{"id": "tiny.gguf", "created": created, "meta": {"size": size}}]
        client_of(server).complete("Say:\n- a")
        asked.append(len(server.asked))
    # The same weights started again are the same model.
    assert asked == [1, 1, 2]
    server.models = [{"id": "tiny", "created": 4}, {"id": "other", "meta": {"size": 90}}]
    assert client_of(server).backend.identity == f"endpoint tiny {server.address}"


def test_a_busy_server_is_asked_again_and_a_wrong_one_is_named(server: FakeServer) -> None:
    server.failures = [503, 429]
    assert client_of(server).complete("Say:\n- a") == "a"
    for wrong, words in ((lambda: server.failures.append(400), "error 400"), (_break(server), "did not return JSON")):
        wrong()
        with pytest.raises(PlmError, match=words) as error:
            client_of(server).complete(RECORD)
        assert RECORD not in str(error.value)
    server.broken, server.logprobs = False, False
    with pytest.raises(PlmError, match="no log-probabilities"):
        client_of(server).label_logprobs("Q", ["0"])


def _break(server: FakeServer):  # type: ignore[no-untyped-def]
    def breaking() -> None:
        server.broken = True

    return breaking


def test_a_server_that_is_gone_is_named_without_the_prompt(caplog: pytest.LogCaptureFixture) -> None:
    with fake_server() as server:
        address = server.address
    settings = LLMSettings(backend="endpoint", model="tiny", address=address)
    with caplog.at_level(logging.DEBUG), pytest.raises(PlmError, match="does not answer") as error:
        Endpoint(settings, pauses=()).complete(RECORD, 3)
    assert RECORD not in str(error.value)
    assert RECORD not in caplog.text


def test_records_stay_on_this_machine_unless_the_user_says_so_in_words() -> None:
    away = {"backend": "endpoint", "model": "m", "address": "http://192.0.2.7/v1"}
    for words in ("", "yes", "true"):
        with pytest.raises(PlmError, match="not on this machine"):
            LLMClient.of(LLMSettings(**away, elsewhere=words))
    LLMClient.of(LLMSettings(**away, elsewhere=CONSENT))
    for host in ("0.0.0.0", "example.org", "127.0.0.1.example.org", "10.0.0.1", "localhost.example.org"):  # noqa: S104
        assert not is_this_machine(host)
    assert is_this_machine("localhost")


def test_neither_proxy_nor_redirection_carries_records_elsewhere(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_server() as other:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, other.address.removesuffix("/v1"))
        assert client_of(server).complete("Say:\n- a") == "a"
        server.redirection = f"{other.address}/chat/completions"
        with pytest.raises(PlmError, match="error 307"):
            client_of(server).complete("Say:\n- b")
        assert other.asked == []


def test_the_key_is_sent_and_not_kept(server: FakeServer, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLM_LLM_KEY", "only-for-the-server")
    client_of(server).complete("Say:\n- a")
    assert server.headers[0]["Authorization"] == "Bearer only-for-the-server"
    assert b"only-for" not in next(kept.iterdir()).read_bytes()


@pytest.mark.parametrize(
    "wrong",
    [
        {"backend": "endpoint"},
        {"backend": "endpoint", "model": "m", "address": "127.0.0.1:80"},
        {"backend": "endpoint", "model": "m", "address": "http://me:word@127.0.0.1/v1"},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        LLMSettings(**wrong)


def test_a_damaged_file_of_answers_is_named(server: FakeServer, kept: Path) -> None:
    kept.mkdir()
    (kept / "tiny.sqlite").write_bytes(b"not a database at all, but long enough to be one" * 40)
    with pytest.raises(PlmError, match=r"tiny\.sqlite' cannot be used"):
        client_of(server).complete("a")


def test_a_long_prompt_keeps_both_ends() -> None:
    lines = [f"line {number}" for number in range(100)]
    cut = shortened("\n".join(["question", *lines, "form"]), 40, lambda text: len(text.split()))
    assert cut.startswith("question")
    assert cut.endswith("form")
    assert len(cut.split()) <= 40
    assert len(shortened("word " * 100, 20, lambda text: len(text.split())).split()) <= 20
