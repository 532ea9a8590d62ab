"""The metrics that tasks name, as functions of labels and probabilities; None where one is not available.

They are computed by the forms of :mod:`patients_like_me.tasks.forms`, each instance being a patient of its own, so that
the score of an epoch and the value with its interval in an evaluation are the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.tasks import forms
from patients_like_me.tasks.forms import MetricForm, Scored, value_of
from patients_like_me.tasks.kinds import BINARY, MULTICLASS, MULTILABEL, PAPER_THRESHOLD, LabelKind, Labels

Probabilities = npt.NDArray[np.floating[Any]]
Metric = Callable[[Labels, Probabilities], float | None]


def _metric(kind: LabelKind, form: Callable[[Scored], MetricForm]) -> Metric:
    def value(labels: Labels, probabilities: Probabilities) -> float | None:
        exact = np.asarray(probabilities, dtype=np.float64)
        scored = Scored(kind, np.asarray(labels, dtype=np.int64), exact, np.arange(len(labels)))
        return value_of(form(scored), scored)

    return value


#: Set metrics are at the paper's threshold.
METRICS: Final[Mapping[str, Metric]] = {
    "auprc": _metric(BINARY, forms.auprc_form),
    "auroc": _metric(BINARY, forms.auroc_form),
    "auroc_weighted": _metric(MULTICLASS, forms.auroc_weighted_form),
    "auprc_macro": _metric(MULTICLASS, forms.auprc_macro_form),
    "f1_macro": _metric(MULTICLASS, forms.f1_macro_form),
    "auprc_per_instance": _metric(MULTILABEL, forms.auprc_per_instance_form),
    "f1_per_instance": _metric(MULTILABEL, partial(forms.f1_per_instance_form, threshold=PAPER_THRESHOLD)),
    "jaccard_per_instance": _metric(MULTILABEL, partial(forms.jaccard_per_instance_form, threshold=PAPER_THRESHOLD)),
}


def score(names: tuple[str, ...], labels: Labels, probabilities: Probabilities) -> dict[str, float | None]:
    """Return the named metrics of one set of predictions.

    >>> score(("auprc", "auroc"), np.array([0, 1, 1]), np.array([0.2, 0.9, 0.1]))
    {'auprc': 0.8333333333333333, 'auroc': 0.5}
    """
    if not np.isfinite(probabilities).all() or (probabilities < 0).any() or (probabilities > 1).any():
        raise PlmError("a probability is outside 0 to 1", remedy="the predictions are damaged: make them again")
    return {name: METRICS[name](labels, probabilities) for name in names}
