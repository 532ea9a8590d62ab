"""What the leakage audit says about the references of a run: checked on the fitted model and its bank, not promised."""

from __future__ import annotations

from typing import Final

import numpy as np

from patients_like_me.systems.additive_references import AdditiveReferences
from patients_like_me.systems.problem import only, outputs_of
from patients_like_me.systems.reference_path.links import residuals
from patients_like_me.systems.reference_path.model import subject_ids_of
from patients_like_me.tasks.audit_findings import Finding, cannot_be_checked, finding
from patients_like_me.tasks.instances import Instances

#: A label is planted on this many instances of the bank.
PLANTED: Final = 50
#: How loud a planted residual is: true ones are between -1 and 1.
LOUD: Final = 1e6
#: Residuals that differ by less are the same number.
SAME: Final = 1e-7


def audit_references(model: AdditiveReferences, instances: Instances) -> list[Finding]:
    """Check that references are other patients of the bank, and that no outcome comes back to its own patient.

    ``instances`` are those of the run, training included.
    """
    evaluated = only(instances, np.concatenate([instances.rows_of("validation"), instances.rows_of("test")]))
    people, bank = subject_ids_of(evaluated), np.array(model.bank.described.subjects, dtype=object)
    lists = model.lists(evaluated) if model.uses_references else {}
    pairs = same = 0
    for found in lists.values():
        used = found.similarities > 0
        pairs += int(used.sum())
        same += int(((bank[found.columns] == people[:, None]) & used).sum())
    because = "all gates are closed and no reference is used"
    outside = set(model.bank.instance_ids) & set(evaluated.instance_ids)
    return [
        finding("no reference of the same patient", pairs, same, "references of the own patient", because=because),
        finding("references are of the bank", len(model.bank), len(outside), "evaluated instances in the bank"),
        _planted(model, instances),
        _cross_fitted(model, instances),
        _folds_by_patient(model),
    ]


def _planted(model: AdditiveReferences, instances: Instances) -> Finding:
    """Let the residuals of one patient after another shout, and count own predictions that hear it."""
    name, meaning = "a planted outcome is not heard by its own patient", "own predictions that a planted outcome moved"
    train = instances.rows_of("train")
    if not model.uses_references or not len(train):
        return finding(name, 0, 0, meaning, because="all gates are closed and no reference is used")
    some = only(instances, np.sort(np.random.default_rng(0).permutation(train)[:PLANTED]))
    lists, people = model.lists(some), subject_ids_of(some)
    quiet, bank = model.correction(lists), np.array(model.bank.described.subjects, dtype=object)
    moved = 0
    for row, person in enumerate(people):
        planted = model.bank.residuals.copy()
        planted[bank == person] += LOUD
        loud = model.with_residuals(planted)
        own = {key: found.rows(np.array([row])) for key, found in lists.items()}
        moved += bool((loud.correction(own)[0] != quiet[row]).any())
    return finding(name, len(people), moved, meaning)


def _cross_fitted(model: AdditiveReferences, instances: Instances) -> Finding:
    """Count training instances whose residual is that of the own path that was fitted to their outcome.

    An own path that says the same of everybody has no instance to tell from another: its weights are all 0.
    """
    name = "residuals come from models that did not see the patient"
    meaning = "training instances with the residual of the model that was fitted to them"
    rows = instances.rows_of("train")
    place = {name: number for number, name in enumerate(model.bank.instance_ids)}
    names = instances.instance_ids
    known = np.array([row for row in rows if names[row] in place], np.int64)
    seen = only(instances, known)
    targets = seen.task.kind.targets(seen.labels, outputs_of(seen))
    own = model.own_logits(seen)
    if len(known) and np.ptp(own, axis=0).max() < SAME:
        return cannot_be_checked(name, meaning, "the own path says the same of everybody")
    told = residuals(targets, own, seen.task.kind.adds_up)
    kept = model.bank.residuals[[place[names[row]] for row in known]]
    same = (np.abs(kept - told) < SAME).all(axis=1)
    return finding(name, len(known), int(same.sum()), meaning)


def _folds_by_patient(model: AdditiveReferences) -> Finding:
    """Count patients whose instances were left out in different folds: one would be answered by a model that saw them.

    Instances that joined the bank later have no fold.
    """
    name, meaning = "folds by patient", "patients with instances in more than one fold"
    fold = getattr(model.bank, "fold", None)
    if fold is None:
        return cannot_be_checked(name, meaning, "the run has kept no folds")
    trained = np.flatnonzero(fold >= 0)
    people = np.array(model.bank.described.subjects, dtype=object)[trained]
    pairs = set(zip(people.tolist(), fold[trained].tolist(), strict=True))
    patients = len(set(people.tolist()))
    return finding(name, patients, len(pairs) - patients, meaning)
