"""The kinds of label agree with each other where they meet: numpy and torch, shapes, names."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from patients_like_me.errors import PlmError
from patients_like_me.tasks.kinds import BINARY, KINDS_OF_LABEL, MULTICLASS, MULTILABEL, LabelKind, kind_named
from patients_like_me.tasks.metrics import METRICS

KINDS = st.sampled_from(KINDS_OF_LABEL)


def logits_of(kind: LabelKind, seed: int, scale: float = 3.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=scale, size=(7, kind.outputs(4)))


@given(KINDS, st.integers(0, 1000), st.sampled_from([0.1, 3.0, 800.0]))
def test_numpy_and_torch_give_the_same_probabilities(kind: LabelKind, seed: int, scale: float) -> None:
    logits = logits_of(kind, seed, scale)
    found = kind.probabilities(logits)
    assert np.allclose(found, kind.tensor_probabilities(torch.from_numpy(logits)).numpy(), atol=1e-12)
    if kind.adds_up:
        assert np.allclose(found.sum(axis=1), 1)
    assert kind.in_shape(found).ndim == kind.dimensions
    assert np.array_equal(kind.in_columns(kind.in_shape(found)), found)


@given(KINDS, st.integers(0, 1000))
def test_the_loss_of_labels_is_that_of_their_columns(kind: LabelKind, seed: int) -> None:
    logits = torch.from_numpy(logits_of(kind, seed))
    drawn = kind.sampled(logits, generator=torch.Generator().manual_seed(seed))
    columns = kind.targets(drawn.numpy().astype(np.int64), logits.shape[1])
    assert torch.allclose(kind.loss(logits, drawn), kind.loss(logits, torch.from_numpy(columns)))


@given(KINDS, st.integers(0, 1000))
def test_what_is_explained_is_what_is_decided(kind: LabelKind, seed: int) -> None:
    logits = logits_of(kind, seed)
    chosen = kind.chosen(torch.from_numpy(logits), 0.2).numpy()
    for row, probabilities in zip(chosen, kind.probabilities(logits), strict=True):
        key = kind.key(probabilities, 0.2, None)
        if kind is not BINARY and key:
            assert np.flatnonzero(row).tolist() == list(key)
        assert row.sum() >= 1


def test_names_are_what_json_keeps() -> None:
    assert json.loads(json.dumps(list(KINDS_OF_LABEL))) == ["binary", "multiclass", "multilabel"]
    assert [kind_named(name) for name in ("binary", "multiclass", "multilabel")] == [BINARY, MULTICLASS, MULTILABEL]
    assert all(kind_named(kind.name) is kind for kind in KINDS_OF_LABEL)
    with pytest.raises(PlmError, match="no kind of label 'ranking'; choose one of binary, multiclass, multilabel"):
        kind_named("ranking")


def test_every_kind_names_metrics_that_exist() -> None:
    for kind in KINDS_OF_LABEL:
        assert kind.metrics
        assert set(kind.metrics) <= set(METRICS)


@pytest.mark.parametrize("kind", KINDS_OF_LABEL)
def test_no_instances_are_no_reason_to_stop(kind: LabelKind) -> None:
    empty = kind.no_labels(0, 4)
    outputs = kind.outputs(4)
    assert kind.targets(empty, outputs).shape == (0, outputs)
    assert kind.probabilities(np.zeros((0, outputs))).shape == (0, outputs)
    assert kind.rate(empty, 4) in (None, [0.0] * 4)
