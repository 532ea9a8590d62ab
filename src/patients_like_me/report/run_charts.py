"""The pictures of the run report: SVG in the page's own colours, readable in grey, in the dark and on a phone.

The figures of an evaluation are made for papers: their captions are part of the picture, and they are white. On a page
captions are text, and colours follow the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH, LEFT, RIGHT, TOP, PLOT_HEIGHT = 460.0, 82.0, 14.0, 12.0, 230.0
_DASHES: Final = ("", "7 4", "2 3", "9 3 2 3", "12 4", "4 2")
_LINE_HEIGHT: Final = 21.0
_Place = Callable[[float, float], tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """A line of a chart; ``spread`` gives (x, low, high) of the intervals that are drawn as thin upright strokes."""

    name: str
    points: tuple[tuple[float, float], ...]
    spread: tuple[tuple[float, float, float], ...] = ()


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers between two numbers.

    >>> ticks(0, 1), ticks(-0.013, 0.004)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [-0.01, -0.005, 0.0])
    """
    span = high - low
    rough = 10.0 ** math.floor(math.log10(span / about))
    step = next(rough * factor for factor in (1, 2, 5, 10, 20) if span / (rough * factor) <= about + 0.5)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    across: str,
    up: str,
    x_ticks: Sequence[float],
    y_range: tuple[float, float] | None = None,
    diagonal: bool = False,
    zero: bool = False,
) -> str:
    """Draw lines, told apart by dashes and marks, with a legend below; ``diagonal`` adds the line x = y."""
    values = [y for each in series for _, y in each.points]
    values += [y for each in series for _, low, high in each.spread for y in (low, high)] + [0.0] * zero
    low, high = y_range or (min(values), max(values))
    if y_range is None:
        room = 0.06 * (high - low) or 0.01
        low, high = low - room, high + room
    first, last = min(x_ticks), max(x_ticks)

    def place(x: float, y: float) -> tuple[float, float]:
        along = (x - first) / ((last - first) or 1.0)
        return LEFT + 12 + along * (WIDTH - LEFT - RIGHT - 24), TOP + (high - y) / (high - low) * PLOT_HEIGHT

    parts = [_y_axis(low, high, place, first), _x_axis(x_ticks, place, low, across), _y_title(up)]
    if zero:
        parts.append(_stroke([place(first, 0.0), place(last, 0.0)], width=1.0))
    if diagonal:
        parts.append(_stroke([place(first, first), place(last, last)], width=1.2, dash="3 4"))
    for number, each in enumerate(series):
        # Lines are shifted a little, so that their intervals do not cover one another.
        aside = (number - (len(series) - 1) / 2) * 5.0 if each.spread else 0.0
        for x, bottom, top in each.spread:
            along, _ = place(x, bottom)
            ends = [(along + aside, place(x, bottom)[1]), (along + aside, place(x, top)[1])]
            parts.append(_stroke(ends, width=1.0))
        places = [(place(x, y)[0] + aside, place(x, y)[1]) for x, y in each.points]
        parts.append(_stroke(places, dash=_DASHES[number % len(_DASHES)]))
        parts += [_mark(number, *spot) for spot in places]
    below = TOP + PLOT_HEIGHT + 62
    for number, each in enumerate(series):
        row = below + number * _LINE_HEIGHT
        parts.append(_stroke([(LEFT, row - 4), (LEFT + 40, row - 4)], dash=_DASHES[number % len(_DASHES)]))
        parts.append(_mark(number, LEFT + 20, row - 4))
        parts.append(f'<text x="{LEFT + 50:.1f}" y="{row:.1f}">{escape(each.name)}</text>')
    return _svg(WIDTH, below + len(series) * _LINE_HEIGHT - 8, title, parts)


def interval_bar(value: float, low: float, high: float, scale: tuple[float, float], middle: float | None) -> str:
    """Draw a value with its interval on a scale, and a stroke at ``middle``: the row of a forest plot."""
    width, height = 150.0, 20.0

    def place(x: float) -> float:
        return 6 + (x - scale[0]) / ((scale[1] - scale[0]) or 1.0) * (width - 12)

    parts = [] if middle is None else [_stroke([(place(middle), 0), (place(middle), height)], width=1.0, dash="2 2")]
    parts.append(_stroke([(place(low), height / 2), (place(high), height / 2)], width=2.0))
    parts.append(f'<circle cx="{place(value):.1f}" cy="{height / 2}" r="4" fill="var(--ink)"/>')
    return _svg(width, height, f"{value:.3f}, {low:.3f} to {high:.3f}", parts)


def _svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="15" fill="var(--ink)">'
        + "".join(parts)
        + "</svg>"
    )


def _y_axis(low: float, high: float, place: _Place, first: float) -> str:
    marks = ticks(low, high)
    digits = max((len(f"{mark:.10f}".rstrip("0").partition(".")[2]) for mark in marks), default=0)
    parts = []
    for mark in marks:
        _, y = place(first, mark)
        written = f"{mark:.{digits}f}".replace("-", "−")
        parts.append(
            f'<path d="M{LEFT:.1f} {y:.1f}H{WIDTH - RIGHT:.1f}" stroke="var(--line)" fill="none"/>'
            f'<text x="{LEFT - 6:.1f}" y="{y + 4.5:.1f}" text-anchor="end" font-size="14">{written}</text>'
        )
    return "".join(parts)


def _x_axis(marks: Sequence[float], place: _Place, low: float, across: str) -> str:
    parts = []
    for mark in marks:
        x, y = place(mark, low)
        parts.append(f'<text x="{x:.1f}" y="{y + 17:.1f}" text-anchor="middle" font-size="14">{mark:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle:.1f}" y="{TOP + PLOT_HEIGHT + 37:.1f}" text-anchor="middle">{escape(across)}</text>'
    )
    return "".join(parts)


def _y_title(words: str) -> str:
    y = TOP + PLOT_HEIGHT / 2
    return f'<text transform="translate(13 {y:.1f}) rotate(-90)" text-anchor="middle">{escape(words)}</text>'


def _stroke(places: Sequence[tuple[float, float]], *, width: float = 1.8, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="{_path(places)}" fill="none" stroke="var(--ink)" stroke-width="{width}"{dashed}/>'


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "".join(f"{'L' if number else 'M'}{x:.1f} {y:.1f}" for number, (x, y) in enumerate(places))


def _mark(number: int, x: float, y: float) -> str:
    """Return a disc, square, triangle, diamond or ring: also without colour and dashes lines can be told apart."""
    shapes = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.2"/>',
        f'<rect x="{x - 3.8:.1f}" y="{y - 3.8:.1f}" width="7.6" height="7.6"/>',
        f'<path d="M{x:.1f} {y - 5:.1f}L{x + 4.8:.1f} {y + 3.8:.1f}L{x - 4.8:.1f} {y + 3.8:.1f}Z"/>',
        f'<path d="M{x:.1f} {y - 5.4:.1f}L{x + 5.4:.1f} {y:.1f}L{x:.1f} {y + 5.4:.1f}L{x - 5.4:.1f} {y:.1f}Z"/>',
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="var(--card)" stroke="var(--ink)" stroke-width="1.6"/>',
        f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" fill="var(--card)" stroke="var(--ink)"/>',
    )
    return shapes[number % len(shapes)]
