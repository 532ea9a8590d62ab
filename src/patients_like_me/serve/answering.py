"""How one patient is predicted and explained by an opened run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.explanation.bank_scene import (
    LinkedNewcomer,
    OpenedBank,
    brief_support,
    changed_newcomer,
    explain_newcomer,
)
from patients_like_me.explanation.decision import Decision
from patients_like_me.explanation.explain import explainer_of
from patients_like_me.explanation.explanation import Explanation
from patients_like_me.explanation.newcomers import scene_of_newcomers
from patients_like_me.explanation.opened_references import OpenedReferences, brief_explainer, explain_compared
from patients_like_me.explanation.reference_scene import shows_shares
from patients_like_me.explanation.support import Support
from patients_like_me.explanation.what_if import Change
from patients_like_me.model.batching import TOKENS_AT_ONCE, TokenizedPrompts
from patients_like_me.model.embedding import embed_prompts
from patients_like_me.model.gcn import GraphNetwork
from patients_like_me.model.prompt_inputs import inputs_of_tokens
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.newcomers import Newcomer, NewVisit
from patients_like_me.records.newcomers_at_once import QuickReader
from patients_like_me.serve.turns import READING
from patients_like_me.systems.returned_checks import checked_logits
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.kinds import Probabilities
from patients_like_me.tasks.one_instance import diagnosis_set_of_one, parts_of_one, seen_by_one
from patients_like_me.tasks.prompts import PromptParts, fit_to_budget
from patients_like_me.training.trained import TrainedModel

if TYPE_CHECKING:
    from patients_like_me.serve.model_state import OpenedModel

LOG: Final = logging.getLogger("patients_like_me.serve")
Counts = npt.NDArray[np.int64]
#: Of each reference whether it had the event; None where there is not one event, or its outcome is not known.
Outcomes = tuple[bool | None, ...]


class Answering(Protocol):
    """What every served run can do."""

    def warm(self) -> None:
        """Do now what the first request would have to wait for."""

    def predict(self, instances: Instances) -> tuple[Probabilities, Counts | None]:
        """Return probabilities [N, outputs], and how many references each has where the system has any."""
        ...

    def explain(self, instances: Instances, decision: Decision, change: Change | None = None) -> Explanation:
        """Explain the one instance that is given."""
        ...

    def glance(self, instances: Instances, decision: Decision) -> tuple[Probabilities, Support, Outcomes]:
        """Return what a list shows of one instance: probabilities, support, and what became of its references."""
        ...


class PlainAnswering:
    """Any system, by its own functions; what it cannot explain is refused in words."""

    def __init__(self, model: OpenedModel) -> None:
        self.model = model

    def warm(self) -> None:
        """Nothing is kept."""

    def predict(self, instances: Instances) -> tuple[Probabilities, Counts | None]:
        """Return probabilities [N, outputs], and how many references each has where the system has any."""
        predictor = self.model.predictor
        system, references = predictor.system, None
        if system.predict_linked is None:
            logits = system.predict(predictor.fitted, instances)
        else:
            logits, references = system.predict_linked(predictor.fitted, instances)
        logits = checked_logits(system, logits, instances.task.kind, len(instances), len(predictor.output_labels))
        return self.model.run.calibrated(instances.task.kind.probabilities(logits), newcomers=True), references

    def explain(self, instances: Instances, decision: Decision, change: Change | None = None) -> Explanation:
        """Refuse a system without references; explain others by a scene that is set for this patient alone."""
        run = self.model.run
        if not self.model.has_references:
            raise PlmError(
                f"this run trained the system '{run.identity.system}', which has no references: it predicts only",
                remedy="serve a run of a system with references; see plm systems",
            )
        scene = scene_of_newcomers(run, instances.cohort)
        return explainer_of(scene, int(scene.own_rows[0]), decision).explanation(change)

    def glance(self, instances: Instances, decision: Decision) -> tuple[Probabilities, Support, Outcomes]:
        """Return what a list shows of one instance, without the parts of a page that take longest."""
        scene = scene_of_newcomers(self.model.run, instances.cohort)
        explainer = explainer_of(scene, int(scene.own_rows[0]), decision)
        return explainer.probabilities, explainer.support, explainer.support.bits


class OpenedAnswering(PlainAnswering):
    """Runs with references: their bank is opened once."""

    opened: OpenedReferences | OpenedBank

    def warm(self) -> None:
        """Predict a first patient, and explain it where the cohort of the run is there: the next need not wait."""
        instances = self.model.instances_of(first_newcomer())
        self.predict(instances)
        try:
            self.opened.warm()
            self.explain(instances, self.model.decision())
        except PlmError as error:
            LOG.warning("predictions can be made but not explained: %s", error.problem)


class ReferenceAnswering(OpenedAnswering):
    """Runs whose references bring their outcomes: the bank is opened once, and a patient is looked up in it."""

    def __init__(self, model: OpenedModel) -> None:
        super().__init__(model)
        self.opened: OpenedReferences = OpenedReferences(model.run)

    def explain(self, instances: Instances, decision: Decision, change: Change | None = None) -> Explanation:
        """Explain one newcomer; one with another record is looked up again."""
        after = None
        if change and change.changes_record and change.tau is None:
            after = self.opened.compared(changed_newcomer(self.model.run, instances, change))
        return explain_compared(self.opened.compared(instances), decision, change, after)

    def glance(self, instances: Instances, decision: Decision) -> tuple[Probabilities, Support, Outcomes]:
        """Return what a list shows of one newcomer."""
        explainer = brief_explainer(self.opened.compared(instances), decision)
        return explainer.probabilities, explainer.support, explainer.support.bits


class GraphAnswering(OpenedAnswering):
    """Runs with a patient graph: the bank is opened once, and a patient costs one text and one row."""

    def __init__(self, model: OpenedModel) -> None:
        super().__init__(model)
        self.opened: OpenedBank = OpenedBank(model.run)
        self.trained: TrainedModel = model.predictor.fitted.state
        # Whoever embeds switches dropout off and back: once it is off, that changes nothing for others.
        self.trained.model.set_training(language=False, graph=False)
        self.trained.model.backbone.keep_in(self.trained.settings.precision)

    def predict(self, instances: Instances) -> tuple[Probabilities, Counts | None]:
        """Return probabilities [N, outputs], and the number of neighbours in the bank."""
        linked = self._linked(instances)
        logits = np.stack([one.logits for one in linked])
        probabilities = self.model.run.calibrated(instances.task.kind.probabilities(logits), newcomers=True)
        return probabilities, np.array([len(one.neighbors) for one in linked], dtype=np.int64)

    def explain(self, instances: Instances, decision: Decision, change: Change | None = None) -> Explanation:
        """Explain one newcomer; a change that concerns the record or tau is linked and embedded again."""
        before = self._linked(instances)[0]
        after = None
        if change:
            after = before
            if change.changes_record:
                after = self._linked(changed_newcomer(self.model.run, instances, change), change.tau)[0]
            elif change.tau is not None:
                (after,) = self.opened.linked(
                    instances, before.embedding[None], diagnosis_set_of_one(instances), change.tau
                )
        return explain_newcomer(before, decision, change, after)

    def glance(self, instances: Instances, decision: Decision) -> tuple[Probabilities, Support, Outcomes]:
        """Return what a list shows of one newcomer."""
        (newcomer,) = self._linked(instances)
        logits = newcomer.logits[None]
        probabilities = self.model.run.calibrated(instances.task.kind.probabilities(logits), newcomers=True)[0]
        return probabilities, *brief_support(newcomer, decision)

    def _linked(self, instances: Instances, tau: int | None = None) -> list[LinkedNewcomer]:
        if len(instances) != 1:
            sets = instances.diagnosis_sets
            embeddings = READING.submit(self.trained.embed, instances).result()
            return self.opened.linked(instances, embeddings, sets, tau)
        seen = seen_by_one(instances)
        part = parts_of_one(instances, seen)
        embedding = self._embedded(part)
        return self.opened.linked(instances, embedding, diagnosis_set_of_one(instances, seen), tau)

    def _embedded(self, part: PromptParts) -> Tensor:
        """Return the embedding of one prompt [1, width], as the trained model embeds it."""
        trained, backbone = self.trained, self.trained.model.backbone
        budget = min(trained.settings.max_tokens, backbone.max_tokens)
        # The tokens that were counted are those that are read.
        ids = backbone.uncut_token_ids([part.write()])
        if len(ids[0]) > budget:
            ids = backbone.uncut_token_ids([fit_to_budget(part, backbone.count_tokens, budget)[0]])

        def read() -> Tensor:
            # Of a frozen backbone these inputs are its vectors: whoever makes them has read the text.
            prompts = TokenizedPrompts.from_lists(ids, multiple=TOKENS_AT_ONCE, longest=backbone.max_tokens)
            inputs = inputs_of_tokens(backbone, prompts)
            return embed_prompts(trained.model, inputs, precision=trained.settings.precision)

        return READING.submit(read).result()


def first_newcomer() -> Cohort:
    """Return a made-up patient, for what is done before the first request."""
    found = QuickReader().cohort_of([Newcomer(age=70, sex="F", visits=(NewVisit(diagnoses=("I50.9",)),))])
    assert found is not None
    return found[0]


def answering_of(model: OpenedModel) -> Answering:
    """Return the fastest way that a run allows."""
    if shows_shares(model.run):
        return ReferenceAnswering(model)
    if not model.run.has_patient_graph:
        return PlainAnswering(model)
    # A network of another kind has other states, which cannot be kept.
    state = model.predictor.fitted.state
    own = isinstance(state, TrainedModel) and type(state.graph_network) is GraphNetwork
    return GraphAnswering(model) if own else PlainAnswering(model)
