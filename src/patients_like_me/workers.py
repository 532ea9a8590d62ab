"""Work that splits: threads over compiled kernels, how kernels are compiled and kept, and the memory they take."""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from patients_like_me.errors import PlmError

logger = logging.getLogger("patients_like_me")

Part = TypeVar("Part")
Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])
#: Called with how much is done, and of how much.
Progress = Callable[[int, int], None]

_announced: set[str] = set()


def number_of_threads(threads: int | None = None) -> int:
    """Return how many threads to use: as many as this process may run at once, unless given.

    >>> number_of_threads(3)
    3
    """
    if threads is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if threads < 1:
        raise PlmError(f"threads={threads} is not possible", remedy="give 1 or more")
    return threads


def in_threads(
    function: Callable[[Part], Result],
    parts: Sequence[Part],
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> list[Result]:
    """Apply a function to every part and return the results in order; ``progress(done, all)`` after each.

    The first part runs alone: if the kernel has to be compiled, this happens once and not in every thread.

    >>> in_threads(lambda part: part * part, [1, 2, 3], threads=2)
    [1, 4, 9]
    """
    results: list[Result] = []
    number = number_of_threads(threads)

    def note(result: Result) -> None:
        results.append(result)
        if progress is not None:
            progress(len(results), len(parts))

    for part in parts[:1]:
        note(function(part))
    if len(parts) > 1:
        with ThreadPoolExecutor(number) as pool:
            try:
                for result in pool.map(function, parts[1:]):
                    note(result)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return results


def kernel(function: Function) -> Function:
    """Compile a function with numba at its first call; the machine code is kept for the next process.

    Numba looks only at the file of a function to tell whether its kept code is still right. Kernels of a room call
    into each other's files, so the content of all of them is part of the name under which the code is kept.
    """
    from numba import njit

    function.__qualname__ = f"{function.__qualname__}_{_digest_of_kernels(Path(inspect.getfile(function)).parent)}"
    try:
        return cast(Function, njit(nogil=True, cache=True, boundscheck=False)(function))
    except RuntimeError:
        # No folder can be written (a read-only installation without a home): compile in every process.
        return cast(Function, njit(nogil=True, boundscheck=False)(function))


@contextmanager
def announced(function: Callable[..., Any]) -> Iterator[None]:
    """Say that a kernel is being compiled, if the call inside has to compile it."""
    name = function.__name__
    if name in _announced:
        yield
        return
    _announced.add(name)
    dispatcher: Any = function
    if not _is_kept(dispatcher):
        logger.info("compiling the kernel '%s' for this machine, once; this takes some seconds", name)
    start = time.perf_counter()
    yield
    if sum(dispatcher.stats.cache_misses.values()):
        logger.info("compiled the kernel '%s' in %.1f s", name, time.perf_counter() - start)


def _is_kept(dispatcher: Any) -> bool:
    folder = dispatcher.stats.cache_path
    if folder is None or not Path(folder).is_dir():
        return False
    return any(Path(folder).glob(f"*.{dispatcher.py_func.__qualname__}-*.nbc"))


@cache
def _digest_of_kernels(folder: Path) -> str:
    """Return a digest of all files of a folder that hold kernels."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        content = path.read_bytes()
        if b"\n@kernel" in content:
            digest.update(content)
    return digest.hexdigest()[:8]


def peak_gib() -> float:
    """Return the largest memory that this process has had, in GiB; on a graphics card, that of the card."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated() / 2**30)
    import psutil

    memory = psutil.Process().memory_info()
    # Windows reports the peak itself; elsewhere the kernel keeps it with the resources used.
    if (peak := getattr(memory, "peak_wset", None)) is not None:
        return float(peak / 2**30)
    import resource

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(largest / (2**30 if sys.platform == "darwin" else 2**20))
