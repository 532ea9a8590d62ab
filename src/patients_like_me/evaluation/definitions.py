"""The table of metrics: what each is in words, over what it is averaged, and how it is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from patients_like_me.evaluation import calibration, forms
from patients_like_me.evaluation.forms import Form
from patients_like_me.evaluation.predictions import Predictions
from patients_like_me.tasks.task import LabelKind

#: Where the best value lies; None where no value is better than another.
Best = Literal["high", "low", "one", "zero"] | None

_BOTH = "one class only: the labels are all the same"
_NO_CODE = "no instance has a code of the vocabulary"
_NO_CURVE = "no class has both instances with it and without it"
_PARTED = "the predictions part the classes without overlap, or the labels or probabilities are all the same"


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
    form: Callable[[Predictions], Form] | None = None
    form_at: Callable[[Predictions, float], Form] | None = None


def _calibration(kind: LabelKind, pairs: str) -> tuple[Definition, ...]:
    brier = {
        "binary": ("mean squared difference between probability and outcome; 0 to 1", "over instances"),
        "multiclass": ("squared differences summed over the classes; 0 to 2", "over instances"),
        "multilabel": ("squared differences averaged over the codes; 0 to 1", "over codes, then over instances"),
    }[kind]
    compared = (
        "the highest probability and how often its class is right"
        if kind == "multiclass"
        else "each probability with what happened"
    )
    return (
        Definition("brier", kind, "Brier score", *brier, "low", "no instances", form=calibration.brier_form),
        Definition(
            "calibration_slope",
            kind,
            "Calibration slope",
            "b in logit P(y) = a + b logit p by maximum likelihood; under 1: probabilities too extreme",
            pairs,
            "one",
            _PARTED,
            form=calibration.slope_form,
        ),
        *(
            ()
            if kind == "multiclass"
            else (
                Definition(
                    "calibration_intercept",
                    kind,
                    "Calibration intercept",
                    "a in logit P(y) = a + logit p (calibration in the large); under 0: probabilities too high",
                    pairs,
                    "zero",
                    _BOTH,
                    form=calibration.intercept_form,
                ),
            )
        ),
        Definition(
            "calibration_error",
            kind,
            "Expected calibration error",
            f"gap between mean probability and observed share in {calibration.BINS} bins of equal width, weighted by "
            f"their sizes; compares {compared}; never negative, so resamples of small samples lie above it",
            "over instances" if kind == "multiclass" else pairs,
            "low",
            "no instances",
            form=calibration.calibration_error_form,
        ),
    )


DEFINITIONS: Final[tuple[Definition, ...]] = (
    Definition(
        "auprc",
        "binary",
        "AUPRC",
        "average precision: the mean precision at the rank of each positive; ties share one rank",
        "over positives",
        "high",
        _BOTH,
        form=forms.auprc_form,
    ),
    Definition(
        "auroc",
        "binary",
        "AUROC",
        "chance that a positive instance gets a higher probability than a negative one; a tie counts half",
        "over pairs of instances",
        "high",
        _BOTH,
        form=forms.auroc_form,
    ),
    Definition(
        "f1",
        "binary",
        "F1",
        "harmonic mean of precision and recall of the positive class",
        "over instances",
        "high",
        "no instance is positive",
        form_at=forms.f1_form,
    ),
    *_calibration("binary", "over instances"),
    Definition(
        "prevalence",
        "binary",
        "Prevalence",
        "share of instances that are positive: the AUPRC of a guess",
        "over instances",
        None,
        "no instances",
        form=forms.prevalence_form,
    ),
    Definition(
        "auroc_weighted",
        "multiclass",
        "AUROC, weighted",
        "one-versus-rest AUROC of every class",
        "over classes, weighted by their frequency",
        "high",
        _NO_CURVE,
        form=forms.auroc_weighted_form,
    ),
    Definition(
        "auprc_macro",
        "multiclass",
        "AUPRC, macro",
        "one-versus-rest average precision of every class",
        "plain mean over classes that occur",
        "high",
        _NO_CURVE,
        form=forms.auprc_macro_form,
    ),
    Definition(
        "f1_macro",
        "multiclass",
        "F1, macro",
        "F1 of every class, the most probable class being the predicted one",
        "plain mean over classes that are true or predicted somewhere",
        "high",
        "no instances",
        form=forms.f1_macro_form,
    ),
    *_calibration("multiclass", "over all pairs of instance and class"),
    Definition(
        "prevalence",
        "multiclass",
        "Largest class",
        "share of instances in the most frequent class: how often always guessing it is right",
        "over instances",
        None,
        "no instances",
        form=forms.prevalence_form,
    ),
    Definition(
        "auprc_per_instance",
        "multilabel",
        "AUPRC per instance",
        "average precision of the codes of an instance, ranked by probability",
        "over instances that have a code",
        "high",
        _NO_CODE,
        form=forms.auprc_per_instance_form,
    ),
    Definition(
        "f1_per_instance",
        "multilabel",
        "F1 per instance",
        "F1 between the true and the recommended set of an instance",
        "over instances that have a code",
        "high",
        _NO_CODE,
        form_at=forms.f1_per_instance_form,
    ),
    Definition(
        "jaccard_per_instance",
        "multilabel",
        "Jaccard per instance",
        "codes in both the true and the recommended set / codes in either",
        "over instances that have a code",
        "high",
        _NO_CODE,
        form_at=forms.jaccard_per_instance_form,
    ),
    Definition(
        "auroc_per_code",
        "multilabel",
        "AUROC per code",
        "AUROC of every code among the instances",
        "plain mean over codes that some instances have and some have not",
        "high",
        _NO_CURVE,
        form=forms.auroc_per_code_form,
    ),
    *_calibration("multilabel", "over all pairs of instance and code"),
    Definition(
        "prevalence",
        "multilabel",
        "Prevalence",
        "share of the vocabulary's codes that an instance has: about the AUPRC per instance of a guess",
        "over instances",
        None,
        "no instances",
        form=forms.prevalence_form,
    ),
)
