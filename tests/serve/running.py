"""A server in a thread of the test, on a free loopback port."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import replace
from types import TracebackType
from typing import Any

import uvicorn

from patients_like_me.serve.access import Gate
from patients_like_me.serve.app import create_app
from patients_like_me.serve.patience import LimitedProtocol
from patients_like_me.serve.server import guard_settings, server_config
from patients_like_me.serve.state import ServeState


class RunningServer:
    """``with RunningServer(state) as server:`` answers at ``server.address``; ``server.login`` is what is printed."""

    def __init__(
        self,
        state: ServeState,
        *,
        gate: Gate | None = None,
        protocol: type[LimitedProtocol] = LimitedProtocol,
        **options: Any,
    ) -> None:
        self.state = state
        self.gate = gate or Gate()
        self.listening = socket.socket()
        self.listening.bind(("127.0.0.1", 0))
        self.port = int(self.listening.getsockname()[1])
        settings = replace(guard_settings("127.0.0.1", self.port, None), **options)
        self.app = create_app(state, self.gate, settings)
        self.server = uvicorn.Server(server_config(self.app, protocol))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listening]}, daemon=True)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def login(self) -> str:
        return f"{self.address}/?token={self.gate.own}"

    def start(self) -> None:
        self.thread.start()
        until = time.monotonic() + 20
        while not self.server.started and time.monotonic() < until:
            time.sleep(0.01)
        assert self.server.started

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()
        self.listening.close()

    def __enter__(self) -> RunningServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
