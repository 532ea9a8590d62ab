"""The demo speaks the language of the command line, and ends with pages to open."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_command

from patients_like_me import demo
from patients_like_me.cli import app
from patients_like_me.training.settings import settings_of_preset


def test_every_step_of_the_demo_is_a_command_with_known_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[list[str]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "_plm", lambda *words: given.append([str(word) for word in words]))
    monkeypatch.setattr(demo, "_three_examples", lambda run: [4, 9, 23])
    demo.main()
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for name, *words in given:
        commands[name].make_context(name, list(words))
    steps = [words[0] for words in given]
    assert steps[:2] == ["synthesize", "prepare"]
    assert steps[-5:] == ["compare", "explain", "explain", "explain", "report"]
    last = capsys.readouterr().out
    for page in ("report.html", "test-4.html", "test-9.html", "test-23.html", "flow.svg"):
        assert page in last
    assert "made up" in last
    assert "make serve" in last
    assert "http://127.0.0.1:8765" in last
    # The server starts only if it is asked for.
    assert "serve" not in steps


def test_the_demo_draws_its_references_from_the_bank() -> None:
    changes = dict(word.removeprefix("graph.").split("=") for word in demo.GRAPH[1::2])
    assert settings_of_preset("quick", graph=changes).graph.references == "bank"


def test_a_step_that_fails_stops_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        demo._plm("report", tmp_path / "nowhere")
    assert stopped.value.code == 2
