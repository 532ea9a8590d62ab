"""The patient page: well-formed, self-contained, usable by keyboard, readable in light and dark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from report.page_checks import check_page

from patients_like_me.explanation.explain import explain
from patients_like_me.explanation.explanation import Explanation
from patients_like_me.explanation.scene import set_scene
from patients_like_me.explanation.what_if import Change
from patients_like_me.report.contrast import contrast
from patients_like_me.report.ego_graph import HIGHLIGHT, INK, MUTED, PAPER
from patients_like_me.report.palette import DARK, LIGHT
from patients_like_me.report.patient_page import patient_markdown, patient_page
from patients_like_me.runs.run import load_run

TASKS = ("readmission", "length_of_stay", "drug_recommendation")
#: Which colour is written on which.
TEXT_ON_GROUND = (
    ("ink", "ground"),
    ("ink", "card"),
    ("muted", "ground"),
    ("muted", "card"),
    ("accent", "ground"),
    ("accent", "card"),
    ("tied", "card"),
    ("good-ink", "good-ground"),
    ("fair-ink", "fair-ground"),
    ("none-ink", "none-ground"),
)
MakeExplanation = Callable[..., Explanation]


@pytest.fixture(scope="module")
def explanation(finished_run: Callable[..., Path]) -> MakeExplanation:
    """Return a function that explains the best connected test instance of a run."""

    def make(task: str = "readmission", *, change: Change | None = None, **run: str) -> Explanation:
        scene = set_scene(load_run(finished_run(task, **run)))
        row = max(scene.own_rows.tolist(), key=lambda row: scene.graph.degrees[scene.node_of_row(row)])
        return explain(scene, row, change=change)

    return make


@pytest.mark.parametrize("references", ["cohort", "bank"])
@pytest.mark.parametrize("task", TASKS)
def test_the_page_is_well_formed_and_self_contained(task: str, references: str, explanation: MakeExplanation) -> None:
    found = explanation(task, references=references, change=Change(drop=("R1",)))
    page = check_page(patient_page(found))
    assert {reference.name for reference in found.references} <= set(page.ids)
    assert found.support.word in page.words
    assert "What if" in page.words
    for reference in found.references:
        for comparison in reference.codes.values():
            for code in (*comparison.shared, *comparison.only_target, *comparison.only_reference):
                assert code.label in page.words


def test_a_policy_forbids_scripts_and_other_machines(explanation: MakeExplanation) -> None:
    page = check_page(patient_page(explanation(references="bank")))
    policies = [item for tag, item in page.tags if tag == "meta" and item.get("http-equiv")]
    assert "default-src 'none'" in str(policies[0]["content"])


def test_pictures_and_tables_can_be_reached_and_named(explanation: MakeExplanation) -> None:
    page = check_page(patient_page(explanation(references="bank")))
    assert all(item.get("role") == "img" for tag, item in page.tags if tag == "svg")
    scrolled = [item for tag, item in page.tags if "scroll" in str(item.get("class", "")).split()]
    assert scrolled
    assert all(item.get("tabindex") == "0" and item.get("aria-label") for item in scrolled)
    assert ("a", {"class": "skip", "href": "#main"}) in page.tags
    assert [item for tag, item in page.tags if tag == "meta" and item.get("name") == "viewport"]
    assert all(item.get("scope") in ("col", "row") for tag, item in page.tags if tag == "th")


def test_twin_and_caption_are_there_with_a_graph_and_one_picture_without(explanation: MakeExplanation) -> None:
    words = check_page(patient_page(explanation(references="bank"))).words
    assert "The same references by shared diagnoses." in words
    assert "The closer and darker a disc" in words
    # The whole hospital has no procedures: that is no finding about this patient.
    assert "not in these records" in words
    assert "Procedures (0)" not in words
    alone = check_page(patient_page(explanation(strategy="lm_only"))).words
    assert "A solid line: it raises" not in alone
    assert "the prediction does not use them" in alone


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_every_text_has_enough_contrast(palette: dict[str, str]) -> None:
    for ink, ground in TEXT_ON_GROUND:
        assert contrast(palette[ink], palette[ground]) >= 4.5, (ink, ground)
    assert contrast(palette["bar"], palette["card"]) >= 3
    assert LIGHT.keys() == DARK.keys()


def test_the_pictures_have_enough_contrast() -> None:
    assert all(contrast(colour, PAPER) >= 4.5 for colour in (INK, MUTED, HIGHLIGHT))


@pytest.mark.parametrize("task", TASKS)
def test_markdown_has_the_same_references(task: str, explanation: MakeExplanation) -> None:
    found = explanation(task, references="bank", change=Change(tau=3))
    text = patient_markdown(found)
    for reference in (*found.references, *found.counter_references):
        assert f"### {reference.name}: {reference.person.about}" in text
    assert "## What if: tau 3" in text
    assert "\n\n\n\n" not in text
