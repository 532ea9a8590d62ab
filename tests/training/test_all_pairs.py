"""Trainings on graphs of all pairs, which may be larger than memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_backbones import tiny_backbone

from patients_like_me.errors import PlmError
from patients_like_me.graph import GraphSettings, build_graph, large
from patients_like_me.graph.drawn_sets import drawn_sets
from patients_like_me.graph.large import build_on_disk, entries_on_disk
from patients_like_me.model import propagation
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.ranks import Ranks
from patients_like_me.model.settings import ModelSettings
from patients_like_me.records.cohort import Cohort
from patients_like_me.systems.train import train
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task
from patients_like_me.tasks.task import TaskSettings
from patients_like_me.training import data, graph_plan, preparation
from patients_like_me.training.graph_plan import MOST_GRAPH_SHARE, chosen_refresh
from patients_like_me.training.plan import estimate_training
from patients_like_me.training.preparation import patient_graph_of, place_graph_network
from patients_like_me.training.settings import TrainingSettings

Settings = Callable[..., TrainingSettings]
EVERYONE = {"tau": 2, "max_neighbors": None, "references": "cohort"}


@pytest.fixture
def large_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every graph of all pairs as one of very many entries."""
    monkeypatch.setattr(large, "SAMPLED_ROWS", 40)
    monkeypatch.setattr(graph_plan, "SAMPLED_ROWS", 40)
    monkeypatch.setattr(large, "belongs_on_disk", lambda entries: True)
    for module in (propagation, data, graph_plan):
        monkeypatch.setattr(module, "LARGE", 1)


def test_a_graph_that_memory_should_not_hold_is_built_on_disk_and_found_again(
    tmp_path: Path, large_at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets, settings = drawn_sets(100), GraphSettings(tau=6)
    said: list[str] = []
    entries = entries_on_disk(sets, settings, tmp_path)
    assert entries is not None
    found = build_on_disk(sets, settings, tmp_path, entries, report=said.append)
    expected = build_graph(sets, settings)
    for name in ("indptr", "neighbors", "weights"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert "built on disk" in said[0]
    (place,) = (tmp_path / "graphs").iterdir()
    monkeypatch.setattr("patients_like_me.graph.blocks.write_block", None)
    again = build_on_disk(sets, settings, tmp_path, entries)
    np.testing.assert_array_equal(again.neighbors, expected.neighbors)
    assert again.weights.base is not None, "the weights are mapped from the file"
    assert place.is_dir()


@pytest.mark.parametrize("references", ["cohort", "bank"])
def test_a_training_on_a_graph_on_disk_gives_the_predictions_of_one_in_memory(
    references: str, cohort_folder: Path, tmp_path: Path, tiny_settings: Settings, request: pytest.FixtureRequest
) -> None:
    settings = tiny_settings(strategy="vem", epochs=2, graph={**EVERYONE, "references": references})
    runs = {}
    for name in ("memory", "disk"):
        if name == "disk":
            request.getfixturevalue("large_at_once")
        runs[name] = train(
            cohort_folder,
            "readmission",
            tmp_path / name,
            settings=settings,
            task_settings=TaskSettings(),
            cache=tmp_path / f"cache of {name}",
        )
    assert not (tmp_path / "cache of memory" / "graphs").exists()
    assert list((tmp_path / "cache of disk" / "graphs").iterdir())
    first, second = (
        np.concatenate(run.predictions()["probabilities"].to_numpy().tolist()) for run in (runs["memory"], runs["disk"])
    )
    np.testing.assert_allclose(first, second, atol=2e-4)
    counted = [run.results.graph for run in runs.values()]
    assert counted[0] == counted[1]


def test_plan_times_a_sample_and_refuses_with_the_numbers(
    cohort_folder: Path,
    tmp_path: Path,
    tiny_settings: Settings,
    large_at_once: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PLM_CACHE", str(tmp_path / "cache"))
    cohort = Cohort.load(cohort_folder)
    instances = build_instances(cohort, find_task("readmission", cohort))
    settings = tiny_settings(strategy="vem", graph=EVERYONE)
    words = estimate_training(instances, settings).words
    assert "ns per entry" in words["one answer of the graph"]
    entries = len(build_graph(instances.diagnosis_sets, settings.graph).neighbors)
    told = int(words["patient graph"].split()[1].replace(",", ""))
    assert told == pytest.approx(entries, rel=0.4)
    assert not (tmp_path / "cache" / "graphs").exists(), "a plan builds no large graph"
    monkeypatch.setattr(large.shutil, "disk_usage", lambda _: SimpleNamespace(free=17))
    with pytest.raises(PlmError, match=r"has about [\d,]+ entries, .* GiB: too much for the .* building it on disk"):
        estimate_training(instances, settings)
    with pytest.raises(PlmError, match="building it on disk needs"):
        entries_on_disk(instances.diagnosis_sets, settings.graph, tmp_path / "new" / "cache")
    monkeypatch.setattr(large.psutil, "virtual_memory", lambda: SimpleNamespace(available=2_000))
    with pytest.raises(PlmError, match=r"without max_neighbors has about .* while it is built, .* memory are free"):
        entries_on_disk(instances.diagnosis_sets, settings.graph, None)


def test_a_graph_of_several_parts_counts_twice_where_it_is_built_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    entries, free = 1_000_000, 1_000_000 * large.ENTRY_BYTES * 1.5
    monkeypatch.setattr(large.psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    sets = drawn_sets(100)
    parts = replace(sets, splits=np.array(["train", "test"] * 50))
    assert large.refusal_of(sets, GraphSettings(), entries, None) is None
    assert large.refusal_of(parts, GraphSettings(), entries, None) is not None


class AnswerOfTheFirst(Ranks):
    """A rank that is told what the first one found."""

    def __init__(self, **answer: Any) -> None:
        self.answer = answer

    def once(
        self, compute: Callable[[], dict[str, Any]], weights: Callable[[], Iterable[torch.Tensor]] = tuple
    ) -> dict[str, Any]:
        return self.answer


def test_the_first_of_several_processes_decides_where_the_graph_is(
    cohort_folder: Path, tmp_path: Path, tiny_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    cohort = Cohort.load(cohort_folder)
    instances = build_instances(cohort, find_task("readmission", cohort))
    settings = tiny_settings(strategy="vem", graph=EVERYONE)
    expected = patient_graph_of(instances, settings, tmp_path)
    assert not list(tmp_path.iterdir())
    mapped = patient_graph_of(instances, settings, tmp_path, ranks=AnswerOfTheFirst(entries=1000))
    np.testing.assert_array_equal(mapped.neighbors, expected.neighbors)
    assert list((tmp_path / "graphs").iterdir())
    model = PatientsLikeMeModel(tiny_backbone("bert"), ModelSettings(outputs=1))
    monkeypatch.setattr(preparation, "graph_device", lambda *_: torch.device("cuda"))
    assert place_graph_network(model, settings, 10, AnswerOfTheFirst(device="cpu")).type == "cpu"


@pytest.mark.parametrize("m_step", [0.1, 3.0, 3.999, 4.0, 8.0, 500.0])
@pytest.mark.parametrize("answer", [0.001, 0.5, 1.9])
def test_advice_about_the_graph_keeps_what_it_promises(answer: float, m_step: float) -> None:
    batches, steps, language = 50, 500, 100.0
    choice = chosen_refresh(answer, m_step, language, batches=batches, refresh=1, steps=steps)
    assert 1 <= choice.graph_refresh <= batches
    told = re.search(r"graph_steps=(\d+)", choice.words)
    kept = int(told[1]) if told else steps
    assert 1 <= kept <= steps
    takes = answer * -(-batches // choice.graph_refresh) + m_step / steps * kept
    assert takes <= MOST_GRAPH_SHARE * language * 1.0001


def test_a_graph_whose_single_answer_is_too_much_gets_another_advice() -> None:
    choice = chosen_refresh(5.0, 1.0, 100.0, batches=50, refresh=1, steps=10)
    assert choice.graph_refresh == 50
    assert "set graph.max_neighbors=32" in choice.words
