"""From a network over visits to a system: what its training needs, what is kept of it, and how it predicts.

A network is built from its settings and from facts: plain JSON with the vocabularies of the training instances, the
number of outputs and, for some, knowledge about codes. So it can be built again from what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.systems.contract import Fitted, RunContext
from patients_like_me.systems.epochs import logits_in_batches, network_with, train_network, weights_of
from patients_like_me.systems.features import VisitFeatures, Vocabularies
from patients_like_me.systems.problem import Logits, Problem
from patients_like_me.systems.visit_layers import Sizes, Visits, head_bias
from patients_like_me.tasks.instances import Instances, Rows
from patients_like_me.tasks.kinds import LabelKind

Facts = Mapping[str, Any]
NetworkType = TypeVar("NetworkType", bound=nn.Module)
#: (network, visits, their 0/1 targets, epoch from 0, kind of label) -> the loss to minimise
VisitLoss = Callable[[Any, Visits, Tensor, int, LabelKind], Tensor]


def cross_entropy(network: Any, visits: Visits, targets: Tensor, epoch: int, kind: LabelKind) -> Tensor:
    """Return the mean cross-entropy of the task."""
    del epoch
    return kind.loss(network(visits), targets).mean()


def penalised(network: Any, visits: Visits, targets: Tensor, epoch: int, kind: LabelKind) -> Tensor:
    """Return the mean cross-entropy plus the network's own penalty.

    Of a set of codes the losses are added up, as in the papers: against their mean the penalty would outweigh all.
    """
    penalty: Tensor = network.penalty()
    return kind.losses(targets.shape[-1]) * cross_entropy(network, visits, targets, epoch, kind) + penalty


def own_loss(network: Any, visits: Visits, targets: Tensor, epoch: int, kind: LabelKind) -> Tensor:
    """Return the mean of the loss [B] that the network itself computes."""
    del kind
    losses: Tensor = network.loss(visits, targets, epoch)
    return losses.mean()


@dataclass(frozen=True)
class Knowledge:
    """What a system knows beside the records, as plain JSON for the facts, and sentences on what it covers."""

    facts: Facts = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def no_knowledge(problem: Problem, settings: Any, vocabularies: Vocabularies) -> Knowledge:
    """Return that nothing is known beside the records."""
    del problem, settings, vocabularies
    return Knowledge()


def no_refresh(network: Any, features: VisitFeatures, train: Rows, seed: int) -> None:
    """Leave the network as it is."""
    del network, features, train, seed


def no_remarks(network: Any, features: VisitFeatures, problem: Problem) -> tuple[str, ...]:
    """Add nothing to the notes of a run."""
    del network, features, problem
    return ()


def started(network: NetworkType, bias: Tensor | None, problem: Problem) -> NetworkType:
    """Let the constants of the last layer start at the label rates of training, as our own model's do.

    From 0, where each of a hundred rare drugs has probability 0.5, small steps take many epochs to these rates before
    anything about patients is learned.
    """
    if bias is not None:
        labels = torch.as_tensor(problem.instances.labels[problem.train])
        with torch.no_grad():
            bias.copy_(problem.kind.base_rate_logits(labels, problem.outputs))
    return network


@dataclass(frozen=True)
class VisitNetwork:
    """One system's network: how it is built from settings and facts, and how its training differs from the plain one.

    ``bias`` finds the constants [outputs] of its last layer, if it has any. ``knowledge`` is gathered once, from tables
    and training instances; ``refresh`` runs before the first epoch and after each one, on training instances;
    ``is_judged`` (settings, epoch) tells pre-training from the rest; ``remarks`` are sentences about the trained
    network, for the notes of the run.
    """

    build: Callable[[Any, Facts], nn.Module]
    bias: Callable[[Any], Tensor | None] = head_bias
    loss: VisitLoss = cross_entropy
    knowledge: Callable[[Problem, Any, Vocabularies], Knowledge] = no_knowledge
    refresh: Callable[[Any, VisitFeatures, Rows, int], None] = no_refresh
    is_judged: Callable[[Any, int], bool] = lambda _settings, _epoch: True
    remarks: Callable[[Any, VisitFeatures, Problem], tuple[str, ...]] = no_remarks

    def fit(self, problem: Problem, run: RunContext) -> Fitted:
        """Train the network; vocabularies and knowledge see training patients only."""
        settings, kind = run.settings, problem.kind
        vocabularies = Vocabularies.of_training(problem.instances, problem.train)
        if not any(vocabularies.codes.values()):
            raise PlmError("no training instance has a code to learn from", remedy="use a larger cohort")
        known = self.knowledge(problem, settings, vocabularies)
        facts = {"vocabularies": vocabularies.as_json(), "outputs": problem.outputs, **known.facts}
        features = VisitFeatures.of(problem.instances, vocabularies)

        def start() -> nn.Module:
            network = self.build(settings, facts)
            return started(network, self.bias(network), problem)

        network, account = train_network(
            problem,
            run,
            start,
            lambda network, rows: network(features.batch(rows)),
            lambda network, rows, targets, epoch: self.loss(network, features.batch(rows), targets, epoch, kind),
            refresh=lambda network: self.refresh(network, features, problem.train, run.seed),
            is_judged=lambda epoch: self.is_judged(settings, epoch),
        )
        weights = sum(weight.numel() for weight in network.parameters())
        said = self.remarks(network, features, problem)
        notes = [*account.notes, f"{weights:,} trained weights", *known.notes, *said]
        return Fitted(settings, weights_of(network), facts, replace(account, notes=notes))

    def opened(self, fitted: Fitted) -> Any:
        """Return the network with the weights that were kept, in evaluation mode."""
        return network_with(lambda: self.build(fitted.settings, fitted.facts), fitted.arrays)

    def predict(self, fitted: Fitted, instances: Instances) -> Logits:
        """Predict with the weights that were kept."""
        features = features_of(fitted, instances)
        return logits_in_batches(
            self.opened(fitted), lambda network, rows: network(features.batch(rows)), np.arange(len(instances))
        )


def vocabularies_of(facts: Facts) -> Vocabularies:
    """Return the vocabularies that a network was trained with."""
    return Vocabularies.from_json(facts["vocabularies"])


def features_of(fitted: Fitted, instances: Instances) -> VisitFeatures:
    """Return instances as the fitted network reads them."""
    return VisitFeatures.of(instances, vocabularies_of(fitted.facts))


def sizes_of(facts: Facts) -> Sizes:
    """Return the sizes of a network; a kind without any code gets no weights.

    >>> facts = {"vocabularies": {"codes": {"diagnosis": ["49"], "procedure": [], "medication": []},
    ...          "demographics": ["age"]}, "outputs": 2}
    >>> sizes_of(facts)
    Sizes(codes={'diagnosis': 1}, demographics=1, outputs=2)
    """
    vocabularies = vocabularies_of(facts)
    codes = {str(kind): len(found) for kind, found in vocabularies.codes.items() if found}
    return Sizes(codes, len(vocabularies.demographics), int(facts["outputs"]))


def hash_of_tables(*tables: str) -> dict[str, str]:
    """Return the hashes of the installed tables that a system used, for its facts."""
    installed = CodeStore.default().provenance()["installed"]
    return {table: str(installed[table]["sha256"]) for table in tables if table in installed}


def states_in_batches(states: Callable[[Visits], Tensor], features: VisitFeatures, rows: Rows) -> Tensor:
    """Return what a network says of many rows, without a gradient, some rows at a time."""
    with torch.no_grad():
        return torch.cat([states(features.batch(rows[at : at + 256])) for at in range(0, len(rows), 256)])
