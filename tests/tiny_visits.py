"""Small batches of visits for the networks' tests, and the checks that every network over visits must pass."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from patients_like_me.systems.visit_layers import Sizes

SIZES = Sizes({"diagnosis": 9, "procedure": 4, "medication": 6}, demographics=3, outputs=2)


@dataclass(frozen=True)
class VisitBatch:
    codes: Mapping[str, Tensor]
    visit_mask: Tensor
    gaps: Tensor
    dated: Tensor
    demographics: Tensor

    def __len__(self) -> int:
        return len(self.visit_mask)


def random_batch(instances: int, seed: int = 0, visits: int = 4, sizes: Sizes = SIZES) -> VisitBatch:
    """Draw records of 1 to ``visits`` visits; the first has all of them, and one visit in eight has no code."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, visits + 1, instances)
    lengths[0] = visits
    mask = np.arange(visits) < lengths[:, None]
    empty = rng.random((instances, visits)) < 0.125
    codes = {}
    for kind, count in sizes.codes.items():
        numbers = np.zeros((instances, visits, 4), dtype=np.int64)
        for place in np.ndindex(instances, visits):
            if mask[place] and not empty[place]:
                chosen = rng.choice(count, size=rng.integers(1, min(count, 4) + 1), replace=False) + 1
                numbers[place][: len(chosen)] = chosen
        codes[kind] = torch.from_numpy(numbers)
    gaps = rng.integers(1, 500, (instances, visits)) * mask
    gaps[:, 0] = 0
    return VisitBatch(
        codes,
        torch.from_numpy(mask),
        torch.from_numpy(gaps.astype(np.float32)),
        torch.from_numpy(rng.random(instances) < 0.8),
        torch.from_numpy(rng.standard_normal((instances, sizes.demographics)).astype(np.float32)),
    )


def rows_of(batch: VisitBatch, rows: Sequence[int] | Tensor) -> VisitBatch:
    index = torch.as_tensor(rows)
    return VisitBatch(
        {kind: codes[index] for kind, codes in batch.codes.items()},
        batch.visit_mask[index],
        batch.gaps[index],
        batch.dated[index],
        batch.demographics[index],
    )


def more_padding(batch: VisitBatch, visits: int = 3, codes: int = 2) -> VisitBatch:
    return replace(
        batch,
        codes={kind: functional.pad(numbers, (0, codes, 0, visits)) for kind, numbers in batch.codes.items()},
        visit_mask=functional.pad(batch.visit_mask, (0, visits)),
        gaps=functional.pad(batch.gaps, (0, visits)),
    )


def reordered_visits(batch: VisitBatch, seed: int) -> VisitBatch:
    """Put the real visits of each instance into a random order."""
    keys = torch.rand(batch.visit_mask.shape, generator=torch.Generator().manual_seed(seed))
    order = (keys + 2 * ~batch.visit_mask).argsort(dim=1)
    codes = {kind: numbers.gather(1, order.unsqueeze(2).expand_as(numbers)) for kind, numbers in batch.codes.items()}
    return replace(batch, codes=codes)


def evaluated(network: nn.Module, batch: VisitBatch) -> Tensor:
    network.eval()
    with torch.no_grad():
        logits: Tensor = network(batch)
    return logits


def fit(
    network: nn.Module,
    batch: VisitBatch,
    targets: Tensor,
    steps: int,
    learning_rate: float = 0.02,
    before_step: Callable[[int], None] = lambda _: None,
) -> float:
    """Train on one whole batch and return the last loss."""
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    loss = torch.zeros(())
    for step in range(steps):
        before_step(step)
        network.train()
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(network(batch), targets)
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def accuracy(network: nn.Module, batch: VisitBatch, targets: Tensor) -> float:
    return float(((evaluated(network, batch) > 0) == (targets > 0.5)).float().mean())


def check_padding_changes_nothing(network: nn.Module) -> None:
    batch = random_batch(6)
    torch.testing.assert_close(evaluated(network, more_padding(batch)), evaluated(network, batch), rtol=0, atol=1e-6)


def check_alone_equals_in_a_batch(network: nn.Module) -> None:
    batch = random_batch(6)
    together = evaluated(network, batch)
    for row in range(6):
        alone = rows_of(batch, [row])
        length = int(alone.visit_mask.sum())
        bare = replace(
            alone,
            codes={kind: numbers[:, :length] for kind, numbers in alone.codes.items()},
            visit_mask=alone.visit_mask[:, :length],
            gaps=alone.gaps[:, :length],
        )
        torch.testing.assert_close(evaluated(network, bare)[0], together[row], rtol=0, atol=1e-6)


def check_order_of_codes_changes_nothing(network: nn.Module) -> None:
    batch = random_batch(6)
    turned = replace(batch, codes={kind: numbers.flip(2) for kind, numbers in batch.codes.items()})
    torch.testing.assert_close(evaluated(network, turned), evaluated(network, batch), rtol=0, atol=1e-6)


def check_every_kind_and_the_first_visit_matter(network: nn.Module) -> None:
    batch = random_batch(24)
    before = evaluated(network, batch)
    for kind in SIZES.codes:
        changed = copy.deepcopy(batch)
        changed.codes[kind][:, 0] = 0
        had_some = (batch.visit_mask.sum(1) > 1) & batch.codes[kind][:, 0].any(1)
        difference = (evaluated(network, changed) - before).abs().amax(1)
        # A maximum over positions may miss the change in some records, but not in most.
        assert (difference[had_some] > 1e-7).float().mean() > 0.5, kind


def check_demographics_matter(network: nn.Module) -> None:
    batch = random_batch(6)
    older = replace(batch, demographics=batch.demographics + 1)
    assert (evaluated(network, older) - evaluated(network, batch)).abs().min() > 1e-6


def check_gradient_reaches_every_parameter(network: nn.Module) -> None:
    network.train()
    torch.manual_seed(0)
    batch = random_batch(24)
    targets = torch.randint(2, (24, SIZES.outputs), generator=torch.Generator().manual_seed(1)).float()
    functional.binary_cross_entropy_with_logits(network(batch), targets).backward()
    without = [
        name for name, weight in network.named_parameters() if weight.grad is None or not bool(weight.grad.any())
    ]
    assert without == []


CHECKS = (
    check_padding_changes_nothing,
    check_alone_equals_in_a_batch,
    check_order_of_codes_changes_nothing,
    check_every_kind_and_the_first_visit_matter,
    check_demographics_matter,
    check_gradient_reaches_every_parameter,
)


def eight_instances() -> tuple[VisitBatch, Tensor]:
    """Eight different records with labels drawn at random, without demographics to learn from."""
    batch = random_batch(8, seed=3)
    labels = torch.randint(2, (8, SIZES.outputs), generator=torch.Generator().manual_seed(5)).float()
    return replace(batch, demographics=torch.zeros_like(batch.demographics)), labels


ORDER_SIZES = Sizes({"diagnosis": 8}, demographics=0, outputs=1)


def records_where_order_decides(instances: int, seed: int) -> tuple[VisitBatch, Tensor]:
    """Each record has code 1 and code 2 once, in different visits, among others; the label says which came first."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(3, 9, (instances, 4, 2))
    places = np.array([rng.choice(4, size=2, replace=False) for _ in range(instances)])
    numbers[np.arange(instances), places[:, 0], 0] = 1
    numbers[np.arange(instances), places[:, 1], 0] = 2
    batch = VisitBatch(
        {"diagnosis": torch.from_numpy(numbers)},
        torch.ones(instances, 4, dtype=torch.bool),
        torch.zeros(instances, 4),
        torch.ones(instances, dtype=torch.bool),
        torch.zeros(instances, 0),
    )
    return batch, torch.from_numpy((places[:, 0] < places[:, 1]).astype(np.float32)).unsqueeze(1)


Array = npt.NDArray[np.float64]


def array(values: Tensor) -> Array:
    return values.detach().double().numpy()


def sigmoid(values: Array) -> Array:
    return 1 / (1 + np.exp(-values))


def softmax(values: Array) -> Array:
    shifted = np.exp(values - values.max())
    return shifted / shifted.sum()


def linear(layer: nn.Linear | nn.Module, values: Array) -> Array:
    """Apply a linear layer, with or without a bias."""
    assert isinstance(layer, nn.Linear)
    bias = 0.0 if layer.bias is None else array(layer.bias)
    return values @ array(layer.weight).T + bias


def gru_states(gru: nn.GRU, inputs: Array) -> Array:
    """Return the states of a GRU over inputs [V, D], written out step by step."""
    of_input, of_state = array(gru.weight_ih_l0), array(gru.weight_hh_l0)
    input_bias, state_bias = array(gru.bias_ih_l0), array(gru.bias_hh_l0)
    hidden = gru.hidden_size
    state, states = np.zeros(hidden), []
    for vector in inputs:
        a, b = of_input @ vector + input_bias, of_state @ state + state_bias
        reset, update = sigmoid(a[:hidden] + b[:hidden]), sigmoid(a[hidden : 2 * hidden] + b[hidden : 2 * hidden])
        new = np.tanh(a[2 * hidden :] + reset * b[2 * hidden :])
        state = (1 - update) * new + update * state
        states.append(state)
    return np.array(states)


def visits_of(batch: VisitBatch, row: int) -> list[dict[str, list[int]]]:
    """Return the real visits of an instance as plain lists of code numbers."""
    return [
        {kind: [code for code in numbers[row, visit].tolist() if code] for kind, numbers in batch.codes.items()}
        for visit in range(int(batch.visit_mask[row].sum()))
    ]


def visit_vectors(weights: Mapping[str, Tensor], batch: VisitBatch, row: int) -> Array:
    """Sum the rows of each kind's table over the codes of each real visit."""
    tables = {kind: array(weight) for kind, weight in weights.items()}
    width = next(iter(tables.values())).shape[1]
    return np.array(
        [
            sum((tables[kind][code] for kind, codes in visit.items() for code in codes), np.zeros(width))
            for visit in visits_of(batch, row)
        ]
    )


def head_logits(head: nn.Module, vector: Array, batch: VisitBatch, row: int) -> Array:
    logits = linear(head.get_submodule("output"), vector)
    return logits + linear(head.get_submodule("person"), array(batch.demographics[row]))
