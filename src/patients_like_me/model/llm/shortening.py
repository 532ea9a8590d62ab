"""Prompts that are too long: the question is at both ends, so the middle is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: A cautious guess where only the server knows its tokens.
_LETTERS_PER_TOKEN: Final = 3


def shortened(text: str, tokens: int, count: Callable[[str], int] | None = None) -> str:
    r"""Return a text with at most this many tokens; where it is longer, its middle lines are left out.

    >>> shortened("first\nsecond\nthird\nlast", 4, lambda text: len(text.split()))
    'first\nsecond\nthird\nlast'
    >>> shortened("first\nsecond\nthird\nlast", 3, lambda text: len(text.split()))
    'first\n[...]\nlast'
    """
    measure = count or (lambda given: -(-len(given) // _LETTERS_PER_TOKEN))
    if measure(text) <= tokens:
        return text
    lines = text.splitlines()
    low, high = 0, len(lines)
    while low < high:
        kept = (low + high + 1) // 2
        low, high = (kept, high) if measure(_ends(lines, kept)) <= tokens else (low, kept - 1)
    if low:
        return _ends(lines, low)
    # Not even one line fits: a single line of words is cut at its end.
    words = text.split()
    most = len(words)
    while most > 1 and measure(" ".join(words[:most])) > tokens:
        most = most * 3 // 4
    return " ".join(words[:most])


def _ends(lines: list[str], kept: int) -> str:
    """Return a number of lines from both ends, the last ones first to stay."""
    last = -(-kept // 2)
    return "\n".join([*lines[: kept - last], "[...]", *(lines[len(lines) - last :] if last else [])])
