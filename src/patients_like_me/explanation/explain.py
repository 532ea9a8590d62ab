"""Explaining one prediction: references, importance, support, counter-references and what-if put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from patients_like_me.explanation.counter_references import (
    CounterReference,
    counter_references,
    smallest_turning_set,
)
from patients_like_me.explanation.decision import Decision, decision_of_run
from patients_like_me.explanation.drug_matrix import drug_matrix
from patients_like_me.explanation.evidence import CodeComparison, Evidence, gather_evidence, shown_as_evidence
from patients_like_me.explanation.explanation import (
    ExplainedReference,
    Explanation,
    Option,
    Prediction,
    State,
    Turning,
    WhatIf,
)
from patients_like_me.explanation.masking import leave_one_out
from patients_like_me.explanation.own_record import own_record
from patients_like_me.explanation.pseudonyms import differences_of, person_of
from patients_like_me.explanation.references import Reference, references_of
from patients_like_me.explanation.risk import Risk, lower_share
from patients_like_me.explanation.scene import Scene, example_number
from patients_like_me.explanation.support import ALIKE_WITHOUT_CODES, Support, support_of
from patients_like_me.explanation.target_edges import TargetEdges
from patients_like_me.explanation.targets import chosen_outputs
from patients_like_me.explanation.what_if import CHANGED_KINDS, Change, changed_scene, new_names
from patients_like_me.explanation.wording import notes_on, rules, settings_in_words, turning_in_words
from patients_like_me.plain_text import counted, tells_a_small_count
from patients_like_me.records.cohort import Kind
from patients_like_me.tasks.kinds import Probabilities

#: What a what-if says of a run whose predictions use no reference.
OWN_RECORD_ALONE: Final = "the prediction comes from the patient's own record alone: without references it is the same"


@dataclass(frozen=True, eq=False)
class Explainer:
    """The explanation of one instance of a scene; each part of it is computed once, when it is needed."""

    scene: Scene
    row: int
    decision: Decision
    show_ids: bool = False

    @cached_property
    def node(self) -> int:
        """The instance's node."""
        return self.scene.node_of_row(self.row)

    @cached_property
    def probabilities(self) -> Probabilities:
        """The predicted probabilities."""
        return self.scene.probabilities(self.node)

    @cached_property
    def decided(self) -> tuple[int, ...]:
        """The decision."""
        return self.decision.key(self.probabilities)

    @cached_property
    def choice(self) -> Tensor:
        """Which outputs make up the target logit."""
        logits = self.scene.logits[self.node : self.node + 1]
        if self.decision.is_set and self.decided:
            choice = torch.zeros_like(logits[0])
            choice[list(self.decided)] = 1
            return choice
        return chosen_outputs(
            self.decision.kind, logits, output=self.decision.label, threshold=self.decision.threshold
        )[0]

    @cached_property
    def evidence(self) -> Evidence:
        """The names, rarity and ties of diagnoses."""
        return gather_evidence(self.scene, self.decision, self.decided)

    @cached_property
    def importances(self) -> dict[int, float]:
        """Imp(i, j) of every neighbour by its node; nothing where the prediction does not use the graph."""
        if not self.scene.uses_graph or not self.scene.graph.degrees[self.node]:
            return {}
        found = self.scene.known.importances(self.edges, self.choice.double().numpy()[None])
        return dict(zip(self.edges.neighbors.tolist(), found.tolist(), strict=True))

    @cached_property
    def effects(self) -> dict[int, float]:
        """By how much the target logit falls when the edge to a neighbour alone is removed, by its node."""
        if not self.importances:
            return {}
        found = leave_one_out(self.scene.known, self.edges, self.choice.double().numpy()[None])
        return dict(zip(self.edges.neighbors.tolist(), found.tolist(), strict=True))

    @cached_property
    def edges(self) -> TargetEdges:
        """The edges of the instance to all its neighbours."""
        return TargetEdges.of(self.scene.graph.indptr, self.scene.graph.neighbors, np.array([self.node]))

    @cached_property
    def named(self) -> dict[str, Reference]:
        """The references by name: R1 has the largest importance, whatever its sign; without a graph, the cosine.

        The visits of one person follow each other.
        """
        references = references_of(self.scene, self.node)
        if self.importances:
            references.sort(key=lambda reference: -abs(self.importances[reference.node]))
        return self.numbered(references)

    def numbered(self, references: Sequence[Reference]) -> dict[str, Reference]:
        """Name references R1, R2, ... in their order, the visits of one person next to the first of them."""
        patients = self.scene.graph.sets.patients
        first: dict[int, int] = {}
        for place, reference in enumerate(references):
            first.setdefault(int(patients[reference.node]), place)
        together = sorted(references, key=lambda reference: first[int(patients[reference.node])])
        return {f"R{number}": reference for number, reference in enumerate(together, start=1)}

    @cached_property
    def support(self) -> Support:
        """How well the references support the prediction."""
        return support_of(self.scene, self.node, list(self.named.values()), self.decision, self.decided)

    def target_logit(self, logits: Tensor | None = None) -> float:
        """Return the target logit of the instance, or of other logits [outputs]."""
        values = self.scene.logits[self.node] if logits is None else logits
        return float((values.double() * self.choice.double()).sum())

    def without(self, sets: Sequence[Sequence[int]]) -> list[Probabilities]:
        """Return the probabilities after the edges to the nodes of each set are removed."""
        entry_of = dict(zip(self.edges.neighbors.tolist(), self.edges.entries.tolist(), strict=True))
        entries = [entry_of[node] for nodes in sets for node in nodes]
        starts = np.concatenate([[0], np.cumsum([len(nodes) for nodes in sets])])
        logits = self.scene.known.logits_without(
            np.full(len(sets), self.node), starts, np.array(entries, dtype=np.int64)
        )
        return list(self.scene.probabilities_of(logits))

    def explained(self, name: str, reference: Reference) -> ExplainedReference:
        """Return one reference as shown on the page."""
        label: Any = self.scene.instances.labels[reference.row]
        known = self.scene.outcomes_known
        codes = self.evidence.compare(self.row, reference.row)
        return ExplainedReference(
            name=name,
            person=person_of(self.scene, reference.row, name, show_ids=self.show_ids),
            weight=reference.weight,
            cosine=reference.cosine,
            importance=self.importances.get(reference.node),
            effect=self.effects.get(reference.node),
            same_patient_as=self._first_of_patient(name, reference),
            outcome=self.decision.outcome_in_words(label, self.decided) if known else None,
            agrees=self.decision.agrees(label, self.decided) if known else None,
            evidence=shown_as_evidence(codes["diagnosis"].shared),
            codes=codes,
            points=self.points_without.get(reference.node),
            had=self._had(label) if known else None,
            differs=(*differences_of(self.scene, self.row, reference.row), *_without_codes(codes)),
            moves=self.decision.moved(),
        )

    def _had(self, label: Any) -> bool | None:
        """Tell whether a patient with this label had the event of the shown probability; a set is not one event."""
        happened = self.decision.happened(np.asarray([label]), self.decided)
        return None if happened is None else bool(happened[0])

    @cached_property
    def points_without(self) -> dict[int, float]:
        """By how many percentage points each reference raises the shown probability, by its node; none for a set."""
        if self.decision.is_set or not self.importances:
            return {}
        column = self.decision.column(self.probabilities)
        nodes = [reference.node for reference in self.named.values()]
        now = float(self.probabilities[column])
        without = self.without([[node] for node in nodes])
        return {node: 100.0 * (now - float(left[column])) for node, left in zip(nodes, without, strict=True)}

    def _first_of_patient(self, name: str, reference: Reference) -> str | None:
        """Return the first reference that is a visit of the same person, where it is another one."""
        patients = self.scene.graph.sets.patients
        person = patients[reference.node]
        first = next(other for other, earlier in self.named.items() if patients[earlier.node] == person)
        return None if first == name else first

    def counter_references(self) -> tuple[ExplainedReference, ...]:
        """Return the nearest training patients whose outcome is not what was decided; none without references."""
        if not self.named:
            return ()
        labels = self.scene.instances.labels
        found = []
        for number, counter in enumerate(self.nearest_against(), start=1):
            codes = self.evidence.compare(self.row, counter.row)
            name = f"C{number}"
            found.append(
                ExplainedReference(
                    name=name,
                    person=person_of(self.scene, counter.row, name, show_ids=self.show_ids),
                    weight=counter.shared,
                    cosine=counter.cosine,
                    importance=None,
                    effect=None,
                    outcome=self.decision.outcome_in_words(labels[counter.row], self.decided),
                    agrees=False,
                    evidence=shown_as_evidence(codes["diagnosis"].shared),
                    codes=codes,
                    is_neighbor=counter.is_neighbor,
                    had=self._had(labels[counter.row]),
                    differs=differences_of(self.scene, self.row, counter.row),
                )
            )
        return tuple(found)

    def nearest_against(self) -> list[CounterReference]:
        """Return the nearest training instances whose outcome is not what was decided, beyond the references."""
        listed = [reference.row for reference in self.named.values()]
        return counter_references(self.scene, self.node, self.decision, self.decided, listed=listed)

    def turning(self) -> Turning | None:
        """Return the smallest set of references without which the decision is another one."""
        if not self.scene.uses_graph or not self.named:
            return None
        nodes = {reference.node: name for name, reference in self.named.items()}
        found = smallest_turning_set(list(nodes), self.without, self.decision, self.decided)
        return turning_in_words(
            found, nodes, self.decision, self.decided, others=int(self.scene.graph.degrees[self.node]) - len(nodes)
        )

    def state(self, scene: Scene, references: Sequence[str]) -> State:
        """Return the instance's prediction on a scene in few words."""
        probabilities = scene.probabilities(self.node)
        key = self.decision.key(probabilities)
        is_set = self.decision.is_set
        return State(
            answer=self.decision.in_words(probabilities),
            # The same output before and after, also where another class is now the likeliest.
            probability=None if is_set else float(probabilities[self.decision.column(self.probabilities)]),
            target_logit=self.target_logit(scene.logits[self.node]),
            references=tuple(references),
            chosen=tuple(self.decision.named(label) for label in key) if is_set else (),
        )

    def changed(self, change: Change) -> Scene:
        """Return the scene after a change."""
        return changed_scene(self.scene, self.row, change, self.named)

    def what_if(self, change: Change) -> WhatIf:
        """Make a change, and return the prediction and the references before and after."""
        names, drugs = (self.scene.cohort.names(kind) for kind in CHANGED_KINDS)
        after = self.changed(change)
        references, left, joined = new_names(after, self.node, self.named)
        decided = self.decision.key(after.probabilities(self.node))
        support = support_of(after, self.node, list(references.values()), self.decision, decided)
        newcomers = [
            f"{name}: {counted(references[name].weight, 'shared diagnosis', 'shared diagnoses')}" for name in joined
        ]
        notes = []
        if change.tau is not None:
            notes.append("the graph was linked again with the other tau; the network was not trained again")
        if not self.scene.uses_graph:
            notes.append(OWN_RECORD_ALONE)
        return WhatIf(
            change=change.in_words(names, drugs),
            before=self.state(self.scene, list(self.named)),
            after=self.state(after, list(references)),
            left=tuple(left),
            joined=tuple(joined),
            newcomers=tuple(newcomers),
            support=support.word,
            notes=tuple(notes),
        )

    def prediction(self) -> Prediction:
        """Return what the model says, in words."""
        decision, probabilities = self.decision, self.probabilities
        chosen = self.decided if decision.label is None else (decision.label,)
        options = []
        for label in decision.options(probabilities, chosen):
            code = decision.labels[label]
            name, average = decision.names.get(code, code), self.shown_average(label)
            options.append(Option(code, name, float(probabilities[label]), label in chosen, average))
        explained = [decision.labels[place] for place in torch.nonzero(self.choice).flatten().tolist()]
        items = f"{decision.words.chosen} {decision.words.items}"
        return Prediction(
            question=decision.question(),
            answer=decision.in_words(probabilities),
            about=decision.event(self.decided) if decision.probability(probabilities) is not None else "",
            probability=decision.probability(probabilities),
            threshold=decision.threshold if decision.kind.has_threshold else None,
            target=decision.kind.target_in_words(decision.labels, explained, items),
            target_logit=self.target_logit(),
            options=tuple(options),
            options_title=decision.kind.options_title(decision.words.items),
            risk=self.risk,
            threshold_origin=decision.threshold_origin if decision.kind.has_threshold else "",
        )

    @cached_property
    def averages(self) -> Probabilities:
        """How frequent each output is among the training instances, [outputs]."""
        labels = self.scene.training_labels
        return np.asarray(self.decision.kind.targets(labels, len(self.probabilities)).mean(axis=0))

    def shown_average(self, output: int) -> float | None:
        """Return how frequent an output is; None where that would tell a small count of training instances."""
        total, average = len(self.scene.training_labels), float(self.averages[output])
        return None if tells_a_small_count(round(average * total), total) else average

    @cached_property
    def risk(self) -> Risk | None:
        """The shown probability against the average and against other patients; a set of codes has none."""
        if self.decision.is_set:
            return None
        column = self.decision.column(self.probabilities)
        value = float(self.probabilities[column])
        # Which class is the likeliest differs between patients: there is nothing to rank.
        others = np.empty(0) if self.decision.kind.adds_up else self.scene.other_probabilities[:, column]
        return Risk(value, self.shown_average(column), lower_share(value, others))

    def _risk_of(self, node: int) -> float | None:
        """Return the probability of the same event at another node; None where there is not one event for all."""
        if self.decision.is_set or self.decision.kind.adds_up:
            return None
        return float(self.scene.probabilities(node)[self.decision.column(self.probabilities)])

    def explanation(self, change: Change | None = None) -> Explanation:
        """Return the whole explanation, with a what-if where a change is asked for."""
        scene = self.scene
        person = person_of(scene, self.row, "patient", show_ids=self.show_ids)
        return Explanation(
            task=scene.task.name,
            title=scene.task.title,
            split=scene.whose,
            example=example_number(scene, self.row),
            mode=scene.mode,
            uses_graph=scene.uses_graph,
            patient=person,
            prediction=self.prediction(),
            support=self.support,
            references=tuple(self.explained(name, reference) for name, reference in self.named.items()),
            counter_references=self.counter_references(),
            turning=self.turning(),
            tied=self.evidence.as_json(),
            notes=tuple(notes_on(scene, bool(self.named))),
            settings=settings_in_words(scene),
            record=own_record(scene, self.row, person, self.evidence, self._risk_of),
            drugs=drug_matrix(scene, self.row, self.named, self.decision, self.probabilities)
            if self.decision.kind.is_set
            else None,
            what_if=self.what_if(change) if change else None,
            rules=rules(self.decision),
            moved=self.decision.moved(),
            disagreed=self.decision.disagreed,
        )


def _without_codes(codes: Mapping[Kind, CodeComparison]) -> tuple[str, ...]:
    """Return the mark of a reference that shares no diagnosis, procedure or drug; nothing for others."""
    shared = any(comparison.shared for comparison in codes.values())
    return () if shared else (f"no code in common: {ALIKE_WITHOUT_CODES}",)


def explain(
    scene: Scene,
    row: int,
    *,
    drug: str | None = None,
    threshold: float | None = None,
    show_ids: bool = False,
    change: Change | None = None,
) -> Explanation:
    """Explain the prediction for one instance row of a scene."""
    decision = decision_of_run(
        scene.run,
        newcomers=scene.newcomers,
        names=scene.cohort.names(scene.task.label_codes) if scene.task.label_codes else {},
        drug=drug,
        threshold=threshold,
    )
    return explainer_of(scene, row, decision, show_ids).explanation(change)


def explainer_of(scene: Scene, row: int, decision: Decision, show_ids: bool = False) -> Explainer:
    """Return the explainer of one instance: with exact shares where the scene has them."""
    from patients_like_me.explanation.reference_scene import ReferenceScene
    from patients_like_me.explanation.share_explainer import ShareExplainer

    kind = ShareExplainer if isinstance(scene, ReferenceScene) else Explainer
    return kind(scene, row, decision, show_ids)
