"""A patient's record in words for a language model: visit by visit, each code marked as new or continued.

Only what the task allows is in it; it comes from the same source as every prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from patients_like_me.plain_text import printable
from patients_like_me.records.cohort import KINDS, TABLE_OF_KIND
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.prompts import PromptParts, VisitCodes, parts_of_instances


@dataclass(frozen=True)
class PatientContext:
    """One instance in words: who it is, and one line per visit, the current one last."""

    person: str
    visits: tuple[str, ...]

    @property
    def text(self) -> str:
        """The whole record."""
        return "\n".join([self.person, *self.visits])

    def within(self, count: Callable[[str], int], budget: int) -> str:
        """Return the record within some tokens: the earliest visits go first, then the person, then codes."""
        for first in range(len(self.visits)):
            text = "\n".join([self.person, *self.visits[first:]])
            if count(text) <= budget:
                return text
        words = self.visits[-1].split(" ")
        while len(words) > 1 and count(" ".join(words)) > budget:
            words = words[: len(words) * 4 // 5]
        return " ".join(words)


def contexts_of(instances: Instances, rows: Sequence[int] | None = None) -> list[PatientContext]:
    """Return all instances, or the given rows, in words."""
    return [_written(parts) for parts in parts_of_instances(instances, rows)]


def _written(parts: PromptParts) -> PatientContext:
    lines: list[str] = []
    before: set[str] = set()
    visits = [*parts.earlier, parts.current]
    for number, codes in enumerate(visits, start=1):
        title = "Current visit" if number == len(visits) else f"Visit {number}"
        lines.append(f"{title}: {_lists(codes, before if number > 1 else None)}.")
        before |= {name for names in codes.values() for name in names}
    return PatientContext(f"Patient: {printable(parts.demographics)}", tuple(lines))


def _lists(codes: VisitCodes, before: set[str] | None) -> str:
    """Write the lists of a visit; of the first visit nothing is marked, since all of it is new."""
    lists = []
    for kind in KINDS:
        if names := codes.get(kind):
            marked = [name if before is None else f"{name} ({_mark(name, before)})" for name in names]
            lists.append(f"{TABLE_OF_KIND[kind]}: {', '.join(map(printable, marked))}")
    return "; ".join(lists) or "no codes"


def _mark(name: str, before: set[str]) -> str:
    return "continued" if name in before else "new"
