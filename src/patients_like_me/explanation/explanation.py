"""The explanation of one prediction, as an object from which a page, a JSON file and a Markdown text are made.

It holds ids and dates only if they are asked for, so otherwise nothing made from it can show them.
``report.patient_page`` writes it as a page (HTML) and as Markdown.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from patients_like_me.explanation.drug_matrix import DrugMatrix
from patients_like_me.explanation.evidence import Code, CodeComparison
from patients_like_me.explanation.own_record import OwnRecord
from patients_like_me.explanation.pseudonyms import Person
from patients_like_me.explanation.risk import Risk
from patients_like_me.explanation.support import ALIKE_WITHOUT_CODES, Support
from patients_like_me.plain_text import percent_of
from patients_like_me.records.cohort import Kind

#: What a reference does to the predicted risk; nothing is said with it about what became of the reference.
Direction = Literal["raises", "lowers", "no influence", "not used"]


@dataclass(frozen=True)
class Option:
    """One possible answer with its probability: a class, or a drug."""

    label: str
    name: str
    probability: float
    chosen: bool
    average: float | None = None


@dataclass(frozen=True)
class Prediction:
    """What the model says: ``probability`` and ``risk`` belong to ``about``; a set of drugs has options only.

    ``threshold`` is the probability from which the answer is yes, ``threshold_origin`` where it comes from.
    """

    question: str
    answer: str
    about: str
    probability: float | None
    threshold: float | None
    target: str
    target_logit: float
    options: tuple[Option, ...] = ()
    options_title: str = "Classes"
    risk: Risk | None = None
    threshold_origin: str = ""

    @property
    def subject(self) -> str:
        """What the shown probability is the probability of: the predicted class, or what was asked."""
        return self.about if self.options else self.question

    @property
    def decision_in_words(self) -> str:
        """The decision with its threshold, in one sentence."""
        if self.threshold is None:
            return f"Likeliest answer: {self.answer}."
        return f"Decision: {self.answer}; a probability of {percent_of(self.threshold)} or more counts as yes."


@dataclass(frozen=True)
class ExplainedReference:
    """One reference next to the patient.

    ``importance`` is the derivative of the target logit with respect to the edge's weight, ``effect`` by how much the
    target logit falls when the edge is removed; both are None where the prediction does not use the graph.
    ``outcome`` is None where the outcome is not known to the model. ``evidence`` are the shared diagnoses, those tied
    to the outcome first, then the rarest. ``share`` is an exact part of the target logit, where the system has one, and
    ``because`` its reason. ``points`` is by how many percentage points the shown probability is higher with the
    reference than without it. ``had`` says whether the reference had the event that the probability is about: what
    became of it and what it does to the prediction are two different things. ``differs`` names what sets it apart:
    another sex, a far age. ``moves`` is what its influence is about, in words. ``same_patient_as`` names an earlier
    reference that is another visit of the same person.
    """

    name: str
    person: Person
    weight: int
    cosine: float
    importance: float | None
    effect: float | None
    outcome: str | None
    agrees: bool | None
    evidence: tuple[Code, ...]
    codes: dict[Kind, CodeComparison]
    is_neighbor: bool = True
    same_patient_as: str | None = None
    share: float | None = None
    points: float | None = None
    because: str = ""
    had: bool | None = None
    differs: tuple[str, ...] = ()
    moves: str = "the risk"

    @property
    def influence(self) -> float | None:
        """What an exact share does to the shown probability, or the share itself; without one, the importance."""
        if self.share is None:
            return self.importance
        return self.share if self.points is None else self.points

    @property
    def direction(self) -> Direction:
        """What the reference does to the shown probability; where there is none, to the target logit.

        The logit of a class can rise while its probability falls, because those of other classes rise more.
        """
        change = self.effect if self.share is None else self.share
        if change is None:
            return "not used"
        change = self.points or change
        return "no influence" if change == 0 else "raises" if change > 0 else "lowers"


@dataclass(frozen=True)
class Turning:
    """The smallest set of references whose removal changes the decision, or that none was found."""

    references: tuple[str, ...]
    answer: str
    probability: float | None
    sentence: str


@dataclass(frozen=True)
class State:
    """A prediction in few words, before or after a change."""

    answer: str
    probability: float | None
    target_logit: float
    references: tuple[str, ...]
    chosen: tuple[str, ...] = ()


@dataclass(frozen=True)
class WhatIf:
    """A change and the prediction after it; ``newcomers`` says who J1, J2, ... are."""

    change: str
    before: State
    after: State
    left: tuple[str, ...]
    joined: tuple[str, ...]
    newcomers: tuple[str, ...]
    support: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """Everything that a page says about one prediction.

    ``moved`` is what a reference raises or lowers, ``disagreed`` says whose outcome speaks against the prediction.
    """

    task: str
    title: str
    split: str
    example: int
    mode: str
    uses_graph: bool
    patient: Person
    prediction: Prediction
    support: Support
    references: tuple[ExplainedReference, ...]
    counter_references: tuple[ExplainedReference, ...]
    turning: Turning | None
    tied: dict[str, Any]
    notes: tuple[str, ...]
    settings: dict[str, str]
    record: OwnRecord
    drugs: DrugMatrix | None = None
    what_if: WhatIf | None = None
    rules: tuple[tuple[str, str], ...] = ()
    moved: str = "the risk"
    disagreed: str = "whose outcome is not what was predicted"

    @property
    def compared_with(self) -> str:
        """Whose outcomes are counted: similar patients, unless nobody of them has a code in common."""
        if self.support.is_without_codes:
            return f"patients who are {ALIKE_WITHOUT_CODES}"
        return "most similar patients" if self.has_shares else "similar patients"

    @property
    def references_title(self) -> str:
        """The title of the list of references: who they are, and how they are ordered."""
        if self.has_shares:
            return "The references with the most influence"
        if self.support.is_without_codes:
            return "References without a code in common"
        return f"Similar patients, the most {'influential' if self.uses_graph else 'similar'} first"

    @property
    def references_against(self) -> tuple[str, ...]:
        """The references whose outcome does not agree with the prediction."""
        return tuple(reference.name for reference in self.references if reference.agrees is False)

    @property
    def has_shares(self) -> bool:
        """Tell whether every reference has an exact share of the prediction."""
        return any(reference.share is not None for reference in self.references)

    def as_json(self) -> dict[str, Any]:
        """Return the explanation as plain data."""
        return asdict(self)

    def json(self) -> str:
        """Return the explanation as JSON text."""
        return json.dumps(self.as_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
