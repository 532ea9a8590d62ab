from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from patients_like_me.systems.reference_path.links import expected, first_intercepts, log_loss, residuals
from patients_like_me.systems.reference_path.own_path import choose_penalties, fit_own_path


def records(seed: int, instances: int = 300, features: int = 12, outputs: int = 3):
    random = np.random.default_rng(seed)
    bag = (random.random((instances, features)) < 0.3).astype(np.float64)
    truth = bag @ random.normal(size=(features, outputs)) - 0.5
    return bag, truth, random


@pytest.mark.parametrize("exclusive", [False, True])
def test_the_gradient_of_the_loss_is_minus_the_residual_and_agrees_with_finite_differences(exclusive):
    random = np.random.default_rng(0)
    logits = random.normal(size=(4, 3)) * 3
    targets = np.eye(3)[[0, 2, 1, 1]] if exclusive else (random.random((4, 3)) < 0.5).astype(float)
    _, gradient = log_loss(logits, targets, exclusive)
    np.testing.assert_allclose(gradient, -residuals(targets, logits, exclusive), atol=1e-12)
    for place in np.ndindex(4, 3):
        step = np.zeros_like(logits)
        step[place] = 1e-5
        rise = log_loss(logits + step, targets, exclusive)[0] - log_loss(logits - step, targets, exclusive)[0]
        assert rise / 2e-5 == pytest.approx(gradient[place], abs=1e-6)


def test_the_loss_of_huge_logits_is_finite():
    loss, gradient = log_loss(np.array([[1e4, -1e4]]), np.array([[0.0, 1.0]]), exclusive=False)
    assert loss == pytest.approx(2e4)
    assert np.isfinite(gradient).all()


def test_it_is_the_logistic_regression_of_the_same_penalty():
    from sklearn.linear_model import LogisticRegression

    bag, truth, random = records(1)
    targets = (random.random(truth.shape) < expected(truth, exclusive=False)).astype(np.float64)
    path = fit_own_path([csr_array(bag)], targets, [2.0], exclusive=False, steps=500)
    for output in range(targets.shape[1]):
        other = LogisticRegression(C=0.5, tol=1e-8, max_iter=1000).fit(bag, targets[:, output])
        np.testing.assert_allclose(path.weights[0][:, output], other.coef_[0], atol=5e-3)


def test_classes_are_fitted_as_one_multinomial_answer():
    from sklearn.linear_model import LogisticRegression

    bag, truth, random = records(2)
    classes = (truth + random.gumbel(size=truth.shape)).argmax(axis=1)
    path = fit_own_path([bag], np.eye(3)[classes], [1.0], exclusive=True, steps=500)
    other = LogisticRegression(C=1.0, tol=1e-8, max_iter=1000).fit(bag, classes)
    found = expected(path.logits([bag]), exclusive=True)
    np.testing.assert_allclose(found, other.predict_proba(bag), atol=3e-3)


def test_under_an_endless_penalty_it_answers_with_the_label_rates():
    bag, truth, _ = records(3)
    targets = (truth > 0).astype(np.float64)
    path = fit_own_path([bag], targets, [1e12], exclusive=False)
    np.testing.assert_allclose(path.logits([bag])[0], first_intercepts(targets, exclusive=False), atol=2e-2)


def test_an_offset_that_explains_everything_leaves_the_weights_near_zero():
    bag, truth, random = records(4, instances=2000)
    targets = (random.random(truth.shape) < expected(truth, exclusive=False)).astype(np.float64)
    plain = fit_own_path([bag], targets, [10.0], exclusive=False)
    told = fit_own_path([bag], targets, [10.0], exclusive=False, offset=truth + 0.5)
    assert np.abs(told.weights[0]).max() < 0.4 * np.abs(plain.weights[0]).max()


def test_the_search_penalises_the_useless_block_more_than_the_useful_one():
    bag, truth, random = records(5, instances=600)
    noise = random.normal(size=(600, 60))
    targets = (random.random(truth.shape) < expected(truth, exclusive=False)).astype(np.float64)
    train, validation = np.arange(300), np.arange(300, 600)

    def score(logits):
        return -log_loss(logits, targets[validation], exclusive=False)[0]

    search = choose_penalties(
        [csr_array(bag), noise],
        targets,
        train,
        validation,
        score,
        exclusive=False,
        grid=(30.0, 3.0),
        factors=(0.2, 5, 25),
    )
    assert search.penalties[1] > search.penalties[0]
    assert search.score == max(value for _, value in search.trials)
    assert len(search.trials) == 2 + 2 * 3
