"""The audit as one self-contained page."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from patients_like_me import __version__
from patients_like_me.records.cohort import Cohort
from patients_like_me.tasks.audit import Audit


def audit_page(audit: Audit, cohort: Cohort) -> str:
    """Return the page as HTML text; it holds counts only, no patient's data."""
    template = (files(__package__) / "audit_page.html.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    rates = [{**row, "shown": shown_rate(row["label rate"], audit.task)} for row in audit.label_rates]
    return environment.from_string(template).render(
        audit=audit, rates=rates, source=cohort.source, cohort_hash=cohort.hash, version=__version__
    )


def shown_rate(rate: Any, task: str) -> str:
    """Write a label rate as a person reads it.

    >>> shown_rate(0.1141, "readmission"), shown_rate([0.5, 0.5], "length_of_stay"), shown_rate(None, "any")
    ('11.4 %', '50.0 50.0 %', 'no instances')
    """
    if rate is None:
        return "no instances"
    if isinstance(rate, list):
        return " ".join(f"{share:.1%}"[:-1] for share in rate) + " %"
    if task == "drug_recommendation" or rate > 1:
        return f"{rate:.1f} codes per instance"
    return f"{rate:.1%}".replace("%", " %")
