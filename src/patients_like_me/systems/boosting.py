"""``boosting``: scikit-learn's histogram gradient boosting on the bag; one model per code for sets.

Trees need full columns, so the most frequent features are used and no others. For sets of codes only the most frequent
codes are boosted; a code that is rare in training gets its rate. The number of trees, one for all codes of a task, is
chosen on validation by the task's first metric; all numbers of trees are read off one fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from patients_like_me.systems.bags import Bag, bag_of
from patients_like_me.systems.problem import Candidate, Chances, Fitted, Problem, choose
from patients_like_me.systems.settings import BoostingSettings


def fit_boosting(
    problem: Problem, settings: BoostingSettings, report: Callable[[str], None] = lambda _: None
) -> Fitted:
    """Boost every label that is frequent enough and keep the best number of trees on validation."""
    bag = bag_of(problem.instances, problem.train, settings.bag)
    columns = most_frequent_features(bag, problem.train, settings.most_features)
    inputs, wanted = bag.dense(problem.train, columns), bag.dense(problem.evaluated, columns)
    trees = sorted(set(settings.trees))
    chances = {number: np.tile(problem.rates, (len(problem.evaluated), 1)) for number in trees}
    if problem.kind == "multiclass":
        boosted = np.flatnonzero(problem.rates > 0)
        labels = problem.targets.argmax(axis=1)
        if len(boosted) > 1 and len(columns):
            for number, found in _after_trees(inputs, labels, wanted, settings):
                chances[number][:, boosted] = found
    else:
        boosted = labels_to_boost(problem.targets, settings)
        for place, label in enumerate(boosted if len(columns) else ()):
            if place % 20 == 0 and len(boosted) > 1:
                report(f"boosting label {place + 1} of {len(boosted)}")
            for number, found in _after_trees(inputs, problem.targets[:, label].astype(np.int64), wanted, settings):
                chances[number][:, label] = found[:, 1]
    fitted = choose(problem, (Candidate({"trees": number}, chances[number]) for number in trees))
    notes = [*fitted.notes, *_notes(problem, bag, len(columns), len(boosted))]
    return Fitted(fitted.best, fitted.tried, notes)


def most_frequent_features(bag: Bag, train: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.int64]:
    """Return the columns that most training instances have, in rising order; of equal ones the first by name."""
    counts = np.bincount(bag.values[train].indices, minlength=len(bag.features))
    chosen: npt.NDArray[np.int64] = np.sort(np.argsort(-counts, kind="stable")[:most])
    return chosen


def labels_to_boost(targets: npt.NDArray[np.float64], settings: BoostingSettings) -> npt.NDArray[np.int64]:
    """Return the labels with enough positives and negatives, at most so many, the most frequent ones."""
    positives = targets.sum(axis=0)
    order = np.argsort(-positives, kind="stable")
    enough = np.minimum(positives, len(targets) - positives) >= settings.minimum_positives
    if targets.shape[1] == 1:
        # A yes-or-no task has no other label to turn to: it is boosted however rare, if both answers occur.
        enough = (positives > 0) & (positives < len(targets))
    chosen: npt.NDArray[np.int64] = np.sort(order[enough[order]][: settings.most_labels])
    return chosen


def _after_trees(
    inputs: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
    wanted: npt.NDArray[np.float32],
    settings: BoostingSettings,
) -> list[tuple[int, Chances]]:
    """Fit the largest number of trees and return the probabilities after each number that is tried."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    model: Any = HistGradientBoostingClassifier(
        max_iter=max(settings.trees),
        learning_rate=settings.learning_rate,
        max_leaf_nodes=settings.leaves,
        min_samples_leaf=settings.leaf_instances,
        max_bins=settings.bins,
        l2_regularization=settings.shrinkage,
        early_stopping=False,
        random_state=settings.seed,
    ).fit(inputs, labels)
    stages = enumerate(model.staged_predict_proba(wanted), start=1)
    return [(number, chances) for number, chances in stages if number in settings.trees]


def _notes(problem: Problem, bag: Bag, features: int, boosted: int) -> list[str]:
    notes = []
    if features < len(bag.features):
        notes.append(f"the {features:,} most frequent of {len(bag.features):,} features are used")
    if problem.kind == "multilabel" and boosted < len(problem.rates):
        notes.append(
            f"{boosted} of {len(problem.rates)} codes are boosted; the others, rare in training, get their rate"
        )
    return notes
