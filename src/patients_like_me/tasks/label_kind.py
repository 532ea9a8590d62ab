"""What a kind of label decides: shapes, losses, probabilities, decisions and words. The base of the three kinds.

The base holds what yes-or-no labels share, whether there is one or one per code; the three kinds themselves are in
:mod:`patients_like_me.tasks.kinds`. Torch is imported only by the methods that take tensors.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Labels = npt.NDArray[np.int64]
Probabilities = npt.NDArray[np.float64]
#: A decision as numbers: 0 or 1, the number of a class, or the numbers of the codes of a set.
Key = tuple[int, ...]


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
    #: In words: the shown probability; what a language model is asked for; labels that no training patient has; what a
    #: reader of the metrics must know.
    probability_word: ClassVar[str] = "the probability"
    asked_words: ClassVar[str] = "the number of the class"
    outside_words: ClassVar[str] = (
        "visits of validation and test have a label that no training patient has, and are left out"
    )
    metrics_words: ClassVar[str] = ""

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

    @property
    def error_pairs(self) -> str:
        """Over what a calibration error is averaged, in words."""
        return self.pairs

    def outputs(self, labels: int) -> int:
        """Return the number of logits per instance; ``labels`` counts classes or codes."""
        return labels

    def no_labels(self, instances: int, labels: int) -> Labels:
        """Return labels that are all zero."""
        del labels
        return np.zeros(instances, dtype=np.int64)

    def from_lists(self, lists: Sequence[Sequence[int]], labels: int) -> Labels:
        """Return labels that files keep as lists: one number each, or the numbers of the codes of a set."""
        del labels
        return np.array([each[0] for each in lists], dtype=np.int64)

    def as_lists(self, targets: npt.NDArray[Any]) -> list[list[int]]:
        """Return 0/1 columns [N, outputs] as such lists.

        >>> from patients_like_me.tasks.kinds import KINDS_OF_LABEL
        >>> [kind.as_lists(np.array([[0, 1]])) for kind in KINDS_OF_LABEL]
        [[[0]], [[1]], [[1]]]
        """
        return [np.flatnonzero(row).tolist() for row in targets]

    def lacks_an_outcome(self, labels: Labels) -> bool:
        """Tell whether an event happened to all or to nobody, so that there is nothing to learn or score."""
        return self.is_event and len(np.unique(labels)) < 2

    def losses(self, outputs: int) -> int:
        """Return over how many losses that of an instance is the mean."""
        del outputs
        return 1

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

        >>> from patients_like_me.tasks.kinds import BINARY
        >>> BINARY.logits(np.array([[0.5], [1.0]])).tolist()
        [[0.0], [inf]]
        """
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(probabilities) - np.log1p(-probabilities))

    def normalised(self, probabilities: Probabilities) -> Probabilities:
        """Return probabilities [N, outputs] that each were changed, such that those of an instance fit together."""
        return probabilities

    def tensor_probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of each label as a tensor, [N, outputs]."""
        return logits.sigmoid()

    def answers(self, outputs: int) -> int:
        """Return how many answers share the probability of one output, or of all that add up to 1."""
        del outputs
        return 2

    def confidence(self, probabilities: Tensor) -> Tensor:
        """Return how sure the answers are, [N]."""
        import torch

        return torch.maximum(probabilities, 1 - probabilities).mean(dim=1)

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

        >>> from patients_like_me.tasks.kinds import BINARY, MULTICLASS, MULTILABEL
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

        >>> from patients_like_me.tasks.kinds import MULTICLASS
        >>> MULTICLASS.risks(np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])).tolist()
        [0.5, 2.0]
        """
        return np.asarray(self.in_columns(probabilities).sum(axis=1))

    def risk_in_words(self, items: str, name: str) -> str:
        """Return what :meth:`risks` are called; ``items`` are what a set holds, ``name`` is the task's, in words.

        >>> from patients_like_me.tasks.kinds import KINDS_OF_LABEL
        >>> [kind.risk_in_words("drugs", "length of stay") for kind in KINDS_OF_LABEL]
        ['predicted risk', 'expected length of stay', 'expected number of drugs']
        """
        del items, name
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

    def happened_in_words(self, happened: str) -> str:
        """Say of patients that the event of a decision happened; ``happened`` is the task's word for its event."""
        return happened or "had the event"

    def agrees(self, outcome: Any, decided: Key, column: int | None, *, ordered: bool, share: float) -> bool:
        """Tell whether a known outcome is what was decided.

        Where classes are ``ordered`` one class off still agrees; a set agrees if ``share`` of it is in the outcome.
        """
        del column, ordered, share
        return int(outcome) == decided[0]

    def options(self, probabilities: Probabilities, chosen: Container[int]) -> list[int]:
        """Return the outputs that a page lists, the most probable first: all classes, or the chosen codes of a set."""
        del probabilities, chosen
        return []

    def options_title(self, items: str) -> str:
        """Return the heading of that list; ``items`` are what a set holds, in words."""
        del items
        return "Classes"

    def target_in_words(self, labels: Sequence[str], chosen: Sequence[str], items: str) -> str:
        """Return which logit an explanation takes apart; ``chosen`` are the names of the outputs that it adds up."""
        del chosen, items
        return f"logit of “{labels[-1]}”"

    def chosen(self, logits: Tensor, threshold: float) -> Tensor:
        """Return the outputs whose logits an explanation takes apart, [N, outputs] as zeros and ones."""
        import torch

        del threshold
        return torch.ones_like(logits)

    def decision_logit(self, logits: Tensor, choice: Tensor) -> Tensor:
        """Return one logit per row whose sign is the decision about the chosen outputs.

        >>> from patients_like_me.tasks.kinds import MULTICLASS
        >>> import torch
        >>> MULTICLASS.decision_logit(torch.tensor([[2.0, 2.0]]), torch.tensor([1.0, 0.0])).tolist()
        [0.0]
        """
        return (logits * choice).sum(dim=1) / choice.sum()
