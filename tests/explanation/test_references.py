"""References are neighbours of other patients, at most ten, the nearest by cosine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from patients_like_me.errors import PlmError
from patients_like_me.explanation.references import references_of
from patients_like_me.explanation.scene import Scene, chosen_row, example_number, set_scene
from patients_like_me.runs.run import load_run

FinishedRun = Callable[..., Path]


@pytest.fixture(scope="module", params=["cohort", "bank"])
def scene(request: pytest.FixtureRequest, finished_run: FinishedRun) -> Scene:
    return set_scene(load_run(finished_run(references=request.param)), "test")


def test_references_are_the_nearest_neighbours_by_cosine(scene: Scene) -> None:
    embeddings = scene.embeddings.double().numpy()
    lengths = np.linalg.norm(embeddings, axis=1)
    for row in scene.own_rows:
        node = scene.node_of_row(int(row))
        neighbors = scene.graph.neighbors_of(node)[0]
        cosine = embeddings @ embeddings[node] / (lengths * lengths[node])
        for most in (2, 10):
            found = references_of(scene, node, most=most)
            assert len(found) == min(most, len(neighbors))
            assert {reference.node for reference in found} <= set(neighbors.tolist())
            assert [reference.cosine for reference in found] == pytest.approx(
                sorted(cosine[neighbors], reverse=True)[:most], abs=1e-9
            )


def test_weights_are_the_shared_diagnoses_and_nobody_is_a_reference_of_themselves(scene: Scene) -> None:
    sets, subjects = scene.instances.diagnosis_sets, scene.instances.frame["subject"]
    seen = 0
    for row in scene.own_rows.tolist():
        for reference in references_of(scene, scene.node_of_row(row)):
            assert reference.weight == len(set(sets.of(row)) & set(sets.of(reference.row)))
            assert subjects[row] != subjects[reference.row]
            seen += 1
    assert seen


def test_bank_references_are_training_patients_and_cohort_references_are_not(scene: Scene) -> None:
    splits = scene.instances.splits
    expected = "train" if scene.mode == "bank" else "test"
    found = [r.row for row in scene.own_rows.tolist() for r in references_of(scene, scene.node_of_row(row))]
    assert set(splits[found]) == {expected}
    assert scene.outcomes_known == (scene.mode == "bank")


def differences_from_the_run(scene: Scene, nodes: list[int]) -> float:
    """Return the largest difference from the written probabilities."""
    written = scene.run.predictions().filter(split=scene.split)["probabilities"].to_list()
    return float(np.abs(np.stack([scene.probabilities(node) for node in nodes]) - np.array(written)).max())


def test_logits_of_the_scene_are_those_of_the_run(scene: Scene) -> None:
    nodes = [scene.node_of_row(int(row)) for row in scene.own_rows]
    assert differences_from_the_run(scene, nodes) < 1e-5


def test_without_a_graph_similar_patients_come_from_the_bank(finished_run: FinishedRun) -> None:
    for references in ("cohort", "bank"):
        scene = set_scene(load_run(finished_run(strategy="lm_only", references=references)), "validation")
        assert scene.mode == "bank"
        assert not scene.uses_graph
        assert len(scene.embeddings) == len(scene.rows) == len(scene.graph)
        nodes = [scene.node_of_row(int(row)) for row in scene.own_rows]
        assert differences_from_the_run(scene, nodes) < 1e-5


def test_an_instance_is_found_by_id_and_by_number(scene: Scene) -> None:
    ids = scene.instances.instance_ids
    for number, row in enumerate(scene.own_rows.tolist(), start=1):
        assert chosen_row(scene, example=number) == chosen_row(scene, instance=ids[row]) == row
        assert example_number(scene, row) == number
        assert scene.rows[scene.node_of_row(row)] == row


def test_what_cannot_be_found_is_named_with_a_remedy_and_without_ids(scene: Scene) -> None:
    ids = scene.instances.instance_ids
    training = ids[scene.instances.rows_of("train")[0]]
    validation = ids[scene.instances.rows_of("validation")[0]]
    for given, message in (
        ({"instance": "nobody-77"}, "--example 1"),
        ({"instance": training}, "training patients are the references"),
        ({"instance": validation}, "give --split validation"),
        ({"example": 0}, f"1 to {len(scene.own_rows)}"),
        ({"example": len(scene.own_rows) + 1}, f"1 to {len(scene.own_rows)}"),
        ({}, "--instance"),
        ({"instance": training, "example": 1}, "--instance"),
    ):
        with pytest.raises(PlmError, match=message) as caught:
            chosen_row(scene, **given)
        words = str(caught.value).replace("'", " ").split()
        assert not set(words) & {*ids, "nobody-77"}


def test_the_training_split_is_not_explained(scene: Scene) -> None:
    with pytest.raises(PlmError, match="choose validation or test"):
        set_scene(scene.run, "train")
