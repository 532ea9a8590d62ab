"""What the experts of ColaCare say about a patient: a vector, an estimate, and the codes that count most for it.

Experts are networks over visits: AdaCare, MC-GRU and RETAIN. The vector is what the last layer reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from patients_like_me.plain_text import printable
from patients_like_me.systems import adacare, mc_gru, retain
from patients_like_me.systems.features import VisitBatch, VisitFeatures, Vocabularies
from patients_like_me.systems.visit_network import VisitNetwork
from patients_like_me.tasks.instances import Instances

#: (network, batch, output) -> how much every code counts, by kind [B, V, C]
Importance = Callable[[Any, VisitBatch, int], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Expert:
    """One expert: its name in prompts, and how its network is built and asked."""

    name: str
    network: VisitNetwork
    importance: Importance


def _of_adacare(network: Any, batch: VisitBatch, output: int) -> Mapping[str, Tensor]:
    del output
    weights = network.importance(batch)
    found, first = {}, 0
    for kind, count in network.sizes.codes.items():
        codes = batch.codes[kind]
        own = torch.nn.functional.pad(weights[..., first : first + count], (1, 0))
        found[kind] = own.gather(2, codes)
        first += count
    return found


EXPERTS: Final = (
    Expert("AdaCare", adacare.NETWORK, _of_adacare),
    Expert("MC-GRU", mc_gru.NETWORK, lambda network, batch, output: network.importance(batch, output)),
    Expert("RETAIN", retain.NETWORK, lambda network, batch, output: network.contributions(batch, output).codes),
)


@dataclass(frozen=True)
class View:
    """What one expert says about all instances: vectors [N, width], probabilities, and the names of important codes."""

    expert: str
    vectors: npt.NDArray[np.float32]
    probabilities: npt.NDArray[np.float64]
    important: tuple[tuple[str, ...], ...]


def views_of(
    networks: Sequence[tuple[Expert, Any]], vocabularies: Vocabularies, instances: Instances, most: int
) -> list[View]:
    """Ask all experts about instances."""
    features = VisitFeatures.of(instances, vocabularies)
    return [_view(expert, network, features, vocabularies, instances, most) for expert, network in networks]


def _view(
    expert: Expert, network: Any, features: VisitFeatures, vocabularies: Vocabularies, instances: Instances, most: int
) -> View:
    """Ask one expert, some instances at a time."""
    names = {str(kind): instances.cohort.names(kind) for kind in vocabularies.codes}
    heard: list[Tensor] = []
    handle = network.head.register_forward_pre_hook(lambda _, given: heard.append(given[0].detach()))
    logits, important = [], []
    try:
        for first in range(0, len(instances), 256):
            batch = features.batch(np.arange(first, min(first + 256, len(instances))))
            with torch.no_grad():
                logits.append(network(batch).double().numpy())
            # What explains an expert may run its last layer again: only the first vector belongs to the prediction.
            kept = heard[-1]
            important += _important(expert, network, batch, logits[-1], vocabularies, names, most)
            heard[:] = [*heard[: len(logits) - 1], kept]
    finally:
        handle.remove()
    probabilities = instances.task.kind.probabilities(np.concatenate(logits)) if logits else np.zeros((0, 1))
    vectors = torch.cat(heard).float().numpy() if heard else np.zeros((0, 1), dtype=np.float32)
    return View(expert.name, vectors, probabilities, tuple(important))


def _important(
    expert: Expert,
    network: Any,
    batch: VisitBatch,
    logits: npt.NDArray[np.float64],
    vocabularies: Vocabularies,
    names: Mapping[str, Mapping[str, str]],
    most: int,
) -> list[tuple[str, ...]]:
    """Return for each instance of a batch the codes that count most for the output that is predicted."""
    predicted = logits.argmax(axis=1)
    found: list[tuple[str, ...]] = [()] * len(logits)
    for output in np.unique(predicted).tolist():
        weights = expert.importance(network, batch, output)
        for row in np.flatnonzero(predicted == output).tolist():
            largest: dict[str, float] = {}
            for kind, values in weights.items():
                for number, value in zip(
                    batch.codes[kind][row].flatten().tolist(), values[row].detach().flatten().tolist(), strict=True
                ):
                    if number:
                        code = vocabularies.codes[kind][number - 1]  # type: ignore[index]
                        name = printable(names[kind].get(code) or code)
                        # Rounded, so that sums in another order do not change the order of codes.
                        largest[name] = max(largest.get(name, 0.0), round(abs(value), 4))
            order = sorted(largest, key=lambda name: (-largest[name], name))
            found[row] = tuple(order[:most])
    return found
