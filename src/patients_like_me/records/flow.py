"""The flow: how many patients and visits are left after every filter, as a table and as a drawn diagram."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

_BOX_WIDTH, _BOX_HEIGHT, _GAP, _MARGIN = 400, 54, 34, 10


@dataclass(frozen=True)
class FlowStep:
    """One station of the flow: what is left, and what the filter that leads here left out."""

    name: str
    patients: int
    visits: int
    visits_left_out: int = 0


@dataclass
class Flow:
    """The stations from all records of the source to the cohort.

    >>> flow = Flow()
    >>> flow.add("all admissions in the source", patients=3, visits=7)
    >>> flow.add("discharge not before admission", patients=3, visits=6)
    >>> [step.visits_left_out for step in flow.steps]
    [0, 1]
    """

    steps: list[FlowStep] = field(default_factory=list)

    def add(self, name: str, *, patients: int, visits: int) -> None:
        """Add a station; what was left out follows from the station before."""
        left_out = self.steps[-1].visits - visits if self.steps else 0
        self.steps.append(FlowStep(name, patients, visits, left_out))

    def as_json(self) -> list[dict[str, Any]]:
        """Return the stations as plain data."""
        return [asdict(step) for step in self.steps]

    @classmethod
    def from_json(cls, content: list[dict[str, Any]]) -> Flow:
        """Read what :meth:`as_json` wrote."""
        return cls([FlowStep(**step) for step in content])

    def markdown(self) -> str:
        """Return the flow as a table."""
        rows = [
            f"| {step.name} | {step.patients:,} | {step.visits:,} | {step.visits_left_out:,} |" for step in self.steps
        ]
        return "\n".join(["| station | patients | visits | visits left out |", "| --- | ---: | ---: | ---: |", *rows])

    def svg(self) -> str:
        """Draw the flow as boxes from top to bottom, with what was left out next to each arrow."""
        height = len(self.steps) * (_BOX_HEIGHT + _GAP) - _GAP + 20
        width = _BOX_WIDTH + 2 * _MARGIN
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"',
            'font-family="sans-serif" font-size="13">',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"',
            'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#456"/></marker></defs>',
            '<rect width="100%" height="100%" fill="white"/>',
        ]
        centre = 10 + _BOX_WIDTH / 2
        for number, step in enumerate(self.steps):
            top = 10 + number * (_BOX_HEIGHT + _GAP)
            if number:
                parts.append(
                    f'<line x1="{centre}" y1="{top - _GAP}" x2="{centre}" y2="{top - 1}" stroke="#456" '
                    'stroke-width="1.4" marker-end="url(#tip)"/>'
                )
                note = f"{step.visits_left_out:,} visits left out" if step.visits_left_out else "none left out"
                parts.append(f'<text x="{centre + 14}" y="{top - _GAP / 2 + 4}" fill="#777">{note}</text>')
            parts.append(
                f'<rect x="10" y="{top}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6" fill="#eef3fa" '
                'stroke="#456"/>'
                f'<text x="{centre}" y="{top + 22}" text-anchor="middle" font-weight="bold">{escape(step.name)}</text>'
                f'<text x="{centre}" y="{top + 41}" text-anchor="middle">{step.patients:,} patients · '
                f"{step.visits:,} visits</text>"
            )
        return "\n".join([*parts, "</svg>"]) + "\n"
