"""The three kinds of label, one object each: everything that depends on whether a label is yes or no, a class or a set.

========== ======================== ============================== ====================================================
kind       labels                   logits and probabilities       loss of an instance
========== ======================== ============================== ====================================================
binary     [N], 0 or 1              [N, 1], sigmoid                binary cross-entropy
multiclass [N], number of the class [N, classes], softmax          cross-entropy
multilabel [N, codes], 0 or 1       [N, codes], sigmoid            binary cross-entropy, averaged over the codes
========== ======================== ============================== ====================================================

A kind is a piece of text, its name, which is what JSON files keep; :func:`kind_named` turns the name into the kind.
What each method means is said in :mod:`patients_like_me.tasks.label_kind`.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.tasks.label_kind import Key as Key
from patients_like_me.tasks.label_kind import LabelKind as LabelKind
from patients_like_me.tasks.label_kind import Labels as Labels
from patients_like_me.tasks.label_kind import Probabilities as Probabilities

if TYPE_CHECKING:
    import torch
    from torch import Tensor

#: The paper's threshold for calling a drug likely.
PAPER_THRESHOLD: Final = 0.2


class _Binary(LabelKind):
    __slots__ = ()
    metrics = ("auprc", "auroc")
    areas = ("auprc", "auroc")
    tuned_for = ("f1", "F1")
    dimensions = 1
    description = "one yes-or-no label (binary cross-entropy)"
    brier_words = ("mean squared difference between probability and outcome; 0 to 1", "over instances")
    calibrated = "instances"
    output_words = "a probability; yes-or-no at 0.2 and at a threshold tuned on validation, see Metrics"
    target_words = "the logit of the positive label"
    probability_word = "the risk"
    asked_words = "a probability from 0 to 1"

    @property
    def is_event(self) -> bool:
        return True

    def outputs(self, labels: int) -> int:
        del labels
        return 1

    def in_shape(self, probabilities: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return probabilities[:, 0]

    def as_lists(self, targets: npt.NDArray[Any]) -> list[list[int]]:
        return [[int(row[0])] for row in targets]

    def sampled(self, logits: Tensor, *, generator: torch.Generator) -> Tensor:
        return super().sampled(logits, generator=generator).squeeze(1)


class _Multiclass(LabelKind):
    __slots__ = ()
    threshold = None
    metrics = ("auroc_weighted", "auprc_macro", "f1_macro")
    areas = ("auprc_macro", "auroc_weighted")
    adds_up = True
    description = "one class (cross-entropy)"
    brier_words = ("squared differences summed over the classes; 0 to 2", "over instances")
    comparison = "the highest probability and how often its class is right"
    outcome_word = "predicted class"
    calibrated = "instances, by their highest probability"
    pairs = "over all pairs of instance and class"
    output_words = "a probability for every class; the likeliest is the predicted one"
    target_words = "the logit of the predicted class"

    @property
    def error_pairs(self) -> str:
        return "over instances"

    def largest_label(self, outputs: int) -> int:
        return outputs - 1

    def targets(self, labels: npt.NDArray[Any], outputs: int) -> Probabilities:
        return np.asarray(np.eye(outputs)[labels])

    def probabilities(self, logits: npt.NDArray[Any]) -> Probabilities:
        logits = np.asarray(logits, dtype=np.float64)
        shares = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def logits(self, probabilities: npt.NDArray[Any]) -> Probabilities:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(probabilities))

    def normalised(self, probabilities: Probabilities) -> Probabilities:
        return np.asarray(probabilities / probabilities.sum(axis=1, keepdims=True))

    def tensor_probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=1)

    def answers(self, outputs: int) -> int:
        return outputs

    def confidence(self, probabilities: Tensor) -> Tensor:
        return probabilities.amax(dim=1)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        from torch.nn import functional

        # Class numbers are whole numbers; a distribution over classes is a row of shares.
        targets = targets.to(logits.dtype) if targets.dim() == 2 else targets.long()
        return functional.cross_entropy(logits, targets, reduction="none")

    def sampled(self, logits: Tensor, *, generator: torch.Generator) -> Tensor:
        import torch

        return torch.multinomial(self.tensor_probabilities(logits.detach()), 1, generator=generator).squeeze(1)

    def base_rate_logits(self, labels: Tensor, outputs: int) -> Tensor:
        import torch

        counts = torch.bincount(labels.long(), minlength=outputs) + 0.5
        return (counts / counts.sum()).log()

    def rate(self, labels: Labels, classes: int) -> list[float]:
        counts = np.bincount(labels, minlength=classes)
        return [float(share) for share in counts / max(len(labels), 1)]

    def brier(self, squares: Probabilities) -> Probabilities:
        return np.asarray(squares.sum(axis=1))

    def risks(self, probabilities: npt.NDArray[Any]) -> Probabilities:
        return np.asarray(probabilities @ np.arange(probabilities.shape[1]))

    def risk_in_words(self, items: str, name: str) -> str:
        del items
        return f"expected {name}"

    def compared(self, labels: Labels, probabilities: npt.NDArray[Any]) -> tuple[Probabilities, Probabilities]:
        right = (probabilities.argmax(axis=1) == labels).astype(np.float64)
        return probabilities.max(axis=1, initial=0.0)[:, None], right[:, None]

    def key(self, probabilities: Probabilities, threshold: float, column: int | None) -> Key:
        del threshold, column
        return (int(np.argmax(probabilities)),)

    def margin(self, probabilities: Probabilities, decided: Key, threshold: float, column: int | None) -> float:
        del threshold, column
        others = np.delete(probabilities, decided[0])
        return float(probabilities[decided[0]] - others.max(initial=0.0))

    def column(self, probabilities: Probabilities, column: int | None) -> int:
        del column
        return int(np.argmax(probabilities))

    def event(self, decided: Key) -> int:
        return decided[0]

    def happened_in_words(self, happened: str) -> str:
        del happened
        return "had the predicted outcome"

    def agrees(self, outcome: Any, decided: Key, column: int | None, *, ordered: bool, share: float) -> bool:
        del column, share
        return abs(int(outcome) - decided[0]) <= (1 if ordered else 0)

    def options(self, probabilities: Probabilities, chosen: Container[int]) -> list[int]:
        del chosen
        order: list[int] = np.argsort(-probabilities, kind="stable").tolist()
        return order

    def target_in_words(self, labels: Sequence[str], chosen: Sequence[str], items: str) -> str:
        del labels, items
        return f"logit of the predicted class “{chosen[0]}”"

    def chosen(self, logits: Tensor, threshold: float) -> Tensor:
        import torch

        del threshold
        choice = torch.zeros_like(logits)
        choice[torch.arange(len(logits)), logits.argmax(dim=1)] = 1
        return choice

    def decision_logit(self, logits: Tensor, choice: Tensor) -> Tensor:
        chosen = choice > 0
        return logits[:, chosen].logsumexp(dim=1) - logits[:, ~chosen].logsumexp(dim=1)


class _Multilabel(LabelKind):
    __slots__ = ()
    threshold = PAPER_THRESHOLD
    metrics = ("auprc_per_instance", "f1_per_instance", "jaccard_per_instance")
    areas = ("auprc_per_instance", "auroc_per_code")
    tuned_for = ("f1_per_instance", "mean F1 per instance")
    description = "a set of codes (binary cross-entropy per code)"
    brier_words = ("squared differences averaged over the codes; 0 to 1", "over codes, then over instances")
    calibrated = "pairs of instance and code"
    pairs = "over all pairs of instance and code"
    output_words = "a probability for every code; a code counts as likely at 0.2 or more, or at a tuned threshold"
    target_words = "the sum of the logits of the likely codes"
    outside_words = "labels of validation and test that no training patient has count in no metric"
    metrics_words = "Threshold of the metrics of sets: 0.2. "

    @property
    def is_set(self) -> bool:
        return True

    def no_labels(self, instances: int, labels: int) -> Labels:
        return np.zeros((instances, labels), dtype=np.int64)

    def from_lists(self, lists: Sequence[Sequence[int]], labels: int) -> Labels:
        found = self.no_labels(len(lists), labels)
        for row, codes in enumerate(lists):
            found[row, list(codes)] = 1
        return found

    def losses(self, outputs: int) -> int:
        return outputs

    def rate(self, labels: Labels, classes: int) -> float | None:
        del classes
        return float(labels.sum(axis=1).mean()) if len(labels) else None

    def rate_in_words(self, rate: float | list[float] | None) -> str:
        return super().rate_in_words(rate) if rate is None else f"{rate:.1f} codes per instance"

    def label_in_words(self, label: Any, names: tuple[str, ...]) -> str:
        return ", ".join(code for code, on in zip(names, label, strict=True) if on)

    def risk_in_words(self, items: str, name: str) -> str:
        del name
        return f"expected number of {items}"

    def key(self, probabilities: Probabilities, threshold: float, column: int | None) -> Key:
        if column is not None:
            return super().key(probabilities, threshold, column)
        return tuple(np.flatnonzero(probabilities >= threshold).tolist())

    def margin(self, probabilities: Probabilities, decided: Key, threshold: float, column: int | None) -> float:
        if column is not None:
            return super().margin(probabilities, decided, threshold, column)
        inside = np.isin(np.arange(len(probabilities)), decided)
        return float(np.where(inside, probabilities - threshold, threshold - probabilities).min())

    def happened(self, labels: Labels, decided: Key, column: int | None) -> npt.NDArray[np.bool_] | None:
        del decided
        return None if column is None else np.asarray(labels[:, column] == 1)

    def agrees(self, outcome: Any, decided: Key, column: int | None, *, ordered: bool, share: float) -> bool:
        if column is not None:
            return super().agrees(outcome[column], decided, None, ordered=ordered, share=share)
        return not decided or float(np.mean(np.asarray(outcome)[list(decided)])) >= share

    def options(self, probabilities: Probabilities, chosen: Container[int]) -> list[int]:
        return [place for place in np.argsort(-probabilities, kind="stable").tolist() if place in chosen]

    def options_title(self, items: str) -> str:
        return items.capitalize()

    def target_in_words(self, labels: Sequence[str], chosen: Sequence[str], items: str) -> str:
        del labels
        return f"logit of {chosen[0]}" if len(chosen) == 1 else f"sum of the logits of the {len(chosen)} {items}"

    def chosen(self, logits: Tensor, threshold: float) -> Tensor:
        import torch

        recommended = self.tensor_probabilities(logits) >= threshold
        recommended[torch.arange(len(logits)), logits.argmax(dim=1)] |= ~recommended.any(dim=1)
        return recommended.to(logits.dtype)


BINARY: Final[LabelKind] = _Binary("binary")
MULTICLASS: Final[LabelKind] = _Multiclass("multiclass")
MULTILABEL: Final[LabelKind] = _Multilabel("multilabel")
KINDS_OF_LABEL: Final = (BINARY, MULTICLASS, MULTILABEL)


def kind_named(name: str) -> LabelKind:
    """Return a kind by its name; a kind is returned as it is.

    >>> kind_named("multiclass") is MULTICLASS, kind_named(BINARY).outputs(2)
    (True, 1)
    """
    for kind in KINDS_OF_LABEL:
        if kind == name:
            return kind
    raise PlmError(f"there is no kind of label '{name}'", remedy=f"choose one of {', '.join(KINDS_OF_LABEL)}")
