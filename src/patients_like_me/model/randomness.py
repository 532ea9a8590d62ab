"""Random numbers from an explicit seed, leaving the global generators untouched.

Layers of torch (initial weights, dropout) draw from torch's global generator. Whatever draws runs inside
``seeded``: the same seed gives the same numbers, and the caller's generator is not affected.

Where a batch is read in parts by several processes, ``DrawnForRows`` lets each part drop what it would have lost in the
whole batch: random numbers do not depend on the number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from patients_like_me.errors import PlmError


@contextmanager
def seeded(seed: int, *parts: int) -> Iterator[None]:
    """Draw from a generator made of ``seed`` and ``parts`` (such as epoch and step) inside the block.

    >>> before = torch.random.get_rng_state()
    >>> with seeded(7, 1, 32):
    ...     first = torch.rand(2)
    >>> with seeded(7, 1, 32):
    ...     bool((first == torch.rand(2)).all())
    True
    >>> bool((before == torch.random.get_rng_state()).all())
    True
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        number = mixed_seed(seed, *parts)
        # ``torch.manual_seed`` notes the whole stack for devices that are not there, which costs more than a draw.
        torch.default_generator.manual_seed(number)
        if devices:
            torch.cuda.manual_seed_all(number)
        if torch.backends.mps.is_available():
            torch.mps.manual_seed(number)
        yield


def mixed_seed(seed: int, *parts: int) -> int:
    """Make one number of several, so that seed 1 at step 2 and seed 2 at step 1 differ.

    >>> mixed_seed(1, 2) == mixed_seed(2, 1), mixed_seed(1, 2) == mixed_seed(1, 2)
    (False, True)
    """
    return int(np.random.SeedSequence([seed, *parts]).generate_state(1, dtype=np.uint64)[0] >> np.uint64(1))


class DrawnForRows(TorchDispatchMode):
    """Let dropout of the rows ``first`` to ``last - 1`` of a batch draw what the whole batch of ``total`` rows draws.

    Every draw is made for all rows and cut. The rows must be padded to the length that the whole batch has. It is to
    surround the backward pass too: gradient checkpointing computes layers again there.

    >>> with seeded(7):
    ...     whole = torch.nn.functional.dropout(torch.ones(4, 3))
    >>> with seeded(7), DrawnForRows(2, 4, 4):
    ...     part = torch.nn.functional.dropout(torch.ones(2, 3))
    >>> bool((part == whole[2:]).all())
    True
    """

    def __init__(self, first: int, last: int, total: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.first, self.last, self.total = first, last, total

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation of torch, its random numbers drawn for the whole batch."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if func is torch.ops.aten.bernoulli_.float:
            return args[0].copy_(self._own(self._room_for_all(args[0]).bernoulli_(*args[1:], **kwargs)))
        if func is torch.ops.aten.native_dropout.default:
            # Graphics cards draw and multiply in one operation.
            kept, mask = func(self._room_for_all(args[0]).fill_(1), *args[1:], **kwargs)
            return args[0] * self._own(kept), self._own(mask)
        if _given(func, args, kwargs, "dropout_p") == 0.0:
            return func(*args, **kwargs)
        raise PlmError(
            f"random numbers of '{func}' cannot be drawn for a part of a batch",
            remedy="train in one process, or without dropout in the attention (backbone.attention_dropout=0)",
        )

    def _room_for_all(self, part: Tensor) -> Tensor:
        """Return an empty tensor like that of the part, for the whole batch; rows may be cut into tokens or heads."""
        lines, left = divmod(part.shape[0], self.last - self.first)
        assert not left, "the rows of a batch come first"
        return part.new_empty((lines * self.total, *part.shape[1:]))

    def _own(self, drawn: Tensor) -> Tensor:
        lines = drawn.shape[0] // self.total
        return drawn[lines * self.first : lines * self.last]


def _given(func: Any, args: Any, kwargs: Any, name: str) -> Any:
    """Return what an operation of torch was given as one of its arguments."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return kwargs.get(name, args[place] if place < len(args) else argument.default_value)
    return None
