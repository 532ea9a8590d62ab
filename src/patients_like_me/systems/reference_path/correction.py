"""The reference path phi as one object: relations, lambdas and gates, fitted once and used with any bank.

    fit:      gates on training instances whose own answers are out of fold, penalties by the score on validation
    answer:   z = u + correction(lists, residuals of the bank)

A newcomer needs lists of references and the bank's residuals, nothing else; a bank with new outcomes needs no fit.

While gates are fitted, a training instance i uses references of its own fold only. The residual of a reference j from
another fold comes from a model that was fitted on y_i: where y_i is 1, similar references got a higher p and so a lower
R, and the message tells the label with its sign turned. Gates fitted on such messages are too small or negative.
References of the same fold were answered by the model that answered i itself, which saw neither label.

A control says what the gain is due to: :func:`rewired` keeps every weight and draws the reference at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from patients_like_me.systems.reference_path.gates import (
    OUTPUT_PENALTIES,
    SHARED_PENALTIES,
    Gates,
    GateSearch,
    choose_gates,
    fit_gates_under,
    spread_of,
)
from patients_like_me.systems.reference_path.links import Array
from patients_like_me.systems.reference_path.messages import half_median_degree, messages
from patients_like_me.systems.reference_path.relations import OUTCOMES, Neighbours, Relation, Sent
from patients_like_me.systems.reference_path.shares import ReferenceShares, reference_shares

Lists = Mapping[str, Neighbours]


@dataclass(frozen=True)
class ReferencePath:
    """Relations r with their lambda_r [R] and gates [R, K]."""

    relations: tuple[Relation, ...]
    lambdas: npt.NDArray[np.float64]
    gates: Gates
    search: GateSearch | None = field(default=None, compare=False)

    @classmethod
    def closed(cls, outputs: int) -> ReferencePath:
        """Return a path without relations: z = u."""
        return cls((), np.zeros(0), Gates(np.zeros((0, outputs)), np.zeros(0)))

    @property
    def powers(self) -> float | list[float]:
        """The power of the relations' weights, or several where they are relations of their own."""
        found = list(dict.fromkeys(each.power for each in self.relations if each.sends == OUTCOMES))
        return found[0] if len(found) == 1 else found

    def correction(self, lists: Lists, sent: Sent, block: int = 2048) -> Array:
        """Return z - u [N, K] of the instances of the lists; ``sent`` [J, K] are the residuals of the bank.

        A block of instances is computed at a time, so that messages of all relations need little memory.
        """
        size = len(next(iter(lists.values())).columns)
        parts = []
        for start in range(0, max(size, 1), block):
            some = {name: found.rows(np.arange(start, min(start + block, size))) for name, found in lists.items()}
            parts.append(self.gates.correction(messages(some, self.relations, self.lambdas, sent)))
        return np.concatenate(parts)

    def shares(self, instance: int, lists: Lists, sent: Sent) -> ReferenceShares:
        """Return what each reference of one instance gives to its correction."""
        return reference_shares(instance, lists, self.relations, self.lambdas, sent, self.gates)


@dataclass(frozen=True)
class Corrected:
    """Instances that are corrected: own answers u [N, K], references and what those send [J, K].

    ``targets`` are their outcomes [N, K], where they are known.
    """

    own: Array
    lists: Lists
    sent: Sent
    targets: Array | None = None


@dataclass(frozen=True)
class Tried:
    """What is tried on validation: penalties of the gates, and whether references may stay out."""

    shared: Sequence[float] = SHARED_PENALTIES
    per_output: Sequence[float | None] = OUTPUT_PENALTIES
    may_close: bool = True


def fit_reference_path(
    fitting: Corrected,
    validation: Corrected,
    relations: Sequence[Relation],
    score: Callable[[Array], float],
    *,
    exclusive: bool,
    tried: Tried | None = None,
) -> ReferencePath:
    """Fit lambdas and gates on the instances ``fitting``.

    References of ``fitting`` are of their own fold; those of ``validation`` come from the whole bank, as a newcomer's
    do. They give lambda_r, and ``score`` judges their logits (the higher the better).
    """
    assert fitting.targets is not None, "gates are fitted to outcomes"
    tried = tried or Tried()
    lambdas = np.array([half_median_degree(validation.lists[relation.similarity], relation) for relation in relations])
    said = messages(fitting.lists, relations, lambdas, fitting.sent)
    said_to_validation = messages(validation.lists, relations, lambdas, validation.sent)
    search = choose_gates(
        said,
        fitting.own,
        fitting.targets,
        lambda gates: score(validation.own + gates.correction(said_to_validation)),
        exclusive=exclusive,
        shared=tried.shared,
        per_output=tried.per_output,
        may_close=tried.may_close,
    )
    return ReferencePath(tuple(relations), lambdas, search.gates, search)


def path_of_folds(
    paths: Sequence[ReferencePath], whole: Corrected, *, exclusive: bool, may_close: bool = True
) -> ReferencePath:
    """Return the path under the penalties with the best mean score over paths that were fitted without one fold each.

    The gates are fitted once more to ``whole``, the instances of all folds.
    """
    assert whole.targets is not None, "gates are fitted to outcomes"
    relations = paths[0].relations
    searches = [path.search for path in paths if path.search is not None]
    candidates = [penalties for penalties, _ in searches[0].trials]
    means = [float(np.mean([search.trials[place][1] for search in searches])) for place in range(len(candidates))]
    trials = list(zip(candidates, means, strict=True))
    # Of equal ones the first: references that raise no score stay out.
    penalties, best = max(trials if may_close else trials[1:], key=lambda trial: trial[1])
    lambdas = np.array([half_median_degree(whole.lists[relation.similarity], relation) for relation in relations])
    said = messages(whole.lists, relations, lambdas, whole.sent)
    gates = Gates(np.zeros((len(relations), whole.targets.shape[1])), spread_of(said))
    if penalties is not None:
        gates = fit_gates_under(penalties, said, whole.own, whole.targets, exclusive=exclusive)
    return ReferencePath(relations, lambdas, gates, GateSearch(gates, penalties, best, trials))


def choose_reference_path(paths: Iterable[ReferencePath]) -> ReferencePath:
    """Return the path with the best score on validation, the first of equal ones: the data say which relations serve.

    Sharp weights (power 3) serve lengths of stay, flat ones (power 1) a bank that has moved on; no default fits both.
    """
    return max(paths, key=lambda path: path.search.score if path.search else -np.inf)


def rewired(
    neighbours: Neighbours,
    keys: npt.NDArray[np.int64],
    patients: npt.NDArray[Any],
    bank: npt.NDArray[Any],
) -> Neighbours:
    """Draw every reference at random from the bank and keep the weights; one of the same patient loses its weight.

    ``keys`` is one number per instance, which decides its draws: they do not depend on who else is predicted.
    """
    # SplitMix64 of the instance's key and the place in its list.
    with np.errstate(over="ignore"):
        mixed: npt.NDArray[Any] = keys.astype(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15)
        mixed = mixed + np.arange(1, neighbours.columns.shape[1] + 1, dtype=np.uint64) * np.uint64(0xD1342543DE82EF95)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    columns = (mixed % np.uint64(len(bank))).astype(np.int32)
    other = bank[columns] != patients[:, None]
    return replace(neighbours, columns=columns, similarities=neighbours.similarities * other)
