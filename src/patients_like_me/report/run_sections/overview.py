"""The title and the first paragraph: what was predicted, for whom, how well, and what to be careful about."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from patients_like_me.evaluation.tables import shown_interval, shown_value
from patients_like_me.plain_text import printable, shown_count
from patients_like_me.report.run_sections.coverage import neighbors_of_predictions
from patients_like_me.report.run_sections.faithfulness import verdict_of
from patients_like_me.report.run_sections.hubs import hub_warning
from patients_like_me.report.run_sections.material import Material
from patients_like_me.report.small_counts import HIDDEN, shown_share


def title_of(material: Material) -> str:
    """Return the title of a report."""
    return f"{printable(material.run.task.name).replace('_', ' ').capitalize()}: report on a run ({_model(material)})"


def summary_of(material: Material) -> tuple[str, ...]:
    """Return the report in few sentences."""
    return (_what(material), *_warnings(material), *_how_well(material), *_care(material))


def _model(material: Material) -> str:
    return printable(material.run.name)


def _what(material: Material) -> str:
    run, evaluation = material.run, material.evaluation
    trained = shown_count(material.run.results.instances["train"])
    question = printable(run.task.title)
    return (
        f"The question: {question} The model ({_model(material)}) learned from {trained} instances and was tried "
        f"on {shown_count(len(evaluation.predictions))} instances of "
        f"{shown_count(evaluation.predictions.number_of_patients)} other patients."
    )


def _warnings(material: Material) -> list[str]:
    """Return what must not be overlooked: few references, hubs, and references that hardly matter."""
    found = [f"Warning: {printable(each)}." for each in material.run.results.warnings]
    if material.use is not None and material.use.edges and (words := hub_warning(material.use)):
        found = [each for each in found if "hub patients" not in each] + [f"Warning: {words}"]
    if material.too_large:
        found.append(
            "Warning: what the references do to predictions is not in this report, nor are those of the examples: "
            f"{material.too_large}."
        )
    judged = verdict_of(material)
    found += [f"Warning: {judged.words}"] if judged is not None and judged.tone == "warning" else []
    return found


def _how_well(material: Material) -> list[str]:
    evaluation = material.evaluation
    first = next(each for each in evaluation.measures if each.metric == evaluation.primary[0])
    if first.value is None:
        sentence = f"{first.title} is not available: {first.unavailable}."
    else:
        spread = f" (95 % interval {shown_interval(first.interval)})" if first.interval else ""
        sentence = f"{first.title}: {shown_value(first.value)}{spread}; {first.definition}."
    found = [sentence]
    if material.use is not None:
        neighbors = neighbors_of_predictions(material)
        share = shown_share(material.group(neighbors > 0), material.group(neighbors == 0))
        if share != HIDDEN:
            found.append(_who_has_references(share, neighbors > 0))
    return found


def _who_has_references(share: str, linked: npt.NDArray[np.bool_]) -> str:
    """Say how many have references; nothing of the others where there are none.

    >>> _who_has_references("100.0 %", np.array([True, True]))
    'All test instances have reference patients.'
    """
    if linked.all():
        return "All test instances have reference patients."
    if not linked.any():
        return "No test instance has a reference patient: all are predicted from their own record alone."
    return f"{share} of the test instances have reference patients; the others are predicted alone."


def _care(material: Material) -> list[str]:
    audit = material.audit
    if audit.leaks:
        found = [f"{audit.sum}: the scores cannot be trusted."]
    elif audit.warnings:
        warned = ", ".join(finding.check for finding in audit.warnings)
        found = [f"{audit.sum} ({warned}): see the audit before the scores."]
    else:
        found = [f"{audit.sum}."]
    if material.run.instances.settings.inputs == "retrospective":
        found.append(
            "The prediction is retrospective: codes of the current visit, assigned after discharge, may be inputs."
        )
    if material.is_synthetic:
        found.append("The hospital is synthetic: nothing here is a claim about accuracy on people.")
    found.append("This is a research tool, not a medical device.")
    return found
