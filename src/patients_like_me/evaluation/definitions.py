"""The table of metrics: what each is in words, over what it is averaged, and how it is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from patients_like_me.evaluation import calibration
from patients_like_me.tasks import forms
from patients_like_me.tasks.forms import MetricForm, Scored
from patients_like_me.tasks.kinds import BINARY, MULTICLASS, MULTILABEL, LabelKind

#: Which value is the best; None where no value is better than another.
Best = Literal["high", "low", "one", "zero"] | None

_BOTH = "one class only: the labels are all the same"
_NO_CODE = "no instance has a code of the vocabulary"
_NO_CURVE = "no class has both instances with it and without it"
_PARTED = "the predictions separate the classes without overlap, or the labels or probabilities are all the same"


@dataclass(frozen=True)
class Definition:
    """What a metric is, in words, and how it is computed for one kind of task."""

    metric: str
    kind: LabelKind
    title: str
    definition: str
    averaging: str
    best: Best
    unavailable: str
    form: Callable[[Scored], MetricForm] | None = None
    form_at: Callable[[Scored, float], MetricForm] | None = None

    @property
    def short_title(self) -> str:
        """The title without what is averaged over.

        >>> [definition_of(MULTILABEL, name).short_title for name in ("auprc_per_instance", "f1_per_instance")]
        ['AUPRC', 'F1']
        """
        return self.title.partition(",")[0].partition(" per ")[0]


def _calibration(kind: LabelKind) -> tuple[Definition, ...]:
    intercept = Definition(
        "calibration_intercept",
        kind,
        "Calibration intercept",
        "a in logit P(y) = a + logit p (calibration in the large); under 0: probabilities too high",
        kind.pairs,
        "zero",
        _BOTH,
        form=calibration.intercept_form,
    )
    return (
        Definition("brier", kind, "Brier score", *kind.brier_words, "low", "no instances", form=calibration.brier_form),
        Definition(
            "calibration_slope",
            kind,
            "Calibration slope",
            "b in logit P(y) = a + b logit p by maximum likelihood; under 1: probabilities too extreme",
            kind.pairs,
            "one",
            _PARTED,
            form=calibration.slope_form,
        ),
        # Class probabilities add up to 1, so their mean cannot be too high.
        *(() if kind.adds_up else (intercept,)),
        Definition(
            "calibration_error",
            kind,
            "Expected calibration error",
            f"gap between mean probability and observed share in {calibration.BINS} bins of equal width, weighted by "
            f"their sizes; compares {kind.comparison}; never negative, so resamples of small samples are above it",
            kind.error_pairs,
            "low",
            "no instances",
            form=calibration.calibration_error_form,
        ),
    )


DEFINITIONS: Final[tuple[Definition, ...]] = (
    Definition(
        "auprc",
        BINARY,
        "AUPRC",
        "average precision: the mean precision at the rank of each positive; ties share one rank",
        "over positives",
        "high",
        _BOTH,
        form=forms.auprc_form,
    ),
    Definition(
        "auroc",
        BINARY,
        "AUROC",
        "probability that a positive instance gets a higher probability than a negative one; a tie counts half",
        "over pairs of instances",
        "high",
        _BOTH,
        form=forms.auroc_form,
    ),
    Definition(
        "f1",
        BINARY,
        "F1",
        "harmonic mean of precision and recall of the positive class",
        "over instances",
        "high",
        "no instance is positive",
        form_at=forms.f1_form,
    ),
    *_calibration(BINARY),
    Definition(
        "prevalence",
        BINARY,
        "Prevalence",
        "share of instances that are positive: the AUPRC of a guess",
        "over instances",
        None,
        "no instances",
        form=forms.share_form,
    ),
    Definition(
        "auroc_weighted",
        MULTICLASS,
        "AUROC, weighted",
        "one-versus-rest AUROC of every class",
        "over classes, weighted by their frequency",
        "high",
        _NO_CURVE,
        form=forms.auroc_weighted_form,
    ),
    Definition(
        "auprc_macro",
        MULTICLASS,
        "AUPRC, macro",
        "one-versus-rest average precision of every class",
        "plain mean over classes that occur",
        "high",
        _NO_CURVE,
        form=forms.auprc_macro_form,
    ),
    Definition(
        "f1_macro",
        MULTICLASS,
        "F1, macro",
        "F1 of every class, the most probable class being the predicted one",
        "plain mean over classes that are true or predicted somewhere",
        "high",
        "no instances",
        form=forms.f1_macro_form,
    ),
    *_calibration(MULTICLASS),
    Definition(
        "prevalence",
        MULTICLASS,
        "Largest class",
        "share of instances in the most frequent class: how often always guessing it is right",
        "over instances",
        None,
        "no instances",
        form=forms.largest_class_form,
    ),
    Definition(
        "auprc_per_instance",
        MULTILABEL,
        "AUPRC per instance",
        "average precision of the codes of an instance, ranked by probability",
        "over instances that have a code",
        "high",
        _NO_CODE,
        form=forms.auprc_per_instance_form,
    ),
    Definition(
        "f1_per_instance",
        MULTILABEL,
        "F1 per instance",
        "F1 between the true and the predicted set of an instance",
        "over instances that have a code",
        "high",
        _NO_CODE,
        form_at=forms.f1_per_instance_form,
    ),
    Definition(
        "jaccard_per_instance",
        MULTILABEL,
        "Jaccard per instance",
        "codes in both the true and the predicted set / codes in either",
        "over instances that have a code",
        "high",
        _NO_CODE,
        form_at=forms.jaccard_per_instance_form,
    ),
    Definition(
        "auroc_per_code",
        MULTILABEL,
        "AUROC per code",
        "AUROC of every code among the instances",
        "plain mean over codes that some instances have and others do not",
        "high",
        _NO_CURVE,
        form=forms.auroc_per_code_form,
    ),
    *_calibration(MULTILABEL),
    Definition(
        "prevalence",
        MULTILABEL,
        "Prevalence",
        "share of the vocabulary's codes that an instance has: about the AUPRC per instance of a guess",
        "over instances",
        None,
        "no instances",
        form=forms.share_form,
    ),
)


def definition_of(kind: LabelKind, metric: str) -> Definition:
    """Return the definition of a metric for one kind of task.

    >>> definition_of(BINARY, "auroc").title
    'AUROC'
    """
    return next(each for each in DEFINITIONS if (each.kind, each.metric) == (kind, metric))
