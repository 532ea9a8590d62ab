"""Metrics equal scikit-learn's or a plain loop, and say None where they are not available."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score, jaccard_score, roc_auc_score

from patients_like_me.errors import PlmError
from patients_like_me.tasks.kinds import KINDS_OF_LABEL
from patients_like_me.tasks.metrics import METRICS, score


def test_every_metric_that_a_kind_names_can_be_computed() -> None:
    assert set(METRICS) == {name for kind in KINDS_OF_LABEL for name in kind.metrics}


@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(2, 12), st.booleans())
def test_set_metrics_equal_a_loop_over_scikit_learn(seed: int, rows: int, codes: int, ties: bool) -> None:
    generator = np.random.default_rng(seed)
    labels = (generator.random((rows, codes)) < 0.4).astype(np.int64)
    probabilities = generator.random((rows, codes))
    if ties:
        probabilities = np.round(probabilities, 1)
    kept = [row for row in range(rows) if labels[row].any()]
    got = score(("auprc_per_instance", "f1_per_instance", "jaccard_per_instance"), labels, probabilities)
    if not kept:
        assert set(got.values()) == {None}
        return
    chosen = (probabilities >= 0.2).astype(int)
    expected = {
        "auprc_per_instance": [average_precision_score(labels[row], probabilities[row]) for row in kept],
        "f1_per_instance": [f1_score(labels[row], chosen[row], zero_division=0.0) for row in kept],
        "jaccard_per_instance": [jaccard_score(labels[row], chosen[row], zero_division=0.0) for row in kept],
    }
    for name, values in expected.items():
        assert got[name] == pytest.approx(np.mean(values))


@given(st.integers(0, 10_000), st.integers(5, 60))
def test_class_metrics_equal_scikit_learn(seed: int, rows: int) -> None:
    generator = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(4), generator.integers(0, 4, rows)])
    probabilities = generator.dirichlet(np.ones(4), len(labels))
    got = score(("auroc_weighted", "auprc_macro", "f1_macro"), labels, probabilities)
    assert got["auroc_weighted"] == pytest.approx(
        roc_auc_score(labels, probabilities, multi_class="ovr", average="weighted")
    )
    one_hot = np.eye(4)[labels]
    assert got["auprc_macro"] == pytest.approx(average_precision_score(one_hot, probabilities, average="macro"))
    assert got["f1_macro"] == pytest.approx(f1_score(labels, probabilities.argmax(1), average="macro"))
    order = generator.permutation(len(labels))
    assert score(("auprc_macro",), labels[order], probabilities[order])["auprc_macro"] == pytest.approx(
        got["auprc_macro"]
    )


def test_one_class_is_not_available() -> None:
    zeros = np.zeros(4, dtype=np.int64)
    assert score(("auprc", "auroc"), zeros, np.linspace(0, 1, 4)) == {"auprc": None, "auroc": None}
    assert METRICS["auroc_weighted"](zeros, np.full((4, 3), 1 / 3)) is None
    assert METRICS["auprc_per_instance"](np.zeros((2, 3), dtype=np.int64), np.zeros((2, 3))) is None


def test_a_probability_outside_its_range_is_refused() -> None:
    with pytest.raises(PlmError, match="outside 0 to 1"):
        score(("auprc",), np.array([0, 1]), np.array([0.5, 1.5]))


def test_metrics_leave_their_inputs_alone() -> None:
    labels, probabilities = np.array([[1, 0], [0, 1]]), np.array([[0.3, 0.6], [0.1, 0.9]])
    before = labels.copy(), probabilities.copy()
    score(("auprc_per_instance", "f1_per_instance", "jaccard_per_instance"), labels, probabilities)
    assert (labels == before[0]).all()
    assert (probabilities == before[1]).all()
