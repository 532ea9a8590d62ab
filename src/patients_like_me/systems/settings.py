"""The settings of the plain models: what each tries on validation, and what it does not try."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from patients_like_me.errors import PlmError
from patients_like_me.settings import checked

PlainModel = Literal["logistic", "boosting", "frequency", "repeat", "neighbors"]
PLAIN_MODELS: Final[tuple[PlainModel, ...]] = get_args(PlainModel)

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=1)]


class BagSettings(BaseModel):
    """How an instance's codes become features."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    earlier: Literal["presence", "count"] = Field(
        "count", description="codes of earlier visits as 0/1, or as the logarithm of 1 + the visits that have them"
    )
    minimum_instances: int = Field(2, ge=1, description="a feature is kept if so many training instances have it")


class PlainSettings(BaseModel):
    """What all plain models have."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(0, ge=0, description="kept with the run: the plain models draw nothing at random")


class FrequencySettings(PlainSettings):
    """Label rates of the training split: nothing to choose."""


class RepeatSettings(PlainSettings):
    """The answer of the visit before, over the label rates."""

    weight: float = Field(0.9, ge=0.5, le=1, description="share of the earlier answer; the rest is the label's rate")


class NeighborsSettings(PlainSettings):
    """The vote of the training instances that share diagnoses; all combinations are tried on validation."""

    tau: tuple[Whole, ...] = Field(
        (1, 2, 4, 8), min_length=1, description="a neighbour shares at least so many diagnoses"
    )
    max_neighbors: tuple[Whole | None, ...] = Field(
        (32, 128, None), min_length=1, description="only the strongest so many neighbours vote; null: all"
    )
    prior: tuple[Positive, ...] = Field(
        (300.0, 100.0, 30.0, 10.0),
        min_length=1,
        description="weight of the label's rate in the vote, in shared diagnoses",
    )


class LogisticSettings(PlainSettings):
    """Logistic regression: the inverse penalties are tried on validation, the strongest penalty first."""

    bag: BagSettings = BagSettings()
    inverse_penalty: tuple[Positive, ...] = Field(
        (0.003, 0.01, 0.03, 0.1, 0.3, 1.0), min_length=1, description="scikit-learn's C, from strong to weak penalty"
    )
    max_iterations: int = Field(1000, ge=1, description="most steps of the solver per label")


class BoostingSettings(PlainSettings):
    """Gradient-boosted trees; the number of trees, one for all labels of a task, is chosen on validation."""

    bag: BagSettings = BagSettings()
    trees: tuple[Whole, ...] = Field(
        (5, 10, 20, 40, 80, 120), min_length=1, description="numbers of trees (per class) that are tried"
    )
    learning_rate: float = Field(0.1, gt=0, le=1, description="share of each tree's correction that is kept")
    leaves: int = Field(15, ge=2, description="most leaves of a tree")
    leaf_instances: int = Field(20, ge=1, description="fewest training instances in a leaf")
    bins: int = Field(15, ge=2, le=255, description="most different values of a feature; nearly all are 0 or 1")
    shrinkage: float = Field(1.0, ge=0, description="L2 penalty of the leaves' values")
    most_features: int = Field(
        500, ge=1, description="only the most frequent features are used: trees need all in full"
    )
    most_labels: int = Field(
        250, ge=1, description="only the most frequent codes of a set are boosted, others get rates"
    )
    minimum_positives: int = Field(10, ge=1, description="a code that fewer training instances have gets its rate")


_SETTINGS: Final[Mapping[PlainModel, type[PlainSettings]]] = {
    "logistic": LogisticSettings,
    "boosting": BoostingSettings,
    "frequency": FrequencySettings,
    "repeat": RepeatSettings,
    "neighbors": NeighborsSettings,
}


def plain_settings(model: str, **changes: Any) -> PlainSettings:
    """Return the settings of a plain model by its name, with changes.

    >>> plain_settings("repeat", weight=0.8).model_dump()
    {'seed': 0, 'weight': 0.8}
    """
    for name, kind in _SETTINGS.items():
        if name == model:
            return checked(kind, **changes)
    raise PlmError(f"there is no plain model '{model}'", remedy=f"choose one of {', '.join(PLAIN_MODELS)}")
