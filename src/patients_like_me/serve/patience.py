"""How long a connection may keep the server waiting: for the head of a request, and for an answer to be taken.

A body that comes too slowly is refused by the guard, which sees it arrive. What is before and after it is seen by the
protocol alone: a client that opens connections and says nothing, or asks and never reads, would hold them for ever.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from patients_like_me.serve.problems import MEDIA_TYPE, HttpProblem

#: A person's browser sends the head of a request at once.
HEAD_SECONDS: Final = 15.0
#: An answer that nobody reads for so long is given up.
READ_SECONDS: Final = 60.0


class LimitedProtocol(H11Protocol):
    """HTTP as uvicorn speaks it, with an end to waiting."""

    head_seconds = HEAD_SECONDS
    read_seconds = READ_SECONDS

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._head: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        for timer in (self._head, self._reading):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what comes; as long as it is not a whole head, the time runs."""
        super().data_received(data)
        self._watch()

    def pause_writing(self) -> None:
        """Wait for a client that does not take its answer."""
        super().pause_writing()
        if self._reading is None:
            self._reading = self.loop.call_later(self.read_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on with a client that reads again."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        super().resume_writing()

    def _watch(self) -> None:
        if not self._is_waiting():
            if self._head is not None:
                self._head.cancel()
                self._head = None
        elif self._head is None and not self.transport.is_closing():
            self._head = self.loop.call_later(self.head_seconds, self._refuse)

    def _is_waiting(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _refuse(self) -> None:
        self._head = None
        if not self._is_waiting() or self.transport.is_closing():
            return
        problem = HttpProblem(408, f"the head of the request did not arrive within {self.head_seconds:g} seconds")
        body = json.dumps(problem.body()).encode()
        head = f"HTTP/1.1 408 {problem.title}\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()
