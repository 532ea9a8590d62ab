"""Support counts references, their closeness and their agreement, and says when there is nobody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from patients_like_me.explanation.decision import Decision, decision_for
from patients_like_me.explanation.references import Reference, references_of
from patients_like_me.explanation.scene import Scene, set_scene
from patients_like_me.explanation.support import Support, support_of, support_rule
from patients_like_me.explanation.what_if import without_edges
from patients_like_me.runs.run import load_run

FinishedRun = Callable[..., Path]


@pytest.fixture(scope="module")
def scene(finished_run: FinishedRun) -> Scene:
    return set_scene(load_run(finished_run(references="bank")))


@pytest.fixture(scope="module")
def decision(scene: Scene) -> Decision:
    return decision_for(scene.task, scene.instances.label_vocabulary)


def well_connected(scene: Scene) -> int:
    return max((scene.node_of_row(row) for row in scene.own_rows.tolist()), key=lambda node: scene.graph.degrees[node])


def support_with(scene: Scene, decision: Decision, *, positive: int, number: int = 10, weight: int = 6) -> Support:
    """Support by references made up to have the nearest embeddings, a given number of them with a positive outcome."""
    node = well_connected(scene)
    labels = np.array(scene.instances.labels)
    rows = scene.rows[: scene.graph.evaluated.argmax()][:number]
    labels[rows] = np.arange(number) < positive
    other = replace(scene, instances=replace(scene.instances, labels=labels))
    other.__dict__["codes_seen"] = scene.codes_seen
    references = [Reference(int(place), int(row), weight, 1.0) for place, row in enumerate(rows)]
    return support_of(other, node, references, decision, (1,))


def test_many_close_references_that_agree_support_well(scene: Scene, decision: Decision) -> None:
    found = support_with(scene, decision, positive=7)
    assert found.word == "well supported"
    assert found.agreement == pytest.approx(0.7)
    assert found.outcomes == "7 of 10 were readmitted"
    assert found.training_rate.startswith("readmission in ")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"positive": 6}, "only 6 of the 10 references had the predicted outcome"),
        ({"positive": 0}, "none of the 10 references had the predicted outcome"),
        ({"positive": 0, "number": 1}, "what became of the only reference is not what was predicted"),
        ({"positive": 4, "number": 4}, "the 4 references are visits of only "),
        ({"positive": 10, "weight": 1}, "most references have few of the patient's diagnoses, typically "),
    ],
)
def test_every_lack_is_a_reason(scene: Scene, decision: Decision, options: dict[str, int], reason: str) -> None:
    found = support_with(scene, decision, **options)
    assert found.word == "weakly supported"
    assert any(reason in text for text in found.reasons)


def test_references_without_a_code_in_common_never_support_well(scene: Scene, decision: Decision) -> None:
    bare = replace(scene)
    # A cached property of a frozen object: nobody has a code of any kind.
    bare.__dict__["codes_seen"] = {kind: seen.clear() for kind, seen in scene.codes_seen.items()}
    found = support_with(bare, decision, positive=10, weight=0)
    assert found.word == "weakly supported"
    assert found.is_without_codes
    assert "alike only in facts such as age, sex or hospital" in found.reasons[0]
    assert not support_with(scene, decision, positive=10).without_codes


def test_nobody_to_compare_with_is_said(scene: Scene, decision: Decision) -> None:
    node = well_connected(scene)
    lonely = scene.with_graph(without_edges(scene.graph, node, scene.graph.neighbors_of(node)[0].tolist()))
    found = support_of(lonely, node, references_of(lonely, node), decision, (0,))
    assert found.is_missing
    assert found.word == "no comparable patients"
    assert "shares at least 2 diagnoses" in found.reasons[0]
    assert found.agreement is None
    rule = {"same_sex": True, "max_age_difference": 10}
    choosy = replace(lonely.graph, settings=lonely.graph.settings.model_copy(update=rule))
    reason = support_of(lonely.with_graph(choosy), node, [], decision, (0,)).reasons[0]
    assert "no earlier patient of the same sex and an age within 10 years shares at least 2 diagnoses" in reason
    # Whoever has fewer diagnoses than a similar patient must share is told so.
    own = scene.graph.own_codes[node]
    strict = replace(lonely.graph, settings=lonely.graph.settings.model_copy(update={"tau": int(own) + 1}))
    reason = support_of(lonely.with_graph(strict), node, [], decision, (0,)).reasons[0]
    assert reason == f"the patient has {own} recorded diagnoses; a similar patient must share at least {own + 1}"


def test_in_cohort_mode_outcomes_are_not_known(finished_run: FinishedRun) -> None:
    scene = set_scene(load_run(finished_run(references="cohort")))
    decision = decision_for(scene.task, scene.instances.label_vocabulary)
    for row in scene.own_rows.tolist():
        node = scene.node_of_row(row)
        found = support_of(scene, node, references_of(scene, node), decision, (0,))
        assert found.agreement is None
        assert found.outcomes == ""
        assert found.word != "well supported"


def test_the_rule_states_its_thresholds() -> None:
    assert all(number in support_rule() for number in ("5 patients", "30 %", "75 %", "70 %"))
