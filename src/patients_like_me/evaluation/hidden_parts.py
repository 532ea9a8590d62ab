"""Parts of groups that are too small to be shown, and what must be hidden with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from patients_like_me.plain_text import SMALLEST_SHOWN


class Group(NamedTuple):
    """Some instances: how many, and of which patients."""

    instances: int
    patients: frozenset[int]

    @property
    def is_small(self) -> bool:
        """Tell whether there are some instances, but too few or of too few patients to be shown."""
        return self.instances > 0 and min(self.instances, len(self.patients)) < SMALLEST_SHOWN


def hidden_shares(cells: Mapping[str, tuple[Group, Group]], hidden: Collection[str] = ()) -> frozenset[str]:
    """Return the strata whose share is not to be shown; ``cells`` gives the two parts of each stratum.

    Hidden are those with a small part, and those of ``hidden``, whose counts are not shown at all. Since the parts of
    all strata together are known, the next smallest are hidden too until the hidden ones cannot be worked out: there
    are at least two, and neither part of them together is small.

    >>> def group(size): return Group(size, frozenset(range(size)))
    >>> sorted(hidden_shares({"a": (group(3), group(40)), "b": (group(20), group(30)), "c": (group(90), group(90))}))
    ['a', 'b']
    """
    by_size = sorted(cells, key=lambda name: (sum(part.instances for part in cells[name]), name))
    found = [name for name in by_size if name in hidden or any(part.is_small for part in cells[name])]
    for name in by_size:
        together = [_together([cells[each][side] for each in found]) for side in (0, 1)]
        if not found or (len(found) > 1 and not any(part.is_small for part in together)):
            break
        if name not in found:
            found.append(name)
    return frozenset(found)


def _together(groups: Collection[Group]) -> Group:
    return Group(sum(group.instances for group in groups), frozenset().union(*(group.patients for group in groups)))
