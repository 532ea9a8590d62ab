"""What the benchmarks share: peak memory of a child process, and the closing line of JSON."""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Measured:
    """What a process took: seconds by the clock, seconds of processor time (of all cores), and peak memory."""

    seconds: float
    processor_seconds: float
    peak_gib: float


def measure(words: Sequence[str], **environment: str) -> Measured:
    """Run a command in a process of its own and return what it took."""
    started = time.perf_counter()
    process = subprocess.Popen(list(words), env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the measured command failed: {' '.join(words)}")
    seconds = time.perf_counter() - started
    return Measured(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20)


def peak_gib() -> float:
    """Return the peak memory of this process in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def machine() -> str:
    """Describe the machine in one line, for the record."""
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def close_with(figures: dict[str, Any]) -> None:
    """Print the figures as the one line of JSON that ends a benchmark."""
    sys.stdout.flush()
    print(json.dumps(figures))
