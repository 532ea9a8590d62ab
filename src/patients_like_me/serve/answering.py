"""How one patient is predicted and explained by an opened run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.explanation.decision import Decision
from patients_like_me.explanation.explain import explainer_of
from patients_like_me.explanation.explanation import Explanation
from patients_like_me.explanation.newcomers import scene_of_newcomers
from patients_like_me.explanation.what_if import Change
from patients_like_me.systems.contract import checked_logits
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.kinds import Probabilities

if TYPE_CHECKING:
    from patients_like_me.serve.model_state import OpenedModel

Counts = npt.NDArray[np.int64]


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
        logits = checked_logits(system, logits, len(instances), len(predictor.output_labels))
        return self.model.run.calibrated(instances.task.kind.probabilities(logits), newcomers=True), references

    def explain(self, instances: Instances, decision: Decision, change: Change | None = None) -> Explanation:
        """Refuse a system without references; explain others by a scene of their own."""
        run = self.model.run
        if not self.model.has_references:
            raise PlmError(
                f"this run trained the system '{run.identity.system}', which has no references: it predicts only",
                remedy="serve a run of a system with references; see plm systems",
            )
        scene = scene_of_newcomers(run, instances.cohort)
        return explainer_of(scene, int(scene.own_rows[0]), decision).explanation(change)


def answering_of(model: OpenedModel) -> Answering:
    """Return the fastest way that a run allows."""
    return PlainAnswering(model)
