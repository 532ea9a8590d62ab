"""The task's metrics by stratum, with small counts hidden.

A stratum with fewer than 11 patients or instances is hidden: neither its counts nor its metrics are given. Because
the total is known, one hidden stratum alone could be worked out from the others, and so could several that hold
fewer than 11 patients together. Therefore the next smallest strata of the dimension are hidden as well, until at least
two are hidden and together they hold at least 11 patients and 11 instances. The share of the outcome, without which an
AUPRC cannot be read, is hidden where fewer than 11 patients or instances are behind one side of it, by the same rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from patients_like_me.evaluation.hidden_parts import Group, hidden_shares
from patients_like_me.evaluation.intervals import REPLICATES, resampled_values
from patients_like_me.evaluation.measures import Measure, measures_of
from patients_like_me.evaluation.predictions import Predictions
from patients_like_me.evaluation.strata import Dimension
from patients_like_me.evaluation.thresholds import Threshold
from patients_like_me.plain_text import SMALLEST_SHOWN
from patients_like_me.tasks.forms import MetricForm
from patients_like_me.tasks.kinds import LabelKind

PREVALENCE: Final = "prevalence"
_TOO_FEW: Final = f"hidden: fewer than {SMALLEST_SHOWN} patients or instances with or without the outcome"


@dataclass(frozen=True)
class Subgroup:
    """One stratum: counts and measures, both None where it is hidden."""

    dimension: str
    stratum: str
    instances: int | None
    patients: int | None
    measures: tuple[Measure, ...] = ()

    @property
    def is_hidden(self) -> bool:
        """Tell whether the stratum is too small to be shown."""
        return self.instances is None

    def as_json(self) -> dict[str, Any]:
        """Return the stratum as plain data."""
        return {
            "dimension": self.dimension,
            "stratum": self.stratum,
            "instances": self.instances,
            "patients": self.patients,
            "hidden": self.is_hidden,
            "measures": [measure.as_json() for measure in self.measures],
        }


def hidden_strata(members: dict[str, tuple[int, frozenset[int]]], smallest: int = SMALLEST_SHOWN) -> frozenset[str]:
    """Return the strata to hide; ``members`` gives the number of instances and the patients of each.

    >>> sizes = {"a": (3, 3), "b": (20, 20), "c": (90, 90)}
    >>> members = {name: (size, frozenset(range(patients))) for name, (size, patients) in sizes.items()}
    >>> sorted(hidden_strata(members))
    ['a', 'b']
    """
    by_size = sorted(members, key=lambda name: (len(members[name][1]), members[name][0], name))
    hidden = [name for name in by_size if members[name][0] < smallest or len(members[name][1]) < smallest]
    for name in by_size:
        instances = sum(members[each][0] for each in hidden)
        patients = len(frozenset().union(*(members[each][1] for each in hidden)))
        if not hidden or (len(hidden) > 1 and instances >= smallest and patients >= smallest):
            break
        if name not in hidden:
            hidden.append(name)
    return frozenset(hidden)


def subgroups_of(
    predictions: Predictions,
    dimension: Dimension,
    metrics: Sequence[str],
    thresholds: Sequence[Threshold],
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> list[Subgroup]:
    """Return the named metrics of every stratum of a dimension, with intervals over its patients."""
    if dimension.stratum_of is None:
        return []
    rows = {stratum: np.flatnonzero(dimension.stratum_of == stratum) for stratum in dimension.strata}
    hidden = hidden_strata(
        {name: (len(found), frozenset(predictions.patients[found].tolist())) for name, found in rows.items()}
    )
    without_share = _strata_without_share(predictions, rows, hidden)
    groups = []
    for stratum, found in rows.items():
        if stratum in hidden:
            groups.append(Subgroup(dimension.name, stratum, None, None))
            continue
        part = predictions.take(found)
        measures = measures_of(part, thresholds, only=metrics)
        forms: dict[str, MetricForm] = {measure.name: measure.form for measure in measures if measure.form is not None}
        values = resampled_values(forms, part.number_of_patients, replicates=replicates, seed=seed)
        groups.append(
            Subgroup(
                dimension.name,
                stratum,
                len(part),
                part.number_of_patients,
                tuple(
                    replace(each, value=None, form=None, unavailable=_TOO_FEW)
                    if each.metric == PREVALENCE and stratum in without_share
                    else each.with_interval(values[each.name])
                    if each.name in values
                    else each
                    for each in measures
                ),
            )
        )
    if progress is not None:
        progress(1)
    return groups


def metrics_by_stratum(kind: LabelKind, primary: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics of a stratum: the task's first one, the AUROC and the share of the outcome, then the others.

    An AUPRC rises with the share of the outcome: without that beside it two strata cannot be compared.

    >>> from patients_like_me.tasks.kinds import BINARY
    >>> metrics_by_stratum(BINARY, ("auprc", "auroc"))
    ('auprc', 'auroc', 'prevalence')
    """
    return tuple(dict.fromkeys([primary[0], *kind.areas, PREVALENCE, *primary]))


def _strata_without_share(predictions: Predictions, rows: dict[str, Any], hidden: frozenset[str]) -> frozenset[str]:
    """Return the strata whose share of the outcome, or of the largest class, would reveal a small count."""
    if predictions.kind.is_set:
        return frozenset()
    largest = 1 if predictions.kind.is_event else int(np.bincount(predictions.labels).argmax())

    def group(chosen: Any) -> Group:
        return Group(len(chosen), frozenset(predictions.patients[chosen].tolist()))

    cells = {}
    for name, found in rows.items():
        has = predictions.labels[found] == largest
        cells[name] = group(found[has]), group(found[~has])
    return hidden_shares(cells, hidden)
