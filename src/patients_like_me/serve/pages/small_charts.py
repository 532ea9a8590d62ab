"""Pictures the size of a word: outcomes of references, a range, a probability. Own SVG without style attributes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from markupsafe import Markup

from patients_like_me.plain_text import counted_of


def outcome_chart(bits: Sequence[bool | None], happened: str = "had it") -> Markup:
    """Draw one box for each reference: full if it had the event, empty if not, dotted where that is not known.

    Boxes are in the order of the references, which the page of the patient explains.

    >>> 'aria-label="1 of 2 had it"' in outcome_chart([True, False])
    True
    """
    had, known = sum(bit is True for bit in bits), sum(bit is not None for bit in bits)
    words = counted_of(had, known, happened) if known else "outcomes are not known"
    boxes = "".join(
        f'<rect class="{"had" if bit else "unknown" if bit is None else "not"}" x="{1 + 11 * place}" y="1" width="8" '
        f'height="12" rx="1.5"/>'
        for place, bit in enumerate(bits)
    )
    width = 11 * max(len(bits), 1)
    # Nothing in it comes from a record, and the words are escaped.
    return Markup(  # noqa: S704
        f'<svg class="bits" viewBox="0 0 {width} 14" width="{width}" height="14" role="img" '
        f'aria-label="{escape(words)}">{boxes}</svg>'
    )


def range_chart(probability: float, low: float | None, high: float | None) -> Markup:
    """Draw a probability as a mark on a line from 0 to 100 %, with its range as a band where there is one."""
    band = ""
    if low is not None and high is not None:
        band = f'<rect class="band" x="{100 * low:.1f}" y="2" width="{max(100 * (high - low), 1):.1f}" height="10"/>'
    return Markup(  # noqa: S704
        '<svg class="range" viewBox="-2 0 104 14" width="104" height="14" aria-hidden="true">'
        f'<path class="line" d="M0 7H100"/>{band}<path class="mark" d="M{100 * probability:.1f} 1V13"/></svg>'
    )


def level_bar(probability: float) -> Markup:
    """Draw a probability as a bar whose whole width is 100 %."""
    return Markup(  # noqa: S704
        '<svg class="level" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="bar" width="{100 * probability:.1f}" height="10"/></svg>'
    )
