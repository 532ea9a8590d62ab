"""The page about one patient: prediction with support, ego graph, and every reference side by side with the patient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment
from markupsafe import Markup

from patients_like_me.explanation.pseudonyms import age_in_words
from patients_like_me.plain_text import counted, listed, percent, percent_of
from patients_like_me.records.cohort import Kind
from patients_like_me.report.ego_graph import CODES_SHOWN, EgoNode, draw_ego_graph, draw_legend
from patients_like_me.report.page_templates import page_environment
from patients_like_me.report.palette import DARK, LIGHT, css_variables
from patients_like_me.report.timeline import timeline_of, visit_in_words

if TYPE_CHECKING:
    from patients_like_me.explanation.explanation import ExplainedReference, Explanation
    from patients_like_me.explanation.own_record import OwnRecord

#: Smaller changes of a probability, in percentage points, are not written as a number.
SMALLEST_POINTS: Final = 0.1
KIND_TITLES: dict[Kind, str] = {"diagnosis": "Diagnoses", "procedure": "Procedures", "medication": "Medications"}


def patient_page(explanation: Explanation) -> str:
    """Return the page as HTML text: one file, no scripts, nothing loaded from elsewhere."""
    template = _environment().get_template("patient_page.html.jinja")
    return template.render(
        **patient_values(explanation), served=False, light=css_variables(LIGHT), dark=css_variables(DARK)
    )


def patient_values(explanation: Explanation) -> dict[str, Any]:
    """Return what the templates of a patient's page are filled with, whether it is a file or served."""
    in_record = any(code.tied for codes in explanation.record.codes.values() for code in codes)
    among_others = bool(explanation.tied["diagnoses"]) and not _shows_ties(explanation)
    return {
        "e": explanation,
        "pictures": ego_graphs(explanation),
        "caption": caption(explanation),
        "references_caption": references_caption(explanation),
        "kinds": kind_titles(explanation),
        "people": visits_of_one_patient(explanation.references),
        "received": partial(received, explanation),
        "ties_of_record": meaning_of_ties(explanation) if in_record else "",
        "ties_of_others": meaning_of_ties(explanation) if among_others and not in_record else "",
        "trend": trend_columns(explanation.record),
        "shows_risk": any(visit.risk is not None for visit in explanation.record.visits),
        "timelines": {
            reference.name: timeline_of(explanation.patient, reference.person)
            for reference in (*explanation.references, *explanation.counter_references)
        },
    }


def patient_markdown(explanation: Explanation) -> str:
    """Return the explanation as Markdown text, with the same content but the pictures."""
    environment = _environment(markdown=True)
    return environment.get_template("patient_page.md.jinja").render(e=explanation, kinds=kind_titles(explanation))


def kind_titles(explanation: Explanation) -> dict[Kind, str]:
    """Return the titles of the kinds of code; one that is seen of earlier visits alone says so."""
    current = explanation.record.visits[-1].codes
    where = {kind: "" if current[kind] is not None else " of earlier visits" for kind in KIND_TITLES}
    return {kind: title + where[kind] for kind, title in KIND_TITLES.items()}


def visits_of_one_patient(references: Sequence[ExplainedReference]) -> list[list[ExplainedReference]]:
    """Return the references in groups, the visits of one patient in each."""
    groups: dict[str, list[ExplainedReference]] = {}
    for reference in references:
        groups.setdefault(reference.same_patient_as or reference.name, []).append(reference)
    return list(groups.values())


@dataclass(frozen=True)
class VisitsAsOne:
    """What the visits of one patient have in common, in the words of one line."""

    about: str
    differs: tuple[str, ...]
    shared: str
    outcome: str


def _ages_as_one(ages: Sequence[str]) -> str:
    """Say in which ages visits were, from the first to the last; those that are not recorded are left out.

    >>> _ages_as_one(["61 years", "63 years"]), _ages_as_one(["88 years", "90 or older"])
    ('61 to 63 years', '88 years to 90 or older')
    >>> _ages_as_one(["61 years", "age not recorded"]), _ages_as_one(["age not recorded"])
    ('61 years', 'age not recorded')
    """
    missing = age_in_words(None)
    known = list(dict.fromkeys(age for age in ages if age != missing))
    if not known:
        return missing
    first, last = known[0], known[-1]
    if first == last:
        return first
    return f"{first.removesuffix(' years') if last.endswith(' years') else first} to {last}"


def as_one(group: Sequence[ExplainedReference]) -> VisitsAsOne:
    """Describe references that are visits of one patient in one line; one reference alone as itself."""
    people, differs = (
        [reference.person for reference in group],
        tuple(dict.fromkeys(difference for reference in group for difference in reference.differs)),
    )
    about, weights = people[0].about, sorted({reference.weight for reference in group})
    shared = counted(weights[-1], "shared diagnosis", "shared diagnoses")
    outcomes = [reference.outcome for reference in group if reference.outcome]
    if len(group) == 1:
        return VisitsAsOne(about, differs, shared, "".join(outcomes))
    # The visits before the first of them are the history of that visit alone.
    in_order = sorted(people, key=lambda person: len(person.visits))
    age = _ages_as_one([person.age for person in in_order])
    about = f"{len(group)} visits of one patient, {people[0].sex}, {age}"
    if len(weights) > 1:
        shared = f"{weights[0]} to {shared}"
    if len(set(outcomes)) == 1:
        return VisitsAsOne(about, differs, shared, f"each time {outcomes[0]}")
    each = "; ".join(f"{reference.name}: {reference.outcome}" for reference in group if reference.outcome)
    return VisitsAsOne(about, differs, shared, each)


@dataclass(frozen=True)
class TrendColumns:
    """Which columns of the list of visits hold anything."""

    days: bool
    stays: bool
    kinds: tuple[Kind, ...]


def trend_columns(record: OwnRecord) -> TrendColumns:
    """Return the columns of the list of visits, without those that the records do not have."""
    return TrendColumns(
        days=any(visit.day is not None for visit in record.visits),
        stays=any(visit.stay is not None for visit in record.visits),
        kinds=tuple(kind for kind in KIND_TITLES if kind not in record.missing),
    )


def received(explanation: Explanation, name: str, was: bool) -> list[str]:
    """Return the names of the likely drugs that a reference received, or did not receive."""
    assert explanation.drugs is not None
    place = explanation.drugs.references.index(name)
    return [row.name for row in explanation.drugs.rows if row.received[place] is was]


def ego_graphs(explanation: Explanation) -> dict[str, Markup]:
    """Return the pictures of an explanation: importance and its edge-weight twin, wide and narrow, with legends."""
    references = explanation.references
    has_ties = _shows_ties(explanation)
    weights = weight_nodes(references, int(explanation.settings["tau"]))
    pictures = {
        "weight": draw_ego_graph(weights, title="References by shared diagnoses"),
        "weight_narrow": draw_ego_graph(weights, title="References by shared diagnoses", labels=False),
        "weight_legend": draw_legend("shared diagnoses", codes=has_ties),
    }
    if explanation.uses_graph:
        nodes = importance_nodes(references)
        pictures |= {
            "importance": draw_ego_graph(nodes, title="References by importance"),
            "importance_narrow": draw_ego_graph(nodes, title="References by importance", labels=False),
            "importance_legend": draw_legend("influence", moved=explanation.moved, codes=has_ties),
        }
    # Each of them is our own SVG, in which every name is escaped already.
    return {name: Markup(picture) for name, picture in pictures.items()}  # noqa: S704


def importance_nodes(references: Sequence[ExplainedReference]) -> list[EgoNode]:
    """Return the references as nodes whose strength is the size of their share, or else of their importance."""
    largest = max((abs(reference.influence or 0.0) for reference in references), default=0.0) or 1.0
    return [
        EgoNode(
            name=reference.name,
            shown=direction_in_words(reference),
            strength=abs(reference.influence or 0.0) / largest,
            sign={"raises": 1, "lowers": -1}.get(reference.direction, 0),
            outcome=reference.outcome,
            codes=tuple((code.plain, code.tied) for code in reference.evidence),
        )
        for reference in references
    ]


def direction_in_words(reference: ExplainedReference) -> str:
    """Say what a reference does to the shown probability, with its size where there is one number to change.

    Points are percentage points of the probability.
    """
    words = {"not used": "not used", "no influence": "no influence"}
    if reference.direction in words:
        return words[reference.direction]
    does = f"{reference.direction} {reference.moves}"
    if reference.points is None:
        return does
    size = abs(reference.points)
    return f"hardly {does}" if size < SMALLEST_POINTS else f"{does} by {size:.1f} points"


def weight_nodes(references: Sequence[ExplainedReference], tau: int) -> list[EgoNode]:
    """Return the references as nodes whose strength is the number of shared diagnoses, from tau on."""
    largest = max((tau, *(reference.weight for reference in references)))
    return [
        EgoNode(
            name=reference.name,
            shown=counted(reference.weight, "shared diagnosis", "shared diagnoses"),
            strength=(reference.weight - tau + 1) / (largest - tau + 1),
            outcome=reference.outcome,
            codes=tuple((code.plain, code.tied) for code in reference.evidence),
        )
        for reference in references
    ]


def caption(explanation: Explanation) -> str:
    """Return the sentences under the ego graph that say how to read it."""
    disc, moved = "a reference" if explanation.has_shares else "a similar patient", explanation.moved
    ties = f" {meaning_of_ties(explanation)}" if _shows_ties(explanation) else ""
    return (
        f"The patient is in the middle; each disc is {disc}. The closer and darker the disc, the more the prediction "
        f"depends on that patient, compared with the strongest. A solid line: it raises {moved}; a dashed line: it "
        f"lowers {moved}. Next to each disc: what became of the patient, where that is known, and up to three shared "
        f"diagnoses.{ties}"
    )


def references_caption(explanation: Explanation) -> str:
    """Return the sentences above the references that say what they are to the prediction."""
    if not explanation.uses_graph:
        return (
            "What became of patients whose records are similar. The prediction uses none of them: it comes from the "
            "patient's own record alone."
        )
    words = (
        "What became of these patients and what they do to the prediction are two different things: with them the "
        "predicted probability is higher or lower than without them, whatever their outcome was."
    )
    if explanation.has_shares or not any(reference.points for reference in explanation.references):
        return words
    # The order is that of the importance; the points are measured by removal and can be in another order.
    return (
        f"{words} First come those to whom the prediction reacts most for each shared diagnosis; the points are what "
        "each patient changes as a whole, so they can be in another order."
    )


def meaning_of_ties(explanation: Explanation) -> str:
    """Say what the mark of a diagnosis means."""
    return (
        f"◆ marks diagnoses that go with “{explanation.tied['event']}”: earlier patients with them had it clearly more "
        "often than others."
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
    add_patient_filters(environment)
    return environment


def add_patient_filters(environment: Environment) -> None:
    """Give an environment the filters that the templates of a patient's page use."""
    environment.filters |= {
        "signed": signed,
        "percent_of": percent_of,
        "percent": percent,
        "counted": counted,
        "listed": listed,
        "visit": visit_in_words,
        "direction": direction_in_words,
        "as_one": as_one,
        "drug_name": lambda code, drugs: drugs.named(code),
    }
