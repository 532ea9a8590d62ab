"""What a prediction says, in words; which outcomes agree with it; and when it would be another decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.explanation.targets import output_of_label
from patients_like_me.plain_text import counted, printable
from patients_like_me.tasks.metrics import PAPER_THRESHOLD
from patients_like_me.tasks.task import LabelKind, Task

#: A yes-or-no answer is yes from here on; a drug is recommended from the paper's threshold on.
BINARY_THRESHOLD = 0.5
#: A reference agrees with a recommended set if it received at least this share of it.
SET_AGREEMENT = 0.5

Chances = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Decision:
    """How the probabilities of one task are read: as yes or no, a class, one drug or a set of drugs.

    ``label`` is a column of the outputs where one drug was chosen. ``labels`` are the words for classes or codes;
    ``ordered`` says that neighbouring classes are alike (days of a stay), so a reference one class off still agrees.

    >>> stay = Decision("length_of_stay", "multiclass", ("short", "middle", "long"), ordered=True)
    >>> stay.key(np.array([0.2, 0.7, 0.1])), stay.agrees(2, 1), stay.agrees(0, 2)
    ((1,), True, False)
    """

    task: str
    kind: LabelKind
    labels: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=dict)
    label: int | None = None
    threshold: float = BINARY_THRESHOLD
    ordered: bool = False
    window: str = ""

    def key(self, chances: Chances) -> tuple[int, ...]:
        """Return the decision as numbers: equal keys are equal decisions."""
        if self.kind == "multiclass":
            return (int(np.argmax(chances)),)
        if self.kind == "multilabel" and self.label is None:
            return tuple(np.flatnonzero(chances >= self.threshold).tolist())
        return (int(chances[self.label or 0] >= self.threshold),)

    def margin(self, chances: Chances, decided: tuple[int, ...]) -> float:
        """Return how far probabilities are from another decision than ``decided``; at 0 and below it is another one."""
        if self.kind == "multiclass":
            others = np.delete(chances, decided[0])
            return float(chances[decided[0]] - others.max(initial=0.0))
        if self.kind == "multilabel" and self.label is None:
            inside = np.isin(np.arange(len(chances)), decided)
            return float(np.where(inside, chances - self.threshold, self.threshold - chances).min())
        above = float(chances[self.label or 0]) - self.threshold
        return above if decided[0] else -above

    def probability(self, chances: Chances) -> float | None:
        """Return the one probability that stands for the prediction; a set of drugs has none."""
        if self.kind == "multilabel" and self.label is None:
            return None
        return float(chances[self.column(chances)])

    def column(self, chances: Chances) -> int:
        """Return the output that the probability belongs to."""
        return int(np.argmax(chances)) if self.kind == "multiclass" else self.label or 0

    def question(self) -> str:
        """Return what the probability is about, in a few words."""
        if self.task == "readmission":
            return f"readmission within {self.window} days"
        if self.kind == "binary":
            return self.labels[-1]
        if self.kind == "multiclass":
            return "length of stay" if self.task == "length_of_stay" else self.task.replace("_", " ")
        return "recommended drugs" if self.label is None else f"drug {self.named(self.label)}"

    def in_words(self, chances: Chances) -> str:
        """Return the decision as a person says it."""
        key = self.key(chances)
        if self.kind == "multiclass":
            return self.labels[key[0]]
        if self.kind == "binary":
            return self.labels[key[0]] if len(self.labels) > 1 else ("yes" if key[0] else "no")
        if self.label is not None:
            return "recommended" if key[0] else "not recommended"
        return f"{counted(len(key), 'drug')} recommended"

    def named(self, label: int) -> str:
        """Return a label with its name."""
        code = self.labels[label]
        name = self.names.get(code, code)
        return code if name == code else f"{code} ({name})"

    def agrees(self, outcome: Any, decided: int | tuple[int, ...]) -> bool:
        """Tell whether a known outcome is what was decided; ``outcome`` is a row of the instances' labels."""
        key = (decided,) if isinstance(decided, int) else decided
        if self.kind == "multilabel" and self.label is None:
            return not key or float(np.mean(np.asarray(outcome)[list(key)])) >= SET_AGREEMENT
        if self.kind == "multilabel":
            return bool(int(outcome[self.label]) == key[0])
        if self.kind == "multiclass" and self.ordered:
            return abs(int(outcome) - key[0]) <= 1
        return int(outcome) == key[0]

    def outcome_in_words(self, outcome: Any, decided: tuple[int, ...]) -> str:
        """Return the known outcome of a reference in words."""
        if self.kind == "multilabel" and self.label is not None:
            return f"{'received' if outcome[self.label] else 'did not receive'} {self.labels[self.label]}"
        if self.kind == "multilabel":
            received = np.flatnonzero(outcome)
            of_set = int(np.isin(received, decided).sum())
            return f"received {of_set} of {len(decided)} recommended drugs, {len(received) - of_set} others"
        if self.task == "readmission":
            return f"readmitted within {self.window} days" if int(outcome) else "not readmitted"
        return self.labels[int(outcome)]

    def counted(self, outcomes: Sequence[Any], decided: tuple[int, ...]) -> str:
        """Return in one sentence what became of the references."""
        total = len(outcomes)
        if self.kind == "multilabel" and self.label is None:
            agree = sum(self.agrees(outcome, decided) for outcome in outcomes)
            return f"{agree} of {total} received at least half of the recommended drugs"
        if self.kind == "multilabel":
            yes = sum(bool(outcome[self.label]) for outcome in outcomes)
            return f"{yes} of {total} received {self.named(self.label or 0)}"
        if self.kind == "binary":
            yes = sum(bool(int(outcome)) for outcome in outcomes)
            told = "were readmitted" if self.task == "readmission" else f"had the outcome “{self.labels[-1]}”"
            return f"{yes} of {total} {told}"
        same = sum(int(outcome) == decided[0] for outcome in outcomes)
        near = sum(self.agrees(outcome, decided) for outcome in outcomes)
        beside = f", {near} of {total} this class or one beside it" if self.ordered else ""
        return f"{same} of {total} had the predicted class “{self.labels[decided[0]]}”{beside}"

    def happened(self, labels: npt.NDArray[np.int64], decided: tuple[int, ...]) -> npt.NDArray[np.bool_] | None:
        """Return for which instances the event happened that the decision is about; a set of drugs is no one event."""
        if self.kind == "multilabel":
            return None if self.label is None else np.asarray(labels[:, self.label] == 1)
        return np.asarray(labels == (1 if self.kind == "binary" else decided[0]))

    def event(self, decided: tuple[int, ...]) -> str:
        """Return the event's name: what :meth:`happened` counts."""
        if self.kind == "multilabel":
            return self.named(self.label or 0)
        return self.labels[1 if self.kind == "binary" else decided[0]]


def decision_for(
    task: Task,
    labels: tuple[str, ...],
    *,
    names: Mapping[str, str] | None = None,
    drug: str | None = None,
    threshold: float | None = None,
    window_days: float = 15,
) -> Decision:
    """Return how a task's probabilities are read; ``drug`` chooses one code of a multi-label task.

    >>> from patients_like_me.tasks.registry import find_task
    >>> decision_for(find_task("drug_recommendation"), ("A02B", "A10A"), drug="a10a").label
    1
    """
    label = None
    if drug is not None:
        if task.kind != "multilabel":
            raise PlmError(f"--drug means nothing for the task '{task.name}'", remedy="leave it out")
        written = {code.upper(): code for code in labels}
        label = output_of_label(written.get(drug.upper(), drug), labels)
    if threshold is not None and not 0 < threshold < 1:
        raise PlmError(f"the threshold {threshold:g} is no probability", remedy="give a number between 0 and 1")
    usual = PAPER_THRESHOLD if task.kind == "multilabel" else BINARY_THRESHOLD
    return Decision(
        task=task.name,
        kind=task.kind,
        labels=tuple(printable(word) for word in labels),
        names={printable(code): printable(name) for code, name in (names or {}).items()},
        label=label,
        threshold=usual if threshold is None else threshold,
        ordered=task.name == "length_of_stay",
        window=f"{window_days:g}",
    )
