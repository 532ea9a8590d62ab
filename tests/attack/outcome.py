"""What a command did, seen from outside: equal to the clean run, refused with a sentence, said, or wrong."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from unittest import mock

#: What an atomic write or a lock leaves behind if it is interrupted and nobody cleans up.
LEFTOVERS = (".*.partial", ".lock")
#: How a command may end: done, a leak found, refused with a sentence.
ENDS = (0, 1, 2)
#: What :func:`plm` says of a command whose time was over.
TOO_LONG = -1
#: What Python runs while it cleans up, and what llvmlite's compiler calls when it has compiled a loop.
WHERE_ERRORS_ARE_LOST = ("__del__", "on_disposal", "_raw_object_cache_notify", "_raw_object_cache_getbuffer")
#: Ids of the made-up patients look like this, so that one in a message is found.
AN_ID = re.compile(r"\b(pat|vis)-?\d{3,}\w*\b", re.IGNORECASE)


@dataclass
class Counts:
    """What an attack has tried and found."""

    inputs: int = 0
    settings: int = 0
    settings_too_long: int = 0
    kills: int = 0
    flips: int = 0
    injections: int = 0
    leaks_caught: int = 0
    leaks_planted: int = 0
    tracebacks: int = 0
    silent_changes: int = 0
    leftovers: int = 0
    ids_shown: int = 0
    stories: list[str] = field(default_factory=list)

    def blame(self, what: str, story: str) -> None:
        """Count a fault and keep its story."""
        setattr(self, what, getattr(self, what) + 1)
        self.stories.append(f"{what}: {story}")

    def line(self) -> str:
        """Return the counts as one line of JSON."""
        return json.dumps({name: value for name, value in vars(self).items() if name != "stories"})


@dataclass(frozen=True)
class Told:
    """What a command wrote, and how it ended: ``error`` is the traceback, where there is one."""

    code: int
    output: str
    error: str = ""

    @property
    def is_refused(self) -> bool:
        return self.code == 2 and not self.error


class TooLongError(BaseException):
    """A command that was accepted and takes its time."""


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise :class:`TooLongError` in the block when the time is over.

    An import is let end, half a module is none; so is what Python or a library calls where an error is lost.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_name in WHERE_ERRORS_ARE_LOST or frame.f_code.co_filename.startswith(
                "<frozen importlib"
            ):
                signal.alarm(1)
                return
            frame = frame.f_back
        raise TooLongError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def plm(*words: str | Path, seconds: int = 240) -> Told:
    """Run a command in this process, as ``plm`` would, and return what it told."""
    from patients_like_me.cli import main

    out, error = io.StringIO(), ""
    code = 0
    with (
        mock.patch.object(sys, "argv", ["plm", *map(str, words)]),
        mock.patch.dict(os.environ, {"COLUMNS": "300", "NO_COLOR": "1"}),
        redirect_stdout(out),
        redirect_stderr(out),
    ):
        try:
            with at_most(seconds):
                main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(bool(end.code))
        except TooLongError:
            code = TOO_LONG
        except BaseException:
            code, error = 1, traceback.format_exc()
    return Told(code, out.getvalue(), error)


def judge(counts: Counts, told: Told, story: str, *, folder: Path | None = None, ends: tuple[int, ...] = ENDS) -> None:
    """Count what no command may do, whatever it was given; an end without a reason counts as a traceback."""
    if told.error or "Traceback (most recent call last)" in told.output:
        counts.blame("tracebacks", f"{story}\n{(told.error or told.output)[-1500:]}")
    elif told.code not in ends:
        counts.blame("tracebacks", f"{story}: ended with {told.code}\n{told.output[-500:]}")
    if told.is_refused and AN_ID.search(told.output):
        counts.blame("ids_shown", f"{story}: {told.output[-300:]}")
    if folder is not None and (left := leftovers_below(folder)):
        counts.blame("leftovers", f"{story}: {left}")


def leftovers_below(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for pattern in LEFTOVERS for path in folder.rglob(pattern) if path.exists()
    )


def describe(parts: Sequence[object]) -> str:
    return " ".join(str(part) for part in parts)
