"""``plm serve``: a run or a command, tokens, and addresses that are refused before a model is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.errors import PlmError


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["serve", *words])


def test_tokens_are_added_listed_and_removed(tmp_path: Path) -> None:
    file = str(tmp_path / "tokens.json")
    added = run("tokens", "add", "ward-3", "--role", "what-if", "--role", "read", "--tokens", file)
    token = added.stdout.splitlines()[0]
    assert len(token) > 40
    assert token not in Path(file).read_text()
    assert run("tokens", "list", "--tokens", file).stdout.startswith("ward-3\tread, what-if\tsince ")
    assert isinstance(run("tokens", "add", "ward-3", "--tokens", file).exception, PlmError)
    assert run("tokens", "remove", "ward-3", "--tokens", file).stdout == "removed: ward-3\n"
    assert run("tokens", "list", "--tokens", file).stdout == ""


def test_a_word_that_is_no_command_is_a_run(tmp_path: Path) -> None:
    for words in ((str(tmp_path / "run"), "--port", "0"), ("--port", "0", str(tmp_path / "run"))):
        found = run(*words, "--access-log", str(tmp_path / "log"), "--tokens", str(tmp_path / "tokens.json"))
        assert isinstance(found.exception, PlmError)
        assert "is not a run folder" in str(found.exception)


def test_the_help_of_serving_shows_its_options_and_the_other_commands() -> None:
    for words in (("--help",), ()):
        shown = run(*words).stdout
        for wanted in ("serve RUN [OPTIONS]", "--cohort", "--port", "--behind-proxy", "--show-ids", "tokens"):
            assert wanted in shown
    assert "remove" in run("tokens", "--help").stdout
    assert "--role" in run("tokens", "add", "--help").stdout


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.7", "plm.hospital.example"])  # noqa: S104 - they are refused
def test_an_open_address_is_refused_without_a_proxy(host: str) -> None:
    found = run("runs/vem", "--host", host)

    assert isinstance(found.exception, PlmError)
    assert "--behind-proxy" in str(found.exception)
