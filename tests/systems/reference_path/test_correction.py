"""The reference path as a whole: gates, exact shares, importance, controls, and that no label leaks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from systems.reference_path.plain_search import strongest

from patients_like_me.systems.reference_path.correction import (
    Corrected,
    ReferencePath,
    choose_reference_path,
    fit_reference_path,
    path_of_folds,
    rewired,
)
from patients_like_me.systems.reference_path.folds import cross_fit
from patients_like_me.systems.reference_path.gates import Gates, GateSearch, choose_gates, fit_gates
from patients_like_me.systems.reference_path.links import expected, log_loss, residuals
from patients_like_me.systems.reference_path.messages import half_median_degree, messages
from patients_like_me.systems.reference_path.own_path import fit_own_path
from patients_like_me.systems.reference_path.relations import relations_of


class Hospital:
    """Patients with two codes that interact: the linear own path misses what patients with both codes share."""

    def __init__(self, seed: int = 0, patients: int = 500, outputs: int = 2):
        random = np.random.default_rng(seed)
        self.patients = np.repeat(np.arange(patients), 2)
        size = len(self.patients)
        self.codes = (random.random((size, 8)) < 0.4).astype(np.float64)
        both = (self.codes[:, 0] != self.codes[:, 1]).astype(np.float64)
        logits = np.stack([3 * both - 1.5 + 0.5 * self.codes[:, n] for n in range(outputs)], axis=1)
        self.targets = (random.random(logits.shape) < expected(logits, exclusive=False)).astype(np.float64)
        ends = np.array([0.5, 0.7, 1.0]) * size
        self.train, self.validation, self.test = np.split(np.arange(size), ends.astype(int)[:2])

    def fit(self, rows):
        path = fit_own_path([self.codes[rows]], self.targets[rows], [3.0], exclusive=False)
        return lambda wanted: path.logits([self.codes[wanted]])

    def lists(self, rows, k: int = 30, fold=None):
        patients = (self.patients[rows], self.patients[self.train])
        bank = self.codes[self.train] - 0.5
        queries = self.codes[rows] - 0.5
        groups = None if fold is None else (fold, fold)
        return {"codes": strongest(queries, bank, k, patients=patients, groups=groups)}

    def score(self, logits):
        return -log_loss(logits, self.targets[self.validation], exclusive=False)[0]


@pytest.fixture(scope="module")
def hospital() -> Hospital:
    return Hospital()


@pytest.fixture(scope="module")
def own(hospital):
    return cross_fit(hospital.fit, hospital.train, hospital.patients, folds=2)


def fitted(hospital, own, control="none", seed=0):
    lists = [hospital.lists(hospital.train, fold=own.fold), *map(hospital.lists, (hospital.validation, hospital.test))]
    offset = own.out_of_fold
    sent = residuals(hospital.targets[hospital.train], offset, exclusive=False)
    if control == "shuffled":
        sent = sent[np.random.default_rng(seed).permutation(len(sent))]
    if control == "rewired":
        people = [hospital.patients[rows] for rows in (hospital.train, hospital.validation, hospital.test)]
        lists = [
            {"codes": rewired(group["codes"], 10_000 * number + np.arange(len(own_people)), own_people, people[0])}
            for number, (group, own_people) in enumerate(zip(lists, people, strict=True))
        ]
    path = fit_reference_path(
        Corrected(offset, lists[0], sent, hospital.targets[hospital.train]),
        Corrected(own.predict(hospital.validation), lists[1], sent),
        relations_of(lists[1], (10, 30), (1.0, 3.0)),
        hospital.score,
        exclusive=False,
    )
    return path, sent, lists


def test_references_tell_what_the_own_path_cannot_know(hospital, own):
    path, sent, lists = fitted(hospital, own)
    before = own.predict(hospital.test)
    after = before + path.correction(lists[2], sent)
    truth = hospital.targets[hospital.test]
    assert log_loss(after, truth, exclusive=False)[0] < 0.92 * log_loss(before, truth, exclusive=False)[0]


@pytest.mark.parametrize(
    ("second", "chosen"), [((0.1, 0.9, 0.4), (1.0, None)), ((0.9, 0.1, 0.4), None), ((0.1, 0.2, 0.9), (0.1, None))]
)
def test_the_mean_over_folds_chooses_the_penalties_and_all_instances_fit_the_gates(hospital, own, second, chosen):
    path, sent, lists = fitted(hospital, own)
    candidates = (None, (1.0, None), (0.1, None))

    def of_fold(values):
        trials = list(zip(candidates, values, strict=True))
        best = max(trials, key=lambda trial: trial[1])
        return replace(path, search=GateSearch(path.gates, best[0], best[1], trials))

    whole = Corrected(own.predict(hospital.validation), lists[1], sent, hospital.targets[hospital.validation])
    found = path_of_folds([of_fold((0.5, 0.5, 0.5)), of_fold(second)], whole, exclusive=False)
    assert found.search is not None
    assert found.search.penalties == chosen
    assert found.search.score == pytest.approx((0.5 + max(second)) / 2)
    assert found.gates.values.any() == (chosen is not None)


@pytest.mark.parametrize("control", ["shuffled", "rewired"])
def test_gates_close_when_outcomes_are_shuffled_or_edges_rewired(hospital, own, control):
    sizes = {}
    for name in ("none", control):
        path, sent, lists = fitted(hospital, own, name)
        sizes[name] = np.sqrt((path.correction(lists[2], sent) ** 2).mean())
    assert sizes[control] < 0.15 * sizes["none"]


def test_rewiring_keeps_the_weights_and_never_draws_the_same_patient(hospital, own):
    lists, drawn = fitted(hospital, own)[2], fitted(hospital, own, "rewired")[2]
    new, old = drawn[2]["codes"], lists[2]["codes"]
    assert (new.columns != old.columns).mean() > 0.9
    np.testing.assert_array_equal(new.similarities[new.similarities > 0], old.similarities[new.similarities > 0])
    inside = drawn[0]["codes"]
    people = hospital.patients[hospital.train]
    assert (people[inside.columns] != people[:, None])[inside.similarities > 0].all()
    counts = np.bincount(new.columns.ravel(), minlength=len(hospital.train))
    assert counts.max() < 4 * counts.mean()
    some = np.array([5, 2, 9])
    keys, patients = 20_000 + np.arange(len(hospital.test)), hospital.patients[hospital.test]
    alone = rewired(old.rows(some), keys[some], patients[some], people)
    np.testing.assert_array_equal(alone.columns, new.columns[some])


def test_a_planted_label_reaches_no_message_of_its_patient(hospital):
    """The oracle: residuals that shout the label of one patient move nobody's answer but other patients'."""
    rows = hospital.train
    lists = hospital.lists(rows)
    relations = relations_of(lists, (10, 30), (1.0, 3.0))
    lambdas = np.array([half_median_degree(lists["codes"], relation) for relation in relations])
    quiet = np.zeros((len(rows), 2))
    for patient in (3, 40, 111):
        own_rows = hospital.patients[rows] == patient
        planted = quiet.copy()
        planted[own_rows] = 1e6
        said = messages(lists, relations, lambdas, planted)
        assert (said[:, own_rows] == 0).all()
        assert (said[:, ~own_rows] > 0).any()


def test_within_folds_no_message_depends_on_the_own_label(hospital):
    """Cross-fit again with the labels of one patient turned round: that patient's messages stay the same.

    With references of other folds they change: their residuals come from models that were fitted on the label.
    """
    patient = 17
    turned = Hospital()
    own_rows = turned.patients[turned.train] == patient
    turned.targets[turned.patients == patient] = 1 - turned.targets[turned.patients == patient]
    said: dict[str, list[np.ndarray]] = {"same fold": [], "all folds": []}
    for records in (hospital, turned):
        own = cross_fit(records.fit, records.train, records.patients, folds=2)
        sent = residuals(records.targets[records.train], own.out_of_fold, exclusive=False)
        for name, fold in (("same fold", own.fold), ("all folds", None)):
            lists = records.lists(records.train, fold=fold)
            relations = relations_of(lists, (30,), (1.0,))
            said[name].append(messages(lists, relations, np.ones(1), sent)[:, own_rows])
    np.testing.assert_array_equal(*said["same fold"])
    assert np.abs(said["all folds"][0] - said["all folds"][1]).max() > 1e-4


def test_only_training_instances_are_columns(hospital, own):
    """Outcomes of validation and test instances are nowhere in the bank, whatever they are."""
    path, sent, lists = fitted(hospital, own)
    assert len(sent) == len(hospital.train)
    assert all(found["codes"].columns.max() < len(hospital.train) for found in lists)
    before = path.correction(lists[2], sent)
    changed = Hospital()
    changed.targets[changed.test] = 1 - changed.targets[changed.test]
    again, sent_again, other = fitted(changed, cross_fit(changed.fit, changed.train, changed.patients, folds=2))
    np.testing.assert_array_equal(before, again.correction(other[2], sent_again))


def test_shares_sum_to_the_correction(hospital, own):
    path, sent, lists = fitted(hospital, own)
    correction = path.correction(lists[2], sent)
    for instance in range(0, len(hospital.test), 37):
        found = path.shares(instance, lists[2], sent)
        np.testing.assert_allclose(found.shares.sum(axis=0), correction[instance], atol=1e-12)
        largest = found.strongest(output=0, most=3)
        assert np.abs(found.shares[largest[0], 0]) == np.abs(found.shares[:, 0]).max()


def test_importance_is_the_derivative_by_the_weight_of_an_edge(hospital, own):
    path, sent, lists = fitted(hospital, own)
    relations = tuple(replace(relation, power=1.0) for relation in path.relations[:2])
    path = ReferencePath(relations, path.lambdas[:2], Gates(np.array([[1.5, -0.5], [0.7, 2.0]]), np.ones(2)))
    found = path.shares(5, lists[2], sent)
    neighbours = lists[2]["codes"].rows(np.array([5]))
    similarities = neighbours.similarities.astype(np.float64)
    for place in range(0, 30, 7):
        reference = np.flatnonzero(found.references == neighbours.columns[0, place])[0]
        changed = []
        for step in (1e-5, -1e-5):
            moved = similarities.copy()
            moved[0, place] += step
            nearby = {"codes": replace(neighbours, similarities=moved)}
            changed.append(path.correction(nearby, sent)[0])
        derivative = (changed[0] - changed[1]) / 2e-5
        np.testing.assert_allclose(found.importance[:, reference].sum(axis=0), derivative, atol=1e-6)


def test_an_instance_without_references_keeps_its_own_answer(hospital, own):
    path, sent, lists = fitted(hospital, own)
    assert path.gates.strength.max() > 0.1
    alone = {"codes": replace(lists[2]["codes"], similarities=np.zeros_like(lists[2]["codes"].similarities))}
    assert (path.correction(alone, sent) == 0).all()
    assert path.shares(0, alone, sent).shares.shape == (0, 2)


@pytest.mark.parametrize(("exclusive", "per_output"), [(False, None), (False, 5.0), (True, None)])
def test_gates_are_the_minimum_of_the_penalised_loss(exclusive, per_output):
    random = np.random.default_rng(6)
    said = random.normal(size=(3, 200, 4)) * np.array([0.05, 1.0, 20.0])[:, None, None]
    offset = random.normal(size=(200, 4))
    targets = np.eye(4)[random.integers(0, 4, 200)] if exclusive else (random.random((200, 4)) < 0.4).astype(float)
    gates = fit_gates(said, offset, targets, exclusive=exclusive, shared=3.0, per_output=per_output)
    scaled = gates.values * gates.spread[:, None]

    def objective(values):
        # For given sums of gates, gamma takes the share that the two penalties give it.
        logits = offset + np.einsum("rk,rnk->nk", values / gates.spread[:, None], said)
        loss = log_loss(logits, targets, exclusive)[0]
        if per_output is None:
            return loss + 1.5 * (values[:, 0] ** 2).sum()
        gamma = per_output * values.sum(axis=1) / (3.0 + 4 * per_output)
        return loss + 1.5 * (gamma**2).sum() + 0.5 * per_output * ((values - gamma[:, None]) ** 2).sum()

    least = objective(scaled)
    for _ in range(20):
        step = random.normal(size=(3, 1 if per_output is None else 4)) * 0.02
        assert objective(scaled + step) > least


def test_scaling_the_messages_changes_no_answer():
    random = np.random.default_rng(7)
    said, offset = random.normal(size=(2, 100, 3)), random.normal(size=(100, 3))
    targets = (random.random((100, 3)) < 0.5).astype(float)
    plain = fit_gates(said, offset, targets, exclusive=False, shared=1.0, per_output=2.0)
    small = fit_gates(said * 0.01, offset, targets, exclusive=False, shared=1.0, per_output=2.0)
    np.testing.assert_allclose(plain.correction(said), small.correction(said * 0.01), atol=1e-9)


def test_gates_of_classes_are_shared_and_no_references_is_a_choice():
    random = np.random.default_rng(8)
    said, offset = random.normal(size=(2, 60, 3)), random.normal(size=(60, 3))
    targets = np.eye(3)[random.integers(0, 3, 60)]
    search = choose_gates(said, offset, targets, lambda gates: -float(np.abs(gates.values).sum()), exclusive=True)
    assert search.penalties is None
    assert not search.gates.values.any()
    assert all(penalties is None or penalties[1] is None for penalties, _ in search.trials)
    with pytest.raises(ValueError, match="separate outputs"):
        fit_gates(said, offset, targets, exclusive=True, shared=1.0, per_output=1.0)


def test_the_best_path_on_validation_is_chosen(hospital, own):
    shuffled, true = fitted(hospital, own, "shuffled")[0], fitted(hospital, own)[0]
    assert choose_reference_path([shuffled, true]) is true


def test_the_correction_does_not_depend_on_the_blocks(hospital, own):
    path, sent, lists = fitted(hospital, own)
    np.testing.assert_array_equal(path.correction(lists[2], sent), path.correction(lists[2], sent, block=7))
