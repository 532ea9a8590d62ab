"""What-if: texts, links and predictions are made again, never estimated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from patients_like_me.errors import PlmError
from patients_like_me.explanation.references import Reference, references_of
from patients_like_me.explanation.scene import Scene, set_scene
from patients_like_me.explanation.what_if import Change, changed_scene, embedded_again, new_names
from patients_like_me.runs.run import load_run

FinishedRun = Callable[..., Path]


@pytest.fixture(scope="module", params=["cohort", "bank"])
def scene(request: pytest.FixtureRequest, finished_run: FinishedRun) -> Scene:
    return set_scene(load_run(finished_run(references=request.param)))


@pytest.fixture(scope="module")
def row(scene: Scene) -> int:
    return max(scene.own_rows.tolist(), key=lambda row: scene.graph.degrees[scene.node_of_row(row)])


def named(scene: Scene, row: int) -> dict[str, Reference]:
    found = references_of(scene, scene.node_of_row(row))
    return {f"R{number}": reference for number, reference in enumerate(found, start=1)}


def test_an_unchanged_record_embeds_to_what_the_run_kept(scene: Scene, row: int) -> None:
    again = embedded_again(scene, scene.instances, row)
    assert torch.allclose(again, scene.embeddings[scene.node_of_row(row)], atol=1e-4)


def test_a_dropped_reference_is_gone_and_nothing_else(scene: Scene, row: int) -> None:
    references = named(scene, row)
    after = changed_scene(scene, row, Change(drop=("R1",)), references)
    node = scene.node_of_row(row)
    gone = set(scene.graph.neighbors_of(node)[0].tolist()) - set(after.graph.neighbors_of(node)[0].tolist())
    assert gone == {references["R1"].node}
    assert not np.allclose(after.probabilities(node), scene.probabilities(node), atol=1e-9)
    found, left, _ = new_names(after, node, references)
    assert left == ["R1"]
    assert set(references) - {"R1"} <= set(found)


def test_a_higher_tau_leaves_the_stronger_neighbours(scene: Scene, row: int) -> None:
    node = scene.node_of_row(row)
    for tau in (1, 4, 99):
        after = changed_scene(scene, row, Change(tau=tau), {})
        assert all(after.graph.neighbors_of(node)[1] >= tau)
        assert after.graph.settings.tau == tau
    assert after.graph.degrees.sum() == 0
    same = changed_scene(scene, row, Change(tau=scene.graph.settings.tau), {})
    assert np.array_equal(same.graph.neighbors, scene.graph.neighbors)


def test_a_removed_and_an_added_diagnosis_change_text_and_links(scene: Scene, row: int) -> None:
    node = scene.node_of_row(row)
    own = scene.graph.sets.of(node)
    absent = sorted(set(scene.cohort.names("diagnosis")) - set(own))[0]
    after = changed_scene(scene, row, Change(add=(absent,), remove=(own[0],)), {})
    assert set(after.graph.sets.of(node)) == {*own[1:], absent}
    assert not torch.allclose(after.embeddings[node], scene.embeddings[node])
    others = np.arange(len(scene.graph)) != node
    assert torch.equal(after.embeddings[others], scene.embeddings[others])
    for other, weight in zip(*after.graph.neighbors_of(node), strict=True):
        assert weight == len(set(after.graph.sets.of(node)) & set(after.graph.sets.of(int(other))))
    for other in np.flatnonzero(others)[:20]:
        assert after.graph.sets.of(int(other)) == scene.graph.sets.of(int(other))


def test_without_any_shared_diagnosis_nobody_is_left(scene: Scene, row: int) -> None:
    node = scene.node_of_row(row)
    after = changed_scene(scene, row, Change(remove=scene.graph.sets.of(node)), {})
    assert after.graph.degrees[node] == 0
    assert references_of(after, node) == []


def test_impossible_changes_are_named(scene: Scene, row: int) -> None:
    own = scene.graph.sets.of(scene.node_of_row(row))
    absent = sorted(set(scene.cohort.names("diagnosis")) - set(own))[0]
    for change, message in (
        (Change(drop=("R99",)), "choose one of R1"),
        (Change(tau=0), "tau"),
        (Change(add=("no-such-code",)), "no diagnosis 'no-such-code'"),
        (Change(add=(own[0],)), "already"),
        (Change(remove=(absent,)), "does not have"),
    ):
        with pytest.raises(PlmError, match=message):
            changed_scene(scene, row, change, named(scene, row))


def test_a_task_that_sees_no_visit_takes_no_diagnosis(finished_run: FinishedRun) -> None:
    from dataclasses import replace

    from patients_like_me.explanation.what_if import with_other_codes
    from patients_like_me.tasks.task import TaskSettings

    instances = load_run(finished_run("length_of_stay")).instances
    known = replace(instances, settings=TaskSettings(inputs="known"))
    frame = known.frame
    first = int((frame["visit"] == frame["first_visit"]).arg_max())
    with pytest.raises(PlmError, match="choose a later visit"):
        with_other_codes(known, first, "diagnosis", ["sepsis"], [])
