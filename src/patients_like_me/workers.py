"""Work that splits: threads over compiled kernels, processes and clusters, how kernels are compiled, memory.

One seam serves all work that is cut into blocks: :func:`executor_for` gives a standard
``concurrent.futures.Executor``, local processes or a Dask cluster, and :func:`in_workers` runs blocks on it. What
crosses the seam are names of files and numbers of rows; a block is done when its file is there.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

from patients_like_me.errors import PlmError

logger = logging.getLogger("patients_like_me")

Part = TypeVar("Part")
Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])
#: Called with how much is done, and of how much.
Progress = Callable[[int, int], None]
#: How many local processes, the address of a cluster (``dask://HOST:PORT``), or any executor of one's own.
Workers = int | str | Executor

#: Address prefixes of a Dask scheduler, and the protocol that Dask calls them.
_DASK = {"dask://": "tcp://", "dask+tls://": "tls://"}
_SECONDS_TO_CONNECT = 20
#: Rounds without a single new block before the workers are given up.
_FRUITLESS_ROUNDS = 3
_SECONDS_UNTIL_SEEN = 5.0

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


def threads_of_each(workers: Workers, threads: int | None = None) -> int:
    """Return the threads of each worker: those that are given, else local processes share this machine's.

    0 leaves it to the workers of a cluster, which know their own machines: :func:`threads_on_worker`.

    >>> threads_of_each(4, 3), threads_of_each("dask://node7:8786"), threads_of_each("dask://node7:8786", 8)
    (3, 0, 8)
    """
    if threads is not None:
        return number_of_threads(threads)
    return max(1, number_of_threads() // workers) if isinstance(workers, int) else 0


def threads_on_worker(threads: int = 0, *, otherwise: int = 1) -> int:
    """Return how many threads a worker uses: those it was told, those of ``OMP_NUM_THREADS``, or ``otherwise``."""
    if threads:
        return threads
    # OpenMP allows a number for each level of nesting: the first is the outermost.
    own = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(own) if own.isdigit() and int(own) else otherwise


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


def read_workers(text: str | int) -> int | str:
    """Return what ``--workers`` was given: a number of processes, or the address of a cluster.

    >>> read_workers("2"), read_workers("dask://node7:8786")
    (2, 'dask://node7:8786')
    """
    if isinstance(text, int) or text.isdigit():
        if int(text) < 1:
            raise PlmError(f"workers={text} is not possible", remedy="give 1 or more")
        return int(text)
    if not any(text.startswith(prefix) and text.removeprefix(prefix) for prefix in _DASK):
        raise PlmError(
            f"--workers '{text}' is neither a number nor the address of a cluster",
            remedy="give a number of processes, dask://HOST:PORT or dask+tls://HOST:PORT",
        )
    return text


@contextmanager
def executor_for(workers: Workers) -> Iterator[Executor]:
    """Give an executor: local processes, the workers of a Dask cluster, or the one that was passed in.

    Local processes start fresh, so functions must be importable. On a cluster every worker must see the same folders
    under the same names and run the same version.

    >>> with executor_for(ThreadPoolExecutor(1)) as executor:
    ...     executor.submit(abs, -3).result()
    3
    """
    if isinstance(workers, Executor):
        yield workers
        return
    workers = read_workers(workers)
    if isinstance(workers, int):
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)
        return
    with _dask_client(workers) as client:
        # Equal calls are no longer equal after a folder was emptied: each is computed.
        yield client.get_executor(pure=False)


def slots_of(workers: int | str) -> int:
    """Return how many blocks or runs are worked on at the same time; at least 1, also while a cluster is empty."""
    if isinstance(workers, int):
        return workers
    with _dask_client(workers) as client:
        return max(1, sum(int(threads) for threads in client.nthreads().values()))


def in_workers(
    function: Callable[..., Any],
    parts: Sequence[tuple[Any, ...]],
    *,
    workers: Workers,
    is_done: Callable[[tuple[Any, ...]], bool],
    progress: Progress | None = None,
) -> int:
    """Call ``function(*part)`` on the workers for every part whose file is not there yet; return how many these were.

    ``is_done(part)`` looks for the file that the worker writes. A worker that is lost costs the parts it was at: they
    are given to others. An error of the function ends it with a sentence, and what is finished stays.
    """
    left = [part for part in parts if not is_done(part)]
    wanted, fruitless = len(left), 0
    while left:
        lost = _one_round(function, left, workers, len(parts), progress)
        before, left = left, _not_seen(left, is_done, patient=not lost)
        if left and not lost:
            raise PlmError(
                f"the workers finished {len(left):,} blocks whose files are not on this machine",
                remedy="give the workers a folder that all machines share, under the same name on each",
            )
        fruitless = fruitless + 1 if len(left) == len(before) else 0
        if fruitless == _FRUITLESS_ROUNDS:
            raise PlmError(
                f"workers were lost {fruitless} times before any of {len(left):,} blocks was done",
                remedy="often too little memory: use fewer workers on a machine, or smaller blocks",
            )
    return wanted


def submitted(executor: Executor, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
    """Give a call to an executor; one that has lost its workers already answers as it does when it loses them later.

    >>> submitted(ThreadPoolExecutor(1), abs, -3).result()
    3
    """
    try:
        return executor.submit(function, *arguments)
    except Exception as error:
        if not is_lost_worker(error):
            raise
        failed: Future[Result] = Future()
        failed.set_exception(error)
        return failed


def run_block(function: Callable[..., Any], part: tuple[Any, ...]) -> None:
    """Call a function for one part on a worker; of an unexpected error only kind and place go back.

    The text of such an error may hold what was being worked on, and schedulers log and show it.
    """
    try:
        function(*part)
    except PlmError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise PlmError(
            f"a worker failed in {function.__name__}: {type(error).__name__} ({Path(last.filename).name}, "
            f"line {last.lineno})",
            remedy="run it without --workers to see the whole message",
        ) from None


def _one_round(
    function: Callable[..., Any],
    left: Sequence[tuple[Any, ...]],
    workers: Workers,
    total: int,
    progress: Progress | None,
) -> bool:
    """Submit all parts that are left; tell whether a worker was lost on the way."""
    lost, done = False, total - len(left)
    with executor_for(workers) as executor:
        futures = [submitted(executor, run_block, function, part) for part in left]
        try:
            for future in as_completed(futures):
                try:
                    future.result()
                except Exception as error:
                    if not is_lost_worker(error):
                        raise
                    lost = True
                    continue
                done += 1
                if progress is not None:
                    progress(done, total)
        finally:
            for future in futures:
                future.cancel()
    return lost


def _not_seen(
    parts: Sequence[tuple[Any, ...]], is_done: Callable[[tuple[Any, ...]], bool], *, patient: bool
) -> list[tuple[Any, ...]]:
    """Return the parts whose files are not there; a shared folder may show a new file some seconds late."""
    left = [part for part in parts if not is_done(part)]
    deadline = time.monotonic() + _SECONDS_UNTIL_SEEN
    while patient and left and time.monotonic() < deadline:
        time.sleep(0.1)
        left = [part for part in left if not is_done(part)]
    return left


def is_lost_worker(error: BaseException) -> bool:
    """Tell whether an error says that a worker is gone, rather than that its work failed.

    >>> from concurrent.futures.process import BrokenProcessPool
    >>> is_lost_worker(BrokenProcessPool("a process was killed")), is_lost_worker(ValueError("wrong"))
    (True, False)
    """
    from concurrent.futures import BrokenExecutor, CancelledError

    if isinstance(error, BrokenExecutor | CancelledError):
        return True
    distributed = sys.modules.get("distributed")
    return distributed is not None and isinstance(error, distributed.KilledWorker)


@contextmanager
def _dask_client(address: str) -> Iterator[Any]:
    """Connect to a Dask scheduler; without the extra ``cluster``, or without an answer, a sentence says so."""
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        raise PlmError(
            f"the workers '{address}' need Dask, which is not installed",
            remedy="pip install 'patients-like-me[cluster]', or give a number of local processes",
        ) from None
    prefix = next(prefix for prefix in _DASK if address.startswith(prefix))
    place = _DASK[prefix] + address.removeprefix(prefix)
    try:
        client = distributed.Client(place, timeout=_SECONDS_TO_CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise PlmError(
            f"no Dask scheduler answers at '{address}' ({type(error).__name__})",
            remedy="start one with 'dask scheduler', and check host, port and firewall",
        ) from None
    try:
        if not client.scheduler_info(n_workers=-1)["workers"]:
            logger.info("the cluster has no workers yet; the work waits for them")
        yield client
    finally:
        client.close()


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


def keep_few_compiled_layers(number: int = 16) -> None:
    """Let torch keep so many compiled forms of layers, unless the environment says how many; whoever is first decides.

    It makes one of every layer for each length of a batch and keeps 1,024 of them: hundreds of MiB that grow with the
    lengths that were met. The layers of a batch share a few. The number is read when the first layer runs.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(number))
