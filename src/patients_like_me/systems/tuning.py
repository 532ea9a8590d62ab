"""Tuning: settings of a system are tried on validation within a budget of minutes, by successive halving.

Candidates are drawn from the choices that a system declares (``System.choices``); the settings as they are given are
always the first candidate. All are fitted on a quarter of the training patients, the better half on half of them, the
better half of those on all: the answer is the best on all training patients. Test labels are never looked at. Every
trial is written when it is done, so the same command continues after a stop, also with a larger budget.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import BaseModel

from patients_like_me.errors import PlmError
from patients_like_me.files import is_sealed, read_json, sealed, write_json
from patients_like_me.settings import merged
from patients_like_me.systems.contract import RunContext, System
from patients_like_me.systems.problem import Problem, copied, copy_for_system, only
from patients_like_me.systems.reference_path.model import subject_ids_of
from patients_like_me.systems.reference_path.own_parts import part_of
from patients_like_me.systems.returned_checks import checked_logits, refuse_unusable

#: Shares of the training patients on which candidates are fitted, round by round.
SHARES: Final = (0.25, 0.5, 1.0)
TRIALS: Final = "trials.json"


@dataclass(frozen=True)
class Trial:
    """One candidate in one round: its changes to the given settings, and what validation said."""

    changes: dict[str, Any]
    share: float
    validation_score: float | None
    seconds: float


@dataclass(frozen=True)
class Tuned:
    """What tuning found: the best changes on all training patients, and every trial."""

    changes: dict[str, Any]
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        """The trial that was chosen."""
        return next(each for each in self.trials if each.share == SHARES[-1] and each.changes == self.changes)

    @property
    def given(self) -> Trial | None:
        """The trial of the settings as they were given; None where the budget ended before it."""
        whole = [each for each in self.trials if each.share == SHARES[-1] and not each.changes]
        return whole[0] if whole else None


def tune(
    system: System,
    problem: Problem,
    settings: BaseModel,
    folder: Path,
    *,
    identity: Mapping[str, Any],
    minutes: float,
    candidates: int = 16,
    seed: int = 0,
    cache: Path | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Tuned:
    """Return the settings that do best on validation; trials of an earlier call for the same ``identity`` are kept."""
    if not system.choices:
        raise PlmError(
            f"the system '{system.name}' declares nothing to tune",
            remedy="choose a system with choices, such as references, or set its settings by hand",
        )
    # As JSON has them, so that candidates equal those of a file.
    drawn = [json.loads(json.dumps(changes)) for changes in draw_candidates(system.choices, candidates, seed)]
    known = _Book(folder, {**identity, "candidates": candidates, "seed": seed})
    until = time.perf_counter() + 60 * minutes
    rounds = _in_order_of_patients(problem, seed)
    for number, share in enumerate(SHARES):
        part = problem if share == 1.0 else part_of(problem, np.sort(rounds[: max(1, round(share * len(rounds)))]))
        for place, changes in enumerate(drawn):
            if known.find(changes, share) is not None:
                continue
            # The given settings are always fitted on all training patients: there is an answer at any budget.
            if time.perf_counter() > until and (share < 1.0 or place > 0):
                break
            report(f"round {number + 1} of {len(SHARES)}: candidate {place + 1} of {len(drawn)}")
            known.add(_tried(system, part, merged_settings(system, settings, changes), changes, share, cache))
        scored = [changes for changes in drawn if known.find(changes, share) is not None]
        scored.sort(key=lambda changes: -known.value(changes, share))
        better = scored[: max(1, (len(scored) + 1) // 2)]
        # The given settings stay to the end, so that the gain over them is known.
        drawn = [{}, *(changes for changes in better if changes)]
    whole = [trial for trial in known.trials if trial.share == 1.0]
    best = max(whole, key=lambda trial: -np.inf if trial.validation_score is None else trial.validation_score)
    return Tuned(best.changes, tuple(known.trials))


def draw_candidates(choices: Mapping[str, Sequence[Any]], number: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield no change first, then changes drawn at random, each once; a change names the settings with dots.

    >>> list(draw_candidates({"graph.tau": [2, 4]}, 9, seed=0))
    [{}, {'graph.tau': 4}, {'graph.tau': 2}]
    """
    yield {}
    generator = np.random.default_rng(seed)
    seen: list[dict[str, Any]] = []
    possible = int(np.prod([len(values) for values in choices.values()]))
    while len(seen) < min(number - 1, possible):
        drawn = {name: values[int(generator.integers(len(values)))] for name, values in choices.items()}
        if drawn not in seen:
            seen.append(drawn)
            yield drawn


def merged_settings(system: System, settings: BaseModel, changes: Mapping[str, Any]) -> BaseModel:
    """Return the settings with changes whose names have dots."""
    nested: dict[str, Any] = {}
    for name, value in changes.items():
        *above, last = name.split(".")
        place = nested
        for word in above:
            place = place.setdefault(word, {})
        place[last] = value
    return system.settings_of(None, **merged(settings.model_dump(mode="json"), nested))


def _tried(
    system: System, problem: Problem, settings: BaseModel, changes: dict[str, Any], share: float, cache: Path | None
) -> Trial:
    started = time.perf_counter()
    try:
        fitted = system.fit(copy_for_system(problem), RunContext(settings, cache=cache))
    except PlmError:
        if not changes:
            raise
        # Some values do not suit every cohort: a tau without any edge is refused by the training.
        return Trial(changes, share, None, time.perf_counter() - started)
    refuse_unusable(system, fitted)
    rows, logits = problem.validation, fitted.evaluated
    if logits is None:
        logits = system.predict(fitted, copied(only(problem.instances, rows)))
    else:
        rows = problem.evaluated
    checked = checked_logits(system, logits, problem.kind, len(rows), problem.outputs)[: len(problem.validation)]
    value = problem.judge(problem.kind.probabilities(np.asarray(checked, np.float64)))
    return Trial(changes, share, value, time.perf_counter() - started)


def _in_order_of_patients(problem: Problem, seed: int) -> Any:
    """Return the training rows, patient after patient in a random order: a share of them is a share of patients."""
    people = subject_ids_of(problem.instances)[problem.train]
    place = np.unique(people, return_inverse=True)[1]
    order = np.random.default_rng(seed).permutation(place.max() + 1)[place]
    return problem.train[np.argsort(order, kind="stable")]


class _Book:
    """The trials so far, in a file."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.file, self.identity = folder / TRIALS, dict(identity)
        self.trials: list[Trial] = []
        if self.file.is_file():
            kept = read_json(self.file, what="trials of a tuning")
            if not is_sealed(kept):
                raise PlmError(
                    f"the trials '{self.file}' are damaged: their content is not what was written",
                    remedy="remove the file; the trials are then made again",
                )
            if kept["identity"] != self.identity:
                raise PlmError(
                    f"the folder '{folder}' has the trials of another tuning",
                    remedy="name another folder, or remove it",
                )
            self.trials = [Trial(**each) for each in kept["trials"]]
        folder.mkdir(parents=True, exist_ok=True)

    def find(self, changes: Mapping[str, Any], share: float) -> Trial | None:
        return next((each for each in self.trials if each.share == share and each.changes == changes), None)

    def value(self, changes: Mapping[str, Any], share: float) -> float:
        found = self.find(changes, share)
        return -np.inf if found is None or found.validation_score is None else found.validation_score

    def add(self, trial: Trial) -> None:
        self.trials.append(trial)
        write_json(self.file, sealed({"identity": self.identity, "trials": [vars(each) for each in self.trials]}))
