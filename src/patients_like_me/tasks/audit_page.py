"""The audit as one self-contained page."""

from __future__ import annotations

from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from patients_like_me import __version__
from patients_like_me.records.cohort import Cohort
from patients_like_me.tasks.audit import Audit


def audit_page(audit: Audit, cohort: Cohort) -> str:
    """Return the page as HTML text; it holds counts only, no patient's data."""
    template = (files(__package__) / "audit_page.html.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(template).render(
        audit=audit, columns=rate_columns(audit), source=cohort.source, cohort_hash=cohort.hash, version=__version__
    )


def rate_columns(audit: Audit) -> list[str]:
    """Return the columns of the table of label rates; the rate itself is written in words."""
    return [name for name in (audit.label_rates[0] if audit.label_rates else {}) if name != "label rate"]
