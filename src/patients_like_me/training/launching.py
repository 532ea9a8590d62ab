"""Processes of one training that a launcher started: they find each other, one speaks, and none is waited for in vain.

``torchrun`` and ``accelerate launch`` start the same command several times and tell each process in the environment who
it is (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``) and where it meets the others (``MASTER_ADDR``, ``MASTER_PORT``); so
can a queue like SLURM. Without these variables there is one process, and nothing here does anything.

Only the first process prints. A training that loses a process ends in one sentence: whoever notices first says it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, NoReturn

from patients_like_me.errors import PlmError
from patients_like_me.model.ranks import Ranks, SeveralRanks, lost_rank

#: The environment variable that says how many seconds a process may take for what another one waits for.
TIMEOUT: Final = "PLM_RANK_TIMEOUT"
_SECONDS_TO_ANSWER: Final = 1800
_SECONDS_TO_SPEAK: Final = 3


class _ToldToEnd(KeyboardInterrupt):
    """The launcher ends a process: it does so to all others when one of them was lost."""


@contextmanager
def launched_ranks() -> Iterator[Ranks]:
    """Join the other processes that a launcher started, and part from them at the end of the block.

    >>> with launched_ranks() as ranks:
    ...     ranks.size
    1
    """
    size, number = _number("WORLD_SIZE", 1), _number("RANK", 0)
    if size < 2:
        yield Ranks()
        return
    ranks = None
    with _silent_unless_first(number) as speak:
        try:
            with _ending_when_told():
                ranks = SeveralRanks(number, size, _joined(number, size))
                yield ranks
                ranks.leave()
            _disconnect()
        except BaseException as error:
            problem = lost_rank(size) if isinstance(error, _ToldToEnd) else error
            is_first_to_speak = ranks is None or _told_others(ranks)
            if isinstance(problem, PlmError) and not is_first_to_speak:
                sys.exit(2)
            if isinstance(problem, KeyboardInterrupt) and number:
                sys.exit(130)
            speak()
            if problem is error:
                raise
            raise problem from None


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, str(otherwise))
    if not text.isdigit():
        raise PlmError(f"the environment variable {name} is '{text}', not a number", remedy="unset it, or correct it")
    return int(text)


def _joined(number: int, size: int) -> Any:
    """Connect to the other processes; return the store in which they leave messages."""
    import torch
    import torch.distributed as distributed
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    seconds = timedelta(seconds=_number(TIMEOUT, _SECONDS_TO_ANSWER))
    backend, place = "gloo", _number("LOCAL_RANK", number)
    if torch.cuda.is_available() and torch.cuda.device_count() >= _number("LOCAL_WORLD_SIZE", size):
        torch.cuda.set_device(place)
        backend = "cpu:gloo,cuda:nccl"
    try:
        store, _, _ = next(rendezvous("env://", timeout=seconds))
        # Each launch has its own names, also where a launcher keeps its store and starts the processes again.
        store = PrefixStore(f"plm {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        distributed.init_process_group(backend, store=store, rank=number, world_size=size, timeout=seconds)
    except (RuntimeError, ValueError) as error:
        raise PlmError(
            f"the {size} processes of this training do not find each other ({type(error).__name__})",
            remedy="start them with torchrun or accelerate launch, and check MASTER_ADDR, MASTER_PORT and the firewall",
        ) from error
    return store


def _disconnect() -> None:
    import torch.distributed as distributed

    if distributed.is_initialized():
        # What others did with their end of a connection is no longer of interest.
        with suppress(RuntimeError):
            distributed.destroy_process_group()


def _told_others(ranks: SeveralRanks) -> bool:
    """Let the other processes know that something went wrong; tell whether none of them has said what."""
    try:
        ranks.store.set_timeout(timedelta(seconds=_SECONDS_TO_SPEAK))
        is_first = bool(ranks.store.add("spoken", 1) == 1)
    except RuntimeError:
        # Whoever held the store is gone.
        is_first = True
    # Those who wait for this process notice it now, and still find the store.
    _disconnect()
    with suppress(PlmError):
        ranks.leave(_SECONDS_TO_SPEAK)
    return is_first


@contextmanager
def _ending_when_told() -> Iterator[None]:
    """Let the signal by which a launcher ends a process interrupt it like Ctrl-C, so that it tidies up."""

    def interrupt(number: int, frame: Any) -> NoReturn:
        raise _ToldToEnd

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _silent_unless_first(number: int) -> Iterator[Callable[[], None]]:
    """Print nothing within the block, in any process but the first; the function that is given ends the silence."""
    if number == 0:
        yield lambda: None
        return
    kept = {stream: os.dup(stream) for stream in (1, 2)}
    silence = os.open(os.devnull, os.O_WRONLY)

    def flush() -> None:
        sys.stdout.flush()
        sys.stderr.flush()

    def speak() -> None:
        flush()
        for stream, own in kept.items():
            os.dup2(own, stream)

    flush()
    for stream in kept:
        os.dup2(silence, stream)
    try:
        yield speak
    finally:
        speak()
        for handle in (*kept.values(), silence):
            os.close(handle)
