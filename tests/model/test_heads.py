"""Losses by kind of task."""

from __future__ import annotations

import pytest
import torch

from patients_like_me.model.heads import loss_per_instance, number_of_outputs, probabilities, projection, sampled_labels

LOGITS = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def test_binary_loss_is_minus_the_log_of_the_probability() -> None:
    logits = LOGITS[:, :1]
    labels = torch.tensor([1, 0, 1, 1, 0])
    chance = torch.where(labels == 1, logits[:, 0].sigmoid(), 1 - logits[:, 0].sigmoid())
    assert torch.allclose(loss_per_instance("binary", logits, labels), -chance.log(), atol=1e-6)


def test_multiclass_loss_is_minus_the_log_of_the_class_probability() -> None:
    labels = torch.tensor([0, 3, 1, 2, 2])
    chance = LOGITS.softmax(dim=1)[torch.arange(5), labels]
    assert torch.allclose(loss_per_instance("multiclass", LOGITS, labels), -chance.log(), atol=1e-6)


def test_multilabel_loss_is_the_mean_over_the_codes() -> None:
    labels = (LOGITS.flip(0) > 0).float()
    chance = torch.where(labels == 1, LOGITS.sigmoid(), 1 - LOGITS.sigmoid())
    assert torch.allclose(loss_per_instance("multilabel", LOGITS, labels), -chance.log().mean(dim=1), atol=1e-6)


@pytest.mark.parametrize("kind", ["binary", "multiclass", "multilabel"])
def test_a_distribution_as_target_gives_the_mean_loss_of_its_samples(kind: str) -> None:
    head = LOGITS[:, :1] if kind == "binary" else LOGITS
    teacher = head.flip(0) * 2
    exact = loss_per_instance(kind, head, probabilities(kind, teacher))  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    sampled = torch.stack(
        [loss_per_instance(kind, head, sampled_labels(kind, teacher, generator=generator)) for _ in range(4000)]  # type: ignore[arg-type]
    )
    assert torch.allclose(sampled.mean(dim=0), exact, atol=0.06)


@pytest.mark.parametrize("kind", ["binary", "multiclass", "multilabel"])
def test_sampling_follows_its_generator_alone(kind: str) -> None:
    head = LOGITS[:, :1] if kind == "binary" else LOGITS
    before = torch.random.get_rng_state()
    first, second = (sampled_labels(kind, head, generator=torch.Generator().manual_seed(3)) for _ in range(2))  # type: ignore[arg-type]
    assert torch.equal(first, second)
    assert torch.equal(before, torch.random.get_rng_state())
    assert first.shape == ((5, 4) if kind == "multilabel" else (5,))


def test_outputs_by_kind() -> None:
    assert [number_of_outputs(kind, 7) for kind in ("binary", "multiclass", "multilabel")] == [1, 7, 7]  # type: ignore[arg-type]


def test_both_projections_reach_the_width_of_the_graph() -> None:
    for kind in ("linear", "mlp"):
        assert projection(kind, 32, 128)(torch.zeros(2, 32)).shape == (2, 128)  # type: ignore[arg-type]
