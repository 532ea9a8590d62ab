"""What a check of the audit returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["passed", "leak", "warning", "not applicable", "cannot be checked"]


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
