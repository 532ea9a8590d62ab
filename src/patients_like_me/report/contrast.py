"""Contrast of two colours as WCAG 2 defines it: text needs 4.5 (AA), large text and lines 3."""

from __future__ import annotations


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colours written as #rrggbb.

    >>> contrast("#000000", "#ffffff"), round(contrast("#777777", "#ffffff"), 2)
    (21.0, 4.48)
    """
    bright, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour written as #rrggbb.

    >>> luminance("#ffffff")
    1.0
    """
    values = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
