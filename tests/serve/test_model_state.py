"""A run that is served while its bank is replaced: the old version answers until the new one is whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from serve.test_cds_hooks import call

from patients_like_me.serve.model_state import ModelState, OpenedModel, version_of

HOOK = "patient-view"


class Replaced:
    """A state whose bank is replaced right after a request has begun."""

    def __init__(self, *models: OpenedModel) -> None:
        self.models = list(models)

    @property
    def current(self) -> OpenedModel:
        return self.models.pop(0) if len(self.models) > 1 else self.models[0]


@pytest.mark.parametrize("ask", ["predict", "page", "what-if", "card"])
def test_one_answer_comes_from_one_bank(served: Any, monkeypatch: pytest.MonkeyPatch, ask: str) -> None:
    old = served.state.model.current
    new = OpenedModel(old.run, "the next")
    # Whoever asks it fails.
    new.__dict__["answering"] = None
    service = served.client.get("/cds-services").json()["services"][0]["id"]
    monkeypatch.setattr(served.state, "model", Replaced(old, new))
    if ask == "predict":
        answer = served.client.post("/api/v1/predict", json={"visits": [{"diagnoses": ["own:sepsis"]}]})
        assert answer.json()["bank_version"] == old.version
    elif ask == "page":
        answer = served.client.get("/patients/P1", headers={"accept": "text/html"})
        assert f"bank {old.version}" in answer.text
    elif ask == "what-if":
        answer = served.client.post("/patients/P1/what-if", json={"drop": ["R1"]})
    else:
        # The services are listed first, by whichever run is there.
        monkeypatch.setattr("patients_like_me.serve.cds_hooks.services_of", lambda _: [{"id": service, "hook": HOOK}])
        answer = served.client.post(f"/cds-services/{service}", json=call(HOOK))
    assert answer.status_code == 200, answer.text


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
