"""Tied diagnoses are counted in the training split alone; two people's codes are parted without a rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from patients_like_me.explanation.decision import decision_for
from patients_like_me.explanation.evidence import FEWEST_INSTANCES, SMALLEST_LIFT, Evidence, gather_evidence
from patients_like_me.explanation.scene import Scene, set_scene
from patients_like_me.runs.run import load_run


@pytest.fixture(scope="module")
def scene(finished_run: Callable[..., Path]) -> Scene:
    return set_scene(load_run(finished_run("drug_recommendation", references="bank")))


def evidence_for(scene: Scene, drug: str | None) -> Evidence:
    decision = decision_for(scene.task, scene.instances.label_vocabulary, drug=drug)
    return gather_evidence(scene, decision, (1,))


def test_the_diagnosis_that_brings_the_drug_is_tied_to_it(scene: Scene) -> None:
    found = evidence_for(scene, "heparin")
    assert found.event == "heparin"
    sepsis = next(tie for tie in found.tied if tie.code == "sepsis")
    train = scene.instances.rows_of("train")
    sets, labels = scene.instances.diagnosis_sets, scene.instances.labels
    drug = scene.instances.label_vocabulary.index("heparin")
    having = [row for row in train if "sepsis" in sets.of(int(row))]
    assert sepsis.instances == len(having) >= FEWEST_INSTANCES
    assert sepsis.rate == pytest.approx(labels[having, drug].mean())
    assert sepsis.lift == pytest.approx(labels[having, drug].mean() / labels[train, drug].mean())
    assert all(tie.lift >= SMALLEST_LIFT for tie in found.tied)


def test_labels_of_evaluated_patients_do_not_count(scene: Scene) -> None:
    instances = scene.instances
    labels = instances.labels.copy()
    for split in ("validation", "test"):
        labels[scene.instances.rows_of(split)] = 1 - labels[scene.instances.rows_of(split)]
    other = replace(scene, instances=replace(instances, labels=labels))
    assert evidence_for(other, "heparin").tied == evidence_for(scene, "heparin").tied


def test_a_set_of_drugs_has_no_tied_diagnoses(scene: Scene) -> None:
    assert evidence_for(scene, None).tied == ()


def test_codes_are_parted_without_a_rest_and_shown_rarest_first(scene: Scene) -> None:
    found = evidence_for(scene, "heparin")
    first, second = scene.own_rows[0], scene.instances.rows_of("train")[0]
    for kind, part in found.compare(int(first), int(second)).items():
        shared, target, reference = (
            {code.code for code in codes} for codes in (part.shared, part.only_target, part.only_reference)
        )
        assert shared | target == set(scene.codes_of(int(first), kind))
        assert shared | reference == set(scene.codes_of(int(second), kind))
        assert not shared & target
        assert not shared & reference
    codes = found.ordered("diagnosis", set(scene.instances.diagnosis_sets.vocabulary))
    counts = [found.frequencies["diagnosis"].get(code.code, 0) for code in codes if not code.tied]
    assert counts == sorted(counts)
    tied = [code.tied for code in codes]
    assert tied == sorted(tied, reverse=True)


def test_an_outcome_that_never_happened_ties_nothing(scene: Scene) -> None:
    instances = scene.instances
    nothing = replace(instances, labels=np.zeros_like(instances.labels))
    other = replace(scene, instances=nothing)
    assert evidence_for(other, "heparin").tied == ()
