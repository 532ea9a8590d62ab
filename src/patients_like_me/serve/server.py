"""Starting the server: uvicorn on this machine, with the address printed once and no other log of requests."""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from patients_like_me.errors import PlmError
from patients_like_me.folders import user_folder
from patients_like_me.serve.access import COOKIE, Gate, TokenFile, default_token_file
from patients_like_me.serve.access_log import AccessLog
from patients_like_me.serve.app import create_app
from patients_like_me.serve.guard import GuardSettings, loopback_hosts
from patients_like_me.serve.patience import LimitedProtocol
from patients_like_me.serve.state import ServeState
from patients_like_me.serve.turns import let_one_thread_team_up
from patients_like_me.workers import keep_few_compiled_layers

_HOST_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?(?::[0-9]{1,5})?")


def is_loopback(host: str) -> bool:
    """Tell whether an address is this machine alone.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def guard_settings(host: str, port: int, behind_proxy: str | None) -> GuardSettings:
    """Return what the guard answers for; another address than this machine needs a proxy in front."""
    if not is_loopback(host) and behind_proxy is None:
        raise PlmError(
            f"the address '{host}' can be reached from other machines, and this server speaks plain HTTP",
            remedy="leave --host out, or put a TLS proxy with sign-on in front and name it with --behind-proxy "
            "(docs/serve.md)",
        )
    if behind_proxy is None:
        return GuardSettings(loopback_hosts(port), cookie=f"{COOKIE}_{port}")
    public = behind_proxy.lower()
    if not _HOST_NAME.fullmatch(public):
        raise PlmError(f"'{behind_proxy}' is not a host name", remedy="give one such as plm.hospital.example")
    # The prefix lets browsers refuse a cookie of this name that another host of the hospital's domain would set.
    return GuardSettings(frozenset({public}), secure=True, cookie=f"__Host-{COOKIE}")


def serve(
    run: Path,
    *,
    cohort: Path | None = None,
    trained_on: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8765,
    behind_proxy: str | None = None,
    show_ids: bool = False,
    access_log: Path | None = None,
    token_file: Path | None = None,
    threads: int | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Open a run and answer until the process is stopped."""
    # Texts of many lengths come again, so more than a training keeps.
    keep_few_compiled_layers(64)
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    # What can be wrong with the address is said before a model is opened.
    guard_settings(host, port or 1, behind_proxy)
    with closing(_listen(host, port)) as listening:
        port = listening.getsockname()[1]
        settings = guard_settings(host, port, behind_proxy)
        log = AccessLog(access_log or user_folder("serve", "PLM_SERVE") / "access.jsonl", run.resolve().name)
        let_one_thread_team_up()
        say("opening the run")
        state = ServeState(run, cohort=cohort, trained_on=trained_on, access_log=log, show_ids=show_ids)
        gate = Gate(TokenFile(token_file or default_token_file()))
        app = create_app(state, gate, settings)
        threading.Thread(target=state.prepare, daemon=True).start()
        logging.getLogger("patients_like_me.serve").setLevel(logging.INFO)
        address = f"https://{behind_proxy}" if behind_proxy else f"http://{_written(host)}:{port}"
        say(f"Open {address}/?token={gate.own}")
        say(f"Access log: {log.path}")
        log.add(gate.own_name, "start", None)
        uvicorn.Server(server_config(app)).run(sockets=[listening])


def server_config(app: FastAPI, protocol: type[LimitedProtocol] = LimitedProtocol) -> uvicorn.Config:
    """Return how uvicorn serves the application: without a log of requests, and with limits."""
    return uvicorn.Config(
        app,
        http=protocol,
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=256,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=32 * 1024,
        ws="none",
    )


def _written(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # By its protocol asyncio knows that small writes need not wait for one another: an answer would be 40 ms late.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise PlmError(
            f"the port {port} of '{host}' cannot be used ({error.strerror})", remedy="choose another with --port"
        ) from None
    return listening
