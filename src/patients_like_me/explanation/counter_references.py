"""What speaks against a prediction: similar patients with another outcome, and the references it depends on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from patients_like_me.explanation.decision import Decision
from patients_like_me.explanation.scene import Scene
from patients_like_me.tasks.kinds import Probabilities

MOST_COUNTER_REFERENCES = 3
#: All sets of up to this many references are tried; larger sets are built greedily.
EXACT_UP_TO = 3

#: Returns for each of some sets of nodes the probabilities of the target after its edges to them are removed.
Removal = Callable[[Sequence[Sequence[int]]], Sequence[Probabilities]]


@dataclass(frozen=True)
class CounterReference:
    """A training patient near the target whose outcome is not what was decided."""

    row: int
    shared: int
    cosine: float
    is_neighbor: bool


def counter_references(
    scene: Scene,
    node: int,
    decision: Decision,
    decided: tuple[int, ...],
    *,
    listed: Sequence[int] = (),
    most: int = MOST_COUNTER_REFERENCES,
) -> list[CounterReference]:
    """Return the training instances of other patients, one per patient, nearest in embedding space, that disagree.

    They come from the run's bank in both modes: only there outcomes are known. They share at least one diagnosis with
    the patient, but need not be neighbours. The patients of the instance rows ``listed`` are left out: a page shows
    them as references, and nobody appears under two names.
    """
    instances, rows = scene.instances, scene.training_rows
    cosines = scene.cosines_to_training(node)
    own = set(scene.graph.sets.of(node))
    patients = scene.subject_ids
    seen = {patients[int(scene.rows[node])], *(patients[row] for row in listed)}
    linked = {int(scene.rows[neighbor]) for neighbor in scene.graph.neighbors_of(node)[0]}
    found: list[CounterReference] = []
    for place in np.argsort(-cosines, kind="stable"):
        row = int(rows[place])
        if patients[row] in seen or decision.agrees(instances.labels[row], decided):
            continue
        shared = len(own & set(instances.diagnosis_sets.of(row)))
        if not shared:
            continue
        seen.add(patients[row])
        found.append(CounterReference(row, shared, float(cosines[place]), row in linked))
        if len(found) == most:
            break
    return found


@dataclass(frozen=True)
class TurningSet:
    """The smallest set of references found whose removal changes the decision.

    ``is_smallest`` tells whether every smaller set was tried; ``probabilities`` are the probabilities without the set.
    """

    nodes: tuple[int, ...]
    probabilities: Probabilities
    is_smallest: bool


def smallest_turning_set(
    nodes: Sequence[int], removal: Removal, decision: Decision, decided: tuple[int, ...]
) -> TurningSet | None:
    """Find the smallest set of references without which the decision is another one; None where no set was found.

    First greedily: always the reference whose removal brings the decision nearest to its edge. Then all sets of up to
    three that are smaller than what the greedy way found. ``removal`` measures; nothing is estimated.

    >>> from patients_like_me.tasks.registry import find_task
    >>> decision = Decision(find_task("readmission"), ("no", "yes"))
    >>> effects = {1: 0.05, 2: 0.1, 3: 0.3}
    >>> removal = lambda sets: [np.array([0.75 - sum(effects[node] for node in gone)]) for gone in sets]
    >>> smallest_turning_set([1, 2, 3], removal, decision, (1,)).nodes
    (3,)
    """
    greedy = _greedy(nodes, removal, decision, decided)
    limit = len(nodes) if greedy is None else len(greedy.nodes) - 1
    for size in range(1, min(limit, EXACT_UP_TO) + 1):
        sets = list(combinations(nodes, size))
        tried = zip(sets, removal(sets), strict=True)
        turned = [
            TurningSet(gone, probabilities, True)
            for gone, probabilities in tried
            if decision.key(probabilities) != decided
        ]
        if turned:
            return min(turned, key=lambda found: decision.margin(found.probabilities, decided))
    if greedy is None:
        return None
    return TurningSet(greedy.nodes, greedy.probabilities, is_smallest=len(greedy.nodes) <= EXACT_UP_TO + 1)


def _greedy(nodes: Sequence[int], removal: Removal, decision: Decision, decided: tuple[int, ...]) -> TurningSet | None:
    left = list(nodes)
    gone: list[int] = []
    while left:
        tried = dict(zip(left, removal([[*gone, node] for node in left]), strict=True))
        best = min(left, key=lambda node: decision.margin(tried[node], decided))
        gone.append(best)
        left.remove(best)
        if decision.key(tried[best]) != decided:
            return TurningSet(tuple(gone), tried[best], is_smallest=len(gone) == 1)
    return None
