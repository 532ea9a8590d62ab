"""The scene of one newcomer against a bank that was opened once: what a server explains with.

The numbers are those of :func:`~patients_like_me.explanation.newcomers.scene_of_newcomers`; only the way differs. What
concerns the whole bank (states of the network, directions, rates of codes and outcomes) is computed when it is opened;
a newcomer adds one row, and a page cuts out the records of the people that it shows.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.explanation.bank_pass import BankPass
from patients_like_me.explanation.counter_references import CounterReference
from patients_like_me.explanation.decision import Decision
from patients_like_me.explanation.evidence import Evidence
from patients_like_me.explanation.explain import Explainer
from patients_like_me.explanation.explanation import Explanation
from patients_like_me.explanation.known_pass import KnownPass
from patients_like_me.explanation.opened_records import OpenedRecords
from patients_like_me.explanation.references import MOST_REFERENCES
from patients_like_me.explanation.scene import GraphModel, Scene, graph_model_of
from patients_like_me.explanation.support import Support
from patients_like_me.explanation.target_edges import Floats, Integers
from patients_like_me.explanation.what_if import Change, changed_instances, named_reference
from patients_like_me.graph.build import build_graph
from patients_like_me.graph.extend import link
from patients_like_me.graph.node_sets import joined, taken
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.settings import GraphSettings
from patients_like_me.model.gcn import GraphNetwork
from patients_like_me.runs.run import Run
from patients_like_me.settings import checked
from patients_like_me.systems.problem import only
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.joining import followed_by

#: Graphs of the bank under another tau that are kept; each holds the states of all its nodes.
_MOST_TAUS: Final = 2


class OpenedBank(OpenedRecords):
    """A graph run's bank with everything that newcomers share."""

    def __init__(self, run: Run) -> None:
        self.model: GraphModel = graph_model_of(run)
        network = self.model.graph_network
        if type(network) is not GraphNetwork:
            raise PlmError("the network of this run is not the package's own, whose states can be kept")
        bank = self.bank = self.model.bank
        super().__init__(run, bank.instances["instance_id"].to_list(), bank.instances["subject_id"].to_list())
        self.graph = replace(bank.graph, sets=replace(bank.graph.sets, patients=self.patients))
        self.embeddings = torch.from_numpy(bank.embeddings)
        self.bank_pass = BankPass.of(network, self.graph, self.embeddings)
        self._taus: OrderedDict[int, BankPass] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def directions(self) -> Floats:
        """The embeddings of the bank, scaled to length 1."""
        return np.asarray(torch.nn.functional.normalize(self.embeddings.double(), dim=1).numpy())

    def warm(self) -> None:
        """Compute now what the first explanation would wait for."""
        super().warm()
        _ = self.directions, self.graph.node_of_instance

    def pass_at(self, tau: int | None) -> BankPass:
        """Return the states of the bank, linked again where another tau is asked for."""
        usual = self.graph.settings
        if tau is None or tau == usual.tau:
            return self.bank_pass
        with self._lock:
            found = self._taus.get(tau)
            if found is None:
                settings = checked(GraphSettings, **{**usual.model_dump(), "tau": tau})
                rule = settings.model_copy(update={"references": self.run.graph_settings.references})
                graph = replace(build_graph(self.graph.sets, rule), sets=self.graph.sets, settings=settings)
                network = self.model.graph_network
                assert isinstance(network, GraphNetwork)
                found = self._taus[tau] = BankPass.of(network, graph, self.embeddings)
                while len(self._taus) > _MOST_TAUS:
                    self._taus.popitem(last=False)
            self._taus.move_to_end(tau)
            return found

    def linked(
        self, instances: Instances, embeddings: Tensor, sets: DiagnosisSets, tau: int | None = None
    ) -> list[LinkedNewcomer]:
        """Link newcomers to the bank; each is linked to nobody else."""
        at = self.pass_at(tau)
        newcomers = self.numbered(instances, sets)
        links = link(at.graph, newcomers, patients="shared")
        found = []
        for place in range(len(sets)):
            row = slice(int(links.indptr[place]), int(links.indptr[place + 1]))
            own = links.sets if len(sets) == 1 else taken(links.sets, np.array([place]))
            found.append(
                LinkedNewcomer(
                    self,
                    at,
                    instances if len(sets) == 1 else only(instances, np.array([place])),
                    own,
                    links.neighbors[row].astype(np.int64),
                    links.weights[row],
                    embeddings[place],
                )
            )
        return found


@dataclass(frozen=True, eq=False)
class LinkedNewcomer:
    """One newcomer with its edges to the bank and its embedding."""

    opened: OpenedBank
    at: BankPass
    instances: Instances
    sets: DiagnosisSets
    neighbors: Integers
    weights: npt.NDArray[Any]
    embedding: Tensor

    @cached_property
    def logits(self) -> Floats:
        """The logits [outputs]."""
        if not self.opened.run.uses_graph:
            with torch.no_grad():
                found = self.opened.model.language_logits(self.embedding[None])[0]
            return np.asarray(found.double().numpy())
        embedding = self.embedding.double().numpy()
        return self.at.logits_of(embedding, self.neighbors, self.weights.astype(np.float64), len(self.sets.codes))

    @cached_property
    def cosines(self) -> Floats:
        """The cosine of its embedding with that of every instance of the bank."""
        own = torch.nn.functional.normalize(self.embedding.double()[None], dim=1)[0].numpy()
        return np.asarray(self.opened.directions @ own)

    def nearest(self, most: int) -> Integers:
        """Return its neighbours with the highest cosines, as references are chosen."""
        cosines = self.cosines[self.neighbors]
        order = np.lexsort((self.neighbors, -self.weights.astype(np.int64), -cosines))[:most]
        return self.neighbors[order]

    def share_farther(self, cosine: float) -> float:
        """Return the share of the bank's instances of other patients with a lower cosine."""
        return self.opened.share_farther(self.cosines, int(self.sets.patients[0]), cosine)

    def against(self, decision: Decision, decided: tuple[int, ...], listed: Integers) -> list[tuple[int, int]]:
        """Return the nearest instances of the bank that disagree, one per patient, and the diagnoses shared."""
        return self.opened.against(self.cosines, self.opened.graph.sets, self.sets, decision, decided, listed)

    def without(self, nodes: Sequence[int]) -> LinkedNewcomer:
        """Return the newcomer without the edges to some nodes of the bank."""
        kept = ~np.isin(self.neighbors, list(nodes))
        return replace(self, neighbors=self.neighbors[kept], weights=self.weights[kept])


@dataclass(frozen=True, eq=False)
class BankScene(Scene):
    """A scene of one newcomer: its neighbours in the bank, and the records of those that are shown.

    ``nodes`` are the bank's nodes behind all nodes of the scene but the last, which is the newcomer.
    """

    newcomer: LinkedNewcomer = field(kw_only=True)
    nodes: Integers = field(kw_only=True)

    @property
    def training_labels(self) -> npt.NDArray[np.int64]:
        """The labels of all training instances."""
        return self.newcomer.opened.records.training.labels

    @cached_property
    def model(self) -> GraphModel:
        """The trained model of the run."""
        return self.newcomer.opened.model

    @cached_property
    def known(self) -> KnownPass:
        """The pass over the newcomer and its neighbours."""
        one = self.newcomer
        places = np.searchsorted(self.nodes, one.neighbors)
        embedding = one.embedding.double().numpy()
        return one.at.known(embedding, self.nodes, places, one.weights, len(one.sets.codes))

    @property
    def other_probabilities(self) -> Floats:
        """The probabilities of the validation instances."""
        return self.newcomer.opened.other_probabilities

    def cosines_to(self, node: int) -> Floats:
        """Return the cosines of the newcomer with every node of the scene."""
        if node != len(self.nodes):
            return super().cosines_to(node)
        return np.concatenate([self.newcomer.cosines[self.nodes], [1.0]])

    def share_farther(self, node: int, cosine: float) -> float:
        """Return the share of candidates with a lower cosine."""
        del node
        return self.newcomer.share_farther(cosine)


@dataclass(frozen=True, eq=False)
class BankExplainer(Explainer):
    """The explanation of a newcomer on a scene of its own; ``after`` is the newcomer after a change."""

    after: LinkedNewcomer | None = None
    against: tuple[CounterReference, ...] = ()

    @property
    def newcomer(self) -> LinkedNewcomer:
        """The newcomer."""
        assert isinstance(self.scene, BankScene)
        return self.scene.newcomer

    @cached_property
    def evidence(self) -> Evidence:
        """The names, rarity and ties of diagnoses."""
        return self.newcomer.opened.evidence(self.scene, self.decision, self.decided)

    def nearest_against(self) -> list[CounterReference]:
        """Return the nearest training instances whose outcome is not what was decided."""
        return list(self.against)

    def changed(self, change: Change) -> Scene:
        """Return the scene after a change: the same people, other edges."""
        assert self.after is not None
        assert isinstance(self.scene, BankScene)
        nodes = self.scene.nodes
        dropped = [int(nodes[named_reference(name, self.named).node]) for name in change.drop]
        after = self.after.without(dropped) if dropped else self.after
        return scene_on(self.scene.instances, self.scene.rows, nodes, after)


def explain_newcomer(
    newcomer: LinkedNewcomer, decision: Decision, change: Change | None = None, after: LinkedNewcomer | None = None
) -> Explanation:
    """Explain a newcomer; ``after`` is the newcomer with what a change adds, removes or links otherwise."""
    opened = newcomer.opened
    probabilities = opened.run.calibrated(opened.run.task.kind.probabilities(newcomer.logits[None]), newcomers=True)[0]
    decided = decision.key(np.asarray(probabilities, dtype=np.float64))
    shown = [newcomer.nearest(MOST_REFERENCES)]
    linked = [newcomer.neighbors]
    if after is not None:
        shown.append(after.nearest(MOST_REFERENCES + len(change.drop if change else ())))
        linked.append(after.neighbors)
    against = newcomer.against(decision, decided, shown[0]) if len(newcomer.neighbors) else []
    nodes = np.unique(np.concatenate(linked))
    people = np.unique(np.concatenate([*shown, np.array([row for row, _ in against], dtype=np.int64)]))
    instances = followed_by(opened.records.cut_to(people), newcomer.instances)
    row_of = {int(node): row for row, node in enumerate(people)}
    # Nodes that are not shown have no record here; nothing asks for it.
    rows = np.array([row_of.get(int(node), -1) for node in nodes] + [len(people)], dtype=np.int64)
    neighbors = set(newcomer.neighbors.tolist())
    counters = tuple(
        CounterReference(row_of[row], shared, float(newcomer.cosines[row]), row in neighbors) for row, shared in against
    )
    scene = scene_on(instances, rows, nodes, newcomer)
    return BankExplainer(scene, len(people), decision, after=after, against=counters).explanation(change)


def brief_support(newcomer: LinkedNewcomer, decision: Decision) -> tuple[Support, tuple[bool | None, ...]]:
    """Return the support of a prediction, and of each reference whether it had the event: what a list shows."""
    opened = newcomer.opened
    people = np.unique(newcomer.nearest(MOST_REFERENCES))
    instances = followed_by(opened.records.cut_to(people), newcomer.instances)
    row_of = {int(node): row for row, node in enumerate(people)}
    nodes = newcomer.neighbors
    rows = np.array([row_of.get(int(node), -1) for node in nodes] + [len(people)], dtype=np.int64)
    explainer = BankExplainer(scene_on(instances, rows, nodes, newcomer), len(people), decision)
    return explainer.support, explainer.support.bits


def scene_on(instances: Instances, rows: Integers, nodes: Integers, newcomer: LinkedNewcomer) -> BankScene:
    """Return the scene of a newcomer over some nodes of the bank."""
    opened = newcomer.opened
    edges = len(newcomer.neighbors)
    graph = PatientGraph(
        joined(taken(newcomer.at.graph.sets, nodes), newcomer.sets),
        newcomer.at.graph.settings,
        np.concatenate([np.zeros(len(nodes) + 1, dtype=np.int64), [edges]]),
        np.searchsorted(nodes, newcomer.neighbors).astype(np.int32),
        newcomer.weights,
    )
    embeddings = torch.cat([opened.embeddings[torch.from_numpy(nodes)], newcomer.embedding[None]])
    return BankScene(opened.run, instances, "test", graph, embeddings, rows, True, newcomer=newcomer, nodes=nodes)


def changed_newcomer(run: Run, instances: Instances, change: Change) -> Instances:
    """Return a newcomer with other diagnoses or drugs; codes of the run's cohort can be added, with their names."""
    own = instances.cohort.vocabulary
    rest = run.cohort.vocabulary.join(own.select("kind", "code"), on=["kind", "code"], how="anti")
    wide = replace(instances, cohort=replace(instances.cohort, vocabulary=pl.concat([own, rest])))
    return changed_instances(wide, 0, change)
