"""The system ``references``: the evaluated path is the newcomers' path, no label leaks, a bank grows without training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from patients_like_me.records.cohort import Cohort
from patients_like_me.systems.bags import bag_of
from patients_like_me.systems.contract import Fitted, RunContext
from patients_like_me.systems.problem import Problem, only, problem_of
from patients_like_me.systems.reference_path.model import ReferenceModel, subject_ids_of
from patients_like_me.systems.reference_path.own_parts import part_of
from patients_like_me.systems.references import CONTROLS, SYSTEM
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.registry import find_task

SMALL: dict[str, Any] = {
    "own_path": ["linear"],
    "part_settings": {"linear": {"penalties": [3.0], "block_factors": []}},
    "folds": 3,
    "k": [10, 30],
    "powers": [1.0],
    "gate_penalties": [0.1],
    "output_penalties": [None],
    "may_stay_out": False,
}


@pytest.fixture(scope="module")
def instances(make_cohort: Callable[..., Path]) -> Instances:
    cohort = Cohort.load(make_cohort(patients=120, seed=4))
    sites = pl.Series("site", [("north", "south", None)[visit % 3] for visit in range(cohort.visits.height)])
    return build_instances(replace(cohort, visits=cohort.visits.with_columns(sites)), find_task("drug_recommendation"))


@pytest.fixture(scope="module")
def problem(instances: Instances) -> Problem:
    return problem_of(instances)


def fit(problem: Problem, **changes: Any) -> tuple[Fitted, ReferenceModel]:
    fitted = SYSTEM.fit(problem, RunContext(SYSTEM.settings_of(None, **{**SMALL, **changes})))
    return fitted, fitted.state


@pytest.fixture(scope="module")
def fitted(problem: Problem) -> tuple[Fitted, ReferenceModel]:
    return fit(problem)


def test_kept_arrays_predict_newcomers_as_evaluated_instances_were(
    problem: Problem, fitted: tuple[Fitted, ReferenceModel]
) -> None:
    found, model = fitted
    assert model.uses_references
    kept = Fitted(found.settings, found.arrays, found.facts)
    evaluated = only(problem.instances, problem.evaluated)
    logits = SYSTEM.predict(found, evaluated)
    assert np.abs(SYSTEM.predict(kept, evaluated) - logits).max() < 1e-6
    renamed = evaluated.cohort.patients.with_columns(
        pl.concat_str(pl.lit("newcomer "), "subject_id").alias("subject_id")
    )
    newcomers = replace(evaluated, cohort=replace(evaluated.cohort, patients=renamed))
    assert np.abs(SYSTEM.predict(kept, newcomers) - logits).max() < 1e-6
    assert np.abs(logits - model.own.logits(evaluated)).max() > 1e-3
    assert (SYSTEM.predict_linked(kept, evaluated)[1] > 0).all()  # type: ignore[misc]


def test_an_own_label_reaches_no_own_prediction(problem: Problem, fitted: tuple[Fitted, ReferenceModel]) -> None:
    """The oracle: a residual that shouts moves the answers of other patients and no answer of its own patient."""
    _, model = fitted
    train = only(problem.instances, problem.train)
    lists = model.lists(train)
    people = subject_ids_of(train)
    quiet = model.correction(lists)
    for patient in np.unique(people)[:3]:
        own = people == patient
        shouting = model.bank.residuals.copy()
        shouting[own] += 1e6
        loud = replace(model, bank=replace(model.bank, residuals=shouting)).correction(lists)
        np.testing.assert_array_equal(loud[own], quiet[own])
        assert np.abs(loud[~own] - quiet[~own]).max() > 1


def test_same_patient_is_excluded_in_every_relation_and_columns_are_training_instances(
    problem: Problem, fitted: tuple[Fitted, ReferenceModel]
) -> None:
    _, model = fitted
    everyone = problem.instances
    people, bank = subject_ids_of(everyone), np.array(model.bank.described.subjects)
    assert set(model.bank.instance_ids) == {everyone.instance_ids[row] for row in problem.train}
    lists = model.lists(everyone)
    assert "all codes within site" in lists
    for found in lists.values():
        used = found.similarities > 0
        assert used.any()
        assert (bank[found.columns] != people[:, None])[used].all()


@pytest.mark.parametrize("control", ["none", "rewired"])
def test_references_of_the_same_sex_and_age_for_newcomers_and_a_grown_bank_too(
    instances: Instances, control: str
) -> None:
    cohort = instances.cohort
    sexes = pl.Series("sex", [("F", "male")[patient % 2] for patient in range(cohort.patients.height)])
    ages = pl.Series("age", [40 + visit % 30 for visit in range(cohort.visits.height)], dtype=pl.Int16)
    cohort = replace(cohort, patients=cohort.patients.with_columns(sexes), visits=cohort.visits.with_columns(ages))
    problem = problem_of(replace(instances, cohort=cohort))
    found, model = fit(problem, same_sex=True, max_age_difference=10, control=control)
    assert "same sex and an age within 10 years" in SYSTEM.title_of(found.settings)
    evaluated = only(problem.instances, problem.evaluated)
    kept = Fitted(found.settings, found.arrays, found.facts)
    np.testing.assert_allclose(SYSTEM.predict(kept, evaluated), SYSTEM.predict(found, evaluated), atol=1e-6)
    grown = model.grown(only(problem.instances, problem.validation))
    people, bank = evaluated.people, grown.bank.described.people
    assert bank is not None
    subjects, own = np.array(grown.bank.described.subjects), subject_ids_of(evaluated)
    for each in grown.lists(evaluated).values():
        used = each.similarities > 0
        assert used.any()
        of_references = bank[each.columns]
        assert (of_references[..., 0] == people[:, None, 0])[used].all()
        assert (abs(of_references[..., 1] - people[:, None, 1]) <= 10)[used].all()
        assert (subjects[each.columns] != own[:, None])[used].all()
    # What somebody of another sex says is not heard.
    shouting = grown.bank.residuals.copy()
    shouting[bank[:, 0] == 0] += 1e6
    others = people[:, 0] == 1
    quiet, loud = (each.logits(evaluated) for each in (grown, grown.with_residuals(shouting)))
    np.testing.assert_array_equal(loud[others], quiet[others])
    assert np.abs(loud[~others] - quiet[~others]).max() > 1


def test_vocabulary_and_weights_are_those_of_training(problem: Problem, fitted: tuple[Fitted, ReferenceModel]) -> None:
    """Evaluated patients with codes that nobody else has change neither the vocabulary nor any weight."""
    _, model = fitted
    instances = problem.instances
    visits = instances.frame["visit"].gather(problem.evaluated)
    codes = instances.cohort.codes["diagnosis"]
    odd = pl.DataFrame({"visit": visits, "code": ["odd"] * len(visits), "time": [None] * len(visits)}, codes.schema)
    changed = replace(instances.cohort, codes={**instances.cohort.codes, "diagnosis": pl.concat([codes, odd])})
    other = replace(problem, instances=replace(instances, cohort=changed))
    features = bag_of(other.instances, problem.train, model.settings.bag).features
    assert features == model.bank.features
    again = fit(other)[1]
    np.testing.assert_array_equal(again.bank.weights, model.bank.weights)
    np.testing.assert_array_equal(again.bank.residuals, model.bank.residuals)


def test_a_fold_has_no_label_of_its_held_out_patients(problem: Problem) -> None:
    kept = problem.train[: len(problem.train) // 2]
    part = part_of(problem, kept)
    held_out = np.setdiff1d(problem.train, kept)
    assert not part.instances.labels[held_out].any()
    assert not part.with_validation_labels().labels[held_out].any()
    np.testing.assert_array_equal(part.train, np.sort(kept))
    np.testing.assert_array_equal(part.validation, problem.validation)


def test_residuals_come_from_models_that_did_not_see_the_patient(
    problem: Problem, fitted: tuple[Fitted, ReferenceModel]
) -> None:
    """With the labels of one patient turned round, R of that patient changes by the labels and nothing else."""
    _, model = fitted
    people = subject_ids_of(problem.instances)[problem.train]
    own = people == people[0]
    targets, labels = problem.targets.copy(), problem.instances.labels.copy()
    targets[own] = 1 - targets[own]
    labels[problem.train[own]] = 1 - labels[problem.train[own]]

    def lent() -> Instances:
        given = problem.with_validation_labels()
        turned = given.labels.copy()
        turned[problem.train[own]] = labels[problem.train[own]]
        return replace(given, labels=turned)

    other = replace(
        problem,
        instances=replace(problem.instances, labels=labels),
        targets=targets,
        with_validation_labels=lent,
    )
    again = fit(other)[1].bank.residuals
    expected = model.bank.residuals[own] + (targets - problem.targets)[own]
    np.testing.assert_allclose(again[own], expected, atol=1e-5)
    assert np.abs(again[~own] - model.bank.residuals[~own]).max() > 1e-4


def test_a_bank_grows_without_training(problem: Problem, instances: Instances, fitted: Any) -> None:
    _, model = fitted
    more = only(instances, instances.rows_of("validation"))
    grown = model.grown(more)
    assert len(grown.bank) == len(model.bank) + len(more)
    own = model.own.logits(more)
    np.testing.assert_allclose(
        grown.bank.residuals[len(model.bank) :], more.labels - instances.task.kind.probabilities(own), atol=1e-6
    )
    test = only(problem.instances, problem.test)
    np.testing.assert_array_equal(grown.own.logits(test), model.own.logits(test))
    assert np.abs(grown.logits(test) - model.logits(test)).max() > 1e-4
    # What was added is not used for the patients it came from.
    lists = grown.lists(more)
    subjects = np.array(grown.bank.described.subjects)
    for found in lists.values():
        same = subjects[found.columns] == subject_ids_of(more)[:, None]
        assert not (same & (found.similarities > 0)).any()
    assert grown.grown(more).bank.instance_ids == grown.bank.instance_ids
    kept = ReferenceModel.of(grown.arrays(), grown.facts(), grown.settings)
    np.testing.assert_allclose(kept.logits(test), grown.logits(test), atol=1e-6)


def test_controls_are_named_in_the_title_and_change_what_they_say(problem: Problem, fitted: Any) -> None:
    _, model = fitted
    test = only(problem.instances, problem.test)
    titles = set()
    for control in CONTROLS:
        titles.add(SYSTEM.title_of(SYSTEM.settings_of(None, control=control)))
        if control == "none":
            continue
        other = fit(problem, control=control)[1]
        if control == "no_references":
            np.testing.assert_array_equal(other.logits(test), model.own.logits(test))
        if control == "shuffled":
            np.testing.assert_allclose(
                np.sort(other.bank.residuals, axis=0), np.sort(model.bank.residuals, axis=0), atol=1e-6
            )
            assert not np.array_equal(other.bank.residuals, model.bank.residuals)
        if control == "no_cross_fitting":
            assert np.abs(other.bank.residuals).mean() < np.abs(model.bank.residuals).mean()
        if control == "rewired":
            assert any(
                (new.columns != old.columns).mean() > 0.5
                for new, old in zip(other.lists(test).values(), model.lists(test).values(), strict=True)
            )
            rows = np.array([3, 1])
            np.testing.assert_allclose(other.logits(only(test, rows)), other.logits(test)[rows], atol=1e-9)
    assert len(titles) == len(CONTROLS)


def test_several_powers_at_once_are_relations_of_their_own(problem: Problem) -> None:
    """A set of powers is one candidate: each power of a similarity gets a gate, and a kept model has them all."""
    found, model = fit(problem, powers=[3.0, [1.0, 3.0, 6.0]])
    tried = [trial["power"] for trial in found.account.tried if trial.get("gate_penalty")]
    assert tried == [3.0, [1.0, 3.0, 6.0]]
    both, model = fit(problem, powers=[[1.0, 3.0, 6.0]])
    assert both.account.chosen["power"] == [1.0, 3.0, 6.0]
    assert {(each.k, each.power) for each in model.path.relations if each.similarity == "all codes"} == {
        (k, power) for k in (10, 30) for power in (1.0, 3.0, 6.0)
    }
    evaluated = only(problem.instances, problem.evaluated)
    lists = model.lists(evaluated)
    np.testing.assert_allclose(model.shares(0, lists).shares.sum(axis=0), model.correction(lists)[0], atol=1e-9)
    kept = Fitted(both.settings, both.arrays, both.facts)
    np.testing.assert_allclose(SYSTEM.predict(kept, evaluated), model.logits(evaluated), atol=1e-6)


def test_closed_gates_are_said(problem: Problem) -> None:
    """Where references do not raise the score on validation, the prediction is the own path's and the notes say so."""
    judged = replace(problem, judge=lambda _: 0.5)
    found, model = fit(judged, may_stay_out=True)
    assert not model.uses_references
    assert found.account.chosen["gates"] == "closed"
    assert any("all gates are 0" in note for note in found.account.notes)
    test = only(problem.instances, problem.test)
    np.testing.assert_array_equal(model.logits(test), model.own.logits(test))
    assert not SYSTEM.predict_linked(found, test)[1].any()  # type: ignore[misc]
