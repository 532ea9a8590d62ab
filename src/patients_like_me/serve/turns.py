"""Taking turns: some requests compute at once, some wait, and a crowd is sent away with the advice to come again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, TypeVar

from patients_like_me.serve.problems import HttpProblem

#: One thread reads the texts of all requests, one after another, each on all cores. Torch keeps a team of threads for
#: every thread that computes with it; the teams of many requests would put each other to sleep between two layers.
READING: Final = ThreadPoolExecutor(1, thread_name_prefix="reading")
Result = TypeVar("Result")


def let_one_thread_team_up() -> None:
    """Give the thread that reads texts all cores, and every thread that comes later one.

    Explanations, too, compute with torch, in the threads of their requests. With a team behind each of them there would
    be more threads than cores from the first crowd on, and every later text would take half as long again.
    """
    import torch

    cores = torch.get_num_threads()
    # A thread takes over the number of all at its first look at it: it has looked before its own is set.
    READING.submit(torch.get_num_threads).result()
    READING.submit(torch.set_num_threads, cores).result()
    # What is set here holds for this thread and for those that have not computed yet.
    torch.set_num_threads(1)


def apart(function: Callable[[], Result]) -> Result:
    """Call a function in a thread of its own, so that the team with which torch computes for it ends with it.

    The team of a thread that goes on would stay: beside the team of ``READING`` there would be more threads than cores,
    and OpenMP then puts threads to sleep between any two steps of a layer instead of letting them wait awake.

    >>> apart(lambda: 7)
    7
    """
    future: Future[Result] = Future()

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    # Who stops the program does not wait for it.
    threading.Thread(target=work, name="apart", daemon=True).start()
    return future.result()


class Work:
    """Lets some requests compute at once and some wait; more are sent away with the advice to come again."""

    def __init__(self, at_once: int, waiting: int) -> None:
        self._slots = threading.BoundedSemaphore(at_once)
        self._most = at_once + waiting
        self._present = 0
        self._lock = threading.Lock()

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Wait for a turn; too many waiting is a problem."""
        with self._lock:
            if self._present >= self._most:
                raise HttpProblem(503, "too many requests at once; try again in a second", headers={"retry-after": "1"})
            self._present += 1
        try:
            with self._slots:
                yield
        finally:
            with self._lock:
                self._present -= 1
