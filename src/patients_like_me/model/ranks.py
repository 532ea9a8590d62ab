"""The processes that train one model together, and what they do for each other.

Each of them (a rank, numbered from 0) holds the whole model and all records. :class:`Ranks` is a single process;
:class:`SeveralRanks` are those that a launcher started (``training.launching``). What is split is the work of the
language model:

* a training batch is cut into parts, one per rank. Each rank reads its part with the dropout that those rows have in
  the whole batch, and receives what the others pooled. From there on every rank computes with the *whole* batch: the
  store and the loss, a mean over all rows, are those of a single process and equal on all ranks. The graph is run by
  the first rank alone, which sends what it says about the rows of the batch. Each rank has the backbone's gradient
  through its own rows; their sum is that of the batch;
* prompts that are only read are dealt out by batches, and all ranks receive all vectors.

What decides about the training (M-step, validation) is computed by the first rank alone, and the others take over its
answer. Tensors travel through torch's process group, everything else as JSON through its store; nothing is pickled.
Torch is imported where it is used, so that rooms that need none can name a rank.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Protocol

from patients_like_me.errors import PlmError

if TYPE_CHECKING:
    from torch import Tensor

    from patients_like_me.model.batching import Integers
    from patients_like_me.model.joint import PatientsLikeMeModel
    from patients_like_me.model.prompt_inputs import PromptInputs
    from patients_like_me.model.randomness import DrawnForRows
    from patients_like_me.model.settings import Precision

_SECONDS_BETWEEN_LOOKS = 0.02
_SECONDS_TO_LEAVE = 60.0


class Shared(Protocol):
    """A state that can be put into tensors and plain JSON, and be taken over from them."""

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that is made of numbers, by name."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return everything else, as plain JSON."""
        ...

    def take_over(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], *, source: str) -> None:
        """Become what another state put into tensors and facts; ``source`` names it in an error."""
        ...


class Ranks:
    """A single process: everything is done here, and nobody else needs to know.

    >>> Ranks().size, Ranks().is_first, Ranks().once(lambda: {"steps": 3})
    (1, True, {'steps': 3})
    """

    number = 0
    size = 1

    @property
    def is_first(self) -> bool:
        """Tell whether this process decides, writes and speaks."""
        return self.number == 0

    def pool(self, model: PatientsLikeMeModel, inputs: PromptInputs, rows: Integers, precision: Precision) -> Tensor:
        """Return what the backbone pools from the prompts of a training batch, [B, backbone width], with gradient."""
        return model.pool(inputs.batch(rows, device=model.backbone.device), precision)

    def backward(self, objective: Tensor) -> None:
        """Add the gradient of the loss of the batch that was pooled last."""
        objective.backward()  # type: ignore[no-untyped-call]

    def add_gradients(self, model: PatientsLikeMeModel) -> None:
        """Make the gradients of a step whole on every rank."""

    def added(self, values: Tensor) -> Tensor:
        """Return the sum of the ranks' tensors; where each rank has rows of its own and zeros else, all rows."""
        return values

    def once(
        self, compute: Callable[[], dict[str, Any]], weights: Callable[[], Iterable[Tensor]] = tuple
    ) -> dict[str, Any]:
        """Let the first rank compute an answer (plain JSON); all get it, and the weights that it changed."""
        del weights
        return compute()

    def fill(self, tensors: Iterable[Tensor]) -> None:
        """Fill the tensors of all ranks with those of the first."""

    def start_equal(self, state: Shared) -> None:
        """Let every rank take over the state of the first."""

    def first_before_others(self) -> AbstractContextManager[None]:
        """Let the first rank do the work of the block before the others, which will find what it kept."""
        return nullcontext()

    def call(self, question: dict[str, Any]) -> None:
        """Tell the other ranks what is to be trained, and that it begins now."""

    def called(self) -> dict[str, Any] | None:
        """Wait for the :meth:`call` of the first rank; None where it ended without one."""
        raise AssertionError("a single process calls itself")


class SeveralRanks(Ranks):
    """One of several processes, connected by torch's default process group and its store."""

    def __init__(self, number: int, size: int, store: Any) -> None:
        self.number, self.size, self.store = number, size, store
        self._turn = 0
        self._draws: DrawnForRows | None = None

    def part_of(self, total: int) -> tuple[int, int, int]:
        """Return the rows of a batch that this rank reads, as first and last, and how many of them count.

        With fewer rows than ranks some read a row that counts for another: a rank without rows would not know which
        weights have a gradient.
        """
        first, last = self.number * total // self.size, (self.number + 1) * total // self.size
        if first < last:
            return first, last, last - first
        return max(0, first - 1), max(0, first - 1) + 1, 0

    def pool(self, model: PatientsLikeMeModel, inputs: PromptInputs, rows: Integers, precision: Precision) -> Tensor:
        """Read the own part of a batch, and put it between the rows that the others read."""
        import torch

        from patients_like_me.model.randomness import DrawnForRows

        first, last, counted = self.part_of(len(rows))
        self._draws = DrawnForRows(first, last, len(rows))
        part = inputs.batch(rows[first:last], device=model.backbone.device)
        with self._draws:
            own = model.pool(part.padded_to(int(inputs.lengths[rows].max())), precision)
        everyone = own.new_zeros(len(rows), own.shape[1])
        everyone[first : first + counted] = own.detach()[:counted]
        everyone = self.added(everyone)
        return torch.cat([everyone[:first], own[:counted], everyone[first + counted :]])

    def backward(self, objective: Tensor) -> None:
        """Add the gradient: that of the backbone through the own rows, that of everything else through all."""
        assert self._draws is not None, "a batch is pooled before it has a gradient"
        with self._draws:
            super().backward(objective)

    def add_gradients(self, model: PatientsLikeMeModel) -> None:
        """Sum the backbone's gradients, and take everything else from the first rank: weights stay equal bit by bit."""
        import torch

        with_gradient: dict[tuple[Any, Any], list[Tensor]] = {}
        parts = {id(parameter) for parameter in model.backbone_parameters().values()}
        for parameter in model.parameters():
            if parameter.grad is not None:
                if not self.is_first and id(parameter) not in parts:
                    parameter.grad.zero_()
                with_gradient.setdefault((parameter.device, parameter.dtype), []).append(parameter.grad)
        for gradients in with_gradient.values():
            total = self.added(torch.cat([gradient.reshape(-1) for gradient in gradients]))
            for gradient, own in zip(gradients, torch.split(total, [each.numel() for each in gradients]), strict=True):
                gradient.copy_(own.view_as(gradient))

    def added(self, values: Tensor) -> Tensor:
        """Sum a tensor over all ranks."""
        import torch.distributed as distributed

        with self.answering():
            distributed.all_reduce(values)
        return values

    def once(
        self, compute: Callable[[], dict[str, Any]], weights: Callable[[], Iterable[Tensor]] = tuple
    ) -> dict[str, Any]:
        """Compute on the first rank; the others wait as long as it takes."""
        answer = self._from_first(compute)
        self.fill(weights())
        return answer

    def start_equal(self, state: Shared) -> None:
        """Send the state of the first rank to all others."""
        import torch

        tensors = state.tensors()
        shapes = {name: [str(value.dtype).removeprefix("torch."), *value.shape] for name, value in tensors.items()}
        answer = self._from_first(lambda: {"facts": state.facts(), "shapes": shapes})
        if not self.is_first:
            tensors = {
                name: torch.empty(shape, dtype=getattr(torch, kind))
                for name, (kind, *shape) in answer["shapes"].items()
            }
        self.fill(tensors.values())
        if not self.is_first:
            state.take_over(tensors, answer["facts"], source="state of the first process")

    @contextmanager
    def first_before_others(self) -> Iterator[None]:
        """Hold the other ranks back until the first has done the block."""
        if not self.is_first:
            self._from_first(dict)
        yield
        if self.is_first:
            self._from_first(dict)

    def call(self, question: dict[str, Any]) -> None:
        """Leave the question in the store, where the others wait for it."""
        self._from_first(lambda: question)

    def called(self) -> dict[str, Any] | None:
        """Look for the question of the first rank, until it has ended."""
        while not self._has(f"turn {self._turn + 1}"):
            if self._has("left 0"):
                return None
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return self._from_first(dict)

    def leave(self, seconds: float = _SECONDS_TO_LEAVE) -> None:
        """Say that this rank needs no other any more; the first, which may hold the store, waits a while for all."""
        with self.answering():
            self.store.set(f"left {self.number}", "")
        if self.is_first:
            others = [f"left {number}" for number in range(self.size)]
            deadline = time.monotonic() + seconds
            # The work is done: a rank that was lost by now takes nothing with it.
            with suppress(PlmError):
                while not self._has(*others) and time.monotonic() < deadline:
                    time.sleep(_SECONDS_BETWEEN_LOOKS)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """End in a sentence where another rank is gone, or has not answered for too long."""
        try:
            yield
        except RuntimeError as error:
            raise lost_rank(self.size) from error

    def _from_first(self, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what the first rank computes, through the store: waiting there knows no time limit."""
        self._turn += 1
        name = f"turn {self._turn}"
        if self.is_first:
            answer = compute()
            with self.answering():
                self.store.set(name, json.dumps(answer))
            return answer
        while not self._has(name):
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        with self.answering():
            return dict(json.loads(self.store.get(name)))

    def fill(self, tensors: Iterable[Tensor]) -> None:
        """Send the tensors of the first rank to all others."""
        import torch
        import torch.distributed as distributed

        with self.answering(), torch.no_grad():
            for tensor in tensors:
                if tensor.numel():
                    sent = tensor.detach().contiguous()
                    distributed.broadcast(sent, src=0)
                    tensor.copy_(sent)

    def _has(self, *names: str) -> bool:
        """Tell whether the store has all of these names; it does not wait for them."""
        with self.answering():
            return bool(self.store.check(list(names)))


def lost_rank(size: int) -> PlmError:
    """Say that the processes of a training are no longer complete."""
    return PlmError(
        f"one of the {size} processes of this training has ended or does not answer",
        remedy="run the same command again: it continues from the last checkpoint, with any number of processes",
    )
