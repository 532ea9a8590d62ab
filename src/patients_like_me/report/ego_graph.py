"""The ego graph: the patient in the middle, references around, closer and darker where they matter more.

An own SVG writer: every label has a place of its own in a column beside the graph, so nothing overlaps whatever the
names are. Closeness and darkness say how much, the style of the line says in which direction; both can be read in grey.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import cos, pi, sin

from patients_like_me.report.contrast import contrast
from patients_like_me.report.text_width import text_width, wrapped

MOST_NODES = 10
INK, MUTED, HIGHLIGHT, PAPER = "#1c2733", "#51606f", "#a3061e", "#ffffff"
_LIGHT, _DARK = (0xD6, 0xE4, 0xF2), (0x0A, 0x36, 0x66)
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
_SIZE, _LINE = 13.0, 17.0
CODES_SHOWN, _MOST_LINES = 3, 2
_WIDTH, _COLUMN, _NARROW_WIDTH, _SMALLEST_HEIGHT = 980, 272, 360, 420.0


@dataclass(frozen=True)
class EgoNode:
    """One reference in the picture: ``strength`` from 0 to 1, ``sign`` 1 (raises), -1 (lowers) or 0 (neither)."""

    name: str
    shown: str
    strength: float
    sign: int = 0
    outcome: str | None = None
    codes: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True)
class Box:
    """A rectangle that a label takes, for those who check that none overlap."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Tell whether two boxes share a part of the plane."""
        apart = self.right <= other.left or other.right <= self.left
        return not (apart or self.bottom <= other.top or other.bottom <= self.top)


@dataclass(frozen=True)
class _Label:
    """The lines of a node's label, each with its style, and the box it takes."""

    lines: tuple[tuple[str, str], ...]
    box: Box
    side: int


def draw_ego_graph(nodes: Sequence[EgoNode], *, title: str, labels: bool = True) -> str:
    """Return the picture as SVG text; without ``labels`` it is narrow, for a phone, and shows names only.

    >>> picture = draw_ego_graph([EgoNode("R1", "+0.41", 1.0, 1)], title="Importance")
    >>> picture.startswith("<svg"), "R1" in picture
    (True, True)
    """
    nodes = list(nodes)[:MOST_NODES]
    placed = _labels(nodes) if labels else []
    width = _WIDTH if labels else _NARROW_WIDTH
    height = max([_SMALLEST_HEIGHT, *(label.box.bottom + 12 for label in placed)]) if labels else 360.0
    reach = 186.0 if labels else 142.0
    middle = (width / 2, height / 2)
    parts = [_opening(width, height, title), *_rings(middle, reach)]
    spots = [_spot(node, place, len(nodes), middle, reach) for place, node in enumerate(nodes)]
    for node, label, spot in zip(nodes, placed, spots, strict=False):
        x = label.box.left - 6 if label.side > 0 else label.box.right + 6
        y = label.box.top + 10
        leader = (
            f'<path d="M{spot[0]:.1f} {spot[1]:.1f}L{x:.1f} {y:.1f}" stroke="#7b8896" stroke-width="1" '
            f'stroke-dasharray="1 3" fill="none"/>'
        )
        parts.append(_of_node(node, "leader", leader))
    parts += [_of_node(node, "edge", _edge(node, middle, spot)) for node, spot in zip(nodes, spots, strict=True)]
    parts += [_of_node(node, "disc", _disc(node, spot)) for node, spot in zip(nodes, spots, strict=True)]
    parts.append(
        f'<circle cx="{middle[0]:.1f}" cy="{middle[1]:.1f}" r="28" fill="{PAPER}" stroke="{INK}" stroke-width="3"/>'
        f'<text x="{middle[0]:.1f}" y="{middle[1] + 4.5:.1f}" text-anchor="middle" font-weight="700" '
        f'fill="{INK}" font-size="12">patient</text>'
    )
    parts += [_of_node(node, "label", _text_of(label)) for node, label in zip(nodes, placed, strict=False)]
    return "".join([*parts, "</svg>"])


def _of_node(node: EgoNode, part: str, drawn: str) -> str:
    """Say which reference a part of the picture belongs to, so that a served page can answer a pointer."""
    return f'<g class="{part}" data-node="{escape(node.name)}">{drawn}</g>'


def draw_legend(measure: str, *, moved: str = "", codes: bool = True) -> str:
    """Return the legend as SVG text: shades, line styles (what they raise or lower), and the mark of tied diagnoses."""
    entries = [("shade", f"darker and closer: more {measure}")]
    if moved:
        entries += [("solid", f"raises {moved}"), ("dashed", f"lowers {moved}")]
    if codes:
        entries.append(("mark", "diagnosis that goes with the outcome"))
    width, height = 372, 24 * len(entries) + 6
    parts = [_opening(width, height, "Legend")]
    for number, (sign, text) in enumerate(entries):
        y = 24 * number + 15
        if sign == "shade":
            parts += [
                f'<circle cx="{14 + 17 * step}" cy="{y}" r="7" fill="{_shade(step / 2)}" stroke="{INK}"/>'
                for step in range(3)
            ]
        elif sign == "mark":
            parts.append(
                f'<text x="31" y="{y + 4.5}" text-anchor="middle" fill="{HIGHLIGHT}" font-weight="700">◆ code</text>'
            )
        else:
            parts.append(
                f'<path d="M7 {y}H55" stroke="{INK}" stroke-width="3"'
                f"{' stroke-dasharray=' + chr(34) + '7 5' + chr(34) if sign == 'dashed' else ''}/>"
            )
        parts.append(f'<text x="66" y="{y + 4.5}" fill="{INK}">{escape(text)}</text>')
    return "".join([*parts, "</svg>"])


def _opening(width: float, height: float, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:.0f}" role="img" '
        f'font-family="{_FONT}" font-size="{_SIZE:g}"><title>{escape(title)}</title>'
        f'<rect width="{width:g}" height="{height:.0f}" fill="{PAPER}"/>'
    )


def _side_and_slot(place: int, number: int) -> tuple[int, int, int]:
    """Return side (1 right, -1 left), slot from the top and slots of that side: clockwise from the upper right."""
    right = (number + 1) // 2
    if place < right:
        return 1, place, right
    return -1, number - 1 - place, number - right


def _labels(nodes: Sequence[EgoNode]) -> list[_Label]:
    """Give every label a slot of its own in the column of its side; the slots of a side share the height evenly."""
    written = [_lines(node) for node in nodes]
    tallest = max((len(lines) for lines in written), default=0) * _LINE + 14
    height = max(_SMALLEST_HEIGHT, tallest * ((len(nodes) + 1) // 2) + 16)
    found = []
    for place, lines in enumerate(written):
        side, slot, slots = _side_and_slot(place, len(nodes))
        pitch = (height - 16) / slots
        top = 8 + slot * pitch + (pitch - _LINE * len(lines)) / 2
        widest = max(text_width(text, _size_of(style)) for text, style in lines)
        left = _WIDTH - 8 - _COLUMN if side > 0 else 8 + _COLUMN - widest
        found.append(_Label(lines, Box(left, top, left + widest, top + _LINE * len(lines)), side))
    return found


def _lines(node: EgoNode) -> tuple[tuple[str, str], ...]:
    head = wrapped(f"{node.name} {node.shown}", _size_of("head"), _COLUMN, lines=_MOST_LINES)
    lines = [(line, "head") for line in head]
    if node.outcome:
        lines += [(line, "outcome") for line in wrapped(node.outcome, _SIZE, _COLUMN)]
    for text, tied in node.codes[:CODES_SHOWN]:
        shown = f"◆ {text}" if tied else text
        style = "tied" if tied else "code"
        lines += [(line, style) for line in wrapped(shown, _size_of(style), _COLUMN, lines=_MOST_LINES)]
    return tuple(lines)


def _size_of(style: str) -> float:
    """Return the size that a text counts as: bold letters are wider."""
    return _SIZE * 1.16 if style in ("head", "tied") else _SIZE


def _text_of(label: _Label) -> str:
    styles = {
        "head": f'fill="{INK}" font-weight="700"',
        "outcome": f'fill="{INK}" font-style="italic"',
        "code": f'fill="{INK}"',
        "tied": f'fill="{HIGHLIGHT}" font-weight="700"',
    }
    anchor, x = ("start", label.box.left) if label.side > 0 else ("end", label.box.right)
    return "".join(
        f'<text x="{x:.1f}" y="{label.box.top + _LINE * number + _SIZE:.1f}" text-anchor="{anchor}" '
        f"{styles[style]}>{escape(text)}</text>"
        for number, (text, style) in enumerate(label.lines)
    )


def _spot(node: EgoNode, place: int, number: int, middle: tuple[float, float], reach: float) -> tuple[float, float]:
    """Return the place of a node: its direction by its place, its distance by its strength."""
    side, slot, slots = _side_and_slot(place, number)
    # The slots of a side spread over 144 degrees, so that neighbours at the innermost ring do not touch.
    angle = 0.0 if slots == 1 else (slot / (slots - 1) - 0.5) * 0.8 * pi
    distance = reach - (reach - 84.0) * min(max(node.strength, 0.0), 1.0)
    return middle[0] + side * distance * cos(angle), middle[1] + distance * sin(angle)


def _rings(middle: tuple[float, float], reach: float) -> list[str]:
    return [
        f'<circle cx="{middle[0]:.1f}" cy="{middle[1]:.1f}" r="{radius:.1f}" fill="none" stroke="#e3e8ee"/>'
        for radius in (84.0, (84.0 + reach) / 2, reach)
    ]


def _edge(node: EgoNode, middle: tuple[float, float], spot: tuple[float, float]) -> str:
    style = ' stroke-dasharray="7 5"' if node.sign < 0 else ""
    width = 1.5 + 2.5 * node.strength
    return (
        f'<path d="M{middle[0]:.1f} {middle[1]:.1f}L{spot[0]:.1f} {spot[1]:.1f}" stroke="{INK}" '
        f'stroke-width="{width:.1f}"{style}/>'
    )


def _disc(node: EgoNode, spot: tuple[float, float]) -> str:
    fill = _shade(node.strength)
    ink = max((PAPER, "#000000"), key=lambda colour: contrast(fill, colour))
    return (
        f'<circle cx="{spot[0]:.1f}" cy="{spot[1]:.1f}" r="19" fill="{fill}" stroke="{INK}" stroke-width="1.2"/>'
        f'<text x="{spot[0]:.1f}" y="{spot[1] + 4.5:.1f}" text-anchor="middle" font-weight="700" font-size="12" '
        f'fill="{ink}">{escape(node.name)}</text>'
    )


def _shade(strength: float) -> str:
    share = min(max(strength, 0.0), 1.0)
    mixed = (round(light + (dark - light) * share) for light, dark in zip(_LIGHT, _DARK, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)
