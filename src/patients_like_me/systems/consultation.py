"""The consultation of ColaCare: three doctors, each with one expert's view, and one who leads, over one language model.

Every doctor reads the record, the expert's estimate, the codes that count most for it and passages of guidelines, and
writes an analysis. The lead writes a report. Then come rounds: each doctor agrees or disagrees; while one disagrees,
the lead revises the report. No label is in any of these prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from patients_like_me.model.llm.answer_form import NUMBER, TEXT, AnswerForm
from patients_like_me.model.llm.client import LLMClient
from patients_like_me.systems.expert_views import View
from patients_like_me.systems.guidelines import Guidelines, words_of
from patients_like_me.systems.patient_context import PatientContext
from patients_like_me.tasks.task import Task

_ANALYSIS = AnswerForm({"estimate": NUMBER, "analysis": TEXT, "evidence": TEXT})
_REPORT = AnswerForm({"estimate": NUMBER, "report": TEXT})
_OPINION = AnswerForm({"opinion": "agree | disagree", "confidence": NUMBER, "reason": TEXT})


@dataclass(frozen=True)
class Consulted:
    """What came out for one patient."""

    report: str
    estimate: float | None
    rounds: int
    agreed: bool


@dataclass
class Consultation:
    """Doctors and lead for one task; ``unread`` counts answers without a field that was asked for."""

    task: Task
    client: LLMClient
    guidelines: Guidelines
    passages: int
    rounds: int
    record_words: int
    answers: int = 0
    unread: int = 0

    def consult(self, context: PatientContext, views: Sequence[View], row: int) -> Consulted:
        """Discuss one patient; ``row`` is the patient's place in the views."""
        record = context.within(lambda text: len(text.split()), self.record_words)
        analyses = [self._read(_ANALYSIS, self.doctor_prompt(record, view, row)) for view in views]
        spoken = [self._spoken(view, row, analysis) for view, analysis in zip(views, analyses, strict=True)]
        answer = self._read(_REPORT, self.lead_prompt(record, spoken))
        agreed, held = False, 0
        while held < self.rounds and not agreed:
            held += 1
            opinions = [
                self._read(_OPINION, self.round_prompt(record, own, answer.get("report", ""))) for own in spoken
            ]
            against = [opinion for opinion in opinions if opinion.get("opinion") == "disagree"]
            agreed = not against
            if agreed:
                continue
            reasons = [
                f"doctor {number} ({opinion.get('confidence', '1')} of 3 sure): {opinion.get('reason', 'no reason')}"
                for number, opinion in enumerate(opinions, start=1)
                if opinion in against
            ]
            answer = self._read(_REPORT, self.lead_prompt(record, spoken, answer.get("report", ""), reasons)) or answer
        # Without a report the doctors' own words are what there is to read.
        report = answer.get("report") or "; ".join(spoken)
        estimate = float(answer["estimate"]) if "estimate" in answer else None
        return Consulted(report, estimate, held, agreed)

    def doctor_prompt(self, record: str, view: View, row: int) -> str:
        """Return the question to one doctor."""
        important = view.important[row]
        query = [word for name in important for word in words_of(name)]
        passages = self.guidelines.best(query, self.passages)
        return "\n".join(
            [
                f"You are a doctor. {self.task.question}",
                record,
                f"- {self.estimate_words(view, row)}",
                f"- most important for it: {', '.join(important) or 'nothing'}",
                *(f"- guideline: {passage}" for passage in passages),
                f"Give your own estimate ({self._scale()}), an analysis, and the evidence for it.",
                _ANALYSIS.words(),
            ]
        )

    def lead_prompt(self, record: str, spoken: Sequence[str], report: str = "", reasons: Sequence[str] = ()) -> str:
        """Return the question to the lead: a report, or a revised one where doctors disagree."""
        before = [f"Your report so far: {report}", "Doctors disagree:"] if reasons else []
        return "\n".join(
            [
                f"You lead a group of doctors. {self.task.question}",
                record,
                *(f"- {each}" for each in spoken),
                *before,
                *(f"- {reason}" for reason in reasons),
                f"Write {'a better' if reasons else 'the'} report, and your estimate ({self._scale()}).",
                _REPORT.words(),
            ]
        )

    def round_prompt(self, record: str, own: str, report: str) -> str:
        """Return the question whether a doctor agrees with the report."""
        return "\n".join(
            [
                f"You are a doctor. {self.task.question}",
                record,
                f"- you said: {own}",
                f"- the report says: {report}",
                "Do you agree with the report? Say how sure you are, from 1 to 3, and why.",
                _OPINION.words(),
            ]
        )

    def estimate_words(self, view: View, row: int) -> str:
        """Return an expert's estimate as a statement."""
        shares: npt.NDArray[np.float64] = view.probabilities[row]
        if len(shares) == 1:
            return f"estimate of the model {view.expert}: {shares[0]:.2f}"
        likely = int(shares.argmax())
        return f"estimate of the model {view.expert}: class {likely} with probability {shares[likely]:.2f}"

    def _spoken(self, view: View, row: int, analysis: dict[str, str]) -> str:
        own = analysis.get("estimate")
        words = [self.estimate_words(view, row) if own is None else f"estimate {own}"]
        return "; ".join([*words, *(analysis[name] for name in ("analysis", "evidence") if name in analysis)])

    def _scale(self) -> str:
        return self.task.kind.asked_words

    def _read(self, form: AnswerForm, prompt: str) -> dict[str, str]:
        found = form.read(self.client.complete(prompt))
        self.answers += 1
        self.unread += len(found) < len(form.fields)
        return found


def most_calls(instances: int, rounds: int) -> int:
    """Return how often a language model is asked at most.

    >>> most_calls(10, rounds=2)
    120
    """
    return instances * (4 + 4 * rounds)
