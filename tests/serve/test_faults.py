"""Clients that misbehave: large and slow bodies, clients that leave, crowds; the server goes on."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from serve.running import RunningServer

from patients_like_me.serve.patience import LimitedProtocol
from patients_like_me.serve.problems import HttpProblem
from patients_like_me.serve.server import _listen
from patients_like_me.serve.turns import Work

BODY = {"visits": [{"diagnoses": ["own:sepsis", "own:gout"]}]}


class Impatient(LimitedProtocol):
    """Waits a second where a real server waits longer."""

    head_seconds = 1.0
    read_seconds = 1.0


@pytest.fixture(scope="module")
def server(served: Any) -> Iterator[RunningServer]:
    with RunningServer(served.state, protocol=Impatient, most_bytes=100_000, body_seconds=1.0) as running:
        yield running


@pytest.fixture(autouse=True)
def _still_alive(server: RunningServer, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """After every fault: no traceback, and the next patient is predicted."""
    with caplog.at_level(logging.DEBUG):
        yield
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.exc_info]
    status, _ = ask(server, json.dumps(BODY).encode())
    assert status == 200


def ask(server: RunningServer, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    sent = {"authorization": f"Bearer {server.gate.own}", "content-type": "application/json", **headers}
    connection.request("POST", "/api/v1/predict", body, sent)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def opened(server: RunningServer, *lines: str) -> socket.socket:
    """Open a connection and send the head of a request."""
    stream = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    head = [
        "POST /api/v1/predict HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        f"Authorization: Bearer {server.gate.own}",
        "Content-Type: application/json",
        *lines,
    ]
    stream.sendall("\r\n".join([*head, "", ""]).encode())
    return stream


def test_a_body_of_a_gigabyte_is_refused_before_it_is_sent(server: RunningServer) -> None:
    with opened(server, f"Content-Length: {2**30}") as stream:
        answer = stream.recv(65536).decode()
        assert " 413 " in answer.splitlines()[0]
        assert "connection: close" in answer.lower()


def test_a_body_in_pieces_is_refused_where_it_becomes_too_large(server: RunningServer) -> None:
    sent = 0
    piece = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    with opened(server, "Transfer-Encoding: chunked") as stream:
        with suppress(OSError):
            while sent < 2**30:
                stream.sendall(piece)
                sent += 0x8000
        answer = b""
        with suppress(ConnectionResetError):
            answer = stream.recv(65536)
    assert sent < 50_000_000
    assert not answer or b" 413 " in answer.split(b"\r\n")[0]


def test_a_slow_client_is_told_so_and_blocks_nobody(server: RunningServer) -> None:
    with opened(server, "Content-Length: 1000") as stream:
        stream.sendall(b'{"visits":')
        started = time.monotonic()
        status, _ = ask(server, json.dumps(BODY).encode())
        assert status == 200
        answer = stream.recv(65536).decode()
    assert " 408 " in answer.splitlines()[0]
    assert time.monotonic() - started < 50


@pytest.mark.parametrize("start", [b"", b"GET /api/v1/he", b"GET /api/v1/health HTTP/1.1\r\nHost: "])
def test_a_head_that_never_ends_is_refused(server: RunningServer, start: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as stream:
        stream.sendall(start)
        assert b" 408 " in stream.recv(65536).split(b"\r\n")[0]
        assert stream.recv(65536) == b""


def test_a_second_head_that_never_ends_is_refused_and_a_whole_one_is_not(server: RunningServer) -> None:
    asked = f"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as stream:
        for _ in range(2):
            stream.sendall(asked)
            answer = b""
            while not answer.endswith(b"}"):
                answer += stream.recv(65536)
            assert b" 200 " in answer.split(b"\r\n")[0]
            # Longer than a head may take: between two requests a connection may rest.
            time.sleep(1.2)
        stream.sendall(asked[:20])
        assert b" 408 " in stream.recv(65536).split(b"\r\n")[0]


def test_an_answer_that_nobody_reads_is_given_up(server: RunningServer) -> None:
    asked = f"GET /assets/style.css HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode()
    with socket.socket() as stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.settimeout(60)
        stream.connect(("127.0.0.1", server.port))
        stream.setblocking(False)
        with suppress(BlockingIOError):
            for _ in range(3000):
                stream.send(asked)
        until = time.monotonic() + 30
        while server.server.server_state.connections and time.monotonic() < until:
            time.sleep(0.05)
        assert not server.server.server_state.connections


@pytest.mark.parametrize("part", [b"", b'{"visits"', json.dumps(BODY).encode()])
def test_a_client_that_leaves_is_forgotten(server: RunningServer, part: bytes) -> None:
    length = len(json.dumps(BODY))
    with opened(server, f"Content-Length: {length}") as stream:
        stream.sendall(part)


@pytest.mark.parametrize(
    "garbage",
    [b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"POST /api/v1/predict HTTP/1.1\r\nContent-Length: -5\r\n\r\n"],
)
def test_what_is_not_http_is_refused(server: RunningServer, garbage: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as stream:
        stream.sendall(garbage)
        assert b" 400 " in stream.recv(65536).split(b"\r\n")[0]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"visits": [{"age": ' + b"9" * 5000 + b"}]}", {400, 422}),
        (b"[" * 50_000, {400}),
        (b'{"a":' * 9_000 + b"1" + b"}" * 9_000, {400, 422}),
        (b'{"id": "\\ud800", "visits": [{}]}', {400, 422}),
        (b'{"visits": [{"diagnoses": ["\\u0000", "\\u202e"]}]}', {200, 422}),
        (b'{"visits": [{"age": NaN}]}', {400, 422}),
        ('{"visits": [{"diagnoses": ["é"]}]}'.encode("latin-1"), {400, 422}),
        (b"\xff\xfe", {400, 422}),
        (b'{"resourceType": "Bundle", "entry": [{"resource": {"resourceType": "Patient", "id": "\\ud800"}}]}', {422}),
        (b'{"resourceType": "Bundle", "entry": [{"resource": {"resourceType": "Encounter", "period": 5}}]}', {422}),
    ],
)
def test_odd_json_is_refused_in_words(server: RunningServer, body: bytes, status: set[int]) -> None:
    found, answer = ask(server, body)

    assert found in status, answer
    assert found == 200 or answer["detail"]


def test_a_crowd_is_sent_away_with_advice() -> None:
    work = Work(at_once=1, waiting=1)
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with work.slot():
            inside.set()
            leave.wait(20)

    threads = [threading.Thread(target=stay) for _ in range(2)]
    threads[0].start()
    assert inside.wait(20)
    threads[1].start()
    until = time.monotonic() + 20
    while work._present < 2 and time.monotonic() < until:
        time.sleep(0.001)
    with pytest.raises(HttpProblem) as refused, work.slot():
        pass
    assert refused.value.status == 503
    assert refused.value.headers == {"retry-after": "1"}
    leave.set()
    for thread in threads:
        thread.join(20)
    with work.slot():
        pass


def test_an_unforeseen_error_says_nothing_about_the_patient(
    served: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("Mr Smith has sepsis")

    monkeypatch.setattr(served.state, "predict", fail)
    with caplog.at_level(logging.DEBUG):
        answer = served.client.post("/api/v1/predict", json=BODY)

    assert answer.status_code == 500
    assert "Smith" not in answer.text + caplog.text
    assert "ValueError at" in caplog.text


def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_head() -> None:
    """Head and body are two small packets; held back, the second would be some 40 ms late."""

    async def is_sent_at_once() -> bool:
        seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listening = _listen("127.0.0.1", 0)
        async with await asyncio.start_server(answer, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            found = await seen
            writer.close()
            await writer.wait_closed()
        return bool(found)

    assert asyncio.run(is_sent_at_once())
