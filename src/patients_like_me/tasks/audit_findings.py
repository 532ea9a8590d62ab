"""What a check of the audit returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Verdict = Literal["passed", "leak", "warning", "not applicable", "cannot be checked"]
#: Smaller counts of patients or visits are not shown on pages that may be handed on.
SMALLEST_CELL: Final = 11


@dataclass(frozen=True)
class Finding:
    """The outcome of one check: how many places were looked at, and how many were wrong."""

    check: str
    verdict: Verdict
    looked_at: int
    found: int
    meaning: str


def finding(
    check: str, looked_at: int, found: int, meaning: str, *, bad: Verdict = "leak", because: str = "there are none"
) -> Finding:
    """Return the outcome of a check; one that had nothing to look at says so and ``because`` of what.

    >>> finding("a check", 0, 0, "wrong things", because="no visit has a time").meaning
    'wrong things; cannot be checked, because no visit has a time'
    """
    if not looked_at:
        return cannot_be_checked(check, meaning, because)
    return Finding(check, bad if found else "passed", int(looked_at), int(found), meaning)


def cannot_be_checked(check: str, meaning: str, because: str) -> Finding:
    """Return the outcome of a check that had nothing to look at."""
    return Finding(check, "cannot be checked", 0, 0, f"{meaning}; cannot be checked, because {because}")


def shown_count(number: int) -> str:
    """Write a count of patients or visits so that no small group can be singled out.

    >>> shown_count(0), shown_count(7), shown_count(1200)
    ('0', 'under 11', '1,200')
    """
    return f"under {SMALLEST_CELL}" if 0 < number < SMALLEST_CELL else f"{number:,}"
