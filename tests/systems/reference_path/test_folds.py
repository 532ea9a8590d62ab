from __future__ import annotations

import numpy as np
import pytest

from patients_like_me.systems.reference_path.folds import cross_fit, cross_fitted_stack, fit_stack, patient_folds
from patients_like_me.systems.reference_path.links import expected


def test_all_instances_of_a_patient_are_in_one_fold_and_folds_are_even():
    patients = np.random.default_rng(0).integers(0, 100, 500)
    fold = patient_folds(patients, 4)
    for patient in np.unique(patients):
        assert len(np.unique(fold[patients == patient])) == 1
    people = [len(np.unique(patients[fold == number])) for number in range(4)]
    assert max(people) - min(people) <= 1


def test_more_folds_than_patients_are_refused():
    with pytest.raises(ValueError, match="2 to 2 folds"):
        patient_folds(np.array(["a", "b", "a"]), 3)


def test_no_answer_out_of_fold_comes_from_a_model_that_saw_the_patient():
    patients = np.random.default_rng(1).integers(0, 30, 120)
    train = np.arange(10, 110)
    outcomes = np.random.default_rng(2).random((120, 2))

    def fit(rows):
        seen = set(patients[rows])

        def predict(wanted):
            # The model knows the outcomes of the patients it saw, and says 0 for all others.
            return np.where(np.isin(patients[wanted], list(seen))[:, None], outcomes[wanted], 0.0)

        return predict

    own = cross_fit(fit, train, patients, folds=3)
    assert (own.out_of_fold == 0).all()
    np.testing.assert_array_equal(own.known, outcomes[train])
    np.testing.assert_array_equal(own.predict(np.arange(5)), fit(train)(np.arange(5)))


def test_a_stack_prefers_the_better_part_and_has_no_negative_weight():
    random = np.random.default_rng(3)
    truth = random.normal(size=(2000, 4)) * 2
    targets = (random.random(truth.shape) < expected(truth, exclusive=False)).astype(np.float64)
    stack = fit_stack([truth, truth + 3 * random.normal(size=truth.shape), -truth], targets, exclusive=False)
    assert stack.weights[0] > 0.8
    assert 0 <= stack.weights[1] < 0.2
    assert stack.weights[2] == 0


def test_the_stack_of_cross_fitted_parts_uses_one_set_of_weights_everywhere():
    random = np.random.default_rng(4)
    patients, targets = np.arange(60), (random.random((60, 1)) < 0.5).astype(np.float64)
    answers = [random.normal(size=(60, 1)) for _ in range(2)]
    train = np.arange(40)
    parts = [cross_fit(lambda _, a=answer: lambda rows: a[rows], train, patients, folds=2) for answer in answers]
    both, stack = cross_fitted_stack(parts, targets[train], exclusive=False)
    expected = stack.bias + stack.weights[0] * answers[0] + stack.weights[1] * answers[1]
    np.testing.assert_allclose(both.predict(np.arange(60)), expected)
    np.testing.assert_allclose(both.out_of_fold, expected[train])


def test_parts_with_other_folds_are_refused():
    answer = np.zeros((20, 1))
    parts = [cross_fit(lambda _: lambda rows: answer[rows], np.arange(20), np.arange(20), folds=n) for n in (2, 4)]
    with pytest.raises(ValueError, match="same training rows and folds"):
        cross_fitted_stack(parts, answer, exclusive=False)
