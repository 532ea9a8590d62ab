"""The audit as one self-contained page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, StrictUndefined

from patients_like_me import __version__
from patients_like_me.plain_text import FEW, is_small, printable, shown_count
from patients_like_me.records.cohort import Cohort
from patients_like_me.tasks.audit import Audit

#: What is written where a number would give a small one away.
HIDDEN: Final = "hidden"
_COUNTS: Final = ("instances", "patients")
_COLUMNS: Final = ("split", *_COUNTS, "shown")


def audit_page(audit: Audit, cohort: Cohort) -> str:
    """Return the page as HTML text; it holds counts only, no patient's data."""
    template = (files(__package__) / "audit_page.html.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(template).render(
        audit=audit,
        columns=rate_columns(audit),
        rates=shown_rates(audit),
        shown_count=shown_count,
        printable=printable,
        source=cohort.source,
        cohort_hash=cohort.hash,
        version=__version__,
    )


def rate_columns(audit: Audit) -> list[str]:
    """Return the columns of the table of label rates; the rate itself is written in words."""
    hidden = ("label rate", "of each class")
    return [name for name in (audit.label_rates[0] if audit.label_rates else {}) if name not in hidden]


def shown_rates(audit: Audit) -> list[list[str]]:
    """Return the rows of the label rates as text, in which no group under 11 can be found or worked out.

    Hidden are splits with too few instances or patients, with the next smallest one, since the total is known; rates
    from which too few instances or patients of a class follow; and rows under another choice of a setting that differ
    from those of the audited one by too few.
    """
    columns, rows = rate_columns(audit), audit.label_rates
    by = next((name for name in columns if name not in _COLUMNS), None)
    shown: list[list[str]] = []
    for number, row in enumerate(rows):
        same = [other for other in rows if by is None or other[by] == row[by]]
        text = {**row, "shown": _rate_in_words(row)}
        if row["split"] in _hidden_splits(same):
            text |= {"shown": HIDDEN, **{name: FEW if is_small(row[name]) else HIDDEN for name in _COUNTS}}
        elif by is not None and any(_differs_by_few(row, other) for other in rows[:number]):
            text |= dict.fromkeys(("instances", "patients", "shown"), HIDDEN)
        shown.append(
            [shown_count(text[name]) if isinstance(text[name], int) else printable(text[name]) for name in columns]
        )
    return shown


def _hidden_splits(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the splits that are not shown: of one alone the size would follow from the total."""
    by_size = sorted(rows, key=lambda row: (row["instances"], row["split"]))
    hidden = [row for row in by_size if _is_small_row(row)]
    for row in by_size:
        if not hidden or (
            len(hidden) > 1 and not any(is_small(sum(each[name] for each in hidden)) for name in _COUNTS)
        ):
            break
        if row not in hidden and row["instances"]:
            hidden.append(row)
    return {row["split"] for row in hidden}


def _is_small_row(row: Mapping[str, Any]) -> bool:
    return any(is_small(row[name]) for name in _COUNTS)


def _rate_in_words(row: Mapping[str, Any]) -> str:
    """Write the rates of the classes; those of small ones are hidden, and so many others that none can be worked out.

    >>> rates = {"label rate": [0.9, 0.06, 0.04], "shown": "90.0 6.0 4.0 %"}
    >>> _rate_in_words({**rates, "of each class": [[180, 90], [12, 12], [8, 8]]})
    '90.0 hidden hidden %'
    >>> _rate_in_words({"label rate": 0.02, "shown": "2.0 %", "of each class": [[490, 200], [10, 9]]})
    'hidden'
    """
    counts = row["of each class"]
    hidden = {place for place, count in enumerate(counts) if any(map(is_small, count))}
    if not hidden:
        return str(row["shown"])
    if not isinstance(row["label rate"], list):
        return HIDDEN
    for place in sorted(range(len(counts)), key=lambda place: counts[place]):
        if len(hidden) > 1 and not any(is_small(sum(counts[each][side] for each in hidden)) for side in (0, 1)):
            break
        if counts[place][0]:
            hidden.add(place)
    words = [HIDDEN if place in hidden else f"{rate:.1%}"[:-1] for place, rate in enumerate(row["label rate"])]
    return HIDDEN if len(hidden) == len(words) else f"{' '.join(words)} %"


def _differs_by_few(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two rows of one split differ by so few instances or patients that these could be singled out."""
    if row["split"] != other["split"]:
        return False
    pairs = [(row[name], other[name]) for name in _COUNTS]
    for own, others in zip(row["of each class"], other["of each class"], strict=False):
        pairs += zip(own, others, strict=True)
    return any(is_small(abs(first - second)) for first, second in pairs)
