"""What a prediction means, in words; which outcomes agree with it; and when it would be another decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.predictions import Predictions, read_predictions
from patients_like_me.evaluation.thresholds import Threshold, tuned_threshold
from patients_like_me.explanation.targets import output_of_label
from patients_like_me.plain_text import counted, counted_of, printable
from patients_like_me.runs.run import Run
from patients_like_me.tasks.kinds import LabelKind, Probabilities
from patients_like_me.tasks.task import Task, Words

#: A reference agrees with a recommended set if it received at least this share of it.
SET_AGREEMENT: Final = 0.5


@dataclass(frozen=True)
class Decision:
    """How the probabilities of one task are read: as yes or no, a class, one drug or a set of drugs.

    ``labels`` are the words for classes or codes, ``names`` the readable names of codes. ``label`` is a column of the
    outputs where one drug was chosen. All sentences use the words of the task under its settings.

    >>> from patients_like_me.tasks.registry import find_task
    >>> stay = Decision(find_task("length_of_stay"), ("short", "middle", "long"))
    >>> stay.key(np.array([0.2, 0.7, 0.1])), stay.agrees(2, 1), stay.agrees(0, 2)
    ((1,), True, False)
    """

    task: Task
    labels: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=dict)
    label: int | None = None
    threshold: float = 0.5
    threshold_origin: str = ""

    @property
    def kind(self) -> LabelKind:
        """The kind of label."""
        return self.task.kind

    @property
    def words(self) -> Words:
        """The words of the task."""
        return self.task.words

    @property
    def ordered(self) -> bool:
        """Tell whether neighbouring classes are alike, so that a reference one class off still agrees."""
        return self.task.ordered

    @property
    def is_set(self) -> bool:
        """Tell whether the decision is a whole set of codes."""
        return self.kind.is_set and self.label is None

    def key(self, probabilities: Probabilities) -> tuple[int, ...]:
        """Return the decision as numbers: equal keys are equal decisions."""
        return self.kind.key(probabilities, self.threshold, self.label)

    def margin(self, probabilities: Probabilities, decided: tuple[int, ...]) -> float:
        """Return how far probabilities are from another decision than ``decided``; at 0 and below it is another one."""
        return self.kind.margin(probabilities, decided, self.threshold, self.label)

    def probability(self, probabilities: Probabilities) -> float | None:
        """Return the one probability that is shown for the prediction; a set of drugs has none."""
        return None if self.is_set else float(probabilities[self.column(probabilities)])

    def column(self, probabilities: Probabilities) -> int:
        """Return the output that the probability belongs to."""
        return self.kind.column(probabilities, self.label)

    def moved(self) -> str:
        """Return what a reference raises or lowers."""
        if self.is_set:
            return f"the probabilities of these {self.words.items}"
        return self.kind.probability_word

    def question(self) -> str:
        """Return what the probability is about, in a few words."""
        return self.words.about if self.label is None else f"{self.words.item} {self.named(self.label)}"

    def in_words(self, probabilities: Probabilities) -> str:
        """Return the decision as a person says it."""
        key = self.key(probabilities)
        if self.is_set:
            return counted(
                len(key), f"{self.words.chosen} {self.words.item}", f"{self.words.chosen} {self.words.items}"
            )
        if self.label is not None:
            return f"{self.words.chosen} {self.words.had}" if key[0] else f"not {self.words.chosen} {self.words.had}"
        return self.labels[key[0]]

    def named(self, label: int) -> str:
        """Return a label with its name."""
        code = self.labels[label]
        name = self.names.get(code, code)
        return code if name == code else f"{code} ({name})"

    def plain_name(self, label: int) -> str:
        """Return the name of a label alone, or the label where it has none."""
        return self.names.get(self.labels[label], self.labels[label])

    def agrees(self, outcome: Any, decided: int | tuple[int, ...]) -> bool:
        """Tell whether a known outcome is what was decided; ``outcome`` is a row of the instances' labels."""
        key = (decided,) if isinstance(decided, int) else decided
        return self.kind.agrees(outcome, key, self.label, ordered=self.ordered, share=SET_AGREEMENT)

    @property
    def agreed(self) -> str:
        """Say what references did whose outcome agrees: what :meth:`agrees` counts."""
        if self.is_set:
            return f"{self.words.had} at least half of the {self.words.chosen} {self.words.items}"
        return "had the predicted class or an adjacent one" if self.ordered else "had the predicted outcome"

    @property
    def disagreed(self) -> str:
        """Say whose outcome does not agree, after "patients"."""
        if self.is_set:
            return f"who {self.words.had} less than half of the {self.words.chosen} {self.words.items}"
        if self.ordered:
            return "whose class is neither the predicted one nor an adjacent one"
        return "whose outcome is not what was predicted"

    def outcome_in_words(self, outcome: Any, decided: tuple[int, ...]) -> str:
        """Return the known outcome of a reference in words."""
        words = self.words
        if self.label is not None:
            return f"{words.had if outcome[self.label] else words.had_not} {self.labels[self.label]}"
        if self.is_set:
            present = np.flatnonzero(outcome)
            of_set = int(np.isin(present, decided).sum())
            others = counted(len(present) - of_set, "other") if len(present) > of_set else "no other"
            return f"{words.had} {of_set} of {len(decided)} {words.chosen} {words.items} and {others}"
        return (words.outcomes or self.labels)[int(outcome)]

    def counted(self, outcomes: Sequence[Any], decided: tuple[int, ...]) -> str:
        """Return in one sentence what became of the references."""
        total, words = len(outcomes), self.words
        agree = sum(self.agrees(outcome, decided) for outcome in outcomes)
        if self.is_set:
            return counted_of(agree, total, self.agreed)
        happened = self.kind.happened(np.asarray(outcomes), decided, self.label)
        number = 0 if happened is None or not total else int(happened.sum())
        if self.label is not None:
            return counted_of(number, total, f"{words.had} {self.named(self.label)}")
        outcome = words.happened or f"had the {self.kind.outcome_word} “{self.event(decided)}”"
        near = f", {agree} of {total} this class or an adjacent one" if self.ordered else ""
        return f"{counted_of(number, total, outcome)}{near}"

    def options(self, probabilities: Probabilities, chosen: tuple[int, ...]) -> list[int]:
        """Return the outputs that a page lists: classes with an order in that order, others the most probable first."""
        places = self.kind.options(probabilities, chosen)
        return sorted(places) if self.ordered and not self.kind.is_set else places

    def happened(self, labels: npt.NDArray[np.int64], decided: tuple[int, ...]) -> npt.NDArray[np.bool_] | None:
        """Return for which instances the event of the decision happened; a set of drugs is not one event."""
        return self.kind.happened(labels, decided, self.label)

    def event(self, decided: tuple[int, ...]) -> str:
        """Return the event's name: what :meth:`happened` counts."""
        return self.named(self.label or 0) if self.kind.is_set else self.labels[self.kind.event(decided)]


def decision_of_run(
    run: Run, *, names: Mapping[str, str] | None = None, newcomers: bool = False, **options: Any
) -> Decision:
    """Return how the probabilities of a run are read: by a threshold tuned on its validation, or a given one."""
    tuned = None
    if run.task.kind.has_threshold and options.get("threshold") is None:
        tuned = not_below_average(read_predictions(run, newcomers=newcomers).of_split("validation"))
    return decision_for(run.task, run.label_vocabulary, names=names, tuned=tuned, **options)


def not_below_average(validation: Predictions) -> Threshold:
    """Return the tuned threshold; for a yes-or-no task at least the average predicted risk.

    Where the outcome is rare, or a model hardly tells patients apart, F1 is highest if nearly everybody is called yes,
    and a patient of low risk would be said to have the outcome.

    >>> not_below_average(Predictions.of("binary", [1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4])).value
    0.25
    """
    tuned = tuned_threshold(validation)
    if tuned.value is None or validation.probabilities.ndim != 1:
        return tuned
    average = float(validation.probabilities.mean())
    if tuned.value >= average:
        return tuned
    return replace(
        tuned,
        value=average,
        origin="the average predicted risk on validation; F1 is highest there with a lower threshold",
    )


def decision_for(
    task: Task,
    labels: tuple[str, ...],
    *,
    names: Mapping[str, str] | None = None,
    drug: str | None = None,
    threshold: float | None = None,
    tuned: Threshold | None = None,
) -> Decision:
    """Return how a task's probabilities are read; ``drug`` chooses one code of a multi-label task.

    The decision is by the ``threshold`` that is given, else by the one that was tuned on validation, else by the usual
    one of the kind of label.

    >>> from patients_like_me.tasks.registry import find_task
    >>> decision_for(find_task("drug_recommendation"), ("A02B", "A10A"), drug="a10a").label
    1
    """
    label = None
    if drug is not None:
        if not task.kind.is_set:
            raise PlmError(f"--drug means nothing for the task '{task.name}'", remedy="leave it out")
        written = {code.upper(): code for code in labels}
        label = output_of_label(written.get(drug.upper(), drug), labels)
    if threshold is not None and not 0 < threshold < 1:
        raise PlmError(f"the threshold {threshold:g} is not a probability", remedy="give a number between 0 and 1")
    value, origin = task.kind.threshold or Decision.threshold, "the usual one, for validation could tune none"
    if threshold is not None:
        value, origin = threshold, "given"
    elif tuned is not None and tuned.value is not None:
        value, origin = tuned.value, tuned.origin
    return Decision(
        task=task,
        labels=tuple(printable(word) for word in labels),
        names={printable(code): printable(name) for code, name in (names or {}).items()},
        label=label,
        threshold=value,
        threshold_origin=origin,
    )
