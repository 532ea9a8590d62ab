"""A run that is served while its bank is replaced: the old version answers until the new one is whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from patients_like_me.serve.model_state import ModelState, version_of


def _fail(*_: object) -> None:
    raise RuntimeError("Mr Smith")


def test_another_version_is_opened_beside_the_old_one(
    finished_run: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished_run(references="bank"), folder)
    now = 0.0
    state = ModelState(folder, clock=lambda: now)
    first = state.current
    assert state.current is first

    # A bank that is half written cannot be opened: the old one goes on.
    damaged = folder / "bank" / "instances.parquet"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:100])
    now = 10.0
    state.look(wait=True)
    assert state.current is first
    assert state.version == first.version != version_of(folder)

    # Also where opening fails in a way that nobody foresaw: the thread ends in a line of the log, not in a traceback.
    os.utime(folder / "run.json", ns=(2, 2))
    with monkeypatch.context() as broken, caplog.at_level("WARNING"):
        broken.setattr("patients_like_me.serve.model_state.load_run", _fail)
        state.look(wait=True)
    assert state.current is first
    assert "RuntimeError" in caplog.text
    assert "Smith" not in caplog.text

    damaged.write_bytes(content)
    os.utime(folder / "run.json", ns=(1, 1))
    now = 20.0
    state.look(wait=True)
    assert state.current is not first
    assert state.version == version_of(folder)
