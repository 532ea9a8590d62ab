from __future__ import annotations

import inspect
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dask_cluster import TestedCluster, write_slowly
from explanation.small_graphs import embeddings_for, small_graph, small_network
from graph.plain_product import random_sets

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.bootstrap_blocks import resample_measures
from patients_like_me.evaluation.evaluate import evaluate
from patients_like_me.evaluation.recalibration import calibrate_run
from patients_like_me.explanation.attribution_blocks import attribute_in_workers, attribute_nodes
from patients_like_me.explanation.batch_attribution import attribute
from patients_like_me.explanation.known_pass import known_pass
from patients_like_me.explanation.masking_blocks import SharedPass, remove_edges
from patients_like_me.explanation.target_edges import TargetEdges
from patients_like_me.graph import GraphSettings, build_graph
from patients_like_me.graph.block_workers import build_graph_in_blocks, compute_block
from patients_like_me.records.cohort import Cohort
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task
from patients_like_me.training.frozen_layers import fill_cache_in_workers, fill_rows
from patients_like_me.training.preparation import prepare_training
from patients_like_me.training.settings import TrainingSettings
from patients_like_me.workers import in_workers, read_workers, threads_on_worker

CHOSEN = GraphSettings(tau=3, max_neighbors=4)


def test_a_graph_of_a_cluster_is_the_local_one_bit_for_bit(tmp_path: Path, dask_cluster: TestedCluster) -> None:
    sets = random_sets(5, 300, patients=150, splits=True)
    seen: list[tuple[int, int]] = []
    graph = build_graph_in_blocks(
        sets,
        CHOSEN,
        tmp_path / "graph",
        rows_per_block=20,
        workers=dask_cluster.workers,
        progress=lambda *step: seen.append(step),
    )
    local = build_graph(sets, CHOSEN)
    for name in ("indptr", "neighbors", "weights"):
        np.testing.assert_array_equal(getattr(graph, name), getattr(local, name))
    assert seen[-1][0] == seen[-1][1] == len(seen)


def test_killed_workers_cost_blocks_and_not_the_work(tmp_path: Path, dask_cluster: TestedCluster) -> None:
    stopped = threading.Event()

    def kill() -> None:
        for number in range(3):
            if stopped.wait(0.4):
                return
            dask_cluster.kill_one(number)

    assert len(dask_cluster.process_ids()) == 4
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        parts = [(str(tmp_path), number) for number in range(40)]
        in_workers(
            write_slowly,
            parts,
            workers=dask_cluster.workers,
            is_done=lambda part: (tmp_path / f"{part[1]}.txt").is_file(),
        )
    finally:
        stopped.set()
        killer.join()
    assert len(list(tmp_path.glob("*.txt"))) == 40


def test_any_executor_serves_and_what_is_there_is_not_computed_again(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_text("earlier")
    with ThreadPoolExecutor(2) as executor:
        parts = [(str(tmp_path), number) for number in range(3)]
        found = in_workers(
            write_slowly, parts, workers=executor, is_done=lambda part: (tmp_path / f"{part[1]}.txt").is_file()
        )
    assert found == 2
    assert (tmp_path / "1.txt").read_text() == "earlier"


class BrokenPool(ThreadPoolExecutor):
    """Has lost its processes before it is given anything."""

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        raise BrokenProcessPool("a process was killed")


def test_an_executor_that_has_lost_its_workers_already_ends_in_a_sentence() -> None:
    with pytest.raises(PlmError, match=r"workers were lost 3 times before any of 1 blocks"):
        in_workers(write_slowly, [("", 0)], workers=BrokenPool(), is_done=lambda _: False)


class ReadingThreads(ThreadPoolExecutor):
    """Notes the last word that workers are given: the number of their threads."""

    def __init__(self) -> None:
        super().__init__(1)
        self.given: set[int] = set()

    def submit(self, function: Any, /, *words: Any, **_: Any) -> Future[Any]:
        self.given.add(words[-1][-1])
        return super().submit(function, *words)


@pytest.mark.parametrize("threads", [None, 2])
def test_workers_use_the_threads_they_are_given_or_those_of_their_machine(tmp_path: Path, threads: int | None) -> None:
    graph = small_graph(references="cohort")
    known = known_pass(small_network(layers=3), graph, embeddings_for(graph))
    edges = TargetEdges.of(known.graph.indptr, known.graph.columns, np.arange(len(graph)))
    which, jobs = edges.target_of_edge, np.arange(edges.edges + 1)
    with ReadingThreads() as executor:
        shared = SharedPass.of(known, tmp_path, executor)
        shared.importances(edges, np.ones((len(edges), 1)), threads=threads)
        shared.logits_without(edges.targets[which], jobs, edges.entries, threads=threads)
        sets = random_sets(5, 40)
        build_graph_in_blocks(sets, CHOSEN, tmp_path / "graph", rows_per_block=20, workers=executor, threads=threads)
    assert executor.given == {threads or 0}


@pytest.mark.parametrize(("variable", "expected"), [("3", 3), ("4,2", 4), ("", 1), ("many", 1)])
def test_a_worker_of_a_cluster_knows_its_threads(variable: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert threads_on_worker() == expected
    assert threads_on_worker(7) == 7


def fail_with_data(name: str, number: int) -> None:
    raise ValueError(f"{name} {number}")


def test_an_error_of_the_work_is_named_without_what_it_was_about() -> None:
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(PlmError, match="failed in fail_with_data: ValueError") as told,
    ):
        in_workers(fail_with_data, [("Mr Secret", 17)], workers=executor, is_done=lambda _: False)
    assert "Secret" not in str(told.value)
    assert told.value.__cause__ is None


def test_an_address_without_a_scheduler_and_other_words_end_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PlmError, match="neither a number nor the address"):
        read_workers("slurm")
    pytest.importorskip("distributed", reason="Dask (the extra 'cluster') is not installed")
    monkeypatch.setattr("patients_like_me.workers._SECONDS_TO_CONNECT", 0.2)
    with pytest.raises(PlmError, match=r"no Dask scheduler answers at 'dask://127\.0\.0\.1:1'"):
        in_workers(write_slowly, [(str(tmp_path), 0)], workers="dask://127.0.0.1:1", is_done=lambda _: False)


def test_without_dask_an_address_ends_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(PlmError, match=r"pip install 'patients-like-me\[cluster\]'"):
        in_workers(write_slowly, [("", 0)], workers="dask://127.0.0.1:1", is_done=lambda _: False)


@pytest.mark.parametrize("references", ["cohort", "bank"])
def test_attribution_by_workers_is_that_of_one_process(
    tmp_path: Path, references: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = small_graph(references=references)
    known = known_pass(small_network(layers=3), graph, embeddings_for(graph))
    edges = TargetEdges.of(known.graph.indptr, known.graph.columns, np.arange(5, len(graph)))
    choice = np.ones((len(edges), 1))
    monkeypatch.setattr("patients_like_me.explanation.batch_attribution._few_targets", lambda *_: False)
    expected = attribute(known, edges, choice)
    folder = tmp_path / "question"
    with ThreadPoolExecutor(2) as executor:
        found = attribute_in_workers(known, edges, choice, folder, workers=executor, nodes_per_block=9)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
        # A part that was lost is computed again, the others are taken up.
        lost, kept = sorted(folder.glob("nodes-*"))[:2]
        written = kept.stat().st_mtime_ns
        lost.unlink()
        again = attribute_in_workers(known, edges, choice, folder, workers=executor, nodes_per_block=9)
        np.testing.assert_array_equal(again, found)
        assert kept.stat().st_mtime_ns == written
        with pytest.raises(PlmError, match="holds another attribution"):
            attribute_in_workers(known, edges, -choice, folder, workers=executor)
        with pytest.raises(PlmError, match="holds another attribution"):
            attribute_in_workers(
                known, TargetEdges.of(known.graph.indptr, known.graph.columns, np.arange(3)), choice[:3], folder,
                workers=executor,
            )  # fmt: skip


def test_a_pass_that_workers_share_gives_the_importances_and_removals_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = small_graph(references="cohort")
    known = known_pass(small_network(layers=3), graph, embeddings_for(graph))
    edges = TargetEdges.of(known.graph.indptr, known.graph.columns, np.arange(len(graph)))
    choice = np.ones((len(edges), 1))
    which, jobs = edges.target_of_edge, np.arange(edges.edges + 1)
    expected = known.importances(edges, choice), known.logits_without(edges.targets[which], jobs, edges.entries)
    monkeypatch.setattr("patients_like_me.explanation.masking_blocks._JOBS_PER_BLOCK", 50)
    with ThreadPoolExecutor(2) as executor:
        shared = SharedPass.of(known, tmp_path, executor)
        np.testing.assert_allclose(shared.importances(edges, choice), expected[0], rtol=1e-12, atol=1e-14)
        for _ in range(2):
            # The second time everything is there; a part that was lost is computed again.
            found = shared.logits_without(edges.targets[which], jobs, edges.entries)
            np.testing.assert_array_equal(found, expected[1])
            next(tmp_path.glob("*/removals-*/jobs-*")).unlink()
    assert len(list(tmp_path.glob("*/pass"))) == 1


def test_the_bootstrap_by_workers_is_that_of_one_process(
    tmp_path: Path, finished_run: Callable[..., Path], dask_cluster: TestedCluster
) -> None:
    run = finished_run("readmission")
    alone = evaluate(run, replicates=250)
    said: list[str] = []
    shared = evaluate(run, replicates=250, shared=(tmp_path, dask_cluster.workers), report=said.append)
    assert any("block 3 of 3" in line for line in said)
    assert [each.interval for each in shared.measures] == [each.interval for each in alone.measures]
    assert any(each.interval is not None for each in shared.measures)
    assert len(list(tmp_path.glob("*/resamples-*"))) == 3


def test_workers_that_live_on_notice_that_a_run_was_recalibrated(
    tmp_path: Path, finished_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("patients_like_me.evaluation.recalibration.FEWEST", 1)
    run = tmp_path / "run"
    shutil.copytree(finished_run("readmission"), run)
    with ThreadPoolExecutor(1) as executor:
        for _ in range(2):
            shared = evaluate(run, replicates=50, shared=(tmp_path / "blocks", executor))
            assert [each.interval for each in shared.measures] == [
                each.interval for each in evaluate(run, replicates=50).measures
            ]
            calibrate_run(run, "logistic")


def test_frozen_layers_by_workers_are_those_of_a_training(
    tmp_path: Path,
    cohort_folder: Path,
    tiny_folder: Path,
    tiny_settings: Callable[..., TrainingSettings],
    dask_cluster: TestedCluster,
) -> None:
    settings = tiny_settings(backbone={"name": str(tiny_folder), "trainable_layers": 0})
    task_settings = find_task("readmission").settings({})
    ranges = fill_cache_in_workers(
        cohort_folder,
        "readmission",
        task_settings,
        settings,
        tmp_path / "cluster",
        workers=dask_cluster.workers,
        rows_per_block=64,
    )
    cohort = Cohort.load(cohort_folder)
    instances = build_instances(cohort, find_task("readmission", cohort), task_settings)
    assert ranges == -(-len(instances) // 64)
    found, said = {}, []
    for name in ("cluster", "here"):
        inputs = prepare_training(instances, settings, cache=tmp_path / name, report=said.append).data.inputs
        found[name] = inputs.batch(np.arange(len(instances))).values.numpy()
        if name == "cluster":
            assert not [line for line in said if line.startswith("frozen layers:")], "something was computed again"
    # Batches differ, so sums of float32 are rounded differently: a few units in the last place of values around 1.
    np.testing.assert_allclose(found["cluster"], found["here"], rtol=1e-6, atol=2e-6)


def test_what_a_worker_is_given_are_folders_and_numbers() -> None:
    for function in (compute_block, attribute_nodes, fill_rows, remove_edges, resample_measures):
        kinds = set(inspect.get_annotations(function, eval_str=True).values())
        assert kinds <= {str, int, None}, "texts and records must not pass through a scheduler"
