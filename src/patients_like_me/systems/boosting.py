"""``boosting``: scikit-learn's histogram gradient boosting on the bag; one model per code for sets.

Trees need full columns, so the most frequent features are used and no others. For sets of codes only the most frequent
codes are boosted; a code that is rare in training gets its rate. The number of trees, one for all codes of a task, is
chosen on validation by the task's first metric; all numbers of trees are read off one fit.

The trees are kept as arrays of their nodes, and predictions are computed from these arrays, in the order in which
scikit-learn adds them up: nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.bags import Bag, BagSettings, bag_of, bag_with
from patients_like_me.systems.contract import Arrays, Candidate, Fitted, RunContext, System, SystemSettings, choose
from patients_like_me.systems.problem import Logits, Problem
from patients_like_me.tasks.instances import Instances

Whole = Annotated[int, Field(ge=1)]
#: The arrays of a forest: four per tree, then five per node; children are numbers of nodes of the whole forest.
_TREE_ARRAYS = ("tree_root", "tree_output", "tree_round")
_NODE_ARRAYS = ("node_feature", "node_threshold", "node_left", "node_right", "node_value", "node_is_leaf")
_ROWS_PER_BLOCK = 4096


class BoostingSettings(SystemSettings):
    """Gradient-boosted trees; the number of trees, one for all labels of a task, is chosen on validation."""

    bag: BagSettings = BagSettings()
    trees: tuple[Whole, ...] = Field(
        (5, 10, 20, 40, 80, 120), min_length=1, description="numbers of trees (per class) that are tried"
    )
    learning_rate: float = Field(0.1, gt=0, le=1, description="share of each tree's correction that is kept")
    leaves: int = Field(15, ge=2, description="most leaves of a tree")
    leaf_instances: int = Field(20, ge=1, description="fewest training instances in a leaf")
    bins: int = Field(15, ge=2, le=255, description="most different values of a feature; nearly all are 0 or 1")
    shrinkage: float = Field(1.0, ge=0, description="L2 penalty of the leaves' values")
    most_features: int = Field(
        500, ge=1, description="only the most frequent features are used: trees need all in full"
    )
    most_labels: int = Field(
        250, ge=1, description="only the most frequent codes of a set are boosted, others get rates"
    )
    minimum_positives: int = Field(10, ge=1, description="a code with fewer training instances gets its rate")


def fit(problem: Problem, run: RunContext) -> Fitted:
    """Boost every label that is frequent enough and keep the best number of trees on validation."""
    settings: BoostingSettings = run.settings
    bag = bag_of(problem.instances, problem.train, settings.bag)
    columns = most_frequent_features(bag, problem.train, settings.most_features)
    inputs, wanted = bag.dense(problem.train, columns), bag.dense(problem.validation, columns)
    forest = Forest(problem.kind.logits(problem.rates[None])[0])
    if problem.kind.adds_up:
        boosted = np.flatnonzero(problem.rates > 0)
        if len(boosted) > 1 and len(columns):
            forest.add(_boosted(inputs, problem.targets.argmax(axis=1), settings), boosted)
    else:
        boosted = labels_to_boost(problem.targets, settings)
        for place, label in enumerate(boosted if len(columns) else ()):
            if place % 20 == 0 and len(boosted) > 1:
                run.report(f"boosting label {place + 1} of {len(boosted)}")
            labels = problem.targets[:, label].astype(np.int64)
            forest.add(_boosted(inputs, labels, settings), np.array([label]))
    arrays = forest.arrays()
    stages = staged_logits(arrays, wanted, sorted(set(settings.trees)))
    candidates = (Candidate({"trees": number}, problem.kind.probabilities(logits)) for number, logits in stages)
    best, account = choose(problem, candidates)
    notes = [*account.notes, *_notes(problem, bag, len(columns), len(boosted))]
    kept = first_rounds(arrays, best.choice["trees"])
    facts = {"features": [bag.features[column] for column in columns]}
    return Fitted(settings, kept, facts, replace(account, notes=notes))


def predict(fitted: Fitted, instances: Instances) -> Logits:
    """Return the sums over the trees."""
    bag = bag_with(instances, fitted.facts["features"], fitted.settings.bag)
    everyone, columns = np.arange(len(instances)), np.arange(len(bag.features))
    found = np.empty((len(instances), len(fitted.arrays["base"])))
    for first in range(0, len(instances), _ROWS_PER_BLOCK):
        rows = everyone[first : first + _ROWS_PER_BLOCK]
        # No number of rounds is larger than this one: all trees that were kept are added.
        found[rows] = next(staged_logits(fitted.arrays, bag.dense(rows, columns), [np.iinfo(np.int32).max]))[1]
    return found


def most_frequent_features(bag: Bag, train: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.int64]:
    """Return the columns that most training instances have, in rising order; of equal ones the first by name."""
    counts = np.bincount(bag.values[train].indices, minlength=len(bag.features))
    chosen: npt.NDArray[np.int64] = np.sort(np.argsort(-counts, kind="stable")[:most])
    return chosen


def labels_to_boost(targets: npt.NDArray[np.float64], settings: BoostingSettings) -> npt.NDArray[np.int64]:
    """Return the labels with enough positives and negatives: at most ``most_labels``, the most frequent ones."""
    positives = targets.sum(axis=0)
    order = np.argsort(-positives, kind="stable")
    enough = np.minimum(positives, len(targets) - positives) >= settings.minimum_positives
    if targets.shape[1] == 1:
        # A yes-or-no task has one label only: it is boosted however rare it is, if both answers occur.
        enough = (positives > 0) & (positives < len(targets))
    chosen: npt.NDArray[np.int64] = np.sort(order[enough[order]][: settings.most_labels])
    return chosen


def _boosted(inputs: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], settings: BoostingSettings) -> Any:
    """Fit the largest number of trees."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(
        max_iter=max(settings.trees),
        learning_rate=settings.learning_rate,
        max_leaf_nodes=settings.leaves,
        min_samples_leaf=settings.leaf_instances,
        max_bins=settings.bins,
        l2_regularization=settings.shrinkage,
        early_stopping=False,
        random_state=settings.seed,
    ).fit(inputs, labels)


@dataclass
class Forest:
    """Trees of one or many models, collected as arrays; ``base`` are the logits [outputs] before the first tree."""

    base: npt.NDArray[np.float64]
    trees: list[tuple[int, int, npt.NDArray[Any]]] = field(default_factory=list)

    def add(self, model: Any, outputs: npt.NDArray[np.int64]) -> None:
        """Take over the trees of a fitted model for some output columns; two classes are fitted as one column."""
        first = np.ravel(model._baseline_prediction)
        columns = outputs[-len(first) :]
        self.base[outputs], self.base[columns] = 0.0, first
        for number, trees in enumerate(model._predictors):
            for column, tree in zip(columns, trees, strict=True):
                self.trees.append((int(column), number, tree.nodes))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the forest as plain arrays."""
        sizes = [len(nodes) for _, _, nodes in self.trees]
        roots = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in _NODE_ARRAYS}
        for (_, _, nodes), root in zip(self.trees, roots, strict=False):
            parts["node_feature"].append(nodes["feature_idx"].astype(np.int32))
            parts["node_threshold"].append(nodes["num_threshold"])
            parts["node_left"].append(nodes["left"].astype(np.int32) + root)
            parts["node_right"].append(nodes["right"].astype(np.int32) + root)
            parts["node_value"].append(nodes["value"])
            parts["node_is_leaf"].append(nodes["is_leaf"].astype(np.bool_))
        return {
            "base": self.base,
            "tree_root": roots[:-1],
            "tree_output": np.array([output for output, _, _ in self.trees], dtype=np.int32),
            "tree_round": np.array([number for _, number, _ in self.trees], dtype=np.int32),
            **{name: np.concatenate(found) if found else np.zeros(0) for name, found in parts.items()},
        }


def first_rounds(arrays: Arrays, rounds: int) -> dict[str, npt.NDArray[Any]]:
    """Return a forest without the trees of later rounds; their nodes are left out too."""
    kept = arrays["tree_round"] < rounds
    ends = np.append(arrays["tree_root"][1:], len(arrays["node_value"]))
    sizes = (ends - arrays["tree_root"]).astype(np.int64)
    nodes = np.repeat(kept, sizes)
    roots = np.concatenate([[0], np.cumsum(sizes[kept])]).astype(np.int32)
    moved = np.repeat(roots[:-1] - arrays["tree_root"][kept], sizes[kept]).astype(np.int32)
    found = {name: arrays[name][nodes] for name in _NODE_ARRAYS}
    for name in ("node_left", "node_right"):
        found[name] = found[name] + moved
    return {
        "base": arrays["base"],
        **{name: arrays[name][kept] for name in _TREE_ARRAYS},
        **found,
        "tree_root": roots[:-1],
    }


def staged_logits(arrays: Arrays, inputs: npt.NDArray[np.float32], numbers: list[int]) -> Iterator[tuple[int, Logits]]:
    """Yield the logits [rows, outputs] after each of some numbers of rounds, in rising order."""
    logits = np.tile(arrays["base"], (len(inputs), 1))
    values, rows = inputs.astype(np.float64), np.arange(len(inputs))
    order = np.argsort(arrays["tree_round"], kind="stable")
    done = 0
    for number in numbers:
        while done < len(order) and arrays["tree_round"][order[done]] < number:
            tree = order[done]
            logits[:, arrays["tree_output"][tree]] += _leaf_values(arrays, arrays["tree_root"][tree], values, rows)
            done += 1
        yield number, logits.copy()


def _leaf_values(
    arrays: Arrays, root: int, values: npt.NDArray[np.float64], rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return the value of the leaf that each row reaches in one tree."""
    nodes = np.full(len(rows), root, dtype=np.int32)
    left, right = arrays["node_left"], arrays["node_right"]
    inner = ~arrays["node_is_leaf"][nodes]
    while inner.any():
        where, at = rows[inner], nodes[inner]
        goes_left = values[where, arrays["node_feature"][at]] <= arrays["node_threshold"][at]
        nodes[where] = np.where(goes_left, left[at], right[at])
        inner = ~arrays["node_is_leaf"][nodes]
    found: npt.NDArray[np.float64] = arrays["node_value"][nodes]
    return found


def _notes(problem: Problem, bag: Bag, features: int, boosted: int) -> list[str]:
    notes = []
    if features < len(bag.features):
        notes.append(f"the {features:,} most frequent of {len(bag.features):,} features are used")
    if problem.kind.is_set and boosted < len(problem.rates):
        notes.append(
            f"{boosted} of {len(problem.rates)} codes are boosted; the others, rare in training, get their rate"
        )
    return notes


SYSTEM = System(
    name="boosting",
    description="histogram gradient boosting on a bag of the inputs (one model per frequent code)",
    settings=BoostingSettings,
    capabilities=Capabilities(newcomers=True),
    fit=fit,
    predict=predict,
    settled=lambda settings, chosen: settings.model_copy(update={"trees": (chosen["trees"],)}),
    choices={
        "leaves": (7, 15, 31),
        "leaf_instances": (5, 20, 50),
        "shrinkage": (0.0, 1.0, 10.0),
        "most_features": (400, 500, 1000),
        "bag.places": (False, True),
    },
)
