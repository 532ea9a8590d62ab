"""What pages and the API say, as plain values: about the run, a prediction, one patient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from patients_like_me.explanation.explanation import Explanation, Option
from patients_like_me.explanation.pseudonyms import age_in_words, sex_in_words
from patients_like_me.explanation.risk import one_in
from patients_like_me.plain_text import counted
from patients_like_me.records.cohort import Cohort, Kind
from patients_like_me.serve.worklist import WorklistRow
from patients_like_me.tasks.kinds import Probabilities
from patients_like_me.tasks.task import Task

if TYPE_CHECKING:
    from patients_like_me.serve.model_state import OpenedModel

#: Said of a patient of whom the task sees no diagnosis, procedure or drug.
WITHOUT_CODES: Final = "no codes: predicted from age, sex and the like alone"


@dataclass(frozen=True)
class RunAbout:
    """What a page says about the run; ``happened`` what those patients did who had the outcome that is meant."""

    name: str
    title: str
    task: str
    question: str
    system: str
    kind: str
    labels: tuple[str, ...]
    has_references: bool
    sees: tuple[Kind, ...]
    tau: int | None
    version: str
    bank_version: str
    cohort: bool
    shows_ids: bool
    happened: str
    note: str = ""

    @property
    def explains(self) -> bool:
        """Tell whether predictions can be explained."""
        return self.has_references


@dataclass(frozen=True)
class PlainPrediction:
    """A prediction alone; ``risk`` orders patients, as :meth:`LabelKind.risks` does."""

    answer: str
    risk: float
    probability: float | None
    about: str
    options: tuple[Option, ...]
    probabilities: dict[str, float]
    references: int | None
    words: str


@dataclass(frozen=True)
class PatientView:
    """One patient: the prediction, and the explanation where the system has references; ``about`` says of which run.

    ``can_add`` are the kinds of code that a what-if can add.
    """

    pseudonym: str
    prediction: PlainPrediction
    explanation: Explanation | None
    row: WorklistRow
    is_new: bool
    about: RunAbout
    notes: tuple[str, ...] = ()
    can_add: tuple[Kind, ...] = ()


def happened_in_words(task: Task) -> str:
    """Say what those similar patients did whose boxes are full."""
    words = task.words
    if task.kind.is_set:
        return f"{words.had} at least half of the {words.chosen} {words.items}"
    return task.kind.happened_in_words(words.happened)


def plain_prediction(model: OpenedModel, probabilities: Probabilities, references: int | None) -> PlainPrediction:
    """Return the probabilities [outputs] of one patient as they are read and said."""
    decision = model.decision()
    decided = decision.key(probabilities)
    labels = model.run.output_labels
    probability = decision.probability(probabilities)
    options = []
    for place in decision.options(probabilities, decided):
        code = decision.labels[place]
        name = decision.names.get(code, code)
        options.append(Option(code, name, float(probabilities[place]), place in decided))
    return PlainPrediction(
        answer=decision.in_words(probabilities),
        risk=float(model.run.task.kind.risks(probabilities[None])[0]),
        probability=probability,
        about=decision.event(decided) if probability is not None else "",
        options=tuple(options),
        probabilities={label: float(value) for label, value in zip(labels, probabilities, strict=True)},
        references=references,
        words="" if probability is None else one_in(probability),
    )


def about_patient(cohort: Cohort) -> str:
    """Return sex, age and number of visits of the one patient of a cohort, as a page may show them."""
    age = cohort.visits["age"][-1]
    sex = sex_in_words(cohort.patients["sex"][0])
    return f"{sex}, {age_in_words(age)}, {counted(cohort.visits.height, 'visit')}"
