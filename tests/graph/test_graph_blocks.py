from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from graph.plain_product import diagnosis_sets, graph_settings, random_sets
from hypothesis import given, settings
from hypothesis import strategies as st

from patients_like_me.errors import PlmError
from patients_like_me.graph import GraphSettings, PatientGraph, block_workers, build_graph
from patients_like_me.graph.block_workers import build_graph_in_blocks
from patients_like_me.graph.blocks import BlockPlan, compute_blocks, merge_blocks, plan_blocks, read_plan, write_block
from patients_like_me.graph.build import PartRows
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets

CHOSEN = GraphSettings(tau=3, max_neighbors=4)


def same(graph: PatientGraph, other: PatientGraph) -> None:
    for name in ("indptr", "neighbors", "weights"):
        np.testing.assert_array_equal(getattr(graph, name), getattr(other, name))
    assert graph.settings == other.settings


@given(
    sets=diagnosis_sets(splits=True),
    chosen=graph_settings,
    bank=st.booleans(),
    rows=st.sampled_from([1, 3, 1000]),
    at_once=st.sampled_from([8, 1 << 26]),
)
@settings(deadline=None, max_examples=40)
def test_many_blocks_equal_one_graph(
    tmp_path_factory: pytest.TempPathFactory,
    sets: DiagnosisSets,
    chosen: GraphSettings,
    bank: bool,
    rows: int,
    at_once: int,
) -> None:
    if bank and len(sets) and (sets.splits == "train").any():
        chosen = chosen.model_copy(update={"references": "bank"})
    folder = tmp_path_factory.mktemp("blocks")
    plan = plan_blocks(sets, chosen, folder / "plan", rows_per_block=rows)
    compute_blocks(plan, threads=1)
    same(merge_blocks(plan, folder / "graph", entries_at_once=at_once), build_graph(sets, chosen))
    assert PatientGraph.load(folder / "graph", verify=True).settings == chosen


def test_the_share_of_every_worker_is_needed_and_order_does_not_matter(tmp_path: Path) -> None:
    sets = random_sets(3, 100, patients=60)
    plan = plan_blocks(sets, CHOSEN, tmp_path / "plan", rows_per_block=7)
    assert compute_blocks(read_plan(tmp_path / "plan"), worker=2, workers=3) == 5
    with pytest.raises(PlmError, match="10 of 15 blocks are missing, the first is number 0"):
        merge_blocks(plan, tmp_path / "graph")
    for worker in (1, 0):
        compute_blocks(plan, worker=worker, workers=3)
    same(merge_blocks(plan, tmp_path / "graph"), build_graph(sets, CHOSEN))
    with pytest.raises(PlmError, match="no worker 3 of 3"):
        compute_blocks(plan, worker=3, workers=3)


def test_processes_share_the_work(tmp_path: Path) -> None:
    sets = random_sets(5, 120, patients=60, splits=True)
    graph = build_graph_in_blocks(sets, CHOSEN, tmp_path / "graph", rows_per_block=9, workers=2)
    same(graph, build_graph(sets, CHOSEN))
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


def test_a_second_run_takes_up_where_the_first_was_killed(tmp_path: Path) -> None:
    sets = random_sets(7, 400, patients=250)
    plan = plan_blocks(sets, CHOSEN, tmp_path / "graph.blocks", rows_per_block=2)
    program = (
        "import time\n"
        "from patients_like_me.graph.blocks import compute_blocks, read_plan\n"
        f"compute_blocks(read_plan({str(plan.folder)!r}), threads=1, progress=lambda *_: time.sleep(0.02))\n"
    )
    worker = subprocess.Popen([sys.executable, "-c", program])
    while len(plan.blocks) - len(plan.missing()) < 5 and worker.poll() is None:
        time.sleep(0.01)
    worker.send_signal(signal.SIGKILL)
    assert worker.wait() == -signal.SIGKILL
    finished = {path.name: path.stat().st_mtime_ns for path in plan.folder.glob("block-*")}
    assert 5 <= len(finished) < len(plan.blocks)
    computed: list[tuple[int, int]] = []
    graph = build_graph_in_blocks(
        sets, CHOSEN, tmp_path / "graph", rows_per_block=2, progress=lambda *step: computed.append(step)
    )
    same(graph, build_graph(sets, CHOSEN))
    assert len(computed) == len(plan.blocks) - len(finished)


def test_a_coordinator_that_comes_second_opens_the_graph_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a worker of the first was late and made the folder of the blocks again."""
    sets = random_sets(3, 60)

    def first_was_faster(plan: BlockPlan, out: Path, *, replace: bool) -> PatientGraph:
        merge_blocks(plan, out, replace=replace)
        shutil.rmtree(plan.folder)
        plan.folder.mkdir()
        return merge_blocks(plan, out, replace=replace)

    monkeypatch.setattr(block_workers, "merge_blocks", first_was_faster)
    same(build_graph_in_blocks(sets, CHOSEN, tmp_path / "graph", rows_per_block=16), build_graph(sets, CHOSEN))


def test_a_worker_that_is_late_leaves_nothing_that_another_graph_takes_up(tmp_path: Path) -> None:
    sets = random_sets(3, 60)
    plan = plan_blocks(sets, CHOSEN, tmp_path / "graph.blocks", rows_per_block=16)
    rows = PartRows(sets, plan.parts[0], CHOSEN)
    write_block(plan, plan.blocks[0], rows)
    late = plan.path_of(plan.blocks[0]).read_bytes()
    shutil.rmtree(plan.folder)
    with pytest.raises(PlmError, match="merged or removed"):
        write_block(plan, plan.blocks[0], rows)
    assert not plan.folder.exists()
    other = GraphSettings(tau=2, max_neighbors=4)
    plan.folder.mkdir()
    plan.path_of(plan.blocks[0]).write_bytes(late)
    same(build_graph_in_blocks(sets, other, tmp_path / "graph", rows_per_block=16), build_graph(sets, other))
    again = plan_blocks(sets, other, tmp_path / "again", rows_per_block=16)
    compute_blocks(again)
    again.path_of(again.blocks[0]).write_bytes(late)
    with pytest.raises(PlmError, match="belongs to another plan"):
        merge_blocks(again, tmp_path / "third")


def test_blocks_of_another_graph_are_refused_with_the_difference(tmp_path: Path) -> None:
    sets = random_sets(1, 30)
    plan_blocks(sets, CHOSEN, tmp_path, rows_per_block=8)
    with pytest.raises(PlmError, match="tau is 3 in the one and 4 in the other"):
        plan_blocks(sets, GraphSettings(tau=4, max_neighbors=4), tmp_path, rows_per_block=8)
    with pytest.raises(PlmError, match="rows_per_block is 8 in the one and 9 in the other"):
        plan_blocks(sets, CHOSEN, tmp_path, rows_per_block=9)
    with pytest.raises(PlmError, match="the instances or their diagnoses differ"):
        plan_blocks(random_sets(2, 30), CHOSEN, tmp_path, rows_per_block=8)
    with pytest.raises(PlmError, match="rows_per_block=0"):
        plan_blocks(sets, CHOSEN, tmp_path, rows_per_block=0)


def test_a_damaged_or_foreign_block_is_named(tmp_path: Path) -> None:
    sets = random_sets(1, 30)
    plan = plan_blocks(sets, CHOSEN, tmp_path / "plan", rows_per_block=8)
    compute_blocks(plan)
    third = plan.path_of(plan.blocks[2])
    whole = third.read_bytes()
    third.write_bytes(whole[:-5])
    with pytest.raises(PlmError, match=r"block-000002.safetensors' is damaged.*remove that file"):
        merge_blocks(plan, tmp_path / "graph")
    other = plan_blocks(random_sets(9, 30), CHOSEN, tmp_path / "other", rows_per_block=8)
    compute_blocks(other)
    third.write_bytes(other.path_of(other.blocks[2]).read_bytes())
    with pytest.raises(PlmError, match="belongs to another plan"):
        merge_blocks(plan, tmp_path / "graph")
    third.unlink()
    compute_blocks(plan)
    assert third.read_bytes() == whole
    same(merge_blocks(plan, tmp_path / "graph"), build_graph(sets, CHOSEN))


def test_a_foreign_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlmError, match="no plan of graph blocks"):
        read_plan(tmp_path)
    (tmp_path / "plan.json").write_text("{}", encoding="utf-8")
    with pytest.raises(PlmError, match="is not a plan of format"):
        read_plan(tmp_path)
