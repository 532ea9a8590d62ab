"""The three kinds of label, one object each: everything that depends on whether a label is yes or no, a class or a set.

========== ======================== ============================== ====================================================
kind       labels                   logits and probabilities       loss of an instance
========== ======================== ============================== ====================================================
binary     [N], 0 or 1              [N, 1], sigmoid                binary cross-entropy
multiclass [N], number of the class [N, classes], softmax          cross-entropy
multilabel [N, codes], 0 or 1       [N, codes], sigmoid            binary cross-entropy, averaged over the codes
========== ======================== ============================== ====================================================

A kind is a piece of text, its name, which is what JSON files keep; :func:`kind_named` turns the name into the kind.
Torch is imported only by the methods that take tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Labels = npt.NDArray[np.int64]
Probabilities = npt.NDArray[np.float64]
#: A decision as numbers: 0 or 1, the number of a class, or the numbers of the codes of a set.
Key = tuple[int, ...]

#: The paper's threshold for calling a drug likely.
PAPER_THRESHOLD: Final = 0.2


class LabelKind(str):
    """One kind of label; the base holds what yes-or-no labels share, whether there is one or one per code.

    ``threshold`` is the probability from which the answer is yes, None where the most probable class is the answer.
    In the methods about decisions ``column`` is the output that was chosen by name, None where none was.
    """

    __slots__ = ()
    threshold: ClassVar[float | None] = 0.5
    #: The metrics that a task can name, and that one which names none has; choices are made by the first.
    metrics: ClassVar[tuple[str, ...]] = ()
    #: The metrics that are the areas under the precision-recall curve and the ROC curve.
    areas: ClassVar[tuple[str, str]] = ("", "")
    #: The metric for which a threshold is tuned, and what it is called; None without a threshold.
    tuned_for: ClassVar[tuple[str, str] | None] = None
    #: The dimensions of an array of probabilities, and whether those of an instance add up to 1.
    dimensions: ClassVar[int] = 2
    adds_up: ClassVar[bool] = False
    #: In words: the label and its loss; the Brier score and over what it is averaged; what calibration counts, over
    #: what it is averaged, and what it compares.
    description: ClassVar[str] = ""
    brier_words: ClassVar[tuple[str, str]] = ("", "")
    calibrated: ClassVar[str] = ""
    pairs: ClassVar[str] = "over instances"
    comparison: ClassVar[str] = "each probability with what happened"
    #: What a label is called when it is counted among similar patients.
    outcome_word: ClassVar[str] = "outcome"
    #: In words: what a model returns and how it is decided on; the logit whose change an explanation measures.
    output_words: ClassVar[str] = ""
    target_words: ClassVar[str] = ""

    @property
    def name(self) -> str:
        """The text that JSON files keep."""
        return str(self)

    @property
    def has_threshold(self) -> bool:
        """Tell whether a threshold decides what is called positive."""
        return self.threshold is not None

    @property
    def is_set(self) -> bool:
        """Tell whether a label is a set of codes."""
        return False

    @property
    def is_event(self) -> bool:
        """Tell whether a label is one event that happened or not; without both there is nothing to learn or score."""
        return False

    def outputs(self, labels: int) -> int:
        """Return the number of logits per instance; ``labels`` counts classes or codes."""
        return labels

    def no_labels(self, instances: int, labels: int) -> Labels:
        """Return labels that are all zero."""
        del labels
        return np.zeros(instances, dtype=np.int64)

    def largest_label(self, outputs: int) -> int:
        """Return the largest value that a label can have."""
        del outputs
        return 1

    def targets(self, labels: npt.NDArray[Any], outputs: int) -> Probabilities:
        """Return labels as 0/1 columns, [N, outputs]."""
        return np.asarray(labels, dtype=np.float64).reshape(len(labels), outputs)

    def in_shape(self, probabilities: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return probabilities [N, outputs] in the shape in which metrics and files hold them."""
        return probabilities

    def in_columns(self, probabilities: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Undo :meth:`in_shape`: return probabilities as [N, outputs]."""
        return probabilities[:, None] if probabilities.ndim == 1 else probabilities

    def probabilities(self, logits: npt.NDArray[Any]) -> Probabilities:
        """Return the probability of each label, [N, outputs]."""
        logits = np.asarray(logits, dtype=np.float64)
        # Each side of zero by the form whose exponential cannot overflow.
        small = np.exp(-np.abs(logits))
        return np.asarray(np.where(logits >= 0, 1 / (1 + small), small / (1 + small)))

    def logits(self, probabilities: npt.NDArray[Any]) -> Probabilities:
        """Return logits whose probabilities are the given ones; 0 and 1 become infinite.

        >>> BINARY.logits(np.array([[0.5], [1.0]])).tolist()
        [[0.0], [inf]]
        """
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(probabilities) - np.log1p(-probabilities))

    def tensor_probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of each label as a tensor, [N, outputs]."""
        return logits.sigmoid()

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the negative log-likelihood of each instance, [N].

        A distribution over the labels is a target too: its loss is the expectation.
        """
        from torch.nn import functional

        targets = targets.to(logits.dtype).reshape(logits.shape)
        return functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=1)

    def sampled(self, logits: Tensor, *, generator: torch.Generator) -> Tensor:
        """Draw one label per instance from the distribution of its logits, in the form of targets."""
        import torch

        return torch.bernoulli(self.tensor_probabilities(logits.detach()), generator=generator)

    def base_rate_logits(self, labels: Tensor, outputs: int) -> Tensor:
        """Return the logits of the label rates, [outputs]: the answer of a classifier that has seen no patient.

        Half a label is added to both sides, so that a code that all or none have stays finite.
        """
        rates = (labels.reshape(len(labels), outputs).sum(dim=0) + 0.5) / (len(labels) + 1)
        return rates.logit()

    def rate(self, labels: Labels, classes: int) -> float | list[float] | None:
        """Return how frequent a label is: a share, a share per class, or the mean number of codes."""
        del classes
        return float(labels.mean()) if len(labels) else None

    def rate_in_words(self, rate: float | list[float] | None) -> str:
        """Write what :meth:`rate` returned.

        >>> BINARY.rate_in_words(0.1141), MULTICLASS.rate_in_words([0.5, 0.5]), MULTILABEL.rate_in_words(3.25)
        ('11.4 %', '50.0 50.0 %', '3.2 codes per instance')
        """
        if rate is None:
            return "no instances"
        return " ".join(f"{share:.1%}"[:-1] for share in (rate if isinstance(rate, list) else [rate])) + " %"

    def label_in_words(self, label: Any, names: tuple[str, ...]) -> str:
        """Write one label; ``names`` are the classes or codes."""
        return f"{label} ({names[int(label)]})"

    def brier(self, squares: Probabilities) -> Probabilities:
        """Return the Brier score of each instance from its squared differences [N, outputs]."""
        return np.asarray(squares.mean(axis=1))

    def compared(self, labels: Labels, probabilities: npt.NDArray[Any]) -> tuple[Probabilities, Probabilities]:
        """Return what a calibration error compares: predicted and observed, [N, pairs per instance]."""
        columns = self.in_columns(probabilities)
        return columns, self.targets(labels, columns.shape[1])

    def risks(self, probabilities: npt.NDArray[Any]) -> Probabilities:
        """Return by what instances are ordered: the probability, the expected class, or the expected number of codes.

        >>> MULTICLASS.risks(np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])).tolist()
        [0.5, 2.0]
        """
        return np.asarray(self.in_columns(probabilities).sum(axis=1))

    def risk_in_words(self, items: str) -> str:
        """Return what :meth:`risks` are called; ``items`` are what a set holds, in words.

        >>> [kind.risk_in_words("drugs") for kind in KINDS_OF_LABEL]
        ['predicted risk', 'expected class', 'expected number of drugs']
        """
        del items
        return "predicted risk"

    def key(self, probabilities: Probabilities, threshold: float, column: int | None) -> Key:
        """Return the decision about one instance as numbers: equal keys are equal decisions."""
        return (int(probabilities[column or 0] >= threshold),)

    def margin(self, probabilities: Probabilities, decided: Key, threshold: float, column: int | None) -> float:
        """Return how far probabilities are from another decision than ``decided``; at 0 and below it is another."""
        above = float(probabilities[column or 0]) - threshold
        return above if decided[0] else -above

    def column(self, probabilities: Probabilities, column: int | None) -> int:
        """Return the output whose probability is shown."""
        del probabilities
        return column or 0

    def event(self, decided: Key) -> int:
        """Return the label that a decision is about."""
        del decided
        return 1

    def happened(self, labels: Labels, decided: Key, column: int | None) -> npt.NDArray[np.bool_] | None:
        """Return for which instances the event of a decision happened; a set of codes is not one event."""
        del column
        return np.asarray(labels == self.event(decided))

    def agrees(self, outcome: Any, decided: Key, column: int | None, *, ordered: bool, share: float) -> bool:
        """Tell whether a known outcome is what was decided.

        Where classes are ``ordered`` one class off still agrees; a set agrees if ``share`` of it is in the outcome.
        """
        del column, ordered, share
        return int(outcome) == decided[0]

    def chosen(self, logits: Tensor, threshold: float) -> Tensor:
        """Return the outputs whose logits an explanation takes apart, [N, outputs] as zeros and ones."""
        import torch

        del threshold
        return torch.ones_like(logits)

    def decision_logit(self, logits: Tensor, choice: Tensor) -> Tensor:
        """Return one logit per row whose sign is the decision about the chosen outputs.

        >>> import torch
        >>> MULTICLASS.decision_logit(torch.tensor([[2.0, 2.0]]), torch.tensor([1.0, 0.0])).tolist()
        [0.0]
        """
        return (logits * choice).sum(dim=1) / choice.sum()


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

    @property
    def is_event(self) -> bool:
        return True

    def outputs(self, labels: int) -> int:
        del labels
        return 1

    def in_shape(self, probabilities: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return probabilities[:, 0]

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

    def tensor_probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=1)

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

    def risk_in_words(self, items: str) -> str:
        del items
        return "expected class"

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

    def agrees(self, outcome: Any, decided: Key, column: int | None, *, ordered: bool, share: float) -> bool:
        del column, share
        return abs(int(outcome) - decided[0]) <= (1 if ordered else 0)

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

    @property
    def is_set(self) -> bool:
        return True

    def no_labels(self, instances: int, labels: int) -> Labels:
        return np.zeros((instances, labels), dtype=np.int64)

    def rate(self, labels: Labels, classes: int) -> float | None:
        del classes
        return float(labels.sum(axis=1).mean()) if len(labels) else None

    def rate_in_words(self, rate: float | list[float] | None) -> str:
        return super().rate_in_words(rate) if rate is None else f"{rate:.1f} codes per instance"

    def label_in_words(self, label: Any, names: tuple[str, ...]) -> str:
        return ", ".join(code for code, on in zip(names, label, strict=True) if on)

    def risk_in_words(self, items: str) -> str:
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
