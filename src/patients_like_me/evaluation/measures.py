"""Every number with its meaning attached: what it is, over what it is averaged, at which threshold.

A measure that is not available has the value None and says why. What is computed, and how, is in
:mod:`patients_like_me.evaluation.definitions`; value and resamples come from the same form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from patients_like_me.codes.interactions import Interactions
from patients_like_me.evaluation import drug_interactions
from patients_like_me.evaluation.definitions import DEFINITIONS, Best, Definition
from patients_like_me.evaluation.intervals import Interval, interval_of
from patients_like_me.evaluation.predictions import Predictions
from patients_like_me.evaluation.thresholds import Threshold
from patients_like_me.tasks.forms import Floats, MetricForm, value_of
from patients_like_me.tasks.kinds import MULTILABEL


@dataclass(frozen=True)
class Measure:
    """One number with its definition; ``unavailable`` is the reason where ``value`` is None."""

    name: str
    metric: str
    title: str
    value: float | None
    definition: str
    averaging: str
    best: Best = None
    threshold: Threshold | None = None
    interval: Interval | None = None
    unavailable: str | None = None
    form: MetricForm | None = field(default=None, repr=False, compare=False)

    def with_interval(self, values: Floats) -> Measure:
        """Return the measure with the interval of its resampled values."""
        return replace(self, interval=interval_of(values)) if self.value is not None else self

    def as_json(self) -> dict[str, Any]:
        """Return the measure as plain data."""
        return {
            "name": self.name,
            "metric": self.metric,
            "title": self.title,
            "value": self.value,
            "interval": None if self.interval is None else self.interval.as_json(),
            "threshold": None if self.threshold is None else self.threshold.as_json(),
            "definition": self.definition,
            "averaging": self.averaging,
            "best": self.best,
            "unavailable": self.unavailable,
        }


def measures_of(
    predictions: Predictions,
    thresholds: Sequence[Threshold] = (),
    *,
    only: Sequence[str] | None = None,
) -> list[Measure]:
    """Return every measure of these predictions (or those metrics named in ``only``), without intervals.

    >>> made = Predictions.of("binary", [0, 1], [0.1, 0.8])
    >>> [(found.name, found.value) for found in measures_of(made, only=["auroc", "prevalence"])]
    [('auroc', 1.0), ('prevalence', 0.5)]
    """
    found = []
    for definition in DEFINITIONS:
        if definition.kind != predictions.kind or (only is not None and definition.metric not in only):
            continue
        if definition.form is not None:
            found.append(_measure(definition, predictions, definition.form(predictions), None))
            continue
        assert definition.form_at is not None
        for threshold in thresholds:
            form = None if threshold.value is None else definition.form_at(predictions, threshold.value)
            found.append(_measure(definition, predictions, form, threshold))
    return found


def interaction_measures(
    predictions: Predictions, thresholds: Sequence[Threshold], interactions: Interactions | None
) -> list[Measure]:
    """Return the drug-drug-interaction rate of the likely sets and the share of unknown pairs, per threshold.

    The same for the sets that were really given is next to them. Without an installed table none is available.
    """
    known = "interacting pairs / pairs of codes that the interaction table covers"
    unknown = "pairs with a code that the interaction table does not cover / all pairs; unknown is not safe"
    cases: list[tuple[str, Threshold | None]] = [("likely", threshold) for threshold in thresholds]
    found = []
    for sets, threshold in [*cases, ("given", None)]:
        for metric, title, text, make, best in (
            ("interaction_rate", "Interaction rate", known, drug_interactions.interaction_rate_form, "low"),
            ("interaction_unknown", "Pairs unknown", unknown, drug_interactions.unknown_share_form, None),
        ):
            definition = Definition(
                metric if sets == "likely" else f"{metric}_given",
                MULTILABEL,
                f"{title}, {sets} drugs",
                f"{text}, in the {sets} sets",
                "over all pairs of all instances",
                best if sets == "likely" else None,  # type: ignore[arg-type]
                f"no {sets} set has such a pair",
            )
            if interactions is None:
                reason = "no table of drug interactions is installed (plm codes status says how)"
                found.append(_measure(replace(definition, unavailable=reason), predictions, None, threshold))
                continue
            at = None if threshold is None else threshold.value
            missing = threshold is not None and at is None
            form = None if missing else make(predictions, interactions, at)
            found.append(_measure(definition, predictions, form, threshold))
    return found


def _measure(
    definition: Definition, predictions: Predictions, form: MetricForm | None, threshold: Threshold | None
) -> Measure:
    value = None if form is None else value_of(form, predictions)
    reason = None
    if value is None:
        reason = definition.unavailable
        if not len(predictions):
            reason = "no instances"
        elif threshold is not None and threshold.value is None:
            reason = "no threshold could be tuned: validation has no positive label"
    return Measure(
        name=definition.metric if threshold is None else f"{definition.metric}@{threshold.name}",
        metric=definition.metric,
        title=definition.title,
        value=value,
        definition=definition.definition,
        averaging=definition.averaging,
        best=definition.best,
        threshold=threshold,
        unavailable=reason,
        form=form if value is not None else None,
    )
