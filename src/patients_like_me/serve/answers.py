"""What the API answers, as shapes for the OpenAPI document; tests hold real answers against them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorField(_Answer):
    """What is wrong with one field."""

    field: str
    message: str


class ProblemOut(_Answer):
    """A request that was refused (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[ErrorField]


class HealthOut(_Answer):
    """Whether the server lives; about the run only for who has a token."""

    status: str
    version: str
    run: str | None = None
    task: str | None = None
    system: str | None = None
    references: bool | None = None
    bank_version: str | None = None


class PredictionOut(_Answer):
    """One patient: ``patient`` is the place in the request, from 1; a set of codes has no single probability."""

    patient: int
    id: str | None
    answer: str
    probability: float | None
    probabilities: dict[str, float]
    references: int | None


class PredictOut(_Answer):
    """The predictions, in the order of the request; of a Bundle in the order of the patients' ids."""

    task: str
    labels: list[str]
    bank_version: str
    predictions: list[PredictionOut]
    notes: list[str] = Field(description="what was left out, such as codes that no map knows")


class ExplainOut(_Answer):
    """The explanation, as ``plm explain --out page.json`` writes it."""

    pseudonym: str | None
    explanation: dict[str, Any]
    notes: list[str]


class StateOut(_Answer):
    """A prediction before or after a change."""

    answer: str
    probability: float | None
    target_logit: float
    references: list[str]
    chosen: list[str]


class WhatIfDetail(_Answer):
    """A change and what came of it."""

    change: str
    before: StateOut
    after: StateOut
    left: list[str]
    joined: list[str]
    newcomers: list[str]
    support: str
    notes: list[str]


class WhatIfOut(_Answer):
    """A what-if; ``difference`` is after minus before, of the same probability."""

    pseudonym: str | None
    what_if: WhatIfDetail
    difference: float | None
    notes: list[str]


class ReferenceOut(_Answer):
    """One reference under its pseudonym."""

    reference: str
    about: str
    shared_diagnoses: int
    cosine: float
    outcome: str | None
    had: bool | None
    influence: float | None
    shared: list[str]


class ReferencesOut(_Answer):
    """The references of one prediction, and how well they support it."""

    pseudonym: str | None
    references: list[ReferenceOut]
    support: dict[str, Any]
    notes: list[str]


class CodeOut(_Answer):
    """A code that was found by name, synonym or code; ``entry`` is how a newcomer writes it."""

    kind: str
    code: str
    name: str
    given: str
    matched: str
    known: bool
    entry: str


class CodesOut(_Answer):
    """Codes, the best match first."""

    codes: list[CodeOut]


class WorklistOut(_Answer):
    """The new patients and those of today; ``waiting`` are still being predicted: ask again.

    A list has an end: ``not_listed`` patients of today's cohort are on no list, and can be asked for by pseudonym.
    """

    patients: list[dict[str, Any]]
    waiting: int
    not_listed: int


class BankOut(_Answer):
    """The bank, without counts of people under 11."""

    bank: dict[str, Any]


class AddedOut(_Answer):
    """The pseudonyms of the patients that were added."""

    pseudonyms: list[str]
    notes: list[str]
