"""How wide a text will be: a cautious estimate, so that labels of a picture never run into each other."""

from __future__ import annotations

import unicodedata

_NARROW = frozenset("ijl.,;:!|'`()[] ")
_MIDDLE = frozenset('frtI/\\-"')
_WIDE = frozenset("mwMW@%")


def text_width(text: str, size: float) -> float:
    """Return the width in pixels of a text in a sans-serif font of a size, rather too large than too small.

    >>> text_width("ill", 10) < text_width("www", 10)
    True
    """
    return size * sum(_width_of(sign) for sign in text)


def _width_of(sign: str) -> float:
    if sign in _NARROW:
        return 0.36
    if sign in _MIDDLE:
        return 0.45
    if sign in _WIDE:
        return 0.98
    if unicodedata.combining(sign):
        return 0.0
    if unicodedata.east_asian_width(sign) in "WF":
        return 1.05
    return 0.74 if sign.isupper() or not sign.isascii() else 0.62


def wrapped(text: str, size: float, width: float, *, lines: int = 2) -> list[str]:
    """Break a text into at most ``lines`` lines of a width; what does not fit ends in an ellipsis.

    >>> wrapped("heart failure with complications", 10, 70, lines=2)
    ['heart failure', 'with compl…']
    """
    found: list[str] = []
    left = text.split()
    while left and len(found) < lines:
        line = left.pop(0)
        while left and text_width(f"{line} {left[0]}", size) <= width:
            line = f"{line} {left.pop(0)}"
        if text_width(line, size) > width:
            # A single word longer than the line is cut where the line ends.
            kept = fitted(line, size, width, mark="")
            left.insert(0, line[len(kept) :])
            line = kept
        found.append(line)
    if left:
        found[-1] = fitted(f"{found[-1]} {left[0]}", size, width)
    return found


def fitted(text: str, size: float, width: float, *, mark: str = "…") -> str:
    """Cut a text to a width, with a mark at its end where something is missing.

    >>> fitted("readmission", 10, 200), fitted("readmission", 10, 40)
    ('readmission', 'read…')
    """
    if text_width(text, size) <= width:
        return text
    kept = text
    while len(kept) > 1 and text_width(kept + mark, size) > width:
        kept = kept[:-1]
    return kept.rstrip() + mark if mark else kept
