"""Every way by which outcomes could come back to their own patient: planted labels are seen nowhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.systems.contract import Fitted, RunContext
from patients_like_me.systems.given_scores import given_scores
from patients_like_me.systems.problem import Problem, only, problem_of
from patients_like_me.systems.reference_path.bank_audit import _cross_fitted, _folds_by_patient, audit_references
from patients_like_me.systems.reference_path.correction import Corrected, ReferencePath
from patients_like_me.systems.reference_path.first_banks import bank_of_training
from patients_like_me.systems.reference_path.fitting import _paths, _seen_out_of_fold, _training_lists
from patients_like_me.systems.reference_path.kept_fits import FOLDER
from patients_like_me.systems.reference_path.model import ReferenceModel, subject_ids_of
from patients_like_me.systems.reference_path.network_fit import fit_network, network_relation
from patients_like_me.systems.reference_path.own_parts import CrossFittedParts, cross_fit_parts, find_parts
from patients_like_me.systems.reference_path.rehearsal import fit_own_parts
from patients_like_me.systems.references import SYSTEM
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.registry import find_task

ONE = {"penalties": [3.0], "block_factors": []}
SMALL: dict[str, Any] = {
    "own_path": ["linear", "boosting"],
    "part_settings": {"linear": ONE, "boosting": {"trees": [3], "leaf_instances": 5, "minimum_positives": 5}},
    "relations": ["diagnoses", "whole bag", "two hops", "leaves"],
    "folds": 2,
    "k": [10],
    "powers": [1.0],
    "gate_penalties": [0.1],
    "output_penalties": [None],
    "may_stay_out": False,
}


@pytest.fixture(scope="module")
def instances(make_cohort: Callable[..., Path]) -> Instances:
    """Return instances whose cohort holds a score that a hospital gave, unrelated to any outcome."""
    found = build_instances(Cohort.load(make_cohort(patients=90, seed=5)), find_task("drug_recommendation"))
    visits = found.cohort.visits["visit"]
    values = np.random.default_rng(0).random(len(visits)).round(3).astype(str)
    rows = pl.DataFrame({"visit": visits, "task": ["our score"] * len(visits), "value": values.tolist()})
    known = found.cohort.labels
    labels = pl.concat([known, rows.select(known.columns).cast(dict(known.schema))])
    return replace(found, cohort=replace(found.cohort, labels=labels))


@pytest.fixture(scope="module")
def problem(instances: Instances) -> Problem:
    return problem_of(instances)


@pytest.fixture(scope="module")
def model(problem: Problem) -> ReferenceModel:
    fitted = SYSTEM.fit(problem, RunContext(SYSTEM.settings_of(None, **SMALL)))
    found: ReferenceModel = fitted.state
    return found


def turned(instances: Instances, patient: str) -> Problem:
    """Return the problem with all outcomes of one patient turned round."""
    own = subject_ids_of(instances) == patient
    labels = instances.labels.copy()
    labels[own] = 1 - labels[own]
    return problem_of(replace(instances, labels=labels))


def cross_fitted(problem: Problem, settings: Any, cache: Path | None = None) -> CrossFittedParts:
    run = RunContext(settings, cache=cache)
    people = subject_ids_of(problem.instances)
    parts = find_parts(settings.own_path, problem)
    return cross_fit_parts(problem, parts, settings.settings_of_part, people, run, folds=2, seed=0)


def test_a_planted_residual_is_seen_in_no_prediction_of_its_patient(problem: Problem, model: ReferenceModel) -> None:
    train = only(problem.instances, problem.train)
    lists, people = model.lists(train), subject_ids_of(train)
    assert {"two hops", "leaves"} <= set(lists)
    bank = np.array(model.bank.described.subjects)
    for name, found in lists.items():
        used = found.similarities > 0
        assert used.any(), name
        assert (bank[found.columns] != people[:, None])[used].all(), name
    quiet = model.correction(lists)
    patient = people[0]
    shouting = model.bank.residuals.copy()
    shouting[people == patient] += 1e6
    loud = replace(model, bank=replace(model.bank, residuals=shouting)).correction(lists)
    np.testing.assert_array_equal(loud[people == patient], quiet[people == patient])
    assert np.abs(loud[people != patient] - quiet[people != patient]).max() > 1


def test_the_audit_of_references_passes_and_can_fail(problem: Problem, model: ReferenceModel) -> None:
    everyone = problem.instances
    assert [found.verdict for found in audit_references(model, everyone)] == ["passed"] * 5
    # A bank that holds evaluated instances, whose residuals are those of a model that saw the labels.
    train = only(everyone, problem.train)
    seen = train.labels - everyone.task.kind.probabilities(model.own.logits(train))
    worse = replace(model.bank, residuals=seen.astype(np.float64))
    findings = audit_references(replace(model, bank=worse), everyone)
    assert [found.verdict for found in findings] == ["passed", "passed", "passed", "leak", "passed"]
    grown = model.grown(only(everyone, problem.test))
    findings = audit_references(grown, everyone)
    assert [findings[1].verdict, findings[4].verdict] == ["leak", "passed"]


def test_folds_by_patient_are_kept_and_audited(problem: Problem, model: ReferenceModel) -> None:
    kept = ReferenceModel.of(model.arrays(), model.facts(), model.settings)
    assert kept.bank.fold is not None
    assert set(kept.bank.fold) == {0, 1}
    found = _folds_by_patient(kept)
    people = subject_ids_of(only(problem.instances, problem.train))
    assert (found.verdict, found.looked_at) == ("passed", len(set(people)))
    torn = kept.bank.fold.copy()
    several = next(row for row in range(len(people)) if (people == people[row]).sum() > 1)
    torn[several] = 1 - torn[several]
    assert _folds_by_patient(replace(kept, bank=replace(kept.bank, fold=torn))).verdict == "leak"
    # Runs of before have kept none.
    assert _folds_by_patient(replace(kept, bank=replace(kept.bank, fold=None))).verdict == "cannot be checked"


def test_an_own_path_that_says_the_same_of_everybody_is_no_leak(problem: Problem, model: ReferenceModel) -> None:
    train = only(problem.instances, problem.train)
    rates = train.labels - problem.instances.task.kind.probabilities(np.zeros(train.labels.shape))
    constant: Any = SimpleNamespace(
        bank=replace(model.bank, residuals=rates.astype(np.float32)),
        own_logits=lambda instances: np.zeros((len(instances), train.labels.shape[1])),
    )
    assert _cross_fitted(constant, problem.instances).verdict == "cannot be checked"


def test_kept_arrays_and_shares_hold_for_all_relations(problem: Problem, model: ReferenceModel) -> None:
    evaluated = only(problem.instances, problem.evaluated)
    kept = Fitted(model.settings, model.arrays(), model.facts())
    np.testing.assert_allclose(SYSTEM.predict(kept, evaluated), model.logits(evaluated), atol=1e-6)
    lists = model.lists(evaluated)
    shares = model.shares(0, lists).shares
    np.testing.assert_allclose(shares.sum(axis=0), model.correction(lists)[0], atol=1e-9)
    # A bank that grows compares the newcomers' leaves too.
    grown = model.grown(evaluated)
    assert len(grown.bank.described.learned["leaves"]) == len(model.bank) + len(evaluated)
    assert np.isfinite(grown.logits(evaluated)).all()


@pytest.mark.parametrize("path", ["score", "leaves", "trained layers"])
def test_a_planted_label_reaches_nothing_that_its_own_fold_sees(
    instances: Instances, problem: Problem, path: str, tiny_folder: Path, tmp_path: Path
) -> None:
    """The oracle: other outcomes of a patient change nothing that gates compare or correct for the patient's fold."""
    changes: dict[str, Any] = {"own_path": ["linear"], "relations": ["whole bag"]}
    if path == "score":
        changes["part_settings"] = {"linear": {**ONE, "use_bag": False, "last_answer": False, "scores": ["our score"]}}
    elif path == "leaves":
        changes = {"own_path": ["boosting"], "relations": ["leaves"]}
    else:
        changes |= {"relations": ["trained embedding"], "language_model": "trained", "max_tokens": 200}
        changes |= {"embedder": {"name": str(tiny_folder)}}
        changes["part_settings"] = {"linear": {"fixed_penalties": [3.0, 3.0, 3.0], "fixed_epochs": 1, "epochs": 1}}
    settings = SYSTEM.settings_of(None, **{**SMALL, **changes})
    patient = subject_ids_of(instances)[problem.train[0]]
    seen = []
    for number, each in enumerate((problem, turned(instances, patient))):
        own = cross_fitted(each, settings, tmp_path / str(number) if path == "trained layers" else None)
        bank = bank_of_training(each, own, settings)
        if bank.described.learned:
            bank = _seen_out_of_fold(each, own, bank, settings)
        fold = own.answers.fold
        seen.append((own.answers, bank.lists(bank.described, 5, folds=(fold, fold))))
    (answers, lists), (others, other_lists) = seen
    fold = answers.fold
    same = fold == fold[0]
    assert subject_ids_of(instances)[problem.train][0] == patient
    np.testing.assert_array_equal(fold, others.fold)
    np.testing.assert_array_equal(answers.out_of_fold[same], others.out_of_fold[same])
    assert np.abs(answers.out_of_fold[~same] - others.out_of_fold[~same]).max() > 1e-6
    assert (
        set(lists) == {"whole bag"} if path == "score" else set(lists) <= {"leaves", "embedding", "trained embedding"}
    )
    for name, found in lists.items():
        np.testing.assert_array_equal(found.columns[same], other_lists[name].columns[same])
        np.testing.assert_array_equal(found.similarities[same], other_lists[name].similarities[same])


def test_a_network_is_read_by_no_fold_that_fitted_it(instances: Instances, problem: Problem, tiny_folder: Path) -> None:
    changes = {"own_path": ["linear"], "relations": ["whole bag"], "network": True, "language_model": "frozen"}
    changes |= {"embedder": {"name": str(tiny_folder)}, "max_tokens": 200}
    settings = SYSTEM.settings_of(None, **{**SMALL, **changes})
    fitted = SYSTEM.fit(problem, RunContext(settings))
    model: ReferenceModel = fitted.state
    assert model.path.relations[-1].sends == "network"
    evaluated = only(problem.instances, problem.evaluated)
    lists = model.lists(evaluated)
    np.testing.assert_allclose(model.shares(0, lists).shares.sum(axis=0), model.correction(lists)[0], atol=1e-9)
    kept = Fitted(settings, fitted.arrays, fitted.facts)
    np.testing.assert_allclose(SYSTEM.predict(kept, evaluated), model.logits(evaluated), atol=1e-5)
    own = cross_fitted(problem, settings)
    places = np.arange(len(problem.train))
    answers, near = _training_lists(problem, places, own, model)
    fold, relation = own.answers.fold, network_relation(near, [10])
    sent = []
    for turn in (False, True):
        targets = problem.targets.astype(np.float32)
        if turn:
            targets[fold == 0] = 1 - targets[fold == 0]
        given = Corrected(answers, near, model.bank.residuals, targets)
        sent.append(fit_network(given, relation, model.bank, fold, places, exclusive=False)[1])
    # Fold 0 reads a network of the other fold alone; that other fold reads one that saw the turned outcomes.
    np.testing.assert_array_equal(sent[0][fold == 0], sent[1][fold == 0])
    assert np.abs(sent[0][fold == 1] - sent[1][fold == 1]).max() > 1e-6


def test_a_second_round_is_kept_only_if_validation_gains(problem: Problem) -> None:
    changes = {"own_path": ["linear"], "relations": ["whole bag"], "rounds": 2}
    settings = SYSTEM.settings_of(None, **{**SMALL, **changes})
    rising = iter(range(1000))
    for judge, kept in ((lambda _: float(next(rising)), True), (lambda _: 0.5, False)):
        account = SYSTEM.fit(replace(problem, judge=judge), RunContext(settings)).account
        assert any(trial.get("round") == 2 for trial in account.tried)
        assert (account.chosen.get("round") == 2) is kept
        assert any("the round before is kept" in note for note in account.notes) is not kept


def test_a_later_round_is_fitted_around_a_network_that_did_not_see_the_own_fold(
    instances: Instances, problem: Problem, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offset reads what the gates read: networks of the other folds, not that of the bank, which saw all labels."""
    changes = {"own_path": ["linear"], "relations": ["whole bag"], "network": True, "language_model": "frozen"}
    changes |= {"embedder": {"name": str(tiny_folder)}, "max_tokens": 200, "rounds": 2}
    settings = SYSTEM.settings_of(None, **{**SMALL, **changes})
    sent: list[Any] = []
    inner = ReferencePath.correction

    def listened(path: ReferencePath, lists: Any, given: Any, block: int = 2048) -> Any:
        sent.append(given["network"])
        return inner(path, lists, given, block)

    monkeypatch.setattr(ReferencePath, "correction", listened)
    rising = iter(range(1000))
    fitted = SYSTEM.fit(replace(problem, judge=lambda _: float(next(rising))), RunContext(settings))
    assert any(trial.get("round") == 2 for trial in fitted.account.tried)
    own = cross_fitted(problem, settings)
    fold, first = own.answers.fold, bank_of_training(problem, own, settings)
    model = ReferenceModel(settings, own.parts, ReferencePath.closed(problem.outputs), first, exclusive=False)
    bank, _, given = _paths(problem, RunContext(settings), own, model)
    assert isinstance(given, dict)
    assert bank.network is not None
    assert np.abs(given["network"] - bank.network).max() > 1e-6
    np.testing.assert_array_equal(sent[0], given["network"])
    assert sent[0].shape == (len(fold), problem.outputs)


@pytest.mark.parametrize("control", ["rewired", "shuffled"])
def test_controls_stay_within_the_fold_while_gates_are_fitted(problem: Problem, control: str) -> None:
    """A residual of another fold comes from a model that saw the label of who would read it."""
    changes = {"own_path": ["linear"], "relations": ["whole bag"], "control": control}
    settings = SYSTEM.settings_of(None, **{**SMALL, **changes})
    own = cross_fitted(problem, settings)
    fold, bank = own.answers.fold, bank_of_training(problem, own, settings)
    if control == "shuffled":
        plain = bank_of_training(problem, own, settings.model_copy(update={"control": "none"}))
        assert not np.array_equal(bank.residuals, plain.residuals)
        for number in range(2):
            some, others = bank.residuals[fold == number], plain.residuals[fold == number]
            np.testing.assert_array_equal(np.sort(some, axis=0), np.sort(others, axis=0))
        return
    model = ReferenceModel(settings, own.parts, ReferencePath.closed(problem.outputs), bank, exclusive=False)
    _, lists = _training_lists(problem, np.arange(len(problem.train)), own, model)
    for found in lists.values():
        assert (fold[found.columns] == fold[:, None]).all()
        assert len(np.unique(found.columns)) > len(fold) // 2


@pytest.mark.parametrize("epochs", [1, 0])
def test_later_rounds_train_the_language_model_as_the_first_did(
    problem: Problem, tiny_folder: Path, tmp_path: Path, epochs: int
) -> None:
    """Folds may leave the language model as it is; the fit to all training patients trains it in every round."""
    changes = {"own_path": ["linear"], "relations": ["whole bag"], "rounds": 3, "in_folds": "frozen"}
    changes |= {"language_model": "trained", "embedder": {"name": str(tiny_folder)}, "max_tokens": 200}
    changes["part_settings"] = {"linear": {**ONE, "epochs": epochs}}
    rising = iter(range(1000))
    run = RunContext(SYSTEM.settings_of(None, **{**SMALL, **changes}), cache=tmp_path)
    fitted = SYSTEM.fit(replace(problem, judge=lambda _: float(next(rising))), run)
    assert fitted.account.chosen["round"] == 3
    assert fitted.account.chosen["linear epochs"] == epochs
    trained = fitted.state.own.fitted["linear"]
    assert trained.settings.language_model == "trained"
    assert any(name.startswith("lm.") for name in trained.arrays) is bool(epochs)


def test_the_label_of_the_task_is_no_score_in_whatever_case_it_is_written(instances: Instances) -> None:
    for name in (instances.task.name, instances.task.name.title()):
        with pytest.raises(PlmError, match="label of the task"):
            given_scores(instances, [name])
    assert np.isfinite(given_scores(instances, ["our score"])).all()


def test_an_own_path_that_is_fitted_alone_keeps_what_its_language_model_read(
    problem: Problem, tiny_folder: Path, tmp_path: Path
) -> None:
    changes = {"own_path": ["linear"], "relations": ["whole bag"], "language_model": "frozen", "max_tokens": 199}
    settings = SYSTEM.settings_of(None, **{**SMALL, **changes, "embedder": {"name": str(tiny_folder)}})
    fit_own_parts(problem, settings, RunContext(settings, cache=tmp_path))
    assert [path for path in tmp_path.iterdir() if path.name != FOLDER]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"own_path": ["linear"]}, "reads the trees of 'boosting'"),
        ({"relations": ["trained embedding"]}, "must come from layers"),
        ({"network": True}, "needs a language model"),
        ({"rounds": 2}, "needs own_path linear alone"),
    ],
)
def test_what_a_relation_or_a_round_lacks_is_said(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PlmError, match=words):
        SYSTEM.settings_of(None, **{**SMALL, **changes})
