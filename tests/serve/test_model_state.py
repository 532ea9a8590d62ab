"""A run that is served while its bank is replaced: the old version answers until the new one is whole."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from serve.test_cds_hooks import call

from patients_like_me.runs.run import load_run
from patients_like_me.serve.model_state import ModelState, OpenedModel, version_of
from patients_like_me.serve.turns import apart

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


def test_a_run_is_opened_by_a_thread_that_ends(
    finished_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The team with which torch computes for a thread stays as long as the thread."""
    seen: list[threading.Thread] = []

    def load(*given: Any) -> Any:
        seen.append(threading.current_thread())
        return load_run(*given)

    monkeypatch.setattr("patients_like_me.serve.model_state.load_run", load)
    assert ModelState(finished_run(references="bank")).current.run.is_finished
    (thread,) = seen
    thread.join(20)
    assert thread is not threading.main_thread()
    assert not thread.is_alive()


def test_what_goes_wrong_apart_is_raised_here() -> None:
    with pytest.raises(RuntimeError, match="Mr Smith"):
        apart(_fail)


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
