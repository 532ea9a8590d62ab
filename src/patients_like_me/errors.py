"""The one exception type that reaches a user, as one sentence instead of a traceback."""

from __future__ import annotations


class PlmError(Exception):
    """Something a user can fix: what was wrong, where, and what to do, in one clear sentence.

    The command line prints the sentence and leaves with exit code 2; Python callers catch it by this name.

    >>> str(PlmError("no table 'admissions' in the folder", remedy="give the folder that holds hosp/"))
    "no table 'admissions' in the folder; give the folder that holds hosp/"
    """

    def __init__(self, problem: str, *, remedy: str | None = None) -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{problem}; {remedy}" if remedy else problem)


class BusyError(PlmError):
    """Another process is working on the same thing: waiting for it is a remedy, too."""


class NoVisitsError(PlmError):
    """Records without any visit that could be predicted; a caller may have an answer for that."""


class TooLargeError(PlmError):
    """More than the free memory holds; a caller may go on without that part, and say so."""
