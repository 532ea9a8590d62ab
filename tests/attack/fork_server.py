"""A process that has loaded everything and run nothing: each command gets a fork of it, which may be killed.

Reads one JSON request per line: ``words``, and what shall happen: ``signal`` after ``seconds`` or at
the ``event``-th time that a file is opened for writing, renamed or removed (only ``below`` a folder, where one is
given); ``largest``, the size that files may have.
Answers with the exit code, the seconds, the number of events and what was printed.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_MARK = "events: "
EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "os.chmod")


def load_everything() -> None:
    import patients_like_me

    for module in pkgutil.walk_packages(patients_like_me.__path__, "patients_like_me."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in (
        "sklearn.metrics",
        "sklearn.linear_model",
        "transformers.models.auto",
        "transformers.models.bert.modeling_bert",
        "matplotlib.figure",
        "matplotlib.backends.backend_agg",
    ):
        importlib.import_module(name)


def run(request: dict[str, Any], output: int) -> None:
    """Be the command; never return. What it prints goes into a pipe: a file could not grow either."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if largest := request.get("largest"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    seen, below = 0, request.get("below", "")

    def count(name: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if name not in EVENTS or (name == "open" and not _writes(arguments)):
            return
        if below and not (isinstance(arguments[0], str | os.PathLike) and Path(arguments[0]).is_relative_to(below)):
            return
        seen += 1
        if seen == request.get("event"):
            os.kill(os.getpid(), request["signal"])

    sys.addaudithook(count)
    from patients_like_me.__main__ import main

    sys.argv = ["plm", *request["words"]]
    code = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    except KeyboardInterrupt:
        # It came before the command began: nobody would have read a word of it.
        os._exit(130)
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(2, f"\n{_MARK}{seen}".encode())
        os._exit(code)


def _writes(arguments: tuple[Any, ...]) -> bool:
    path, mode, flags = arguments
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    return bool(mode and set(mode) & set("wax+")) or bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def serve() -> None:
    load_everything()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        read, write = os.pipe()
        started = time.monotonic()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        child = os.fork()
        if child == 0:
            os.close(read)
            run(request, write)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        os.close(write)
        os.set_blocking(read, False)
        printed, is_sent = b"", False
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            with suppress(BlockingIOError):
                while piece := os.read(read, 1 << 16):
                    printed += piece
            elapsed = time.monotonic() - started
            if done:
                break
            if elapsed > request.get("seconds", 1e9) and not is_sent:
                os.kill(child, request["signal"])
                is_sent = True
            if elapsed > 480:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.002)
        os.close(read)
        text, _, events = printed.decode(errors="replace").rpartition(f"\n{_MARK}")
        answer = {
            "code": os.waitstatus_to_exitcode(status),
            "seconds": elapsed,
            "events": int(events) if text and events.isdigit() else 0,
            "printed": text or printed.decode(errors="replace"),
        }
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
