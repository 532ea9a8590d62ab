"""All methods by name, found by file and by entry point.

A score orders the references of one target, the largest first; scores of different methods are on different scales.
Signed methods put the strongest supporter of the target logit first and the strongest opponent last; ``..._magnitude``
puts the strongest influence first, whichever way it points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Final

import numpy as np

from patients_like_me.errors import PlmError
from patients_like_me.explanation.methods.question import Question
from patients_like_me.explanation.target_edges import Floats
from patients_like_me.parts import found_parts, is_ours, part_named

#: Words that stand for several methods.
GROUPS: Final = ("all", "fast")
#: Scores all edges of a question, in the order of ``question.edges``.
Scorer = Callable[[Question], Floats]


@dataclass(frozen=True)
class Method:
    """A way to score references.

    ``score`` returns one score per edge; its slow imports belong inside it. ``slow`` says that it needs seconds per
    target, so that it sees a sample.
    """

    name: str
    meaning: str
    score: Scorer
    signed: bool = False
    slow: bool = False

    def __post_init__(self) -> None:
        if self.name in GROUPS:
            raise PlmError(f"a method cannot be called '{self.name}', which stands for several", remedy="rename it")
        if not callable(self.score):
            raise PlmError(f"the method '{self.name}' has no function 'score'", remedy="correct it; see docs/extend.md")


def all_methods() -> Mapping[str, Method]:
    """Return the methods of this package, then those of other installed packages, by name.

    >>> all_methods()["gradient"].signed
    True
    """
    return found_parts(
        Method,
        package="patients_like_me.explanation.methods",
        constant="METHOD",
        group="patients_like_me.explanation_methods",
    )


def quick_methods_of_others() -> list[str]:
    """Return the names of the methods that other packages bring and that are not slow."""
    return [name for name, method in all_methods().items() if not method.slow and not is_ours(method.score)]


def method_named(name: str) -> Method:
    """Return one method."""
    return part_named(all_methods(), name, "method")


def methods_named(names: Sequence[str]) -> list[Method]:
    """Return several methods, each once, in the order given; ``all`` and ``fast`` stand for groups.

    >>> [method.name for method in methods_named(["random", "edge_weight", "random"])]
    ['random', 'edge_weight']
    """
    wide: list[str] = []
    for name in names:
        if name in GROUPS:
            wide += [method.name for method in all_methods().values() if name == "all" or not method.slow]
        else:
            wide.append(name)
    return [method_named(name) for name in dict.fromkeys(wide)]


def magnitude(score: Scorer) -> Scorer:
    """Return a scorer that ignores the sign of another."""

    @wraps(score)
    def scored(question: Question) -> Floats:
        return np.abs(score(question))

    return scored
