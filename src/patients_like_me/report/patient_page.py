"""The page about one patient: prediction with support, ego graph, and every reference side by side with the patient."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from jinja2 import Environment
from markupsafe import Markup

from patients_like_me.plain_text import counted, percent, percent_of
from patients_like_me.report.ego_graph import CODES_SHOWN, EgoNode, draw_ego_graph, draw_legend
from patients_like_me.report.page_templates import page_environment
from patients_like_me.report.palette import DARK, LIGHT, css_variables
from patients_like_me.report.timeline import timeline_of, visit_in_words

if TYPE_CHECKING:
    from patients_like_me.explanation.explanation import ExplainedReference, Explanation

KIND_TITLES = {"diagnosis": "Diagnoses", "procedure": "Procedures", "medication": "Medications"}


def patient_page(explanation: Explanation) -> str:
    """Return the page as HTML text: one file, no scripts, nothing loaded from elsewhere."""
    pictures = ego_graphs(explanation)
    return (
        _environment()
        .get_template("patient_page.html.jinja")
        .render(
            e=explanation,
            pictures=pictures,
            caption=caption(explanation),
            kinds=KIND_TITLES,
            timelines={
                reference.name: timeline_of(explanation.patient, reference.person)
                for reference in (*explanation.references, *explanation.counter_references)
            },
            light=css_variables(LIGHT),
            dark=css_variables(DARK),
        )
    )


def patient_markdown(explanation: Explanation) -> str:
    """Return the explanation as Markdown text, with the same content but the pictures."""
    environment = _environment(markdown=True)
    return environment.get_template("patient_page.md.jinja").render(e=explanation, kinds=KIND_TITLES)


def ego_graphs(explanation: Explanation) -> dict[str, Markup]:
    """Return the pictures of an explanation: importance and its edge-weight twin, wide and narrow, with legends."""
    references = explanation.references
    has_ties = _shows_ties(explanation)
    weights = weight_nodes(references, int(explanation.settings["tau"]))
    pictures = {
        "weight": draw_ego_graph(weights, title="References by shared diagnoses"),
        "weight_narrow": draw_ego_graph(weights, title="References by shared diagnoses", labels=False),
        "weight_legend": draw_legend("shared diagnoses", signed=False, codes=has_ties),
    }
    if explanation.uses_graph:
        nodes = importance_nodes(references)
        pictures |= {
            "importance": draw_ego_graph(nodes, title="References by importance"),
            "importance_narrow": draw_ego_graph(nodes, title="References by importance", labels=False),
            "importance_legend": draw_legend("important", signed=True, codes=has_ties),
        }
    # Each of them is our own SVG, in which every name is escaped already.
    return {name: Markup(picture) for name, picture in pictures.items()}  # noqa: S704


def importance_nodes(references: Sequence[ExplainedReference]) -> list[EgoNode]:
    """Return the references as nodes whose strength is the size of their share, or else of their importance."""
    largest = max((abs(reference.influence or 0.0) for reference in references), default=0.0) or 1.0
    return [
        EgoNode(
            name=reference.name,
            shown=f"{signed(reference.influence)} ({reference.role})",
            strength=abs(reference.influence or 0.0) / largest,
            sign=0 if not reference.influence else (1 if reference.influence > 0 else -1),
            outcome=reference.outcome,
            codes=tuple((code.label, code.tied) for code in reference.evidence),
        )
        for reference in references
    ]


def weight_nodes(references: Sequence[ExplainedReference], tau: int) -> list[EgoNode]:
    """Return the references as nodes whose strength is the number of shared diagnoses, from tau on."""
    largest = max((tau, *(reference.weight for reference in references)))
    return [
        EgoNode(
            name=reference.name,
            shown=counted(reference.weight, "shared diagnosis", "shared diagnoses"),
            strength=(reference.weight - tau + 1) / (largest - tau + 1),
            outcome=reference.outcome,
            codes=tuple((code.label, code.tied) for code in reference.evidence),
        )
        for reference in references
    ]


def caption(explanation: Explanation) -> str:
    """Return the sentences under the ego graph that say how to read it."""
    prediction = explanation.prediction
    ties = (
        f" ◆ marks diagnoses tied to “{explanation.tied['event']}”: training patients with them have it clearly more "
        "often than others (see How this was made)."
    )
    size = f"importance: how much the {prediction.target} would change with the weight of the edge"
    if any(reference.share is not None for reference in explanation.references):
        size = f"share: the part of the {prediction.target} that comes from it"
    return (
        "The patient is in the middle, each disc is a reference. The closer and darker a disc, the larger its "
        f"{size}. A solid line supports "
        "(raises the logit), a dashed line opposes (lowers it). Beside each reference stand its outcome, where it is "
        "known, and up to three diagnoses that it shares with the patient: those tied to the outcome first, then the "
        "rarest." + (ties if _shows_ties(explanation) else "")
    )


def _shows_ties(explanation: Explanation) -> bool:
    return any(code.tied for reference in explanation.references for code in reference.evidence[:CODES_SHOWN])


def signed(value: float | None) -> str:
    """Write a number with its sign and three significant digits, or a dash where there is none.

    >>> signed(0.4123), signed(-0.00123), signed(None), signed(0.0)
    ('+0.412', '−0.00123', '–', '0')
    """
    if value is None:
        return "–"
    if value == 0:
        return "0"
    return f"{value:+.3g}".replace("-", "−")


@cache
def _environment(*, markdown: bool = False) -> Environment:
    environment = page_environment(markdown=markdown)
    environment.filters |= {
        "signed": signed,
        "percent_of": percent_of,
        "percent": percent,
        "counted": counted,
        "visit": visit_in_words,
    }
    return environment
