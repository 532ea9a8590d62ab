"""The client that systems ask: three questions, answered from disk where they were asked before.

A back end only has to implement :class:`Backend`. The client adds what all of them need: every answer is kept as soon
as it is there (:mod:`patients_like_me.model.llm.kept_answers`), so that a stopped run never asks twice, and calls and
tokens are counted. Errors and progress name no word of a prompt or an answer: both may hold records of patients.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.model.llm.kept_answers import KeptAnswer, KeptAnswers, answers_folder
from patients_like_me.model.llm.settings import LLMSettings

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Answer:
    """What a back end says to one question, and the tokens it read and wrote."""

    value: Any
    read: int = 0
    written: int = 0


class Backend(Protocol):
    """What answers: ``identity`` is everything that decides an answer besides the question."""

    @property
    def identity(self) -> str:
        """The model and what else decides its answers."""
        ...

    def complete(self, prompt: str, new_tokens: int) -> Answer:
        """Return the text that follows a prompt."""
        ...

    def label_logprobs(self, prompt: str, labels: Sequence[str]) -> Answer:
        """Return the log-probability of each label as the answer to a prompt, in their order."""
        ...

    def embed(self, text: str) -> Answer:
        """Return one vector for a text, as a list of numbers."""
        ...


@dataclass
class Usage:
    """What a client was asked: different questions, those that needed a call, and tokens of all answers used."""

    questions: set[str] = field(default_factory=set)
    calls: int = 0
    read: int = 0
    written: int = 0
    seconds: float = 0.0

    def sentence(self, name: str) -> str:
        """Say it in one sentence.

        >>> Usage({"a", "b"}, calls=1, read=20, written=5, seconds=0.4).sentence("tiny")
        'language model tiny: 2 different answers, 1 of them asked for now (0 s); 20 tokens read, 5 written'
        """
        return (
            f"language model {name}: {len(self.questions):,} different answers, {self.calls:,} of them asked for now "
            f"({self.seconds:.0f} s); {self.read:,} tokens read, {self.written:,} written"
        )


class LLMClient:
    r"""Asks one language model; the same question is asked once, ever.

    >>> client = LLMClient.of(LLMSettings())
    >>> client.complete("Summarise:\n- diabetes needs insulin")
    'diabetes needs insulin'
    >>> client.embed(["heart failure", "heart failure", "asthma"]).shape, client.usage.calls
    ((3, 64), 3)
    """

    def __init__(self, settings: LLMSettings, backend: Backend, kept: KeptAnswers | None) -> None:
        self.settings, self.backend, self.kept = settings, backend, kept
        self.usage = Usage()
        self._now: dict[str, Any] = {}

    @classmethod
    def of(cls, settings: LLMSettings) -> LLMClient:
        """Return the client of some settings; nothing is loaded and nobody is asked before the first question."""
        if settings.backend == "deterministic":
            from patients_like_me.model.llm.deterministic import Deterministic

            # It answers faster than a disk.
            return cls(settings, Deterministic(), None)
        backend: Backend
        if settings.backend == "decoder":
            from patients_like_me.model.llm.decoder import Decoder

            backend = Decoder(settings)
        else:
            from patients_like_me.model.llm.endpoint import Endpoint

            backend = Endpoint(settings)
        return cls(settings, backend, KeptAnswers(answers_folder(), settings.name))

    def refuse_another(self, identity: str | None) -> None:
        """Refuse to go on with another language model than the one of the training: its answers would be others.

        Runs from before this was kept have no ``identity``: nobody can tell which model theirs was.
        """
        if identity is None:
            raise PlmError(
                "the run does not say which language model was used in training",
                remedy="it must be trained again, in another folder",
            )
        if self.backend.identity != identity:
            raise PlmError(
                f"the language model '{self.settings.name}' is not the one used in training",
                remedy="restore that model (the same weights, or the same server), or train again",
            )

    def complete(self, prompt: str) -> str:
        """Return the answer to a prompt."""
        longest = self.settings.new_tokens
        return str(self._ask("complete", [prompt, longest], lambda: self.backend.complete(prompt, longest)))

    def label_logprobs(self, prompt: str, labels: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return the log-probability of each label as the answer to a prompt."""
        wanted = list(labels)
        found = self._ask("labels", [prompt, wanted], lambda: self.backend.label_logprobs(prompt, wanted))
        return np.array(found, dtype=np.float64)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per text, [texts, width]."""
        known: dict[str, Vectors] = {}
        for text in texts:
            if text not in known:
                found = self._ask("embed", [text], partial(self.backend.embed, text), remember=False)
                known[text] = np.array(found, dtype=np.float32)
        return np.array([known[text] for text in texts], dtype=np.float32).reshape(len(texts), -1)

    def measured_seconds(self, prompt: str) -> float:
        """Return how long one answer takes, by asking once without keeping it; the prompt must hold no record.

        A model in this process is loaded before: that is done once and not for every answer.
        """
        _ = getattr(self.backend, "loaded", None)
        started = time.perf_counter()
        self.backend.complete(prompt, self.settings.new_tokens)
        return time.perf_counter() - started

    def _ask(self, kind: str, question: list[Any], ask: Callable[[], Answer], *, remember: bool = True) -> Any:
        key = self.key(kind, question)
        if key in self._now:
            return self._now[key]
        found = None if self.kept is None else self.kept.find(key)
        if found is None:
            started = time.perf_counter()
            answer = ask()
            seconds = time.perf_counter() - started
            found = KeptAnswer(answer.value, answer.read, answer.written)
            if self.kept is not None:
                self.kept.keep(key, found)
            self.usage.calls += 1
            self.usage.seconds += seconds
        if key not in self.usage.questions:
            self.usage.questions.add(key)
            self.usage.read += found.read
            self.usage.written += found.written
        if remember:
            # Vectors of all records would fill the memory.
            self._now[key] = found.value
        return found.value

    def key(self, kind: str, question: list[Any]) -> str:
        """Return the hash by which an answer is found again: of the model and the whole question."""
        shown = json.dumps([self.backend.identity, kind, self.settings.prompt_tokens, question], ensure_ascii=True)
        return hashlib.sha256(shown.encode()).hexdigest()
