"""All methods by name, found by file and by entry point.

A score orders the references of one target, the largest first; scores of different methods are on different scales.
Signed methods put the strongest supporter of the target logit first and the strongest opponent last; ``..._magnitude``
puts the strongest influence first, whichever way it points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from patients_like_me.explanation.methods.question import Question
from patients_like_me.explanation.target_edges import Floats
from patients_like_me.parts import found_parts, part_named

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
    own = "patients_like_me."
    return [
        name
        for name, method in all_methods().items()
        if not method.slow and not method.score.__module__.startswith(own)
    ]


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
        if name in ("all", "fast"):
            wide += [method.name for method in all_methods().values() if name == "all" or not method.slow]
        else:
            wide.append(name)
    return [method_named(name) for name in dict.fromkeys(wide)]


def magnitude(score: Scorer) -> Scorer:
    """Return a scorer that ignores the sign of another."""

    def scored(question: Question) -> Floats:
        return np.abs(score(question))

    return scored
