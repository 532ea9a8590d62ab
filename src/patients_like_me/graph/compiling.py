"""Compiling the kernels: once per machine, kept on disk where that is possible, and never in silence."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit

logger = logging.getLogger("patients_like_me")

Function = TypeVar("Function", bound=Callable[..., Any])

_KERNEL_FILES = ("adders.py", "bit_index.py", "histogram.py", "kernels.py", "merging.py")
_announced: set[str] = set()


def kernel(function: Function) -> Function:
    """Compile a function with numba at its first call; the machine code is kept for the next process.

    Numba looks only at the file of a function to tell whether its kept code is still right. Kernels call into each
    other's files, so the content of all of them becomes a part of the name under which the code is kept.
    """
    function.__qualname__ = f"{function.__qualname__}_{_digest_of_kernels()}"
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
def _digest_of_kernels() -> str:
    digest = hashlib.sha256()
    for name in _KERNEL_FILES:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:8]
