"""What a plain model is given: inputs of all instances, labels of the training split, and a judge for its choices.

Labels of validation and test are not in it. Validation is heard through the judge alone, which answers with the task's
first metric; nothing answers for test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.kinds import LabelKind
from patients_like_me.tasks.metrics import score

Rows = npt.NDArray[np.int64]
#: Probabilities [instances, outputs]; a binary task has one output.
Chances = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """One task over one cohort, as a plain model sees it.

    ``evaluated`` are the rows to predict: validation first, then test. ``targets`` are the training labels as 0/1
    [training instances, outputs], for classes one column each. ``judge`` scores probabilities of validation.
    """

    instances: Instances
    train: Rows
    evaluated: Rows
    targets: npt.NDArray[np.float64]
    judge: Callable[[Chances], float | None]

    @property
    def kind(self) -> LabelKind:
        """What the labels are."""
        return self.instances.task.kind

    @property
    def rates(self) -> npt.NDArray[np.float64]:
        """The label rates of the training split."""
        rates: npt.NDArray[np.float64] = self.targets.mean(axis=0)
        return rates


@dataclass(frozen=True)
class Candidate:
    """Probabilities of the evaluated instances under one choice of settings, and what was fitted."""

    choice: dict[str, Any]
    chances: Chances
    parameters: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Fitted:
    """The chosen candidate, every choice tried with its validation score, and what there is to say."""

    best: Candidate
    tried: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    features: tuple[str, ...] = ()


def problem_of(instances: Instances) -> Problem:
    """Take the labels of validation and test away from a plain model."""
    train, validation, test = (instances.rows_of(split) for split in ("train", "validation", "test"))
    for split, rows in (("training", train), ("validation", validation)):
        if not len(rows):
            raise PlmError(
                f"no instance is in the {split} split",
                remedy="use a larger cohort or other shares",
            )
    kind, metric = instances.task.kind, instances.task.metrics[0]
    hidden = instances.labels[validation]

    def judge(chances: Chances) -> float | None:
        mine = chances[: len(validation)]
        return score((metric,), hidden, kind.in_shape(mine))[metric]

    blanked = np.zeros_like(instances.labels)
    blanked[train] = instances.labels[train]
    outputs = kind.outputs(len(instances.label_vocabulary))
    return Problem(
        instances=replace(instances, labels=blanked),
        train=train,
        evaluated=np.concatenate([validation, test]),
        targets=kind.targets(blanked[train], outputs),
        judge=judge,
    )


def choose(problem: Problem, candidates: Iterable[Candidate], **about: Any) -> Fitted:
    """Return the candidate with the best validation score; of equal ones the first, which should be the simplest."""
    best, best_score, tried = None, -np.inf, []
    for candidate in candidates:
        value = problem.judge(candidate.chances)
        tried.append({**candidate.choice, "validation_score": value})
        if best is None or (value is not None and value > best_score):
            best, best_score = candidate, -np.inf if value is None else value
    assert best is not None, "a grid has at least one choice"
    notes = list(about.pop("notes", ()))
    if len(tried) > 1 and best_score == -np.inf:
        notes.append("validation has one class only, so no score can choose: the first of the settings is taken")
    return Fitted(best, tried, notes, **about)
