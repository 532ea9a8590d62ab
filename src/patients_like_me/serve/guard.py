"""What comes before every route: the host, the token or session, the site a request comes from, and its size.

Written as plain ASGI, so that a body that is too large, or too slow, is refused while it arrives. Nothing passes that
went wrong inside: an unforeseen error becomes a problem without details, and the log gets its kind and place alone, for
a message may hold what a patient's record held.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from patients_like_me.errors import PlmError
from patients_like_me.serve.access import COOKIE, Access, Gate
from patients_like_me.serve.problems import MEDIA_TYPE, HttpProblem, is_end_of_work, problem_of
from patients_like_me.serve.responses import POLICY, JsonResponse

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
#: Writes a problem (status, title, detail) as a page.
ErrorPage = Callable[[int, str, str], str]

LOG: Final = logging.getLogger("patients_like_me.serve")
#: Asked by machines that watch whether the server lives, and by a page that refuses; both say nothing about the run.
OPEN_PATHS: Final = frozenset({"/api/v1/health", "/assets/style.css"})
_SAFE: Final = frozenset({"GET", "HEAD"})
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "DELETE"})
_HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    # With no-referrer a browser would send the forms of our own pages with the origin null, as a foreign site's.
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)


@dataclass(frozen=True)
class GuardSettings:
    """``hosts`` are the values of ``Host`` that are answered, ``secure`` says that a TLS proxy is in front.

    A browser keeps one cookie of a name for all ports of a machine, so each server has a ``cookie`` of its own.
    """

    hosts: frozenset[str]
    secure: bool = False
    cookie: str = COOKIE
    most_bytes: int = 16 * 2**20
    body_seconds: float = 30.0

    @property
    def origins(self) -> frozenset[str]:
        """The origins that pages of this server have."""
        return frozenset(f"{'https' if self.secure else 'http'}://{host}" for host in self.hosts)


def loopback_hosts(port: int) -> frozenset[str]:
    """Return the hosts under which a server on this machine is asked.

    >>> sorted(loopback_hosts(80))
    ['127.0.0.1', '127.0.0.1:80', '[::1]', '[::1]:80', 'localhost', 'localhost:80']
    """
    names = ("127.0.0.1", "localhost", "[::1]")
    return frozenset(f"{name}:{port}" for name in names) | (frozenset(names) if port == 80 else frozenset())


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: App, gate: Gate, settings: GuardSettings, error_page: ErrorPage) -> None:
        self.app = app
        self.gate = gate
        self.settings = settings
        self.error_page = error_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request and pass it on, or answer it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        arriving = _Arriving(receive, self.settings)
        sending = _Sending(send, arriving)
        try:
            answer = self._checked(scope)
            await (self.app if answer is None else answer)(scope, arriving, sending)
        except BaseException as error:
            # What a task group raises holds the one error that matters.
            inner = _innermost(error)
            if isinstance(inner, ClientDisconnect):
                return
            if isinstance(inner, PlmError):
                inner = problem_of(inner)
            elif is_end_of_work(inner):
                raise
            elif not isinstance(inner, HttpProblem):
                LOG.error("a request failed: %s", described(inner))
                inner = HttpProblem(500, "something went wrong on the server; the request was not answered")
            await self._refuse(inner, scope, receive, sending)

    async def _refuse(self, problem: HttpProblem, scope: Scope, receive: Receive, sending: _Sending) -> None:
        if sending.started:
            return
        sending.arriving.problem = None
        response = refusal(problem, scope, self.error_page)
        if problem.status in (408, 413):
            # What is still on its way is not read: the connection ends with the answer.
            response.headers["connection"] = "close"
        await response(scope, receive, sending)

    def _checked(self, scope: Scope) -> App | None:
        """Return None for a request that may pass, or the answer to it; what is wrong is raised."""
        headers = Headers(scope=scope)
        method = scope["method"]
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self.settings.hosts:
            raise HttpProblem(421, "this server does not answer for the host that was asked for")
        if method not in _METHODS:
            raise HttpProblem(
                405, f"the method {method[:20]} is not served", headers={"allow": "GET, HEAD, POST, DELETE"}
            )
        self._check_size(headers)
        self._check_site(scope, headers, method)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if method == "GET" and any(name == "token" for name, _ in query):
            return self._exchange(scope, query)
        access, by_cookie = self._who(scope, headers)
        if access is None and scope["path"] not in OPEN_PATHS:
            raise HttpProblem(
                401,
                "open the address that plm serve printed, or send a token as 'Authorization: Bearer ...'",
                headers={"www-authenticate": 'Bearer realm="plm serve"'},
            )
        if by_cookie and method not in _SAFE and not self._is_ours(headers):
            raise HttpProblem(403, "this request does not come from a page of this server")
        if access is not None and not access.may("read"):
            raise HttpProblem(403, "this token does not allow reading")
        scope.setdefault("state", {})["access"] = access
        return None

    def _check_size(self, headers: Headers) -> None:
        given = headers.get("content-length")
        if given is None:
            return
        if not given.isascii() or not given.isdigit():
            raise HttpProblem(400, "the content-length is not a number")
        if int(given) > self.settings.most_bytes:
            raise _too_large(self.settings.most_bytes)

    def _check_site(self, scope: Scope, headers: Headers, method: str) -> None:
        """Refuse what another site sends; a link that a person follows from there is a plain GET."""
        origin = headers.get("origin")
        if origin is not None and origin not in self.settings.origins and method not in _SAFE:
            raise HttpProblem(403, "requests from other sites are refused")
        site = headers.get("sec-fetch-site", "none")
        followed = method in _SAFE and headers.get("sec-fetch-mode") == "navigate"
        followed = followed and headers.get("sec-fetch-dest", "document") == "document"
        if site not in ("same-origin", "none") and not followed:
            raise HttpProblem(403, "requests from other sites are refused")

    def _is_ours(self, headers: Headers) -> bool:
        """Tell whether a browser says that a page of ours sends this."""
        if headers.get("origin") is not None:
            return headers["origin"] in self.settings.origins
        return headers.get("sec-fetch-site") == "same-origin"

    def _who(self, scope: Scope, headers: Headers) -> tuple[Access | None, bool]:
        given = headers.get("authorization")
        if given is not None:
            kind, _, token = given.partition(" ")
            found = self.gate.by_token(token.strip()) if kind.lower() == "bearer" else None
            if found is None:
                raise HttpProblem(
                    401,
                    "the token is not known",
                    headers={"www-authenticate": 'Bearer realm="plm serve", error="invalid_token"'},
                )
            return found, False
        value = Request(scope).cookies.get(self.settings.cookie)
        return (None, False) if value is None else (self.gate.by_session(value), True)

    def _exchange(self, scope: Scope, query: list[tuple[str, str]]) -> App:
        """Take the token out of the address and give a cookie for it."""
        session = self.gate.open_session(next(value for name, value in query if name == "token"))
        if session is None:
            raise HttpProblem(401, "the token in the address is not known; use the address that plm serve printed last")
        rest = urlencode([pair for pair in query if pair[0] != "token"])
        # A path that starts with two slashes would be read as another host.
        path = "/" + scope["path"].lstrip("/\\")
        response = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        response.set_cookie(
            self.settings.cookie, session, httponly=True, samesite="strict", secure=self.settings.secure, path="/"
        )
        return response


def refusal(problem: HttpProblem, scope: Scope, error_page: ErrorPage) -> Response:
    """Return a problem as a browser or a program reads it; ``error_page`` writes it as a page of the usual look."""
    accepted = Headers(scope=scope).get("accept", "")
    if "text/html" in accepted and not scope["path"].startswith(("/api/", "/cds-")):
        html = error_page(problem.status, problem.title, problem.detail)
        response: Response = HTMLResponse(html, problem.status)
    else:
        response = JsonResponse(problem.body(), problem.status, media_type=MEDIA_TYPE)
    response.headers.update(problem.headers)
    return response


class _Arriving:
    """A body on its way in: counted, and given a limited time."""

    def __init__(self, receive: Receive, settings: GuardSettings) -> None:
        self.receive = receive
        self.settings = settings
        self.bytes = 0
        self.whole = False
        self.problem: HttpProblem | None = None
        self.deadline = time.monotonic() + settings.body_seconds

    async def __call__(self) -> Message:
        if self.whole:
            return await self.receive()
        try:
            message = await asyncio.wait_for(self.receive(), max(self.deadline - time.monotonic(), 0.001))
        except TimeoutError:
            self.problem = HttpProblem(408, f"the body did not arrive within {self.settings.body_seconds:g} seconds")
            raise self.problem from None
        self.bytes += len(message.get("body", b""))
        self.whole = not message.get("more_body", False)
        if self.bytes > self.settings.most_bytes:
            self.problem = _too_large(self.settings.most_bytes)
            raise self.problem
        return message


class _Sending:
    """What goes out gets the headers that every answer has."""

    def __init__(self, send: Send, arriving: _Arriving) -> None:
        self.send = send
        self.arriving = arriving
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            problem, self.arriving.problem = self.arriving.problem, None
            if problem is not None:
                # Whoever read the body made something else of it.
                raise problem
            self.started = True
            given = [pair for pair in message.get("headers", []) if pair[0] not in (b"server", b"cache-control")]
            message = {**message, "headers": [*given, *_HEADERS]}
        await self.send(message)


def _too_large(most: int) -> HttpProblem:
    return HttpProblem(413, f"the body is larger than {most / 2**20:g} MiB, the most that is read")


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def described(error: BaseException) -> str:
    """Return the kind of an error and where it was raised, without its message.

    >>> try:
    ...     int("a patient's name")
    ... except ValueError as error:
    ...     described(error).split(" at ")[0]
    'ValueError'
    """
    places = [f"{frame.f_globals.get('__name__', '?')}:{line}" for frame, line in walk_tb(error.__traceback__)]
    return f"{type(error).__name__} at {' > '.join(places[-4:])}"
