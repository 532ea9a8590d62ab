"""The page of a system that explains itself: its sentence and its tables, in the look of the other pages."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from patients_like_me.report.page_templates import page_environment
from patients_like_me.report.palette import DARK, LIGHT, css_variables
from patients_like_me.systems.contract import SelfExplanation


@dataclass(frozen=True)
class SelfPage:
    """One prediction of one run, explained by the system itself."""

    system: str
    task: str
    split: str
    example: int
    found: SelfExplanation

    def written(self, suffix: str) -> str:
        """Return the page in the form of a file's ending: .html, .md or .json."""
        if suffix == ".json":
            return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"
        environment = page_environment(markdown=suffix == ".md")
        environment.filters["cell"] = cell
        environment.tests["figure"] = lambda value: not isinstance(value, str)
        template = environment.get_template(f"self_page{'.md' if suffix == '.md' else '.html'}.jinja")
        return template.render(p=self, light=css_variables(LIGHT), dark=css_variables(DARK))


def cell(value: str | float) -> str:
    """Write a cell: text as it is, a number with three significant digits.

    >>> cell("A02B"), cell(-0.12345), cell(12.0), cell(0)
    ('A02B', '−0.123', '12', '0')
    """
    return value if isinstance(value, str) else f"{value:.3g}".replace("-", "−")
