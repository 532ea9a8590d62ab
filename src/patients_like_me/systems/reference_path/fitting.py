"""Fitting the method to a problem: own path, bank, lists of references, gates; all choices by validation's score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from patients_like_me.systems.contract import Account, RunContext
from patients_like_me.systems.frozen_embeddings import embeddings_of
from patients_like_me.systems.problem import Problem, only
from patients_like_me.systems.reference_path.bank import ReferenceBank
from patients_like_me.systems.reference_path.correction import (
    Corrected,
    ReferencePath,
    choose_reference_path,
    fit_reference_path,
)
from patients_like_me.systems.reference_path.first_banks import bank_of_training
from patients_like_me.systems.reference_path.learned import out_of_fold
from patients_like_me.systems.reference_path.model import Lists, ReferenceModel, subject_ids_of
from patients_like_me.systems.reference_path.network_fit import fit_network, network_relation
from patients_like_me.systems.reference_path.own_learned import learned_of
from patients_like_me.systems.reference_path.own_parts import CrossFittedParts, cross_fit_parts, find_parts
from patients_like_me.systems.reference_path.rehearsal import rehearsed_model, rehearsed_path, tried_of
from patients_like_me.systems.reference_path.relations import NETWORK, OUTCOMES, Relation, Sent, relations_of

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Round:
    """A model on an own path, all reference paths that were tried, and who rehearsed them, in words.

    ``sent`` is what references send to training instances: outcomes, and a network that was fitted without their fold.
    """

    model: ReferenceModel
    paths: Sequence[ReferencePath] = ()
    rehearsed: str = ""
    sent: Sent | None = None

    @property
    def score(self) -> float:
        """The score on validation, where the gates were chosen."""
        return -np.inf if self.model.path.search is None else self.model.path.search.score


def fit_model(problem: Problem, run: RunContext) -> tuple[ReferenceModel, Account]:
    """Fit the method and tell what was chosen."""
    settings = run.settings
    systems = find_parts(settings.own_path, problem)
    # In one order, so that no sum depends on the order in which training instances are given.
    order = np.argsort(problem.train, kind="stable")
    problem = replace(problem, train=problem.train[order], targets=problem.targets[order])
    run.begin()
    if settings.language_model != "none":
        run.report("reading the prompts with the frozen language model")
        to_train = {getattr(settings.settings_of_part(system), "trained_layers", 0) for system in systems}
        embeddings_of(
            problem.instances,
            settings.embedder,
            settings.max_tokens,
            run.cache,
            layers_to_train=max(to_train) if settings.language_model == "trained" else 0,
        )
    subjects = subject_ids_of(problem.instances)
    folds = min(settings.folds, len(np.unique(subjects[problem.train])))
    cross_fitted = partial(
        cross_fit_parts, problem, systems, settings.settings_of_part, subjects, run, folds=folds, seed=settings.seed
    )
    own = cross_fitted()
    found = _with_references(problem, run, own)
    account = _account(problem, settings, own, found)
    for number in range(2, settings.rounds + 1):
        if not found.model.uses_references:
            break
        run.report(f"fitting the own path around the correction, round {number}")
        # The E-step: the own path learns what the references did not say; then they say it again.
        own = cross_fitted(before=own, offset=_training_correction(problem, own, found))
        again = _with_references(problem, run, own)
        account.tried.append({"round": number, "validation_score": again.score})
        if again.score <= found.score:
            account.notes.append(f"round {number} did not raise the score on validation: the round before is kept")
            break
        earlier = account.tried
        found, account = again, _account(problem, settings, own, again)
        account = replace(account, tried=[*earlier, *account.tried], chosen={**account.chosen, "round": number})
    return found.model, account


def _with_references(problem: Problem, run: RunContext, own: CrossFittedParts) -> Round:
    """Add the references to an own path."""
    settings = run.settings
    bank = bank_of_training(problem, own, settings)
    closed = ReferencePath.closed(problem.outputs)
    model = ReferenceModel(settings, own.parts, closed, bank, problem.kind.adds_up)
    if settings.control == "no_references" or not bank.similarities:
        return Round(model)
    if settings.rehearsal != "none":
        paths, words = rehearsed_path(problem, run)
        rehearsed = rehearsed_model(own.parts, problem.instances, choose_reference_path(paths), bank, settings)
        return Round(rehearsed, paths, words)
    bank, paths, sent = _paths(problem, run, own, model)
    found = ReferenceModel(settings, own.parts, choose_reference_path(paths), bank, model.exclusive)
    return Round(found, paths, sent=sent)


def _training_correction(problem: Problem, own: CrossFittedParts, before: Round) -> npt.NDArray[np.float32]:
    """Return what references of their own fold say to all training instances, as they said it to the gates.

    The network of the bank is fitted to the labels of all training instances: the offset would know its own label.
    """
    assert before.sent is not None, "gates that were rehearsed have no second round"
    _, lists = _training_lists(problem, np.arange(len(problem.train)), own, before.model)
    found: npt.NDArray[np.float32] = before.model.path.correction(lists, before.sent).astype(np.float32)
    return found


def _paths(
    problem: Problem, run: RunContext, cross: CrossFittedParts, model: ReferenceModel
) -> tuple[ReferenceBank, list[ReferencePath], Sent]:
    """Fit one reference path per power or set of powers, each with its penalties chosen by validation's score.

    Returned with them are the bank, which has the network where there is one, and what it sends to training instances.
    """
    settings, bank, answers = run.settings, model.bank, cross.answers
    places = _gate_places(len(problem.train), settings.gate_instances, settings.seed)
    run.report(f"listing the references of {len(places):,} training instances")
    own, lists = _training_lists(problem, places, cross, model)
    targets = problem.targets[places].astype(np.float32)
    run.report("listing the references of validation")
    seen = answers.predict(problem.validation).astype(np.float32)
    lists_of_validation = model.lists(only(problem.instances, problem.validation))
    said: list[Sent] = [bank.residuals, bank.residuals]
    network: tuple[Relation, ...] = ()
    if settings.network:
        run.report("fitting the network over the embeddings of references")
        relation = network_relation(lists_of_validation, settings.k)
        fold = np.zeros(len(bank), np.int64) if settings.control == "no_cross_fitting" else answers.fold
        head, of_folds = fit_network(
            Corrected(own, lists, bank.residuals, targets), relation, bank, fold, places, exclusive=model.exclusive
        )
        bank, network = bank.with_network(head), (relation,)
        assert bank.network is not None
        said = [{OUTCOMES: bank.residuals, NETWORK: each} for each in (of_folds, bank.network)]
    fitting = Corrected(own.astype(np.float32), lists, said[0], targets)
    validation = Corrected(seen, lists_of_validation, said[1])

    def score(logits: Any) -> float:
        value = problem.judge(problem.kind.probabilities(logits.astype(np.float64)))
        return -np.inf if value is None else value

    found = []
    for powers in settings.sharpness:
        run.report(f"fitting gates with weights to the power of {' and '.join(f'{power:g}' for power in powers)}")
        found.append(
            fit_reference_path(
                fitting,
                validation,
                (*relations_of(validation.lists, settings.k, powers), *network),
                score,
                exclusive=model.exclusive,
                tried=tried_of(settings),
            )
        )
    return bank, found, said[0]


def _gate_places(instances: int, most: int, seed: int) -> Places:
    """Return the places of the training instances that fit gates: all, or as many as there may be."""
    if instances <= most:
        return np.arange(instances)
    return np.sort(np.random.default_rng(seed).permutation(instances)[:most])


def _training_lists(
    problem: Problem, places: Places, own: CrossFittedParts, model: ReferenceModel
) -> tuple[npt.NDArray[Any], Lists]:
    """Return own answers and references of some training instances: references of the same fold, except without folds.

    Why of the same fold is said in :mod:`.correction`.
    """
    bank, answers = model.bank, own.answers
    without = model.settings.control == "no_cross_fitting"
    if bank.described.learned and not without:
        bank = _seen_out_of_fold(problem, own, bank, model.settings)
    described = bank.described.rows(places)
    folds = None if without else (answers.fold[places], answers.fold)
    lists = bank.lists(described, max(model.settings.k), folds=folds)
    ids = [bank.instance_ids[place] for place in places]
    return (answers.known if without else answers.out_of_fold)[places], model.controlled(lists, described, ids, folds)


def _seen_out_of_fold(problem: Problem, own: CrossFittedParts, bank: ReferenceBank, settings: Any) -> ReferenceBank:
    """Return the bank with what the own path learned of each instance without the instance's fold."""
    fold = own.answers.fold
    parts = [
        learned_of(each, only(problem.instances, problem.train[fold == number]), settings)
        for number, each in enumerate(own.of_folds)
    ]
    learned, scales = out_of_fold(parts, fold)
    return replace(bank, described=replace(bank.described, learned=learned), scales=scales, _indexes={})


def _account(
    problem: Problem,
    settings: Any,
    own: CrossFittedParts,
    found: Round,
) -> Account:
    model, rehearsed = found.model, found.rehearsed
    tried: list[dict[str, Any]] = [{"own path": name, "validation_score": value} for name, value in own.scores.items()]
    notes = [f"the gates were rehearsed for a bank that grows: {rehearsed}"] if rehearsed else []
    if model.own.stack is not None:
        weights = ", ".join(
            f"{name} {weight:.2f}" for name, weight in zip(own.scores, model.own.stack.weights, strict=True)
        )
        notes.append(f"weights of the own path's parts: {weights}")
        together = problem.kind.probabilities(own.answers.predict(problem.validation))
        tried.append({"own path": "stack", "validation_score": problem.judge(together)})
    for path in found.paths:
        assert path.search is not None
        for penalties, value in path.search.trials:
            shared, per_output = penalties or (None, None)
            tried.append(
                {
                    "power": path.powers,
                    "gate_penalty": shared,
                    "output_penalty": per_output,
                    "rehearsal_score" if rehearsed else "validation_score": None if value == -np.inf else value,
                }
            )
    chosen: dict[str, Any] = dict(own.chosen)
    search = model.path.search
    if search is not None and search.penalties is not None:
        chosen |= {"power": model.path.powers, "gate_penalty": search.penalties[0]}
        chosen["output_penalty"] = search.penalties[1]
        strongest = np.argsort(-model.path.gates.strength, kind="stable")[:3]
        notes.append("strongest relations: " + "; ".join(str(model.path.relations[place]) for place in strongest))
    elif settings.control == "no_references":
        notes.append("a control: the references are left out, the prediction is that of the own path")
    else:
        chosen["gates"] = "closed"
        notes.append(
            f"references do not raise the score {'in the rehearsal' if rehearsed else 'on validation'}: "
            "all gates are 0, the prediction is that of the own path"
        )
    return Account(chosen=chosen, tried=tried, notes=notes)
