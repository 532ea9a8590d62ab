"""Servers for tests: one of a graph run, and what a client needs to ask it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from starlette.testclient import TestClient

from patients_like_me.serve.access import Gate, TokenFile
from patients_like_me.serve.access_log import AccessLog
from patients_like_me.serve.app import create_app
from patients_like_me.serve.guard import GuardSettings
from patients_like_me.serve.state import ServeState

HOST = "127.0.0.1:8765"


@dataclass
class Served:
    """An application and its client, which sends the token of the start."""

    app: Any
    state: ServeState
    gate: Gate
    client: TestClient
    log: Path

    @property
    def token(self) -> str:
        return self.gate.own

    def other_client(self, **headers: str) -> TestClient:
        """Return a client without the token, with other headers."""
        return TestClient(self.app, base_url=f"http://{HOST}", headers=headers, follow_redirects=False)


def serve_state(state: ServeState, gate: Gate, log: Path) -> Served:
    app = create_app(state, gate, GuardSettings(frozenset({HOST}), most_bytes=2**20, body_seconds=2.0))
    client = TestClient(app, base_url=f"http://{HOST}", headers={"authorization": f"Bearer {gate.own}"})
    return Served(app, state, gate, client, log)


@pytest.fixture(scope="session")
def make_served(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Served]:
    """Return a function that serves a run folder, each once, with a log and a file of tokens of its own."""
    made: dict[Any, Served] = {}

    def make(run: Path, cohort: Path | None = None) -> Served:
        if (run, cohort) not in made:
            made[run, cohort] = opened(run, cohort)
        return made[run, cohort]

    def opened(run: Path, cohort: Path | None) -> Served:
        folder = tmp_path_factory.mktemp("serve")
        log = folder / "access.jsonl"
        state = ServeState(run, cohort=cohort, access_log=AccessLog(log, run.name))
        return serve_state(state, Gate(TokenFile(folder / "tokens.json")), log)

    return make


@pytest.fixture(scope="session")
def today(make_cohort: Callable[..., Path]) -> Path:
    """Return the cohort of some patients of today, who are in no training."""
    return make_cohort(patients=14, seed=5, prefix="t")


@pytest.fixture(scope="session")
def served(make_served: Callable[..., Served], finished_run: Callable[..., Path], today: Path) -> Served:
    """Return a served run of patients_like_me, with today's patients."""
    return make_served(finished_run(references="bank"), today)


@pytest.fixture(scope="session")
def plain_served(
    make_served: Callable[..., Served], cohort_folder: Path, today: Path, tmp_path_factory: pytest.TempPathFactory
) -> Served:
    """Return a served run of a system without references."""
    from patients_like_me.systems.train import train

    folder = tmp_path_factory.mktemp("plain") / "run"
    return make_served(train(cohort_folder, "readmission", folder, system="frequency").folder, today)
