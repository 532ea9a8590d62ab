"""Answers with fields: how a prompt asks for them, and how they are read, also where a model keeps the form badly."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_HEADING: Final = "Answer in this form:"
NUMBER, TEXT = "<number>", "<text>"


@dataclass(frozen=True)
class AnswerForm:
    r"""Named fields of an answer: ``<number>``, ``<text>``, or words to choose from, such as ``agree | disagree``.

    >>> form = AnswerForm({"opinion": "agree | disagree", "confidence": NUMBER, "reason": TEXT})
    >>> form.read("Opinion: Disagree.\nconfidence = 2 of 3\nreason: too few visits\nand too old")
    {'opinion': 'disagree', 'confidence': '2', 'reason': 'too few visits and too old'}
    >>> form.read("I cannot tell.")
    {}
    """

    fields: Mapping[str, str]

    def words(self) -> str:
        """Return the end of a prompt that asks for these fields."""
        return "\n".join([_HEADING, *(f"{name}: {kind}" for name, kind in self.fields.items())])

    @classmethod
    def of_prompt(cls, prompt: str) -> AnswerForm | None:
        """Return the form that a prompt asks for; None where it asks for plain text."""
        _, heading, asked = prompt.rpartition(_HEADING)
        if not heading:
            return None
        pairs = (line.split(":", 1) for line in asked.strip().splitlines() if ":" in line)
        return cls({name.strip(): kind.strip() for name, kind in pairs})

    def read(self, answer: str) -> dict[str, str]:
        """Return the fields that an answer has; what is not of its kind is left out."""
        names = "|".join(re.escape(name) for name in self.fields)
        parts = re.split(rf"(?im)^\W*({names})\W*?\s*[:=]", answer)
        found: dict[str, str] = {}
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            field = next(each for each in self.fields if each.lower() == name.lower())
            if field not in found and (value := _of_kind(text, self.fields[field])) is not None:
                found[field] = value
        return found


def _of_kind(text: str, kind: str) -> str | None:
    """Return the part of a text that is of a kind; None where it has none."""
    if kind == NUMBER:
        number = re.search(r"-?\d+(?:\.\d+)?", text)
        return None if number is None else number.group()
    if kind == TEXT:
        return " ".join(text.split()) or None
    choices = [choice.strip() for choice in kind.split("|")]
    word = re.search(r"\b(" + "|".join(re.escape(choice) for choice in choices) + r")\b", text, re.IGNORECASE)
    return None if word is None else next(choice for choice in choices if choice.lower() == word.group().lower())
