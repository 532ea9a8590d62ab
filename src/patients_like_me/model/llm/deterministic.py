"""A language model that is none: its answers are made of the prompt's own lines, the same on every machine.

Text repeats the statements of the prompt (its lines that begin with a dash). A number repeats the first number of a
statement about an estimate, a choice takes the first word offered. So a system with it shows that its machinery runs
and is an ensemble of its other parts; it carries the name ``deterministic``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from patients_like_me.model.llm.answer_form import NUMBER, TEXT, AnswerForm
from patients_like_me.model.llm.client import Answer

WIDTH: Final = 64
_NOTHING: Final = "nothing is stated"


class Deterministic:
    """The back end without a model."""

    identity = "deterministic 1"

    def complete(self, prompt: str, new_tokens: int) -> Answer:
        """Return the statements of the prompt, in the form that it asks for."""
        stated = [line.strip()[2:] for line in prompt.splitlines() if line.strip().startswith("- ")]
        text = " ".join("; ".join(stated).split()[:new_tokens]) or _NOTHING
        form = AnswerForm.of_prompt(prompt)
        if form is not None:
            text = "\n".join(f"{name}: {_filled(kind, text, stated)}" for name, kind in form.fields.items())
        return Answer(text, len(prompt.split()), len(text.split()))

    def label_logprobs(self, prompt: str, labels: Sequence[str]) -> Answer:
        """Return a distribution that depends on prompt and labels alone."""
        scores = [_number(f"{prompt}\n{label}") for label in labels]
        return Answer([float(np.log(score / sum(scores))) for score in scores], len(prompt.split()))

    def embed(self, text: str) -> Answer:
        """Return a sum of directions, one per word: texts that share words are near each other."""
        words = re.findall(r"\w+", text.lower())
        vector = np.zeros(WIDTH)
        for word in words:
            vector += _direction(word)
        length = float(np.linalg.norm(vector)) or 1.0
        return Answer([round(float(value), 7) for value in vector / length], len(words))


@lru_cache(maxsize=20_000)
def _direction(word: str) -> npt.NDArray[np.float64]:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(WIDTH)


def _filled(kind: str, text: str, stated: Sequence[str]) -> str:
    if kind == TEXT:
        return text
    if kind == NUMBER:
        found = (re.search(r"estimate\D*(\d+(?:\.\d+)?)", line) for line in stated)
        return next((match.group(1) for match in found if match is not None), "0.5")
    return kind.split("|")[0].strip()


def _number(text: str) -> float:
    """Return a number from 0.5 to 1 that a text decides."""
    return 0.5 + int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**33
