"""The scene of one newcomer against a bank of references with outcomes that was opened once, as a server explains.

The numbers are those of :func:`~patients_like_me.explanation.reference_scene.set_reference_scene`; the way differs.
The scene holds the newcomer and the references that are alike to it in any relation; the lists of references come from
the indexes of the bank, and a page cuts out the records of the people that it shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from patients_like_me.explanation.counter_references import CounterReference
from patients_like_me.explanation.decision import Decision
from patients_like_me.explanation.evidence import Evidence
from patients_like_me.explanation.explanation import Explanation
from patients_like_me.explanation.opened_records import OpenedRecords
from patients_like_me.explanation.reference_scene import ReferenceScene, opened_model_of, shown_lists
from patients_like_me.explanation.references import Reference, references_of
from patients_like_me.explanation.share_explainer import ShareExplainer
from patients_like_me.explanation.target_edges import Floats, Integers
from patients_like_me.explanation.what_if import Change
from patients_like_me.graph.node_sets import aligned, joined, taken
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.settings import GraphSettings
from patients_like_me.runs.run import Run
from patients_like_me.systems.additive_references import AdditiveReferences, Lists
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.joining import followed_by
from patients_like_me.tasks.one_instance import diagnosis_set_of_one


class OpenedReferences(OpenedRecords):
    """The bank of a run whose references bring their outcomes, with everything that newcomers share."""

    def __init__(self, run: Run) -> None:
        self.model: AdditiveReferences = opened_model_of(run)
        super().__init__(run, self.model.bank.instance_ids, self.model.bank.described.subjects)

    @cached_property
    def sets(self) -> DiagnosisSets:
        """The diagnoses of the bank's instances, with its own numbers of patients."""
        return replace(self.records.training.diagnosis_sets, patients=self.patients)

    @cached_property
    def codes(self) -> Any:
        """The codes of the bank's instances [J, F], weighted and scaled to length 1: their products are cosines."""
        return self.model.weighted(self.model.bank.described)

    def warm(self) -> None:
        """Compute now what the first explanation would wait for."""
        super().warm()
        _ = self.sets, self.codes

    def compared(self, instances: Instances) -> ComparedNewcomer:
        """Look for the references of one newcomer."""
        model = self.model
        described = model.described(instances)
        lists = shown_lists(model, described, instances.instance_ids, self.codes)
        sets = aligned(self.numbered(instances, diagnosis_set_of_one(instances)), self.sets.vocabulary)
        return ComparedNewcomer(self, instances, sets, model.own_logits(instances), lists, described)


@dataclass(frozen=True, eq=False)
class ComparedNewcomer:
    """One newcomer with its own answer and its lists of references."""

    opened: OpenedReferences
    instances: Instances
    sets: DiagnosisSets
    own: Floats
    lists: Lists
    described: Any

    @cached_property
    def neighbors(self) -> Integers:
        """The places of its references in the bank, over all relations."""
        columns = [each.columns[0][each.similarities[0] > 0] for each in self.lists.values()]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *columns])).astype(np.int64)

    @cached_property
    def cosines(self) -> Floats:
        """The cosine of its codes with those of every instance of the bank."""
        own = self.opened.model.weighted(self.described).toarray().ravel()
        return np.asarray(self.opened.codes @ own, np.float64)

    def scene(self, nodes: Integers, people: Integers | None = None) -> ReferenceScene:
        """Return the scene of some of the bank's nodes and the newcomer, with the records of some of those people."""
        opened, model = self.opened, self.opened.model
        instances = self.instances if people is None else followed_by(opened.records.cut_to(people), self.instances)
        people = np.zeros(0, np.int64) if people is None else people
        row_of = {int(node): row for row, node in enumerate(people)}
        # Nodes that are not shown have no record here; nothing asks for it.
        rows = np.array([row_of.get(int(node), -1) for node in nodes] + [len(people)], dtype=np.int64)
        places = np.searchsorted(nodes, self.neighbors)
        own_codes = set(self.sets.codes.tolist())
        bank = taken(opened.sets, nodes)
        weights = [
            len(own_codes.intersection(bank.codes[bank.indptr[place] : bank.indptr[place + 1]].tolist()))
            for place in places
        ]
        graph = PatientGraph(
            joined(bank, self.sets),
            GraphSettings(tau=1, references="bank"),
            np.concatenate([np.zeros(len(nodes) + 1, dtype=np.int64), [len(places)]]),
            places.astype(np.int32),
            np.array(weights, np.int64),
        )
        # The nodes alone send: what is computed again for every removal is as small as the scene. An unused place of
        # a list names the first, which must be there.
        senders = nodes if len(nodes) else np.zeros(1, np.int64)
        return OpenedReferenceScene(
            opened.run,
            instances,
            "test",
            graph,
            torch.zeros(len(rows), 0),
            rows,
            True,
            fitted=model.sending_from(senders),
            own=self.own,
            lists={name: _on_nodes(each, nodes) for name, each in self.lists.items()},
            newcomer=self,
            nodes=nodes,
        )


def _on_nodes(lists: Any, nodes: Integers) -> Any:
    """Return lists with the places of a scene's nodes in place of those of the bank; unused places stay unused."""
    used = lists.similarities > 0
    columns = np.where(used, np.searchsorted(nodes, lists.columns), 0)
    return replace(lists, columns=columns.astype(np.int32))


@dataclass(frozen=True, eq=False)
class OpenedReferenceScene(ReferenceScene):
    """A scene of one newcomer; ``nodes`` are the places in the bank of all its nodes but the last."""

    newcomer: ComparedNewcomer = field(kw_only=True)
    nodes: Integers = field(kw_only=True)

    @property
    def training_labels(self) -> npt.NDArray[np.int64]:
        """The labels of all instances of the bank."""
        return self.newcomer.opened.records.training.labels

    @property
    def other_probabilities(self) -> Floats:
        """The probabilities of the validation instances."""
        return self.newcomer.opened.other_probabilities

    def cosines_to(self, node: int) -> Floats:
        """Return the cosines of the newcomer with every node of the scene."""
        assert node == len(self.nodes), "only the newcomer is compared"
        return np.concatenate([self.newcomer.cosines[self.nodes], [1.0]])

    def share_farther(self, node: int, cosine: float) -> float:
        """Return the share of candidates with a lower cosine."""
        del node
        one = self.newcomer
        return one.opened.share_farther(one.cosines, int(one.sets.patients[0]), cosine)


@dataclass(frozen=True, eq=False)
class OpenedShareExplainer(ShareExplainer):
    """The explanation of a newcomer on a scene of its own."""

    against: tuple[CounterReference, ...] = ()

    @property
    def newcomer(self) -> ComparedNewcomer:
        """The newcomer."""
        assert isinstance(self.scene, OpenedReferenceScene)
        return self.scene.newcomer

    @cached_property
    def evidence(self) -> Evidence:
        """The names, rarity and ties of diagnoses."""
        return self.newcomer.opened.evidence(self.scene, self.decision, self.decided)

    def nearest_against(self) -> list[CounterReference]:
        """Return the nearest instances of the bank whose outcome is not what was decided."""
        return list(self.against)

    def shown_after(self, change: Change) -> list[Reference]:
        """Return the references that a what-if asks about: those that it shows, and the most similar."""
        after = self.changed(change)
        assert isinstance(after, ReferenceScene)
        return [*self._shown(after), *references_of(after, self.node)]


def explain_compared(
    newcomer: ComparedNewcomer, decision: Decision, change: Change | None = None, after: ComparedNewcomer | None = None
) -> Explanation:
    """Explain a newcomer; ``after`` is the newcomer with another record, where a change concerns it."""
    nodes = newcomer.neighbors if after is None else np.union1d(newcomer.neighbors, after.neighbors)
    changed = None if after is None else after.scene(nodes)
    # Who is shown is known from numbers alone; then their records are cut out.
    plain = OpenedShareExplainer(newcomer.scene(nodes), 0, decision, after=changed)
    shown = [reference.node for reference in (*plain.named.values(), *plain.nearest)]
    if change and change.tau is None:
        shown += [reference.node for reference in plain.shown_after(change)]
    listed = nodes[[reference.node for reference in plain.named.values()]]
    against = _against(newcomer, decision, plain.decided, listed) if plain.named else []
    people = np.unique(np.concatenate([nodes[shown], np.array([row for row, _ in against], np.int64)]).astype(np.int64))
    neighbors = set(newcomer.neighbors.tolist())
    row_of = {int(node): row for row, node in enumerate(people)}
    counters = tuple(
        CounterReference(row_of[row], shared, float(newcomer.cosines[row]), row in neighbors) for row, shared in against
    )
    explainer = OpenedShareExplainer(
        newcomer.scene(nodes, people),
        len(people),
        decision,
        after=None if after is None else after.scene(nodes, people),
        against=counters,
    )
    return explainer.explanation(change)


def _against(
    newcomer: ComparedNewcomer, decision: Decision, decided: tuple[int, ...], listed: Integers
) -> list[tuple[int, int]]:
    opened = newcomer.opened
    return opened.against(newcomer.cosines, opened.sets, newcomer.sets, decision, decided, listed)


def brief_explainer(newcomer: ComparedNewcomer, decision: Decision) -> ShareExplainer:
    """Return what a list asks about a newcomer: its probabilities, support and references, without a page's parts."""
    nodes = newcomer.neighbors
    plain = OpenedShareExplainer(newcomer.scene(nodes), 0, decision)
    people = np.unique(nodes[[reference.node for reference in plain.nearest]]).astype(np.int64)
    return OpenedShareExplainer(newcomer.scene(nodes, people), len(people), decision)
