"""``frequency``: the label rates of the training split, the same probabilities for everyone.

The prevalence, the class shares, or each code's rate (so the most frequent drugs are recommended to everyone).
"""

from __future__ import annotations

import numpy as np

from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.contract import Fitted, RunContext, System, SystemSettings
from patients_like_me.systems.problem import Logits, Problem
from patients_like_me.tasks.instances import Instances


class FrequencySettings(SystemSettings):
    """Label rates of the training split: nothing to choose."""


def fit(problem: Problem, run: RunContext) -> Fitted:
    """Count the labels of the training split."""
    return Fitted(run.settings, {"rates": problem.rates})


def predict(fitted: Fitted, instances: Instances) -> Logits:
    """Return the rates for every instance."""
    return instances.task.kind.logits(np.tile(fitted.arrays["rates"], (len(instances), 1)))


SYSTEM = System(
    name="frequency",
    description="the label rates of the training split, the same for everyone",
    settings=FrequencySettings,
    capabilities=Capabilities(newcomers=True),
    fit=fit,
    predict=predict,
)
