"""Dropout: the right share, the same mean, the same values for the same seed, and a gradient where values stayed."""

from __future__ import annotations

import pytest
import torch

from patients_like_me.model.gcn import dropout
from patients_like_me.model.randomness import seeded


@pytest.mark.parametrize("share", [0.1, 0.37, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_share_is_dropped_and_the_mean_stays(share: float, dtype: torch.dtype) -> None:
    with seeded(3):
        made = dropout(torch.ones(2000, 128, dtype=dtype), share, training=True)
    assert made.dtype == dtype
    assert float((made == 0).double().mean()) == pytest.approx(share, abs=0.005)
    assert float(made.double().mean()) == pytest.approx(1.0, abs=0.02)
    assert len(made.unique()) == 2
    # No row and no column is favoured.
    assert float((made == 0).double().mean(dim=0).std()) < 0.03
    neighbours = (made[:, 1:] == 0) & (made[:, :-1] == 0)
    assert float(neighbours.double().mean()) == pytest.approx(share**2, abs=0.01)


def test_a_seed_decides_and_the_callers_generator_is_left_alone() -> None:
    values = torch.randn(50, 20)
    before = torch.random.get_rng_state()
    made = []
    for seed in (1, 1, 2):
        with seeded(seed):
            made.append(torch.stack([dropout(values, 0.5, training=True), dropout(values, 0.5, training=True)]))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
    assert not torch.equal(made[0][0], made[0][1])
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_gradient_passes_where_values_stayed() -> None:
    values = torch.randn(40, 30, dtype=torch.float64, requires_grad=True)
    with seeded(0):
        made = dropout(values, 0.25, training=True)
    (gradient,) = torch.autograd.grad(made.sum(), values)
    torch.testing.assert_close(gradient, (made / values).detach())


def test_nothing_happens_outside_of_training_or_with_a_share_of_zero_and_all_goes_with_one() -> None:
    values = torch.randn(4, 4)
    assert dropout(values, 0.5, training=False) is values
    assert dropout(values, 0.0, training=True) is values
    assert not dropout(values, 0.999999, training=True).any()
