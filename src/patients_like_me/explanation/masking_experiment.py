"""The paper's masking experiment: remove each target's first k references, by each method, and predict again.

The references are those that a page shows (up to ten, by cosine), or all neighbours. Edges are removed from the graph,
which is normalised again: for one target at a time, all else unchanged, or graph-wide, for all targets at once. A
target with fewer than k references loses all it has; one with none is predicted as before. Removed edges that mattered
change the scores; a method whose removals change them more than random ones has found references that the prediction
depends on. Three kinds of change are reported:

* the task's metrics, as in the paper (negative: the predictions became worse);
* the target logit (positive: what was removed had supported it);
* the probabilities, as mean absolute change, which needs no labels.

Intervals are a bootstrap over patients, and the difference from random is taken within each resample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch

from patients_like_me.evaluation.definitions import DEFINITIONS
from patients_like_me.evaluation.intervals import (
    Difference,
    Interval,
    interval_of,
    paired_difference,
    resampled_values,
)
from patients_like_me.evaluation.predictions import Predictions
from patients_like_me.explanation.agreement import ordered_entries
from patients_like_me.explanation.methods import Question
from patients_like_me.explanation.references import shown_places
from patients_like_me.explanation.target_edges import Floats, Integers
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.tasks.forms import MetricForm, mean_form, value_of
from patients_like_me.tasks.kinds import LabelKind
from patients_like_me.training.data import predicted
from patients_like_me.workers import Progress

#: Which edges of a target may be removed: those to the references that a page shows, or to all neighbours.
References = Literal["shown", "all"]
LOGIT: Final = "target_logit_fall"
PROBABILITY: Final = "probability_change"
RANDOM: Final = "random"
RANDOM_DRAWS: Final = 5
_BEFORE: Final = "before"


@dataclass(frozen=True)
class Masking:
    """What is removed: the first k references for each of ``ks``, of those that a page shows or of all neighbours.

    For one target at a time, or ``graph_wide``. ``replicates`` resamples of the patients give the intervals.
    """

    ks: Sequence[int] = tuple(range(1, 11))
    references: References = "shown"
    graph_wide: bool = False
    replicates: int = 500
    seed: int = 0


@dataclass(frozen=True)
class MaskedChange:
    """What removing the first k references by one method did to one measure."""

    method: str
    k: int
    measure: str
    value: float | None
    interval: Interval | None
    against_random: Difference | None

    def as_json(self) -> dict[str, Any]:
        """Return the change as plain data."""
        return {
            "method": self.method,
            "k": self.k,
            "measure": self.measure,
            "value": self.value,
            "interval": None if self.interval is None else self.interval.as_json(),
            "against_random": None if self.against_random is None else self.against_random.as_json(),
        }


@dataclass(frozen=True)
class MaskingResult:
    """All changes for one group of targets.

    ``fewer`` counts for each k the targets that have some references, but fewer than k. ``before`` are the metrics
    with nothing removed.
    """

    group: str
    instances: int
    patients: int
    with_references: int
    fewer: Mapping[int, int]
    before: Mapping[str, float | None]
    changes: tuple[MaskedChange, ...]
    references: References = "shown"
    graph_wide: bool = False

    def change(self, method: str, k: int, measure: str) -> MaskedChange:
        """Return one change."""
        return next(each for each in self.changes if (each.method, each.k, each.measure) == (method, k, measure))

    @property
    def methods(self) -> list[str]:
        """The methods, in the order in which they were asked."""
        return list(dict.fromkeys(change.method for change in self.changes))

    @property
    def measures(self) -> list[str]:
        """The measures, the task's metrics first."""
        return list(dict.fromkeys(change.measure for change in self.changes))

    @property
    def ks(self) -> list[int]:
        """The numbers of removed references."""
        return sorted({change.k for change in self.changes})

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "group": self.group,
            "references": self.references,
            "graph_wide": self.graph_wide,
            "instances": self.instances,
            "patients": self.patients,
            "with_references": self.with_references,
            "fewer_than_k": {str(k): count for k, count in self.fewer.items()},
            "before": dict(self.before),
            "changes": [change.as_json() for change in self.changes],
        }


def masked_logits(
    question: Question,
    scores: Floats,
    ks: Sequence[int],
    *,
    tie_seed: int = 0,
    graph_wide: bool = False,
    progress: Progress | None = None,
) -> Floats:
    """Return the logits [len(ks), targets, outputs] after the first k references of each target were removed."""
    edges = question.edges
    order = ordered_entries(edges, scores, seed=tie_seed)
    if graph_wide:
        return np.stack([_logits_on_masked_graph(question, order, k) for k in ks])
    counts = np.diff(edges.indptr)
    sizes = np.minimum(np.asarray(ks, dtype=np.int64)[:, None], counts[None, :])
    # The same removal is computed once, however many k it serves.
    numbers = np.broadcast_to(np.arange(len(edges)), sizes.shape)
    (targets, removed), which = np.unique(np.stack([numbers.ravel(), sizes.ravel()]), axis=1, return_inverse=True)
    indptr = np.concatenate([[0], np.cumsum(removed)])
    places = np.arange(indptr[-1]) + np.repeat(edges.indptr[targets] - indptr[:-1], removed)
    found = question.known.logits_without(
        edges.targets[targets],
        indptr,
        edges.entries[order[places]],
        threads=question.threads,
        progress=progress,
    )
    return found[which.reshape(sizes.shape)]


def _logits_on_masked_graph(question: Question, order: Integers, k: int) -> Floats:
    """Return the logits of all targets on the graph without the first k references of every one of them."""
    from patients_like_me.explanation.network_pass import pass_over

    edges, graph = question.edges, question.graph
    rank = np.arange(edges.edges) - edges.indptr[:-1][edges.target_of_edge]
    removed = order[rank < k]
    ends = edges.targets[edges.target_of_edge[removed]], edges.neighbors[removed]
    # An edge is one thing in both directions: a pair of nodes, the smaller first.
    gone = np.minimum(*ends) * len(graph) + np.maximum(*ends)
    rows, columns = np.repeat(np.arange(len(graph)), graph.degrees), graph.neighbors.astype(np.int64)
    left = ~np.isin(np.minimum(rows, columns) * len(graph) + np.maximum(rows, columns), gone)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[left], minlength=len(graph)))]).astype(np.int64)
    masked = PatientGraph(graph.sets, graph.settings, indptr, graph.neighbors[left], graph.weights[left])
    found: Floats = pass_over(question.network, masked, question.embeddings).logits[edges.targets]
    return found


def of_references(
    question: Question, scores: Mapping[str, Floats], references: References
) -> tuple[Question, dict[str, Floats]]:
    """Return the question and the scores restricted to the references that a page shows; ``all`` keeps all edges."""
    if references == "all":
        return question, dict(scores)
    directions = torch.nn.functional.normalize(question.embeddings.double(), dim=1).numpy()
    places = np.sort(shown_places(question.edges, question.weights.astype(np.int64), directions))
    shown = replace(question, edges=question.edges.some(places))
    return shown, {name: values[places] for name, values in scores.items()}


def masking_experiment(
    question: Question,
    scores: Mapping[str, Floats],
    labels: npt.NDArray[np.int64],
    subjects: npt.NDArray[Any],
    metrics: Sequence[str],
    masking: Masking,
    *,
    group: str = "all",
    progress: Callable[[str], None] = lambda _: None,
) -> MaskingResult:
    """Mask by every method and compare with random; ``labels`` and ``subjects`` belong to the question's targets.

    Random removal is always among the methods: the mean over several draws. ``scores`` belong to all edges of the
    question, whichever of them may be removed.
    """
    question, scores = of_references(question, scores, masking.references)
    ks, replicates, seed = masking.ks, masking.replicates, masking.seed
    before = Predictions.of(
        question.kind, labels, predicted(question.kind, torch.from_numpy(question.logits)), subjects
    )
    forms: dict[tuple[str, int, int, str], MetricForm] = {}
    names = [name for name in scores if name != RANDOM] + [RANDOM]
    for name in names:
        progress(f"masking by {name}")
        draws = _draws(question, seed) if name == RANDOM else [scores[name]]
        for draw, ranking in enumerate(draws):
            told = partial(_tell, progress, name)
            logits = masked_logits(question, ranking, ks, tie_seed=seed, graph_wide=masking.graph_wide, progress=told)
            for place, k in enumerate(ks):
                for measure, form in _forms(question, before, logits[place], metrics).items():
                    forms[name, draw, k, measure] = form
    base = {(_BEFORE, 0, 0, metric): _metric_form(metric, before) for metric in metrics}
    progress(f"resampling {before.number_of_patients:,} patients {replicates:,} times")
    resampled = resampled_values(forms | base, before.number_of_patients, replicates=replicates, seed=seed)
    start = {key[3]: value_of(form, before) for key, form in base.items()}

    def change(name: str, k: int, measure: str) -> tuple[float | None, Floats]:
        drawn = [key for key in forms if (key[0], key[2], key[3]) == (name, k, measure)]
        values = [value_of(forms[key], before) for key in drawn]
        spread = np.mean([resampled[key] for key in drawn], axis=0)
        known = [value for value in values if value is not None]
        base_value = start.get(measure, 0.0)
        if len(known) < len(values) or base_value is None:
            return None, spread
        if measure in start:
            spread = spread - resampled[_BEFORE, 0, 0, measure]
        return float(np.mean(known)) - base_value, spread

    changes = []
    for measure in [*metrics, LOGIT, PROBABILITY]:
        for k in ks:
            by_chance = change(RANDOM, k, measure)
            for name in names:
                value, spread = change(name, k, measure)
                against = None if name == RANDOM else paired_difference(value, by_chance[0], spread, by_chance[1])
                interval = None if value is None else interval_of(spread)
                changes.append(MaskedChange(name, k, measure, value, interval, against))
    counts = np.diff(question.edges.indptr)
    return MaskingResult(
        group=group,
        instances=len(question.edges),
        patients=before.number_of_patients,
        with_references=int((counts > 0).sum()),
        fewer={k: int(((counts > 0) & (counts < k)).sum()) for k in ks},
        before=start,
        changes=tuple(changes),
        references=masking.references,
        graph_wide=masking.graph_wide,
    )


def _tell(progress: Callable[[str], None], name: str, done: int, total: int) -> None:
    progress(f"masking by {name}: part {done:,} of {total:,}")


def _draws(question: Question, seed: int) -> list[Floats]:
    return [np.random.default_rng([seed, draw]).random(question.edges.edges) for draw in range(RANDOM_DRAWS)]


def _forms(question: Question, before: Predictions, logits: Floats, metrics: Sequence[str]) -> dict[str, MetricForm]:
    probabilities = predicted(question.kind, torch.from_numpy(logits))
    after = Predictions(before.kind, before.labels, probabilities, before.patients)
    fall = ((question.logits - logits) * question.choice).sum(axis=1)
    moved = np.abs(probabilities - before.probabilities).reshape(len(logits), -1).mean(axis=1)
    forms = {metric: _metric_form(metric, after) for metric in metrics}
    return {**forms, LOGIT: mean_form(before, fall), PROBABILITY: mean_form(before, moved)}


def _metric_form(metric: str, predictions: Predictions) -> MetricForm:
    definition = next(each for each in DEFINITIONS if each.metric == metric and each.kind == predictions.kind)
    assert definition.form is not None, f"the metric {metric} needs a threshold"
    return definition.form(predictions)


def metrics_to_mask(kind: LabelKind, task_metrics: Sequence[str]) -> list[str]:
    """Return the AUPRC of the task (the paper's measure), and the task's own first metric where that is another one.

    >>> metrics_to_mask("multiclass", ("auroc_weighted", "auprc_macro", "f1_macro"))
    ['auprc_macro', 'auroc_weighted']
    """
    free = [each.metric for each in DEFINITIONS if each.kind == kind and each.form is not None]
    precise = next(name for name in free if name.startswith("auprc"))
    first = next((name for name in task_metrics if name in free), precise)
    return list(dict.fromkeys([precise, first]))
