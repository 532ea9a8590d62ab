"""What a task is: its settings, label, allowed inputs, metrics, and every sentence that is said about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final, Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, model_validator

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import KINDS, Cohort, Kind
from patients_like_me.records.file_errors import shown_value
from patients_like_me.settings import checked
from patients_like_me.tasks.kinds import LabelKind

Split = Literal["train", "validation", "test"]
SPLITS: Final[tuple[Split, ...]] = ("train", "validation", "test")


class TaskSettings(BaseModel):
    """What decides which instances every task has, and what they may see; a task with more settings extends this."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    inputs: Literal["retrospective", "known"] = Field(
        "retrospective",
        description="use the current visit's codes as the paper does, or only what was known at prediction time",
    )
    prompt: Literal["paper", "brief"] = Field(
        "paper",
        description=(
            "the paper's template with task and output format, or brief: age and sex too, only what is recorded, and "
            "no task, which is the same for all"
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
            raise ValueError(f"split_shares must be three shares that add up to 1, not {self.split_shares}")
        return self


def settings_for(
    task: str, settings_class: type[TaskSettings], values: TaskSettings | Mapping[str, Any] | None
) -> TaskSettings:
    """Make the settings of a task; a setting that the task does not have is refused with those it has."""
    given = values.model_dump() if isinstance(values, TaskSettings) else dict(values or {})
    own = settings_class.model_fields
    for name in given:
        if name not in own:
            near = get_close_matches(name, own, n=1, cutoff=0.6)
            guess = f"did you mean {near[0]}? " if near else ""
            raise PlmError(
                f"the task '{task}' has no setting '{name}'", remedy=f"{guess}it has {', '.join(sorted(own))}"
            )
    return checked(settings_class, **given)


@dataclass(frozen=True)
class Words:
    """What is said about a task under its settings, on pages, in prompts and in reports.

    ``title`` is the question as a heading, ``about`` what a probability is about in a few words. ``outcomes`` say what
    became of a patient, by class (default: the classes); ``happened`` what those with the positive outcome did
    ("were readmitted"). A set of codes is worded by ``item``, ``items``, ``chosen`` (what the model does with one) and
    ``had`` and ``had_not`` (what became of a patient). ``cautions`` are what a reader of the audit must know about
    labels that are computed.
    """

    title: str
    label: str
    question: str
    answer: str
    about: str
    outcomes: tuple[str, ...] = ()
    happened: str = ""
    item: str = "value"
    items: str = "values"
    chosen: str = "predicted"
    had: str = "had"
    had_not: str = "did not have"
    cautions: tuple[str, ...] = ()


_NOT_YET: Final = Words("", "", "", "", "")


@dataclass(frozen=True)
class GivenNumbers:
    """What a labels table may hold for a task: numbers for which ``allowed`` is true, in words ``meaning``."""

    meaning: str
    allowed: Callable[[float], bool]


#: Returns ``visit`` and ``label`` (integer, or a list of text for multi-label tasks) of the visits that are labelled.
Labeller = Callable[[Cohort, Any], pl.DataFrame]


def without_labels(cohort: Cohort, settings: TaskSettings) -> pl.DataFrame:
    """Label no visit: the labeller of a task that can only be predicted."""
    del cohort, settings
    return pl.DataFrame(schema={"visit": pl.UInt32, "label": pl.Int64})


@dataclass(frozen=True)
class Task:
    """One prediction task.

    ``current_inputs`` are the code kinds of the current visit that the model may see when the task is run
    retrospectively, as in the paper; ``known_inputs`` those that are known when the prediction is made.
    Demographics and all codes of earlier visits are always allowed.

    ``wording`` returns what is said about the task under its settings; ``words`` are those of the default settings
    until :meth:`under` gives others. ``ordered`` says that neighbouring classes are alike (days of a stay).
    ``label_codes`` is the kind of code that labels are, where they are codes. ``known_by_next_visit`` says that the
    label of a visit is known when the patient comes again. ``rates_by`` names a setting whose choices the audit
    compares. ``recomputed`` returns the label of one visit (a row of the visits table) in plain Python, for the audit.
    ``compared`` are the measures, with their thresholds, of tables that compare runs; by default the ``metrics``.
    """

    name: str
    kind: LabelKind
    predicted_at: Literal["admission", "discharge"]
    current_inputs: tuple[Kind, ...]
    known_inputs: tuple[Kind, ...]
    wording: Callable[[Any], Words]
    labeller: Labeller
    settings_class: type[TaskSettings] = TaskSettings
    metrics: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    ordered: bool = False
    label_codes: Kind | None = None
    known_by_next_visit: bool = False
    rates_by: str = ""
    recomputed: Callable[[Mapping[str, Any], Any], int] | None = None
    given: GivenNumbers | None = None
    short_title: str = ""
    metrics_note: str = ""
    words: Words = field(default_factory=lambda: _NOT_YET)

    def __post_init__(self) -> None:
        if wrong := self._wrong_declaration():
            raise PlmError(f"the task '{self.name}' declares {wrong}", remedy="correct it; see docs/extend.md")
        if not self.metrics:
            object.__setattr__(self, "metrics", self.kind.metrics)
        for name in self.metrics:
            if name not in self.kind.metrics:
                raise PlmError(
                    f"the task '{self.name}' names the metric '{name}', which {self.kind} labels do not have",
                    remedy=f"choose from {', '.join(self.kind.metrics)}",
                )
        if self.words is _NOT_YET:
            words: Any = self.wording(self.settings_class())
            if not isinstance(words, Words):
                raise PlmError(
                    f"the wording of the task '{self.name}' returned a {type(words).__name__}, not Words",
                    remedy="correct it; see docs/extend.md",
                )
            object.__setattr__(self, "words", words)

    def _wrong_declaration(self) -> str:
        """Say which field is not what it must be: a misspelt one would otherwise be read as something else."""
        kind: Any = self.kind
        if not isinstance(kind, LabelKind):
            return f"the kind {kind!r}, which is not one of tasks.kinds"
        if self.predicted_at not in ("admission", "discharge"):
            return f"predicted_at={self.predicted_at!r}, which is neither 'admission' nor 'discharge'"
        for name in ("current_inputs", "known_inputs"):
            value: Any = getattr(self, name)
            if not isinstance(value, tuple):
                return f"{name}={value!r}, which is not a tuple"
            if unknown := [each for each in value if each not in KINDS]:
                return f"{name} with {unknown[0]!r}, which is none of {', '.join(KINDS)}"
        classes: Any = self.classes
        if not isinstance(classes, tuple) or not all(isinstance(each, str) for each in classes):
            return "classes that are not a tuple of words"
        if len(set(classes)) != len(classes):
            return "a class twice"
        if kind.outputs(2) == 1 and len(classes) != 2:
            return f"{len(classes)} classes, where a binary task has two: what is not the event, then the event"
        return ""

    @property
    def title(self) -> str:
        """The question as a heading."""
        return self.words.title

    @property
    def label(self) -> str:
        """What the label is."""
        return self.words.label

    @property
    def question(self) -> str:
        """What follows ``Task:`` in the paper's prompt."""
        return self.words.question

    @property
    def answer(self) -> str:
        """What follows ``Output format:`` in the paper's prompt."""
        return self.words.answer

    def settings(self, values: TaskSettings | Mapping[str, Any] | None = None) -> TaskSettings:
        """Return settings of the task's own class; what is not given has its default.

        A setting that the task does not have is refused with those it has.
        """
        if isinstance(values, self.settings_class):
            return values
        return settings_for(self.name, self.settings_class, values)

    def under(self, settings: TaskSettings) -> Task:
        """Return the task with the words of these settings."""
        return replace(self, words=self.wording(settings))

    def inputs_of_current_visit(self, settings: TaskSettings) -> tuple[Kind, ...]:
        """Return the code kinds of the current visit that may be seen under these settings."""
        return self.known_inputs if settings.inputs == "known" else self.current_inputs

    def check_given(self, values: Iterable[str]) -> None:
        """Refuse the first value that a labels table must not give for this task."""
        if self.given is None:
            return
        for value in values:
            try:
                fine = self.given.allowed(float(value))
            except ValueError:
                fine = False
            if not fine:
                raise PlmError(
                    f"the labels table gives {shown_value(value)} for the task '{self.name}' where "
                    f"{self.given.meaning} is expected",
                    remedy="correct the value and prepare the cohort again",
                )

    def as_json(self) -> dict[str, Any]:
        """Return the task as plain data, all but its functions: enough to predict with it."""
        return {
            "name": self.name,
            "kind": self.kind.name,
            "predicted_at": self.predicted_at,
            "current_inputs": list(self.current_inputs),
            "known_inputs": list(self.known_inputs),
            "metrics": list(self.metrics),
            "classes": list(self.classes),
            "ordered": self.ordered,
            "label_codes": self.label_codes,
            "words": {
                name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self.words).items()
            },
        }

    def describe(self) -> dict[str, str]:
        """Return the task as words, in the order in which a reader asks."""
        table = [
            f"{stream}: earlier visits yes; current visit "
            f"{'yes' if stream in self.current_inputs else 'no'} (retrospective), "
            f"{'yes' if stream in self.known_inputs else 'no'} (known at prediction time)"
            for stream in KINDS
        ]
        classes = f": {', '.join(self.classes)}" if self.classes else ""
        return {
            "task": f"{self.name}: {self.title}",
            "label": self.label,
            "kind": self.kind.description + classes,
            "predicted at": f"{self.predicted_at} of the current visit",
            "inputs": "\n".join(["demographics: yes", *table]),
            "metrics": ", ".join(self.metrics),
            "question": self.question,
            "answer": self.answer,
            "settings": "\n".join(
                f"{name}: {about.description}" for name, about in self.settings_class.model_fields.items()
            ),
        }
