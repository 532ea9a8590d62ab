"""What a task is: its label, its allowed inputs and its metrics, as data that can be printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, model_validator

from patients_like_me.records.cohort import KINDS, Cohort, Kind

LabelKind = Literal["binary", "multiclass", "multilabel"]
Split = Literal["train", "validation", "test"]
SPLITS: Final[tuple[Split, ...]] = ("train", "validation", "test")


class TaskSettings(BaseModel):
    """Everything that decides which instances a task has, and what they may see."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    clock: Literal["admission", "discharge"] = Field(
        "admission", description="readmission counts from the admission (the paper) or from the discharge"
    )
    window_days: float = Field(
        15, gt=0, le=36_500, allow_inf_nan=False, description="days within which a next admission is a readmission"
    )
    population: Literal["with_successor", "discharged_alive"] = Field(
        "with_successor",
        description=(
            "readmission: visits that have a successor (the paper), or every visit discharged alive, "
            "a last one counting as not readmitted"
        ),
    )
    inputs: Literal["retrospective", "known"] = Field(
        "retrospective",
        description="use the current visit's codes as the paper does, or only what was known at prediction time",
    )
    prompt: Literal["paper", "brief"] = Field(
        "paper",
        description=(
            "the paper's fields with the question, or brief: age and sex too, only what is recorded, and no question, "
            "which is the same for all"
        ),
    )
    split_method: Literal["seeded", "hash"] = Field(
        "seeded",
        description="an exact 60/20/20 draw, or a hash of the patient id, stable when patients are added",
    )
    split_seed: int = Field(0, ge=0, description="seed of the split")
    split_shares: tuple[float, float, float] = Field((0.6, 0.2, 0.2), description="train, validation, test")

    @model_validator(mode="after")
    def _shares_make_a_whole(self) -> TaskSettings:
        if abs(sum(self.split_shares) - 1) > 1e-9 or min(self.split_shares) < 0:
            raise ValueError(f"split_shares must be three shares that make 1, not {self.split_shares}")
        return self


#: Returns ``visit`` and ``label`` (integer, or a list of text for multi-label tasks) of the visits that are labelled.
Labeller = Callable[[Cohort, TaskSettings], pl.DataFrame]


def _no_labels(cohort: Cohort, settings: TaskSettings) -> pl.DataFrame:
    del cohort, settings
    return pl.DataFrame(schema={"visit": pl.UInt32, "label": pl.Int64})


@dataclass(frozen=True)
class Task:
    """One prediction task.

    ``current_inputs`` are the code kinds of the current visit that the model may see when the task is run
    retrospectively, as in the paper; ``known_inputs`` those that are known when the prediction is made.
    Demographics and all codes of earlier visits are always allowed.
    """

    name: str
    title: str
    kind: LabelKind
    label: str
    predicted_at: Literal["admission", "discharge"]
    current_inputs: tuple[Kind, ...]
    known_inputs: tuple[Kind, ...]
    metrics: tuple[str, ...]
    question: str
    answer: str
    labeller: Labeller
    classes: tuple[str, ...] = ()

    def inputs_of_current_visit(self, settings: TaskSettings) -> tuple[Kind, ...]:
        """Return the code kinds of the current visit that may be seen under these settings."""
        return self.known_inputs if settings.inputs == "known" else self.current_inputs

    def as_json(self) -> dict[str, Any]:
        """Return the task as plain data, all but its labeller: enough to predict with it."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "labeller"}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Task:
        """Read what :meth:`as_json` returned; such a task can be predicted, but has no labels."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in content.items()
        }
        return cls(**values, labeller=_no_labels)

    def describe(self) -> dict[str, str]:
        """Return the task as words, in the order in which a reader asks."""
        table = [
            f"{stream}: earlier visits yes; current visit "
            f"{'yes' if stream in self.current_inputs else 'no'} (retrospective), "
            f"{'yes' if stream in self.known_inputs else 'no'} (known at prediction time)"
            for stream in KINDS
        ]
        return {
            "task": f"{self.name}: {self.title}",
            "label": self.label,
            "kind": {
                "binary": "one yes-or-no label (binary cross-entropy)",
                "multiclass": "one class (cross-entropy): "
                + (", ".join(self.classes) or "the values that training patients have"),
                "multilabel": "a set of codes (binary cross-entropy per code)",
            }[self.kind],
            "predicted at": f"{self.predicted_at} of the current visit",
            "inputs": "\n".join(["demographics: yes", *table]),
            "metrics": ", ".join(self.metrics),
            "question": self.question,
            "answer": self.answer,
        }
