"""Running a kernel over many parts in threads; kernels release the interpreter's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from patients_like_me.errors import PlmError

Part = TypeVar("Part")
Result = TypeVar("Result")


def number_of_threads(threads: int | None = None) -> int:
    """Return how many threads to use: as many as this process may run at once, unless said otherwise.

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
    progress: Callable[[int, int], None] | None = None,
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
