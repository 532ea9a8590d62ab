"""A server on loopback that speaks as much of the OpenAI protocol as the client needs, and counts what it is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from patients_like_me.model.llm.deterministic import Deterministic


@dataclass
class FakeServer:
    """What the server was asked, and how it misbehaves: ``failures`` are codes to answer with first."""

    address: str = ""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    redirection: str = ""
    broken: bool = False
    logprobs: bool = True
    #: What it says of its models; None: it does not know the question.
    models: list[dict[str, Any]] | None = None
    #: Called with the number of the question before it is answered.
    before: Callable[[int], None] = lambda _: None

    @property
    def prompts(self) -> list[str]:
        return [json.dumps([path, content], sort_keys=True) for path, content in self.asked]


def _answer(server: FakeServer, path: str, content: dict[str, Any]) -> dict[str, Any]:
    model = Deterministic()
    if path.endswith("/embeddings"):
        found = model.embed(content["input"])
        return {"data": [{"embedding": found.value}], "usage": {"prompt_tokens": found.read}}
    prompt = content["messages"][0]["content"]
    answer = model.complete(prompt, content["max_tokens"])
    choice: dict[str, Any] = {"message": {"role": "assistant", "content": answer.value}}
    if content.get("logprobs") and server.logprobs:
        values = model.label_logprobs(prompt, ["0", "1"]).value
        top = [{"token": f" {label}", "logprob": value} for label, value in zip("01", values, strict=True)]
        choice["logprobs"] = {"content": [{"token": "0", "logprob": values[0], "top_logprobs": top}]}
    return {"choices": [choice], "usage": {"prompt_tokens": answer.read, "completion_tokens": answer.written}}


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    state = FakeServer()

    class Handler(BaseHTTPRequestHandler):
        # Headers and body are two packets: the second would wait until the first is acknowledged.
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            if state.models is None or not self.path.endswith("/models"):
                return self.send_error(404)
            body = json.dumps({"data": state.models}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return None

        def do_POST(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.asked.append((self.path, content))
            state.headers.append(dict(self.headers))
            state.before(len(state.asked))
            if state.failures:
                # Real servers repeat the prompt in their errors.
                return self.send_error(state.failures.pop(0), message=json.dumps(content)[:60].replace("\n", " "))
            if state.redirection:
                self.send_response(307)
                self.send_header("Location", state.redirection)
                self.end_headers()
                return None
            body = b"<html>" if state.broken else json.dumps(_answer(state, self.path, content)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return None

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.address = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
