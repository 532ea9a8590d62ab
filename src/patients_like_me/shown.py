"""What the public face returns: objects that can be shown as a page, as JSON and as Markdown."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_file
from patients_like_me.runs.run import Run

if TYPE_CHECKING:
    from patients_like_me.evaluation.compare import Comparison
    from patients_like_me.evaluation.evaluate import Evaluation
    from patients_like_me.explanation.explanation import Explanation
    from patients_like_me.report.run_report import RunReport
    from patients_like_me.report.self_page import SelfPage


class Shown(ABC):
    """What can be shown as a page, as JSON and as Markdown."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: .html(), .json(), .markdown() or .save(path)>"

    @abstractmethod
    def html(self) -> str:
        """Return one self-contained page."""

    @abstractmethod
    def json(self) -> str:
        """Return the content as JSON text."""

    @abstractmethod
    def markdown(self) -> str:
        """Return the content as Markdown text, without the pictures."""

    def save(self, path: Path | str) -> Path:
        """Write a file; its ending (.html, .json or .md) decides the form."""
        path = Path(path)
        forms = {".html": self.html, ".json": self.json, ".md": self.markdown}
        if path.suffix not in forms:
            raise PlmError(f"the output file must end in .html, .json or .md, got '{path.name}'")
        with atomic_file(path) as temporary:
            temporary.write_text(forms[path.suffix](), encoding="utf-8")
        return path


@dataclass(frozen=True, eq=False, repr=False)
class EvaluatedRun(Shown):
    """How good the predictions of a run are; ``evaluation`` has everything as objects."""

    run: Run
    evaluation: Evaluation

    @cached_property
    def table(self) -> pl.DataFrame:
        """One row per measure, with its interval and definition."""
        from patients_like_me.evaluation.tables import metrics_table

        return metrics_table(self.evaluation)

    @cached_property
    def subgroups(self) -> pl.DataFrame:
        """One row per stratum and measure; strata with fewer than 11 patients are hidden."""
        from patients_like_me.evaluation.tables import subgroups_table

        return subgroups_table(self.evaluation)

    def html(self) -> str:
        """Return metrics, calibration and subgroups as one page."""
        return self._report.html()

    def json(self) -> str:
        """Return every number as JSON text."""
        return _as_text(self.evaluation.as_json())

    def markdown(self) -> str:
        """Return metrics, calibration and subgroups as Markdown."""
        return self._report.markdown()

    @cached_property
    def _report(self) -> RunReport:
        from patients_like_me.report.summaries import evaluation_report

        return evaluation_report(self.run, self.evaluation)


@dataclass(frozen=True, eq=False, repr=False)
class ComparedRuns(Shown):
    """Runs side by side; ``comparison`` has everything as objects."""

    comparison: Comparison

    @cached_property
    def table(self) -> pl.DataFrame:
        """One row per run and measure, with the difference from the first run."""
        from patients_like_me.evaluation.comparison_files import comparison_table

        return comparison_table(self.comparison)

    def html(self) -> str:
        """Return the comparison as one page."""
        return self._report.html()

    def json(self) -> str:
        """Return every number as JSON text."""
        return _as_text(self.comparison.as_json())

    def markdown(self) -> str:
        """Return the comparison as Markdown."""
        return self._report.markdown()

    @cached_property
    def _report(self) -> RunReport:
        from patients_like_me.report.summaries import comparison_report

        return comparison_report(self.comparison)


@dataclass(frozen=True, eq=False, repr=False)
class ExplainedPatient(Shown):
    """One prediction with its references; ``explanation`` has everything as objects."""

    explanation: Explanation

    @property
    def answer(self) -> str:
        """What the model predicts, in words."""
        return self.explanation.prediction.answer

    @property
    def probability(self) -> float | None:
        """The probability of the answer's event; None for a set of codes."""
        return self.explanation.prediction.probability

    @cached_property
    def references(self) -> pl.DataFrame:
        """One row per reference under pseudonyms, the most important first, visits of one patient together."""
        rows = [
            {
                "reference": item.name,
                "about": item.person.about,
                "importance": item.importance,
                "effect": item.effect,
                "shared_diagnoses": item.weight,
                "cosine": item.cosine,
                "outcome": item.outcome,
                "shared": [code.label for code in item.evidence],
            }
            for item in self.explanation.references
        ]
        schema: dict[str, Any] = {
            "reference": pl.String,
            "about": pl.String,
            "importance": pl.Float64,
            "effect": pl.Float64,
            "shared_diagnoses": pl.Int64,
            "cosine": pl.Float64,
            "outcome": pl.String,
            "shared": pl.List(pl.String),
        }
        return pl.DataFrame(rows, schema=schema)

    def html(self) -> str:
        """Return the patient's page."""
        from patients_like_me.report.patient_page import patient_page

        return patient_page(self.explanation)

    def json(self) -> str:
        """Return the explanation as JSON text."""
        return self.explanation.json()

    def markdown(self) -> str:
        """Return the explanation as Markdown."""
        from patients_like_me.report.patient_page import patient_markdown

        return patient_markdown(self.explanation)


@dataclass(frozen=True, eq=False, repr=False)
class SelfExplained(Shown):
    """One prediction as its system explains it, without references; ``page`` has everything as objects."""

    page: SelfPage

    def html(self) -> str:
        """Return the page of the prediction."""
        return self.page.written(".html")

    def json(self) -> str:
        """Return the explanation as JSON text."""
        return self.page.written(".json")

    def markdown(self) -> str:
        """Return the explanation as Markdown."""
        return self.page.written(".md")


def _as_text(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
