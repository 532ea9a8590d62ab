"""Do predictions lean on the references with the largest shares? Remove them, and as many at random, and predict again.

Of every instance the first k references by the size of their shares (over all outputs) lose their weight, and for
comparison k of its references drawn at random. What is compared is the mean absolute change of the probabilities. The
factor says how many times as much the first k move them; intervals are a bootstrap over patients. A large factor of a
small change is no praise: where the change is small beside the differences between patients, the verdict says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.explanation.masking_experiment import RANDOM_DRAWS, Masking
from patients_like_me.explanation.reference_scene import reference_model_of
from patients_like_me.files import write_json
from patients_like_me.systems.additive_references import AdditiveReferences, Lists
from patients_like_me.systems.problem import only
from patients_like_me.systems.reference_path.model import subject_ids_of
from patients_like_me.tasks.instances import Instances

if TYPE_CHECKING:
    from patients_like_me.runs.run import Run
    from patients_like_me.tasks.task import Split

Floats = npt.NDArray[np.float64]
FILE: Final = "faithfulness.json"
#: References hardly matter where their removal moves probabilities by less than this part of their own spread.
SMALLEST_PART: Final = 0.05


@dataclass(frozen=True)
class RemovedReferences:
    """What removing k references did: mean absolute changes of the probabilities, and how many times random that is.

    ``low`` and ``high`` are the ends of the factor's interval, ``first_low`` and ``first_high`` those of ``first``.
    """

    k: int
    first: float
    random: float
    factor: float | None
    low: float | None
    high: float | None
    first_low: float
    first_high: float

    @property
    def sentence(self) -> str:
        """The same in words."""
        size = f"{self.first:.5f} ({self.first_low:.5f} to {self.first_high:.5f})"
        moved = f"removing the first {self.k} moves probabilities by {size}, random ones by {self.random:.5f}"
        if self.factor is None:
            return f"{moved}: no factor, because random removal moves nothing"
        return f"{moved}: {self.factor:.1f} times as much ({self.low:.1f} to {self.high:.1f})"


@dataclass(frozen=True)
class ReferenceFaithfulness:
    """All k for the instances of a split; ``instances`` are those that have references.

    ``spread`` is how far probabilities differ between patients: their mean distance from the mean.
    """

    run: str
    task: str
    split: str
    instances: int
    patients: int
    removed: tuple[RemovedReferences, ...]
    replicates: int
    seed: int
    spread: float

    def at(self, k: int) -> RemovedReferences:
        """Return what removing k references did, or the fewest that were tried."""
        return next((each for each in self.removed if each.k == k), self.removed[0])

    def hardly_matter(self, k: int) -> bool:
        """Tell whether even the strongest k references surely move probabilities by little."""
        return self.at(k).first_high < SMALLEST_PART * self.spread

    def verdict(self, k: int) -> str:
        """Say whether predictions lean on the strongest references, with size and interval."""
        found = self.at(k)
        size = (
            f"without the {found.k} with the largest shares the probabilities move by {_points(found.first)} on "
            f"average (95 % interval {_points(found.first_low)} to {_points(found.first_high)}); between patients they "
            f"differ by {_points(self.spread)}"
        )
        if self.hardly_matter(k):
            return f"The references hardly matter in this run: {size}."
        beside = "random removal moves nothing"
        if found.factor is not None:
            beside = f"{found.factor:.1f} times as far as without random ones ({found.low:.1f} to {found.high:.1f})"
        return f"{size[0].upper()}{size[1:]}. That is {beside}."

    def write(self, folder: Path) -> Path:
        """Write the numbers as JSON."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / FILE, asdict(self))
        return folder


def assess_references(
    run: Run, masked: Masking | None = None, *, split: Split = "test", report: Callable[[str], None] = lambda _: None
) -> ReferenceFaithfulness:
    """Assess a run of the system ``references``; one whose gates are all closed is refused."""
    masked = masked or Masking()
    model = reference_model_of(run)
    if not model.uses_references:
        raise PlmError(
            f"all gates of the run '{run.folder}' are closed: no prediction leans on a reference",
            remedy="give a run whose references are used; its notes say which do",
        )
    instances = only(run.instances, run.instances.rows_of(split))
    found, used, spread = removed_references(model, instances, masked, report)
    people = len(np.unique(subject_ids_of(instances)[used]))
    return ReferenceFaithfulness(
        run.name, run.instances.task.name, split, int(used.sum()), people, found, masked.replicates, masked.seed, spread
    )


def removed_references(
    model: AdditiveReferences, instances: Instances, masked: Masking, report: Callable[[str], None] = lambda _: None
) -> tuple[tuple[RemovedReferences, ...], npt.NDArray[np.bool_], float]:
    """Return what removal did for every k, which instances have references at all, and the spread of probabilities."""
    own, lists, kind = model.own_logits(instances), model.lists(instances), instances.task.kind
    before = kind.probabilities(own + model.correction(lists))
    report("ranking the references by their shares")
    ranked = [_ranked(model, row, lists) for row in range(len(instances))]
    used = np.array([len(each) > 0 for each in ranked])
    if not used.any():
        raise PlmError("no instance has a reference", remedy="choose another split or a larger cohort")
    random = np.random.default_rng(masked.seed)
    draws = [[random.permutation(each) for each in ranked] for _ in range(RANDOM_DRAWS)]
    _, patients = np.unique(subject_ids_of(instances)[used], return_inverse=True)
    weights = _resamples(patients, masked.replicates, masked.seed)

    def moved(order: Sequence[npt.NDArray[np.int64]], k: int) -> Floats:
        kept = _without(lists, [each[:k] for each in order])
        after = kind.probabilities(own + model.correction(kept))
        change: Floats = np.abs(after - before).reshape(len(before), -1).mean(axis=1)[used]
        return change

    found = []
    for k in masked.ks:
        report(f"removing {k} references of each of {int(used.sum()):,} instances")
        first = moved(ranked, k)
        chance = np.mean([moved(order, k) for order in draws], axis=0)
        found.append(_compared(k, first, chance, weights))
    return tuple(found), used, float(np.abs(before - before.mean(axis=0)).mean())


def _ranked(model: AdditiveReferences, row: int, lists: Lists) -> npt.NDArray[np.int64]:
    shares = model.shares(row, lists)
    order = np.argsort(-np.abs(shares.shares).sum(axis=1), kind="stable")
    return shares.references[order]


def _without(lists: Lists, removed: Sequence[npt.NDArray[np.int64]]) -> Lists:
    """Return the lists in which some references of every instance have no weight; their places stay empty."""
    found = {}
    for name, each in lists.items():
        similarities = each.similarities.copy()
        for row, gone in enumerate(removed):
            similarities[row, np.isin(each.columns[row], gone)] = 0.0
        found[name] = replace(each, similarities=similarities)
    return found


def _resamples(patients: npt.NDArray[np.int64], replicates: int, seed: int) -> Floats:
    """Return how often every instance counts in each resample of the patients [replicates, instances]."""
    number = int(patients.max()) + 1
    random = np.random.default_rng(seed)
    times = np.stack([np.bincount(random.integers(0, number, number), minlength=number) for _ in range(replicates)])
    found: Floats = times[:, patients].astype(np.float64)
    return found


def _compared(k: int, first: Floats, chance: Floats, weights: Floats) -> RemovedReferences:
    factor: float | None = None
    low = high = factor
    if chance.sum() > 0:
        factor = float(first.sum() / chance.sum())
        by_chance = weights @ chance
        ratios: Any = (weights @ first)[by_chance > 0] / by_chance[by_chance > 0]
        low, high = (float(end) for end in np.percentile(ratios, [2.5, 97.5]))
    means = (weights @ first) / weights.sum(axis=1)
    ends = (float(end) for end in np.percentile(means, [2.5, 97.5]))
    return RemovedReferences(k, float(first.mean()), float(chance.mean()), factor, low, high, *ends)


def _points(value: float) -> str:
    """Write a change of a probability in percentage points.

    >>> _points(0.0032), _points(0.12)
    ('0.32 points', '12 points')
    """
    return f"{100 * value:.2g} points"
