"""A model for a bank that is to grow: an own path that stays, and gates that were fitted as they will be used.

Gates of an ordinary fit belong to references of the same time as the patient. Where a later bank is to correct an own
path that is not trained again, the gates are rehearsed within the training instances:

    own path of the rehearsal     fitted to the earlier instances
    bank of the rehearsal         the earlier instances, grown by later ones that this own path never saw
    gates                         fitted to all instances whose patients this own path never saw: the latest ones and
                                  those that joined the bank, each without its own patient

Then the own path is fitted to all training instances, as ever, and takes the gates over. In the same way a new hospital
is rehearsed: some sites stay out of the rehearsal's own path, half of their patients join its bank, all fit the gates.
Validation and test have no part in any of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.systems.contract import RunContext
from patients_like_me.systems.problem import Problem, only, outputs_of, problem_of
from patients_like_me.systems.reference_path.bank import ReferenceBank
from patients_like_me.systems.reference_path.correction import (
    Corrected,
    ReferencePath,
    Tried,
    fit_reference_path,
    path_of_folds,
)
from patients_like_me.systems.reference_path.first_banks import bank_of_training
from patients_like_me.systems.reference_path.folds import patient_folds
from patients_like_me.systems.reference_path.kept_fits import kept_fit
from patients_like_me.systems.reference_path.messages import half_median_degree
from patients_like_me.systems.reference_path.model import ReferenceModel, described_as, sites_of, subject_ids_of
from patients_like_me.systems.reference_path.own_parts import OwnParts, cross_fit_parts, find_parts
from patients_like_me.systems.reference_path.relations import relations_of
from patients_like_me.tasks.instances import Instances, Rows
from patients_like_me.tasks.metrics import score

#: Of the rehearsal each of this many parts in turn chooses the penalties, the others fit the gates.
HELD_OUT = 3
#: How much of the training instances, by time, is earlier and how much is later than the rehearsal's own path.
EARLIER, LATER = 0.6, 0.8
#: With fewer instances to fit gates, or to join the bank, a rehearsal says nothing.
FEWEST = 30


@dataclass(frozen=True)
class RehearsalParts:
    """Who does what in a rehearsal, as rows of instances, and in words."""

    words: str
    trained: Rows
    bank: Rows
    fitting: Rows


def rehearsal_parts(problem: Problem, how: str, seed: int) -> RehearsalParts:
    """Cut the training instances into those of the own path, of the bank and of the gates.

    No patient of the own path is among the others, so it never saw what it is corrected on.
    """
    instances, train = problem.instances, problem.train
    people = subject_ids_of(instances)
    if how == "later":
        times = times_of(instances)[train]
        ends = _cuts(times)
        trained = train[times <= ends[0]]
        bank, fitting = train[(times > ends[0]) & (times <= ends[1])], train[times > ends[1]]
        words = "own path on earlier training instances, bank grown by later ones, gates fitted to both and the latest"
    else:
        sites = np.array([site or "" for site in sites_of(instances)], dtype=object)[train]
        names = sorted(set(sites.tolist()) - {""})
        if len(names) < 3:
            raise PlmError(
                "a new hospital is rehearsed on training patients of at least three sites",
                remedy="use rehearsal=none, or a cohort with sites",
            )
        order = np.random.default_rng(seed).permutation(len(names))
        new = np.isin(sites, [names[place] for place in order[: max(1, len(names) // 3)]])
        half = patient_folds(people[train], 2, seed) == 0
        trained = train[~new]
        bank, fitting = train[new & half], train[new & ~half]
        words = "own path on some sites, bank grown by half of the patients of the others, gates fitted to all of those"
    seen = set(people[trained].tolist())
    bank, fitting = (np.array([row for row in rows if people[row] not in seen], np.int64) for rows in (bank, fitting))
    if min(len(bank), len(fitting)) < FEWEST or len(set(people[trained].tolist())) < HELD_OUT + 2:
        raise PlmError(
            f"a rehearsal needs at least {FEWEST} instances of new patients for its bank and for its gates; it would "
            f"have {len(bank):,} and {len(fitting):,}",
            remedy="use rehearsal=none, or a larger cohort",
        )
    sizes = f"{len(trained):,}, {len(bank):,} and {len(fitting):,} instances"
    return RehearsalParts(f"{words} ({sizes})", trained, bank, fitting)


def _cuts(times: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the last time of the earlier and of the later instances; instances of one time stay together."""
    values, counts = np.unique(times[~np.isnan(times)], return_counts=True)
    if len(values) < 3:
        raise PlmError(
            "gates for a later bank are rehearsed on training instances of at least three different times",
            remedy="use rehearsal=none, or a cohort with times (or visit ids that end in a year)",
        )
    shares = np.cumsum(counts) / counts.sum()
    first = min(int(np.searchsorted(shares, EARLIER)), len(values) - 3)
    second = min(max(int(np.searchsorted(shares, LATER)), first + 1), len(values) - 2)
    return float(values[first]), float(values[second])


def times_of(instances: Instances) -> npt.NDArray[np.float64]:
    """Return the time of every instance's prediction in years; without dates the digits that end its visit id.

    Not a number where neither tells it. Dates that were shifted for each patient apart cannot be compared.
    """
    found = np.full(len(instances), np.nan)
    times = instances.prediction_times["prediction_time"].to_list()
    for row, (time, name) in enumerate(zip(times, instances.instance_ids, strict=True)):
        tail = name[-4:]
        if time is not None:
            found[row] = time.year + (time.timetuple().tm_yday - 1) / 366
        elif tail.isdigit() and tail.isascii() and name[-5:-4] in ("-", "_", "/", " "):
            found[row] = int(tail)
    return found


def rehearsed_path(problem: Problem, run: RunContext) -> tuple[list[ReferencePath], str]:
    """Rehearse the growth of a bank within the training instances; return the paths, and in words who did what."""
    settings, instances = run.settings, problem.instances
    parts = rehearsal_parts(problem, settings.rehearsal, settings.seed)
    run.report(f"rehearsing a bank that grows on {len(parts.fitting):,} training instances")
    first = problem_on(instances, parts.trained, settings.seed)
    people = subject_ids_of(instances)
    folds = min(settings.folds, len(np.unique(people[first.train])))
    own = cross_fit_parts(
        first,
        find_parts(settings.own_path, first),
        settings.settings_of_part,
        people,
        run,
        folds=folds,
        seed=settings.seed,
    )
    bank = bank_of_training(first, own, settings)
    closed = ReferencePath.closed(problem.outputs)
    model = ReferenceModel(settings, own.parts, closed, bank, problem.kind.adds_up)
    grown = model.grown(only(instances, parts.bank)).bank
    rows = np.union1d(parts.bank, parts.fitting)
    return rehearse(own.parts, instances, rows, grown, settings), parts.words


def problem_on(instances: Instances, rows: Rows, seed: int = 0) -> Problem:
    """Return the problem of some instances alone: a part of their patients is validation, all others are test."""
    fold = patient_folds(subject_ids_of(instances)[rows], HELD_OUT + 2, seed)
    split = np.full(len(instances), "test", dtype=object)
    split[rows] = np.where(fold == 0, "validation", "train")
    return problem_of(replace(instances, frame=instances.frame.with_columns(pl.Series("split", split.tolist()))))


def fit_own_parts(problem: Problem, settings: Any, run: RunContext) -> OwnParts:
    """Fit the own path of some settings; several parts are cross-fitted for the weights of their stack."""
    systems = find_parts(settings.own_path, problem)
    if len(systems) == 1:
        wanted = settings.settings_of_part(systems[0])
        context = RunContext(wanted, run.report, cache=run.cache)
        fitted = kept_fit(run.cache, systems[0], problem, wanted, lambda: systems[0].fit(problem, context))
        return OwnParts({systems[0].name: fitted}, None)
    subjects = subject_ids_of(problem.instances)
    seed = settings.seed
    return cross_fit_parts(
        problem, systems, settings.settings_of_part, subjects, run, folds=settings.folds, seed=seed
    ).parts


def tried_of(settings: Any) -> Tried:
    """Return what the settings try for the gates."""
    return Tried(settings.gate_penalties, settings.output_penalties, settings.may_stay_out)


def rehearse(
    own: OwnParts, instances: Instances, rows: Rows, bank: ReferenceBank, settings: Any
) -> list[ReferencePath]:
    """Fit gates on instances that the own path never saw, with a bank, once per power or set of powers of the weights.

    Instances of the bank may be among them: the own path stays as it is, so no residual of the bank depends on the
    outcome of another instance, and no message holds one of the same patient. Penalties are chosen by the mean score on
    parts of the patients, each left out in turn: one part alone says little where they are few. Then the gates are
    fitted to all.
    """
    kind, exclusive = instances.task.kind, instances.task.kind.adds_up
    fold = patient_folds(subject_ids_of(instances)[rows], HELD_OUT, settings.seed)
    everyone = only(instances, rows)
    whole = Corrected(
        own.logits(everyone).astype(np.float32),
        bank.lists(described_as(everyone, bank.features, settings, own), max(settings.k)),
        bank.residuals,
        kind.targets(everyone.labels, outputs_of(instances)).astype(np.float32),
    )
    metric = instances.task.metrics[0]

    def judged(hidden: Any, logits: Any) -> float:
        found = kind.in_shape(kind.probabilities(logits.astype(np.float64)))
        value = score((metric,), hidden, found)[metric]
        return -np.inf if value is None else value

    parts = [(_some(whole, np.flatnonzero(fold != left)), np.flatnonzero(fold == left)) for left in range(HELD_OUT)]
    found = []
    for powers in settings.sharpness:
        relations = relations_of(whole.lists, settings.k, powers)
        paths = [
            fit_reference_path(
                fitting,
                _some(whole, left),
                relations,
                partial(judged, everyone.labels[left]),
                exclusive=exclusive,
                tried=tried_of(settings),
            )
            for fitting, left in parts
        ]
        found.append(path_of_folds(paths, whole, exclusive=exclusive, may_close=settings.may_stay_out))
    return found


def _some(whole: Corrected, rows: Rows) -> Corrected:
    assert whole.targets is not None
    lists = {name: found.rows(rows) for name, found in whole.lists.items()}
    return Corrected(whole.own[rows], lists, whole.sent, whole.targets[rows])


def rehearsed_model(
    own: OwnParts, instances: Instances, path: ReferencePath, bank: ReferenceBank, settings: Any
) -> ReferenceModel:
    """Return the model that predicts with gates that were rehearsed; other similarities than theirs are not used.

    The bank in use is larger or smaller than that of the rehearsal, so lambda_r is half the median degree of its own
    instances, each without its patient: gates then act on messages that are shrunk as they were. No outcome is in it.
    """
    used = tuple(dict.fromkeys(relation.similarity for relation in path.relations))
    chosen = replace(bank, similarities=used, _indexes={})
    if path.gates.values.any():
        lists = chosen.lists(chosen.described, max(relation.k for relation in path.relations))
        lambdas = np.array([half_median_degree(lists[each.similarity], each) for each in path.relations])
        path = replace(path, lambdas=lambdas)
    return ReferenceModel(settings, own, path, chosen, instances.task.kind.adds_up)
