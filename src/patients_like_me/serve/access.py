"""Who may ask for what: named tokens with roles, kept as hashes in a file, and the sessions of a browser.

A token is 32 random bytes; its hash alone is kept, so the file gives nobody access. A browser brings the token once, in
the address that ``plm serve`` prints, and gets a cookie for it; scripts send it as ``Authorization: Bearer``. A token
that is removed from the file ends its sessions with the next request.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from patients_like_me.errors import PlmError
from patients_like_me.files import only_writer, read_json, write_json
from patients_like_me.folders import user_folder
from patients_like_me.serve.problems import HttpProblem

if TYPE_CHECKING:
    from starlette.requests import Request

Role = Literal["read", "what-if", "upload"]
ROLES: Final[tuple[Role, ...]] = ("read", "what-if", "upload")
COOKIE: Final = "plm_session"
#: A session ends after this many seconds without a request, as a ward's shared computer needs.
IDLE_SECONDS: Final = 8 * 3600.0
MOST_SESSIONS: Final = 1000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
#: Names that the access log uses itself: for the token of the start, and where no token was given.
RESERVED: Final = ("owner", "nobody")
_FORMAT: Final = 1
LOG: Final = logging.getLogger("patients_like_me.serve")


@dataclass(frozen=True)
class Access:
    """Who asks: the name of a token, and what it allows."""

    name: str
    roles: frozenset[Role]

    def may(self, role: Role) -> bool:
        """Tell whether a role is allowed."""
        return role in self.roles


@dataclass(frozen=True)
class NamedToken:
    """A token of the file: its name, roles, and the hash of what the holder knows."""

    name: str
    roles: tuple[Role, ...]
    digest: str
    created: str

    @property
    def access(self) -> Access:
        """What it allows."""
        return Access(self.name, frozenset(self.roles))


def hashed(token: str) -> str:
    """Return the hash of a token; 32 random bytes need no salt and no slow hash.

    >>> len(hashed("x"))
    64
    """
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def default_token_file() -> Path:
    """Return where named tokens are kept: ``PLM_SERVE`` where that is set, else the user's data folder."""
    return user_folder("serve", "PLM_SERVE") / "tokens.json"


@dataclass
class TokenFile:
    """The file of named tokens; it is read again when it changes."""

    path: Path
    _read: tuple[tuple[int, int], tuple[NamedToken, ...]] | None = field(default=None, repr=False)

    def tokens(self) -> tuple[NamedToken, ...]:
        """Return all tokens; none where there is no file yet."""
        try:
            about = self.path.stat()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise self._unreadable(f"cannot be read ({error.strerror})") from None
        stamp = (about.st_mtime_ns, about.st_size)
        if self._read is None or self._read[0] != stamp:
            self._read = (stamp, self._parsed())
        return self._read[1]

    def add(self, name: str, roles: Iterable[str]) -> str:
        """Add a token and return it; it is shown once and cannot be found out later."""
        if not _NAME.fullmatch(name):
            raise PlmError(
                f"'{name}' cannot be the name of a token",
                remedy="use up to 64 letters, digits, dots, hyphens, underscores or @, as in ward-3",
            )
        if name.lower() in RESERVED:
            raise PlmError(
                f"a token cannot be named '{name}': the access log uses this name itself",
                remedy="choose another name, as in ward-3",
            )
        roles = tuple(roles)
        chosen = tuple(role for role in ROLES if role in set(roles))
        if unknown := sorted(set(roles) - set(ROLES)):
            raise PlmError(f"there is no role '{unknown[0]}'", remedy=f"choose from {', '.join(ROLES)}")
        if "read" not in chosen:
            raise PlmError("a token without the role 'read' allows nothing", remedy="add --role read")
        token = secrets.token_urlsafe(32)
        with self._writing():
            known = self.tokens()
            if any(other.name == name for other in known):
                raise PlmError(
                    f"there is a token '{name}' already", remedy=f"remove it first: plm serve tokens remove {name}"
                )
            created = datetime.now(UTC).isoformat(timespec="seconds")
            self._write((*known, NamedToken(name, chosen, hashed(token), created)))
        return token

    def remove(self, name: str) -> None:
        """Remove a token; its sessions end."""
        with self._writing():
            known = self.tokens()
            if all(other.name != name for other in known):
                raise PlmError(f"there is no token '{name}'", remedy="see plm serve tokens list")
            self._write(tuple(other for other in known if other.name != name))

    def _writing(self) -> Any:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return only_writer(self.path.parent)

    def _write(self, tokens: tuple[NamedToken, ...]) -> None:
        rows = [
            {"name": each.name, "roles": list(each.roles), "sha256": each.digest, "created": each.created}
            for each in tokens
        ]
        write_json(self.path, {"format": _FORMAT, "tokens": rows})
        self.path.chmod(0o600)
        self._read = None

    def _parsed(self) -> tuple[NamedToken, ...]:
        try:
            content = read_json(self.path, what="file of tokens")
        except (OSError, ValueError, RecursionError) as error:
            raise self._unreadable(f"cannot be read ({type(error).__name__})") from None
        try:
            found = tuple(
                NamedToken(
                    str(row["name"]),
                    tuple(cast(Role, role) for role in row["roles"] if role in ROLES),
                    _as_digest(row["sha256"]),
                    str(row["created"]),
                )
                for row in content["tokens"]
            )
        except (KeyError, TypeError, ValueError):
            raise self._unreadable("is damaged") from None
        return found

    def _unreadable(self, what: str) -> PlmError:
        return PlmError(f"the file of tokens '{self.path}' {what}", remedy="remove it and add the tokens again")


def _as_digest(written: Any) -> str:
    """Return what a file says to be a hash; only ASCII can be compared in constant time."""
    if not isinstance(written, str) or not _DIGEST.fullmatch(written):
        raise ValueError("not a hash")
    return written


@dataclass
class Gate:
    """Recognises tokens and sessions. ``own`` is the token of this start of the server, with all roles."""

    file: TokenFile | None = None
    own: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    own_name: str = "owner"
    clock: Callable[[], float] = time.monotonic
    _sessions: OrderedDict[str, tuple[str, float]] = field(default_factory=OrderedDict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def by_token(self, token: str) -> Access | None:
        """Return who has this token; every known one is compared, in constant time each."""
        return self._by_digest(hashed(token))

    def open_session(self, token: str) -> str | None:
        """Return the value of a cookie for a right token."""
        digest = hashed(token)
        if self._by_digest(digest) is None:
            return None
        value = secrets.token_urlsafe(32)
        with self._lock:
            self._sessions[hashed(value)] = (digest, self.clock())
            while len(self._sessions) > MOST_SESSIONS:
                self._sessions.popitem(last=False)
        return value

    def by_session(self, value: str) -> Access | None:
        """Return whose session a cookie is; an idle one has ended."""
        key = hashed(value)
        with self._lock:
            found = self._sessions.get(key)
            if found is None:
                return None
            digest, last = found
            if self.clock() - last > IDLE_SECONDS:
                del self._sessions[key]
                return None
            self._sessions[key] = (digest, self.clock())
            self._sessions.move_to_end(key)
        return self._by_digest(digest)

    def _by_digest(self, digest: str) -> Access | None:
        found = Access(self.own_name, frozenset(ROLES)) if hmac.compare_digest(hashed(self.own), digest) else None
        try:
            named = self.file.tokens() if self.file is not None else ()
        except PlmError:
            # Nobody can be recognised by a damaged file; who started the server can still use it.
            LOG.error("the file of named tokens cannot be read")
            named = ()
        for token in named:
            if hmac.compare_digest(token.digest, digest):
                found = token.access
        return found


def needs(role: Role) -> Callable[[Request], Awaitable[None]]:
    """Return a dependency that refuses who does not have a role; it runs where the request is, not in a thread."""
    from starlette.requests import Request as Asked

    async def check(request: Request) -> None:
        access: Access | None = getattr(request.state, "access", None)
        if access is None or not access.may(role):
            raise HttpProblem(403, f"this needs the role '{role}', which your token does not have")

    # FastAPI looks at the type itself; tokens can be managed where its packages are not installed.
    check.__annotations__["request"] = Asked
    return check
