"""Losses and samples of each kind of label."""

from __future__ import annotations

import pytest
import torch

from patients_like_me.tasks.kinds import BINARY, KINDS_OF_LABEL, MULTICLASS, MULTILABEL, LabelKind

LOGITS = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def test_binary_loss_is_minus_the_log_of_the_probability() -> None:
    logits = LOGITS[:, :1]
    labels = torch.tensor([1, 0, 1, 1, 0])
    probability = torch.where(labels == 1, logits[:, 0].sigmoid(), 1 - logits[:, 0].sigmoid())
    assert torch.allclose(BINARY.loss(logits, labels), -probability.log(), atol=1e-6)


def test_multiclass_loss_is_minus_the_log_of_the_class_probability() -> None:
    labels = torch.tensor([0, 3, 1, 2, 2])
    probability = LOGITS.softmax(dim=1)[torch.arange(5), labels]
    assert torch.allclose(MULTICLASS.loss(LOGITS, labels), -probability.log(), atol=1e-6)


def test_multilabel_loss_is_the_mean_over_the_codes() -> None:
    labels = (LOGITS.flip(0) > 0).float()
    probability = torch.where(labels == 1, LOGITS.sigmoid(), 1 - LOGITS.sigmoid())
    assert torch.allclose(MULTILABEL.loss(LOGITS, labels), -probability.log().mean(dim=1), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS_OF_LABEL)
def test_a_distribution_as_target_gives_the_mean_loss_of_its_samples(kind: LabelKind) -> None:
    head = LOGITS[:, :1] if kind is BINARY else LOGITS
    teacher = head.flip(0) * 2
    exact = kind.loss(head, kind.tensor_probabilities(teacher))
    generator = torch.Generator().manual_seed(0)
    sampled = torch.stack([kind.loss(head, kind.sampled(teacher, generator=generator)) for _ in range(4000)])
    assert torch.allclose(sampled.mean(dim=0), exact, atol=0.06)


@pytest.mark.parametrize("kind", KINDS_OF_LABEL)
def test_sampling_follows_its_generator_alone(kind: LabelKind) -> None:
    head = LOGITS[:, :1] if kind is BINARY else LOGITS
    before = torch.random.get_rng_state()
    first, second = (kind.sampled(head, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(before, torch.random.get_rng_state())
    assert first.shape == ((5, 4) if kind is MULTILABEL else (5,))


def test_outputs_by_kind() -> None:
    assert [kind.outputs(7) for kind in KINDS_OF_LABEL] == [1, 7, 7]
