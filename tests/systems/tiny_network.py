"""A small network as a system: sums of code embeddings and demographics into one linear layer.

It is all that a neural system has to write; featuriser, epoch loop and keeping come from the room.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from patients_like_me.records.cohort import KINDS
from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.contract import Fitted, RunContext, System
from patients_like_me.systems.epochs import EpochSettings, logits_in_batches, network_with, train_network, weights_of
from patients_like_me.systems.features import PADDING, VisitBatch, VisitFeatures, Vocabularies
from patients_like_me.systems.problem import Logits, Problem
from patients_like_me.tasks.instances import Instances, Rows


class SmallSettings(EpochSettings):
    """The settings of the small network."""

    width: int = 16


class SmallNetwork(nn.Module):
    """Each visit is the sum of its codes; visits fade with the days between them."""

    def __init__(self, vocabularies: Vocabularies, width: int, outputs: int) -> None:
        super().__init__()
        # An embedding of nothing but padding would never get a gradient.
        self.kinds = [kind for kind in KINDS if vocabularies.codes[kind]]
        self.codes = nn.ModuleDict(
            {
                kind: nn.EmbeddingBag(vocabularies.size(kind), width, mode="sum", padding_idx=PADDING)
                for kind in self.kinds
            }
        )
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width + 1 + len(vocabularies.demographics), outputs)

    def forward(self, batch: VisitBatch) -> Tensor:
        visits: Any = 0
        for kind in self.kinds:
            codes = batch.codes[kind]
            flat = self.codes[kind](codes.reshape(-1, codes.shape[-1]))
            visits = visits + flat.reshape(*codes.shape[:2], -1)
        weights = batch.visit_mask / (1 + batch.gaps / 365)
        patient = (visits * weights[..., None]).sum(dim=1)
        number = batch.visit_mask.sum(dim=1, keepdim=True).float()
        return self.head(torch.cat([self.dropout(patient), number.log(), batch.demographics], dim=1))


def _logits_of(features: VisitFeatures) -> Any:
    def logits(network: nn.Module, rows: Rows) -> Tensor:
        found: Tensor = network(features.batch(rows))
        return found

    return logits


def fit(problem: Problem, run: RunContext) -> Fitted:
    """Train the network."""
    vocabularies = Vocabularies.of_training(problem.instances, problem.train)
    logits = _logits_of(VisitFeatures.of(problem.instances, vocabularies))
    network, account = train_network(
        problem, run, lambda: SmallNetwork(vocabularies, run.settings.width, problem.outputs), logits
    )
    facts = {"vocabularies": vocabularies.as_json(), "outputs": problem.outputs}
    return Fitted(run.settings, weights_of(network), facts, account)


def predict(fitted: Fitted, instances: Instances) -> Logits:
    """Predict with the weights that were kept."""
    vocabularies = Vocabularies.from_json(fitted.facts["vocabularies"])
    outputs = fitted.facts["outputs"]
    network = network_with(lambda: SmallNetwork(vocabularies, fitted.settings.width, outputs), fitted.arrays)
    features = VisitFeatures.of(instances, vocabularies)
    return logits_in_batches(network, _logits_of(features), np.arange(len(instances)))


SMALL_NETWORK = System(
    name="small_network",
    description="sums of code embeddings",
    settings=SmallSettings,
    capabilities=Capabilities(random=True, epochs=True, newcomers=True),
    fit=fit,
    predict=predict,
)
