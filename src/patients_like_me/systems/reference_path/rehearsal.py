"""A model for a bank that is to grow: an own path that stays, and gates that were fitted as they will be used.

Gates of an ordinary fit belong to references of the same time as the patient. Where a later bank is to correct an own
path that is not trained again, the gates are rehearsed: on earlier instances that the own path never saw (the
rehearsal), with a bank of instances that it never saw either and that came before them. In the same way a new hospital
is rehearsed on other hospitals.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from patients_like_me.systems.bags import bag_of
from patients_like_me.systems.contract import RunContext
from patients_like_me.systems.problem import Problem, only, outputs_of, problem_of
from patients_like_me.systems.reference_path.bank import ReferenceBank, similarities_of
from patients_like_me.systems.reference_path.correction import ReferencePath, choose_reference_path, fit_reference_path
from patients_like_me.systems.reference_path.folds import patient_folds
from patients_like_me.systems.reference_path.kept_fits import kept_fit
from patients_like_me.systems.reference_path.links import residuals
from patients_like_me.systems.reference_path.model import ReferenceModel, described_as, subject_ids_of
from patients_like_me.systems.reference_path.own_parts import OwnParts, cross_fit_parts, find_parts
from patients_like_me.systems.reference_path.relations import inverse_frequencies, relations_of
from patients_like_me.tasks.instances import Instances, Rows
from patients_like_me.tasks.metrics import score

#: Of the rehearsal one part in this many chooses the penalties, the others fit the gates; the same for an own path.
HELD_OUT = 3


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
        context = RunContext(wanted, run.report)
        fitted = kept_fit(run.cache, systems[0], problem, wanted, lambda: systems[0].fit(problem, context))
        return OwnParts({systems[0].name: fitted}, None)
    subjects = subject_ids_of(problem.instances)
    seed = settings.seed
    return cross_fit_parts(
        problem, systems, settings.settings_of_part, subjects, run, folds=settings.folds, seed=seed
    ).parts


def bank_of_rows(own: OwnParts, instances: Instances, rows: Rows, trained: Rows, settings: Any) -> ReferenceBank:
    """Return a bank of instances that the own path never saw; vocabulary and weights are those of its training."""
    exclusive = instances.task.kind.adds_up
    features = bag_of(instances, trained, settings.bag).features
    seen = described_as(only(instances, trained), features, settings)
    members = only(instances, rows)
    described = described_as(members, features, settings)
    targets = members.task.kind.targets(members.labels, outputs_of(members))
    return ReferenceBank(
        described,
        features,
        inverse_frequencies(seen.codes),
        similarities_of(settings.relations, described, features),
        tuple(members.instance_ids),
        targets.astype(np.int8),
        residuals(targets, own.logits(members), exclusive).astype(np.float32),
        settings.tau,
        None if seen.embeddings is None else seen.embeddings.mean(axis=0),
    )


def rehearse(own: OwnParts, instances: Instances, rows: Rows, bank: ReferenceBank, settings: Any) -> ReferencePath:
    """Fit gates on instances that the own path never saw, with a bank that it never saw."""
    kind, exclusive = instances.task.kind, instances.task.kind.adds_up
    fold = patient_folds(subject_ids_of(instances)[rows], HELD_OUT, settings.seed)
    fitting, choosing = rows[fold != 0], rows[fold == 0]
    members = [only(instances, some) for some in (fitting, choosing)]
    answers = [own.logits(each).astype(np.float32) for each in members]
    lists = [bank.lists(described_as(each, bank.features, settings), max(settings.k)) for each in members]
    targets = kind.targets(members[0].labels, outputs_of(instances)).astype(np.float32)
    metric = instances.task.metrics[0]

    def judged(logits: Any) -> float:
        found = kind.in_shape(kind.probabilities(logits.astype(np.float64)))
        value = score((metric,), members[1].labels, found)[metric]
        return -np.inf if value is None else value

    return choose_reference_path(
        fit_reference_path(
            answers[0],
            targets,
            lists[0],
            bank.residuals,
            relations_of(lists[1], settings.k, (power,)),
            (answers[1], lists[1]),
            judged,
            exclusive=exclusive,
            shared=settings.gate_penalties,
            per_output=settings.output_penalties,
            may_close=settings.may_stay_out,
        )
        for power in settings.powers
    )


def rehearsed_model(
    own: OwnParts, instances: Instances, path: ReferencePath, bank: ReferenceBank, settings: Any
) -> ReferenceModel:
    """Return the model that predicts with a later bank; a similarity that the rehearsal did not have is not used."""
    used = tuple(dict.fromkeys(relation.similarity for relation in path.relations))
    exclusive = instances.task.kind.adds_up
    return ReferenceModel(settings, own, path, replace(bank, similarities=used, _indexes={}), exclusive)
