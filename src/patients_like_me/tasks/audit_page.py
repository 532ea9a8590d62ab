"""The audit as one self-contained page."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from patients_like_me import __version__
from patients_like_me.plain_text import is_small, printable, shown_count
from patients_like_me.records.cohort import Cohort
from patients_like_me.tasks.audit import Audit


def audit_page(audit: Audit, cohort: Cohort) -> str:
    """Return the page as HTML text; it holds counts only, no patient's data."""
    template = (files(__package__) / "audit_page.html.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(template).render(
        audit=audit,
        columns=rate_columns(audit),
        shown_rates=shown_rates,
        shown_count=shown_count,
        printable=printable,
        source=cohort.source,
        cohort_hash=cohort.hash,
        version=__version__,
    )


def rate_columns(audit: Audit) -> list[str]:
    """Return the columns of the table of label rates; the rate itself is written in words."""
    return [name for name in (audit.label_rates[0] if audit.label_rates else {}) if name != "label rate"]


def shown_rates(row: Mapping[str, Any], columns: list[str]) -> list[str]:
    """Return one row of the label rates as text; groups under 11 patients or instances, and their rates, are hidden.

    >>> row = {"split": "test", "instances": 9, "patients": 4, "shown": "50.0 %"}
    >>> shown_rates(row, ["split", "instances", "shown"])
    ['test', 'fewer than 11', 'hidden']
    """
    hidden = any(is_small(row[name]) for name in ("instances", "patients"))
    shown = {**row, "shown": "hidden"} if hidden else row
    return [shown_count(shown[name]) if isinstance(shown[name], int) else printable(shown[name]) for name in columns]
