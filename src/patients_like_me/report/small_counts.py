"""Counts of people under 11 are not shown, and must not follow from other numbers on the same page."""

from __future__ import annotations

from patients_like_me.evaluation.hidden_parts import Group as Group
from patients_like_me.evaluation.hidden_parts import hidden_shares as hidden_shares
from patients_like_me.plain_text import is_small, percent
from patients_like_me.records.flow import Flow

#: What is written where a number is too small to be shown.
HIDDEN = "hidden"


def shown_share(part: Group, rest: Group) -> str:
    """Write the share of ``part`` in both together; hidden if one of the two is too small.

    >>> shown_share(Group(30, frozenset(range(20))), Group(10, frozenset(range(9))))
    'hidden'
    """
    if part.is_small or rest.is_small or not part.instances + rest.instances:
        return HIDDEN
    return percent(part.instances / (part.instances + rest.instances), 1)


def flow_to_show(flow: Flow) -> tuple[Flow, list[tuple[str, ...]]]:
    """Return a flow in which no station leaves out fewer than 11 patients or visits, and the filters of each station.

    Filters that leave out too few are taken together with those beside them. Where all together leave out too few,
    the cohort alone is left, without what it was taken from.

    >>> flow = Flow()
    >>> for name, patients, visits in (("all", 90, 200), ("dated", 90, 197), ("adult", 70, 150)):
    ...     flow.add(name, patients=patients, visits=visits)
    >>> [(step.name, step.visits) for step in flow_to_show(flow)[0].steps]
    [('all', 200), ('2 filters together', 150)]
    """
    kept: list[tuple[tuple[str, ...], int, int]] = []
    waiting: tuple[str, ...] = ()
    for step in flow.steps:
        waiting = (*waiting, step.name)
        if not kept or _may_follow(kept[-1], step.patients, step.visits):
            kept.append((waiting, step.patients, step.visits))
            waiting = ()
    while waiting and kept:
        # What is left over joins the station before it, and that the one before, until enough is left out.
        last = kept.pop()
        waiting = (*last[0], *waiting)
        final = flow.steps[-1]
        if not kept or _may_follow(kept[-1], final.patients, final.visits):
            kept.append((waiting, final.patients, final.visits))
            waiting = ()
    shown = Flow()
    for names, patients, visits in kept:
        several = "the cohort" if len(kept) == 1 else f"{len(names)} filters together"
        name = names[0] if len(names) == 1 else several
        shown.add(name, patients=patients, visits=visits)
    return shown, [names for names, _, _ in kept]


def _may_follow(before: tuple[tuple[str, ...], int, int], patients: int, visits: int) -> bool:
    return not is_small(before[1] - patients) and not is_small(before[2] - visits)
