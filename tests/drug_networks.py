"""Small batches of visits, and what every network over them must do; for the tests of the drug systems and G-BERT."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from patients_like_me.systems.drug_safety import KnownInteractions
from patients_like_me.systems.visit_layers import Sizes

#: Networks this small gain nothing from a second thread.
torch.set_num_threads(1)

Array = npt.NDArray[Any]
SIZES = Sizes({"diagnosis": 9, "procedure": 5, "medication": 7}, demographics=2, outputs=6)
#: The medications 1 to 7 are the outputs 2, 0, 1, none, 3, 4, 5.
COLUMNS = np.array([-1, 2, 0, 1, -1, 3, 4, 5])


@dataclass(frozen=True)
class Batch:
    codes: Mapping[str, Tensor]
    visit_mask: Tensor
    demographics: Tensor

    def rows(self, chosen: list[int]) -> Batch:
        codes = {kind: found[chosen] for kind, found in self.codes.items()}
        return Batch(codes, self.visit_mask[chosen], self.demographics[chosen])


def make_batch(instances: int = 8, visits: int = 4, most: int = 3, seed: int = 0) -> Batch:
    """Instances with 1, 2, ... visits; no medication in the current visit, as in drug recommendation."""
    draw = np.random.default_rng(seed)
    lengths = np.arange(instances) % visits + 1
    mask = np.arange(visits) < lengths[:, None]
    codes = {}
    for kind, count in SIZES.codes.items():
        found = np.zeros((instances, visits, most), dtype=np.int64)
        for row, visit in zip(*np.nonzero(mask), strict=True):
            if kind == "medication" and visit == lengths[row] - 1:
                continue
            size = draw.integers(0 if kind == "procedure" else 1, most + 1)
            found[row, visit, :size] = 1 + draw.permutation(count)[:size]
        codes[kind] = torch.as_tensor(found)
    return Batch(codes, torch.as_tensor(mask), torch.as_tensor(draw.normal(size=(instances, 2)), dtype=torch.float32))


def make_targets(instances: int = 8, seed: int = 1) -> Tensor:
    targets = np.random.default_rng(seed).random((instances, SIZES.outputs)) < 0.5
    return torch.as_tensor(targets, dtype=torch.float32)


def some_interactions() -> KnownInteractions:
    """Labels 0-1, 0-2 and 3-4 interact; label 5 is not covered."""
    matrix = np.zeros((6, 6), dtype=bool)
    for first, second in ((0, 1), (0, 2), (3, 4)):
        matrix[first, second] = matrix[second, first] = True
    return KnownInteractions(matrix, np.array([True] * 5 + [False]))


def weights_of(network: nn.Module) -> dict[str, Array]:
    return {name: weight.detach().double().numpy() for name, weight in network.state_dict().items()}


def logits_of(network: nn.Module, batch: Batch) -> Tensor:
    with torch.no_grad():
        logits: Tensor = network.eval()(batch)
    return logits


def close(found: Tensor, expected: Array, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=tolerance, rtol=0)


def sigmoid(values: Array) -> Array:
    return 1 / (1 + np.exp(-values))


def softmax(values: Array) -> Array:
    return np.exp(values - values.max()) / np.exp(values - values.max()).sum()


def layer_norm(values: Array, weight: Array, bias: Array) -> Array:
    centred = values - values.mean(-1, keepdims=True)
    return centred / np.sqrt(values.var(-1, keepdims=True) + 1e-5) * weight + bias


def gru_states(weights: Mapping[str, Array], name: str, inputs: list[Array]) -> list[Array]:
    """Run torch's GRU over a list of vectors, in numpy."""
    hidden = weights[f"{name}.weight_hh_l0"].shape[1]
    state, states = np.zeros(hidden), []
    for value in inputs:
        given = weights[f"{name}.weight_ih_l0"] @ value + weights[f"{name}.bias_ih_l0"]
        kept = weights[f"{name}.weight_hh_l0"] @ state + weights[f"{name}.bias_hh_l0"]
        reset, update = (sigmoid(given[part] + kept[part]) for part in (slice(hidden), slice(hidden, 2 * hidden)))
        new = np.tanh(given[2 * hidden :] + reset * kept[2 * hidden :])
        state = (1 - update) * new + update * state
        states.append(state)
    return states


def stream_states(weights: Mapping[str, Array], batch: Batch, row: int, *, mean: bool = False) -> list[Array]:
    """The joined states of both streams at every real visit of one instance."""
    length, streams = int(batch.visit_mask[row].sum()), []
    for kind in ("diagnosis", "procedure"):
        inputs = []
        for visit in range(length):
            codes = [code for code in batch.codes[kind][row, visit].tolist() if code]
            vectors = weights[f"states.sums.{kind}.embedding.weight"][codes]
            inputs.append(vectors.mean(0) if mean and codes else vectors.sum(0))
        streams.append(gru_states(weights, f"states.recurrent.{kind}", inputs))
    return [np.concatenate(pair) for pair in zip(*streams, strict=True)]


def check_padding_order_and_batch(network: nn.Module) -> None:
    """Padding, the order of codes in a visit and the other instances change nothing; the first visit matters."""
    batch = make_batch()
    expected = logits_of(network, batch)
    padded = Batch(
        {kind: nn.functional.pad(found, (0, 2, 0, 3)) for kind, found in batch.codes.items()},
        nn.functional.pad(batch.visit_mask, (0, 3)),
        batch.demographics,
    )
    turned = replace(batch, codes={kind: found.flip(2) for kind, found in batch.codes.items()})
    torch.testing.assert_close(logits_of(network, padded), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(logits_of(network, turned), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(logits_of(network, batch.rows([6, 1])), expected[[6, 1]], atol=1e-5, rtol=0)
    diagnoses = batch.codes["diagnosis"].clone()
    diagnoses[7, 0] = torch.tensor([9, 0, 0]) if 9 not in diagnoses[7, 0] else torch.tensor([8, 0, 0])
    changed = logits_of(network, replace(batch, codes={**batch.codes, "diagnosis": diagnoses}))
    assert (changed[7] - expected[7]).abs().max() > 1e-6
    assert torch.allclose(changed[:7], expected[:7], atol=1e-6)


def check_current_medications_change_nothing(network: nn.Module) -> None:
    batch = make_batch()
    medications = batch.codes["medication"].clone()
    medications[torch.arange(8), batch.visit_mask.sum(1) - 1] = torch.tensor([1, 3, 6])
    leaked = replace(batch, codes={**batch.codes, "medication": medications})
    assert torch.equal(logits_of(network, leaked), logits_of(network, batch))


def check_gradients(network: nn.Module, loss: Callable[[], Tensor]) -> None:
    network.train()
    loss().mean().backward()
    without = [
        name for name, weight in network.named_parameters() if weight.grad is None or not weight.grad.abs().sum() > 0
    ]
    assert without == [], without


def train(network: nn.Module, loss: Callable[[], Tensor], steps: int, rate: float = 0.02) -> None:
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    network.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss().mean().backward()
        optimizer.step()


def check_overfits(network: Any, steps: int = 80, visits: int = 4, rate: float = 0.02) -> None:
    batch, targets = make_batch(visits=visits), make_targets()
    train(network, lambda: network.loss(batch, targets), steps, rate)
    assert torch.equal(logits_of(network, batch) > 0, targets > 0)


#: For the interaction rates: twelve drugs, so that the rate of a set has many values.
TWELVE = replace(SIZES, outputs=12)


def twelve_interactions() -> KnownInteractions:
    matrix = np.triu(np.random.default_rng(0).random((12, 12)) < 0.3, 1)
    return KnownInteractions(matrix | matrix.T, np.ones(12, dtype=bool))


def twelve_labels(batch: Batch) -> Tensor:
    """Nine of twelve drugs each; which ones depends on the current diagnoses."""
    current = batch.codes["diagnosis"][torch.arange(len(batch.visit_mask)), batch.visit_mask.sum(1) - 1]
    groups = (np.random.default_rng(1).random((3, 12)).argsort(1) < 9).astype(np.float32)
    return torch.as_tensor(groups)[current.max(1).values % 3]


def check_rate_falls(make: Callable[[float], Any]) -> None:
    """The interaction rate of the sets falls as the target falls; with a target of 1 it is that of the labels.

    Around the target the losses take turns, so a rate is the mean over the last steps.
    """
    batch, known, rates = make_batch(16), twelve_interactions(), []
    labels = twelve_labels(batch)
    for target in (1.0, 0.15, 0.05):
        with seeded():
            network, last = make(target), []
            train(network, lambda network=network: network.loss(batch, labels), 60)
            for _ in range(20):
                train(network, lambda network=network: network.loss(batch, labels), 1)
                last.append(float(known.rates(logits_of(network, batch) >= 0).mean()))
            rates.append(sum(last) / len(last))
    assert abs(rates[0] - float(known.rates(labels > 0).mean())) < 0.03
    assert rates[1] < rates[0] - 0.05
    assert rates[2] < rates[1] - 0.02


@contextlib.contextmanager
def seeded(seed: int = 0) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
