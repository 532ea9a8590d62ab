"""An OpenAI-compatible server: ``/chat/completions`` and ``/embeddings``, on this machine unless the user says so.

No proxy is used and no redirection is followed, since either could carry records of patients elsewhere. A host name
counts as this machine only if every address it resolves to does. Where a server asks for a key, ``PLM_LLM_KEY`` is
sent; it is never written anywhere.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import socket
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final
from urllib import error, request
from urllib.parse import urlsplit

from patients_like_me.errors import PlmError
from patients_like_me.model.llm.client import Answer
from patients_like_me.model.llm.settings import CONSENT, LLMSettings
from patients_like_me.model.llm.shortening import shortened

#: A busy or starting server is asked again after these seconds.
_PAUSES: Final = (0.5, 2.0, 8.0)
_BUSY: Final = (408, 429, 500, 502, 503, 504)
#: Servers offer at most this many alternatives of a token.
_ALTERNATIVES: Final = 20
#: A label that is not among the alternatives is less probable than the last of them.
_BELOW_THE_LAST: Final = 1.0


#: What servers say of a model that belongs to its weights. ``created`` is none: many give the time of the question.
_OF_WEIGHTS: Final = ("id", "root", "parent", "meta", "digest", "hash")


class _RefusedError(PlmError):
    """The server is there, and its answer is an error or nothing that is understood."""


class _NoRedirection(request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow nothing."""


class Endpoint:
    """The back end of a server."""

    def __init__(self, settings: LLMSettings, pauses: Sequence[float] = _PAUSES) -> None:
        self.settings, self.pauses = settings, tuple(pauses)
        refuse_other_machines(settings)
        # Without handlers for proxies: their environment variables must not decide where records go.
        self._opener = request.build_opener(request.ProxyHandler({}), _NoRedirection())

    @cached_property
    def identity(self) -> str:
        """The model's name with what the server says of its weights; where it says nothing, with its address."""
        try:
            listed = _part(self._ask("models"), "data") or []
        except _RefusedError:
            listed = []
        own = next((each for each in listed if _part(each, "id") == self.settings.model), None)
        if own is None and len(listed) == 1:
            # Servers of one model, such as llama.cpp's, call it by its file and answer to any name.
            own = listed[0]
        told = {name: own[name] for name in _OF_WEIGHTS if isinstance(own, dict) and own.get(name)}
        says_nothing = told in ({}, {"id": self.settings.model})
        about = self.settings.address if says_nothing else json.dumps(told, sort_keys=True)
        return f"endpoint {self.settings.model} {about}"

    def complete(self, prompt: str, new_tokens: int) -> Answer:
        """Return the answer of the model, without randomness."""
        content = self._chat(prompt, max_tokens=new_tokens)
        text = _part(content, "choices", 0, "message", "content")
        return Answer("" if text is None else str(text), *_tokens(content))

    def label_logprobs(self, prompt: str, labels: Sequence[str]) -> Answer:
        """Return the log-probability of each label as the first token of the answer."""
        content = self._chat(prompt, max_tokens=1, logprobs=True, top_logprobs=_ALTERNATIVES)
        offered = _part(content, "choices", 0, "logprobs", "content", 0, "top_logprobs")
        if not offered:
            raise PlmError(
                f"the server at {self.settings.address} gives no log-probabilities of tokens",
                remedy="use one that does (with logprobs and top_logprobs), or a decoder in this process",
            )
        known: dict[str, float] = {}
        for each in offered:
            token = str(each["token"]).strip()
            known[token] = max(float(each["logprob"]), known.get(token, -1e9))
        least = min(known.values()) - _BELOW_THE_LAST
        return Answer([known.get(label, least) for label in labels], *_tokens(content))

    def embed(self, text: str) -> Answer:
        """Return the server's vector of a text."""
        asked = {"model": self.settings.model, "input": shortened(text, self.settings.prompt_tokens)}
        content = self._ask("embeddings", asked)
        vector = _part(content, "data", 0, "embedding")
        if not vector:
            raise self._not_understood("a vector")
        return Answer([float(value) for value in vector], *_tokens(content))

    def _chat(self, prompt: str, **more: Any) -> Any:
        shown = shortened(prompt, self.settings.prompt_tokens)
        messages = [{"role": "user", "content": shown}]
        content = self._ask(
            "chat/completions", {"model": self.settings.model, "messages": messages, "temperature": 0, **more}
        )
        if not _part(content, "choices", 0):
            raise self._not_understood("an answer")
        return content

    def _ask(self, path: str, content: dict[str, Any] | None = None) -> Any:
        """Return what the server answers: to a POST with content, to a GET without any."""
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("PLM_LLM_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        address = f"{self.settings.address.rstrip('/')}/{path}"
        body = None if content is None else json.dumps(content).encode()
        asked = request.Request(address, body, headers)  # noqa: S310
        for pause in (*self.pauses, None):
            try:
                with self._opener.open(asked, timeout=self.settings.wait) as response:
                    return json.load(response)
            except error.HTTPError as problem:
                # Servers repeat the prompt in their message: it is left out.
                problem.close()
                if problem.code not in _BUSY or pause is None:
                    raise _RefusedError(
                        f"the server at {self.settings.address} answers {path} with the error {problem.code}",
                        remedy="look at the server's own log; what was answered before is kept",
                    ) from None
            except (OSError, http.client.HTTPException) as problem:
                if pause is None:
                    reason = getattr(problem, "reason", problem)
                    raise PlmError(
                        f"the server at {self.settings.address} does not answer ({type(reason).__name__})",
                        remedy="start it, or correct llm.address; what was answered before is kept",
                    ) from None
            except ValueError:
                raise self._not_understood("JSON") from None
            time.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _not_understood(self, wanted: str) -> _RefusedError:
        return _RefusedError(
            f"the server at {self.settings.address} did not return {wanted}",
            remedy="give the address of an OpenAI-compatible server, such as http://127.0.0.1:8080/v1",
        )


def refuse_other_machines(settings: LLMSettings) -> None:
    """Refuse an address that is not on this machine, unless the user has said in words that it may be."""
    host = urlsplit(settings.address).hostname or ""
    if settings.elsewhere.strip() == CONSENT or is_this_machine(host):
        return
    raise PlmError(
        f"the language model at '{host}' is not on this machine, and prompts hold records of patients",
        remedy=f"use a server on 127.0.0.1, or allow it in words: --set 'llm.elsewhere={CONSENT}'",
    )


def is_this_machine(host: str) -> bool:
    """Tell whether every address of a host is a loopback address.

    >>> is_this_machine("127.0.0.1"), is_this_machine("::1"), is_this_machine("192.0.2.7")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    if host.lower().rstrip(".") != "localhost":
        # Looking a name up would ask another machine.
        return False
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(address).is_loopback for address in found)


def _part(content: Any, *path: str | int) -> Any:
    """Return what is below nested keys and places; None where something is missing."""
    for step in path:
        try:
            content = content[step]
        except (KeyError, IndexError, TypeError):
            return None
    return content


def _tokens(content: Any) -> tuple[int, int]:
    return int(_part(content, "usage", "prompt_tokens") or 0), int(_part(content, "usage", "completion_tokens") or 0)
