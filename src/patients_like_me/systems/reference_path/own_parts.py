"""The own path made of registered systems: each is cross-fitted by patient, and their answers are stacked.

Any system can be a part that predicts newcomers and keeps nothing but arrays and facts. A fold's fit is an ordinary fit
of the system, to a problem in which the held-out patients are test patients: their labels are not in it at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.parts import is_ours
from patients_like_me.systems.contract import Arrays, Fitted, RunContext, System
from patients_like_me.systems.problem import Logits, Problem, copied, copy_for_system, only, outputs_of, problem_of
from patients_like_me.systems.reference_path.folds import CrossFitted, Stack, cross_fit, cross_fitted_stack
from patients_like_me.systems.reference_path.kept_fits import kept_fit
from patients_like_me.systems.registry import find_system, require_service
from patients_like_me.systems.returned_checks import checked_logits, refuse_unusable
from patients_like_me.tasks.instances import Instances, Rows

#: Logits of parts are cut here: a probability of 3 in ten million.
BOUND: Final = 15.0
#: (system) -> its settings as a part of this own path.
SettingsOf = Callable[[System], Any]


@dataclass(frozen=True)
class OwnParts:
    """Fitted systems and the weights of their stack; one system alone is the own path as it is."""

    fitted: Mapping[str, Fitted]
    stack: Stack | None

    def logits(self, instances: Instances) -> Logits:
        """Return the own answers u [N, K]."""
        answers = [part_logits(find_system(name), fitted, instances) for name, fitted in self.fitted.items()]
        return answers[0] if self.stack is None else np.asarray(self.stack.logits(answers), np.float64)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return all arrays, those of a part after its name."""
        found = {
            f"own.{part}.{name}": value for part, each in self.fitted.items() for name, value in each.arrays.items()
        }
        if self.stack is not None:
            found |= {"stack.weights": self.stack.weights, "stack.bias": self.stack.bias}
        return found

    def facts(self) -> dict[str, Any]:
        """Return what the parts know besides arrays."""
        return {part: dict(each.facts) for part, each in self.fitted.items()}

    @classmethod
    def of(cls, arrays: Arrays, facts: Mapping[str, Any], settings_of: SettingsOf) -> OwnParts:
        """Put together what :meth:`arrays` and :meth:`facts` returned."""
        fitted = {}
        for part, known in facts.items():
            start = f"own.{part}."
            kept = {name.removeprefix(start): value for name, value in arrays.items() if name.startswith(start)}
            fitted[part] = Fitted(settings_of(find_system(part)), kept, known)
        stacked = "stack.weights" in arrays
        return cls(fitted, Stack(arrays["stack.weights"], arrays["stack.bias"]) if stacked else None)


@dataclass(frozen=True)
class CrossFittedParts:
    """The own path with its answers for the training instances, and the score of each part on validation.

    ``of_folds`` are the same systems fitted without each fold; their stack is that of ``parts``.
    """

    parts: OwnParts
    answers: CrossFitted
    chosen: dict[str, Any]
    scores: dict[str, float | None]
    of_folds: tuple[OwnParts, ...] = ()


def find_parts(names: Sequence[str], problem: Problem) -> list[System]:
    """Return the systems of an own path; one that cannot be a part is refused."""
    found = []
    for name in names:
        system = find_system(name)
        require_service(system, problem.instances.task)
        if not system.capabilities.newcomers or system.save is not None or system.capabilities.references:
            raise PlmError(
                f"the system '{name}' cannot be a part of the own path",
                remedy="choose systems that predict newcomers and have no references of their own; see plm systems",
            )
        found.append(system)
    return found


def cross_fit_parts(
    problem: Problem,
    systems: Sequence[System],
    settings_of: SettingsOf,
    patients: npt.NDArray[Any],
    run: RunContext,
    *,
    folds: int,
    seed: int,
    before: CrossFittedParts | None = None,
    offset: npt.NDArray[np.float32] | None = None,
) -> CrossFittedParts:
    """Fit every system on all training instances and once without each fold; ``patients`` is one name per instance.

    ``offset`` [training instances, outputs] is added to the answers while they are fitted again, with what was chosen
    ``before``.
    """
    answers: list[CrossFitted] = []
    whole: dict[str, Fitted] = {}
    in_folds: list[dict[str, Fitted]] = [{} for _ in range(folds)]
    for system in systems:
        done = 0

        def fit(rows: Rows, system: System = system) -> Callable[[Rows], Any]:
            nonlocal done
            where = "all training patients" if not done else f"fold {done} of {folds}"
            done += 1
            report = _prefixed(run, f"{system.name}, {where}: ")
            settings = settings_of(system)
            known = before.parts.fitted if before is not None else whole
            in_fold = system.name in whole
            settled = system.settled if in_fold else system.settled_for_all or system.settled
            if settled is not None and system.name in known:
                # What validation chose for all training patients holds in the folds too, and in later rounds.
                settings = settled(settings, known[system.name].account.chosen)
            given = part_of(problem, rows) if in_fold else problem
            if offset is not None:
                given = replace(given, offset=offset[np.isin(problem.train, given.train)])
            fitted = kept_fit(
                None if offset is not None else run.cache,
                system,
                given,
                settings,
                lambda: _fitted_part(system, given, RunContext(settings, report, cache=run.cache)),
            )
            if in_fold:
                in_folds[done - 2][system.name] = fitted
            whole.setdefault(system.name, fitted)
            return lambda wanted: part_logits(system, fitted, only(problem.instances, wanted)).astype(np.float32)

        run.report(f"cross-fitting '{system.name}' in {folds} folds")
        answers.append(cross_fit(fit, problem.train, patients, folds=folds, seed=seed))
    stack, combined = None, answers[0]
    if len(answers) > 1:
        combined, stack = cross_fitted_stack(
            answers, problem.targets.astype(np.float32), exclusive=problem.kind.adds_up
        )
    named = zip(whole, answers, strict=True)
    scores = {name: problem.judge(problem.kind.probabilities(each.predict(problem.validation))) for name, each in named}
    chosen = {f"{name} {key}": value for name, each in whole.items() for key, value in each.account.chosen.items()}
    of_folds = tuple(OwnParts(each, stack) for each in in_folds)
    return CrossFittedParts(OwnParts(whole, stack), combined, chosen, scores, of_folds)


def _fitted_part(system: System, problem: Problem, run: RunContext) -> Fitted:
    """Fit a part; one of another package gets tables of its own, and what it fitted is checked."""
    if is_ours(system.fit):
        return system.fit(problem, run)
    fitted = system.fit(copy_for_system(problem), run)
    refuse_unusable(system, fitted)
    return fitted


def part_logits(system: System, fitted: Fitted, instances: Instances) -> Logits:
    """Return the bounded logits of a part; one of another package gets tables of its own, and its answer is checked."""
    if is_ours(system.predict):
        return bounded(system.predict(fitted, instances))
    found = system.predict(fitted, copied(instances))
    return bounded(checked_logits(system, found, instances.task.kind, len(instances), outputs_of(instances)))


def bounded(logits: Logits) -> Logits:
    """Return logits within the bounds; a part that gives rates of 0 or 1 has infinite ones, which cannot be stacked."""
    return np.clip(logits, -BOUND, BOUND)


def part_of(problem: Problem, rows: Rows) -> Problem:
    """Return the problem with some of the training instances; the others are test instances, without labels.

    The rows of instances stay what they are, and validation judges as before.
    """
    instances = problem.with_validation_labels()
    split = instances.splits.astype(object)
    split[problem.train] = "test"
    split[rows] = "train"
    frame = instances.frame.with_columns(pl.Series("split", split.tolist(), dtype=pl.String))
    return problem_of(replace(instances, frame=frame))


def _prefixed(run: RunContext, start: str) -> Callable[[str], None]:
    return lambda words: run.report(start + words)
