"""``boosting``: histogram gradient boosting on the bag; one model per code for sets.

The trees are those of scikit-learn, grown on sparse rows (:mod:`.sparse_trees`). The most frequent features are used
and no others. For sets of codes only the most frequent
codes are boosted; a code that is rare in training gets its rate. The number of trees, one for all codes of a task, is
chosen on validation by the task's first metric; all numbers of trees are read off one fit.

The trees are kept as arrays of their nodes, and predictions are computed from these arrays, in the order of the rounds:
nothing is pickled.
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
from patients_like_me.systems.sparse_trees import (
    BinnedRows,
    GrownTrees,
    TreeGrowth,
    boost_classes,
    boost_labels,
)
from patients_like_me.tasks.instances import Instances

Whole = Annotated[int, Field(ge=1)]
#: The arrays of a forest: three per tree, then six per node; children are numbers of nodes of the whole forest.
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
    wanted = bag.dense(problem.validation, columns)
    forest = Forest(problem.kind.logits(problem.rates[None])[0])
    if problem.kind.adds_up:
        boosted = np.flatnonzero(problem.rates > 0)
        if len(boosted) < 2:
            boosted = boosted[:0]
    else:
        boosted = labels_to_boost(problem.targets, settings)
    if len(boosted) and len(columns):
        # As the full matrices that are predicted from: 32 bits.
        inputs = BinnedRows.of(bag.values[problem.train][:, columns].astype(np.float32), settings.bins)
        growth = TreeGrowth(
            max(settings.trees), settings.learning_rate, settings.leaves, settings.leaf_instances, settings.shrinkage
        )
        if problem.kind.adds_up:
            run.report(f"boosting {len(boosted)} classes")
            forest.add(boost_classes(inputs, problem.targets[:, boosted], growth), boosted)
        else:
            run.report(f"boosting {len(boosted)} labels" if len(boosted) > 1 else "boosting")
            grown = boost_labels(inputs, problem.targets[:, boosted], growth)
            for label, trees in zip(boosted, grown, strict=True):
                forest.add(trees, np.array([label]))
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


def leaves_of(fitted: Fitted, instances: Instances, most_trees: int) -> npt.NDArray[np.int32]:
    """Return the leaves [N, trees] that instances fall into, as numbers of nodes: of the trees of the first rounds.

    As many rounds are read as have at most ``most_trees`` trees, but at least one.
    """
    from patients_like_me.systems.tree_kernels import find_leaves

    arrays = fitted.arrays
    rounds = arrays["tree_round"]
    per_round = np.bincount(rounds) if len(rounds) else np.zeros(1, np.int64)
    number = max(1, int(np.searchsorted(np.cumsum(per_round), most_trees, side="right")))
    roots = arrays["tree_root"][rounds < number]
    bag = bag_with(instances, fitted.facts["features"], fitted.settings.bag)
    found = np.zeros((len(instances), len(roots)), np.int32)
    for first in range(0, len(instances), _ROWS_PER_BLOCK):
        rows = np.arange(first, min(first + _ROWS_PER_BLOCK, len(instances)))
        values = bag.dense(rows, np.arange(len(bag.features))).astype(np.float64)
        block = np.zeros((len(rows), len(roots)), np.int32)
        find_leaves(
            block, values, roots,
            *(arrays[name] for name in _NODE_ARRAYS if name != "node_value"),
        )  # fmt: skip
        found[rows] = block
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


@dataclass
class Forest:
    """Trees of one or many models, collected as arrays; ``base`` are the logits [outputs] before the first tree."""

    base: npt.NDArray[np.float64]
    grown: list[tuple[npt.NDArray[np.int64], GrownTrees]] = field(default_factory=list)

    def add(self, trees: GrownTrees, outputs: npt.NDArray[np.int64]) -> None:
        """Take over the trees for some output columns; two classes are boosted as one column."""
        columns = outputs[-len(trees.base) :]
        self.base[outputs], self.base[columns] = 0.0, trees.base
        self.grown.append((columns, trees))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the forest as plain arrays."""
        sizes = np.concatenate([np.zeros(0, np.int32), *(each.sizes for _, each in self.grown)])
        roots = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        moved = np.repeat(roots[:-1], sizes)

        def together(name: str, dtype: Any) -> npt.NDArray[Any]:
            return np.concatenate([np.zeros(0, dtype), *(getattr(each, name) for _, each in self.grown)])

        columns = [columns[each.outputs] for columns, each in self.grown]
        return {
            "base": self.base,
            "tree_root": roots[:-1],
            "tree_output": np.concatenate([np.zeros(0, np.int32), *columns]).astype(np.int32),
            "tree_round": together("rounds", np.int32),
            "node_feature": together("feature", np.int32),
            "node_threshold": together("threshold", np.float64),
            "node_left": together("left", np.int32) + moved,
            "node_right": together("right", np.int32) + moved,
            "node_value": together("value", np.float64),
            "node_is_leaf": together("is_leaf", np.bool_),
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
    from patients_like_me.systems.tree_kernels import add_trees

    logits = np.tile(arrays["base"], (len(inputs), 1))
    values = np.ascontiguousarray(inputs, dtype=np.float64)
    order = np.argsort(arrays["tree_round"], kind="stable")
    turns = arrays["tree_round"][order]
    done = 0
    for number in numbers:
        some = order[done : int(np.searchsorted(turns, number, side="left"))]
        add_trees(
            logits, values, some, *(arrays[name] for name in ("tree_output", "tree_root")),
            *(arrays[name] for name in _NODE_ARRAYS),
        )  # fmt: skip
        done += len(some)
        yield number, logits.copy()


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
