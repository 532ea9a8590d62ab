"""A finished run opens again with its cohort, graphs and embeddings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from patients_like_me.errors import PlmError
from patients_like_me.explanation.scene import set_scene
from patients_like_me.files import sealed, write_json
from patients_like_me.runs.run import load_run

FinishedRun = Callable[..., Path]


@pytest.mark.parametrize("strategy", ["vem", "lm_only"])
@pytest.mark.parametrize("references", ["cohort", "bank"])
@pytest.mark.parametrize("task", ["readmission", "drug_recommendation"])
def test_logits_computed_again_are_the_predictions(
    task: str, references: str, strategy: str, finished_run: FinishedRun
) -> None:
    opened = load_run(finished_run(task, strategy=strategy, references=references))
    for split in ("validation", "test"):
        written = opened.predictions().filter(split=split)
        assert (
            written["instance_id"].to_list()
            == opened.instances.frame[opened.rows_of(split).tolist()]["instance_id"].to_list()
        )
        scene = set_scene(opened, split)
        again = np.stack([scene.probabilities(scene.node_of_row(row)) for row in scene.own_rows.tolist()])
        assert np.abs(again - np.array(written["probabilities"].to_list())).max() < 1e-5


def test_evaluated_nodes_come_last_and_receive_from_the_bank_only(finished_run: FinishedRun) -> None:
    opened = load_run(finished_run(references="bank"))
    graph, own = opened.graph_of("test"), opened.evaluated("test")
    assert graph.neighbors.max() < len(graph) - own
    assert len(opened.embeddings_of("test")) == len(graph) == len(opened.node_rows("test"))


def test_a_moved_cohort_is_asked_for(finished_run: FinishedRun, cohort_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run(), run)
    text = (run / "run.json").read_text()
    write_json(run / "run.json", sealed(json.loads(text.replace(str(cohort_folder.resolve()), "/nowhere"))))
    with pytest.raises(PlmError, match=r"is not in '/nowhere'.*--cohort"):
        set_scene(load_run(run))
    assert load_run(run, cohort_folder).cohort.hash == load_run(finished_run()).cohort.hash


def test_another_cohort_is_refused(finished_run: FinishedRun, make_cohort: Callable[..., Path]) -> None:
    with pytest.raises(PlmError, match="is not the one"):
        set_scene(load_run(finished_run(), make_cohort(patients=12, seed=5)))


def test_settings_of_another_version_are_named(finished_run: FinishedRun, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run(), run)
    text = (run / "run.json").read_text()
    write_json(run / "run.json", sealed(json.loads(text.replace('"warmup"', '"warm_up"'))))
    with pytest.raises(PlmError, match="warm_up: extra inputs are not permitted"):
        set_scene(load_run(run))
