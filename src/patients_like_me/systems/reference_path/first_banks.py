"""Banks as they begin: the training instances with their out-of-fold residuals, or instances the own path never saw.

Vocabulary, weights of codes and the centre of embeddings come from training instances in both.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from patients_like_me.systems.bags import bag_of
from patients_like_me.systems.problem import Problem, only, outputs_of
from patients_like_me.systems.reference_path.bank import ReferenceBank
from patients_like_me.systems.reference_path.described import EMBEDDING, Described, similarities_of
from patients_like_me.systems.reference_path.learned import LEARNED, scales_of
from patients_like_me.systems.reference_path.links import residuals
from patients_like_me.systems.reference_path.model import described_as
from patients_like_me.systems.reference_path.own_parts import CrossFittedParts, OwnParts
from patients_like_me.systems.reference_path.relations import inverse_frequencies
from patients_like_me.tasks.instances import Instances, Rows


def bank_of_training(problem: Problem, own: CrossFittedParts, settings: Any) -> ReferenceBank:
    """Return the training instances as a bank: vocabulary, weights and centre are theirs alone."""
    features = bag_of(problem.instances, problem.train, settings.bag).features
    described = described_as(only(problem.instances, problem.train), features, settings, own.parts)
    answers = own.answers
    known = answers.known if settings.control == "no_cross_fitting" else answers.out_of_fold
    sent = residuals(problem.targets, known, problem.kind.adds_up).astype(np.float32)
    if settings.control == "shuffled":
        # Within folds: the residual of another fold comes from a model that saw the labels of those who read it here.
        order = np.random.default_rng(settings.seed).permutation(len(sent))
        sent[np.argsort(answers.fold, kind="stable")] = sent[order[np.argsort(answers.fold[order], kind="stable")]]
    names = problem.instances.instance_ids
    wanted = _wanted(settings, described)
    return ReferenceBank(
        described,
        features,
        inverse_frequencies(described.codes),
        similarities_of(wanted, described, features),
        tuple(names[row] for row in problem.train),
        problem.targets.astype(np.int8),
        sent,
        settings.tau,
        None if described.embeddings is None else described.embeddings.mean(axis=0),
        scales_of(described.learned),
        rule=settings.person_rule,
        fold=answers.fold.astype(np.int16),
    )


def bank_of_rows(own: OwnParts, instances: Instances, rows: Rows, trained: Rows, settings: Any) -> ReferenceBank:
    """Return a bank of instances that the own path never saw; vocabulary and weights are those of its training."""
    exclusive = instances.task.kind.adds_up
    features = bag_of(instances, trained, settings.bag).features
    seen = described_as(only(instances, trained), features, settings, own)
    members = only(instances, rows)
    described = described_as(members, features, settings, own)
    wanted = _wanted(settings, described)
    targets = members.task.kind.targets(members.labels, outputs_of(members))
    return ReferenceBank(
        described,
        features,
        inverse_frequencies(seen.codes),
        similarities_of(wanted, described, features),
        tuple(members.instance_ids),
        targets.astype(np.int8),
        residuals(targets, own.logits(members), exclusive).astype(np.float32),
        settings.tau,
        None if seen.embeddings is None else seen.embeddings.mean(axis=0),
        scales_of(seen.learned),
        rule=settings.person_rule,
    )


def _wanted(settings: Any, described: Described) -> list[str]:
    """Return the similarities that settings ask for; that of embeddings comes with a language model, and with no other.

    What the own path has not learned cannot be compared.
    """
    wanted = [name for name in settings.relations if name != EMBEDDING]
    if settings.language_model != "none":
        place = settings.relations.index(EMBEDDING) if EMBEDDING in settings.relations else len(wanted)
        wanted.insert(place, EMBEDDING)
    return [name for name in wanted if name not in LEARNED or name in described.learned]
