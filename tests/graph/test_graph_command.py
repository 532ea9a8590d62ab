"""The command ``plm graph``, from a cohort folder to the figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from rich.status import Status
from typer.testing import CliRunner

from patients_like_me.cli.graph import diagnosis_sets_of, graph
from patients_like_me.cli.records import prepare, synthesize
from patients_like_me.errors import PlmError
from patients_like_me.graph import PatientGraph
from patients_like_me.records.cohort import Cohort
from patients_like_me.tasks.task import TaskSettings


def invoke(command: Callable[..., None], *words: str) -> str:
    app = typer.Typer()
    app.command()(command)
    finished = CliRunner().invoke(app, list(words), env={"COLUMNS": "160", "NO_COLOR": "1"})
    if finished.exception is not None and not isinstance(finished.exception, SystemExit):
        raise finished.exception
    assert finished.exit_code == 0, finished.output
    return finished.output


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made_up")
    invoke(synthesize, "--patients", "150", "--out", str(folder / "hospital"))
    invoke(prepare, "mimic4", str(folder / "hospital"), "--out", str(folder / "cohort"))
    return folder / "cohort"


def run(*words: str) -> str:
    return invoke(graph, *words)


def test_graph_table_and_figures(cohort: Path) -> None:
    output = run(str(cohort), "--task", "readmission", "--tau", "3")
    folder = cohort / "graphs" / "readmission"
    built = PatientGraph.load(folder)
    assert built.cohort_hash == Cohort.load(cohort).hash
    assert len(built) == len(diagnosis_sets_of(cohort, "readmission", TaskSettings()))
    assert f"{built.edges:,}" in output
    for words in (
        "Patient graph of readmission: tau 3, strongest 32",
        "isolated",
        "Jensen-Shannon",
        "edges at tau 3",
    ):
        assert words in output
    for name in ("graph.png", "edge_weights.png", "tau_curve.png"):
        assert (folder / name).stat().st_size > 10_000
    assert json.loads((folder / "statistics.json").read_text())["splits"][-1]["edges"] == built.edges
    assert {group["name"] for group in json.loads((folder / "edge_weights.json").read_text())["groups"]} == {
        "train", "validation", "test"
    }  # fmt: skip


def test_blocks_and_memory_give_the_same_graph(cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(Status, "update", lambda _, line: shown.append(line))
    words = [str(cohort), "--task", "length_of_stay", "--tau", "4", "--max-neighbors", "5", "--references", "bank"]
    run(*words, "--no-analysis", "--out", str(tmp_path / "memory"))
    for _ in range(2):
        run(*words, "--no-analysis", "--blocks", "50", "--out", str(tmp_path / "blocks"))
    memory, blocks = PatientGraph.load(tmp_path / "memory"), PatientGraph.load(tmp_path / "blocks")
    assert memory.neighbors.tolist() == blocks.neighbors.tolist()
    assert memory.weights.tolist() == blocks.weights.tolist()
    assert not (tmp_path / "blocks" / "tau_curve.png").exists()
    assert shown[0].startswith("building the graph: block 1 of ")


def test_sets_hold_only_what_the_task_allows(cohort: Path) -> None:
    # Length of stay at admission may not see the diagnoses of the current stay, which are coded at its end.
    known = diagnosis_sets_of(cohort, "length_of_stay", TaskSettings(inputs="known"))
    retrospective = diagnosis_sets_of(cohort, "length_of_stay", TaskSettings())
    assert len(known) == len(retrospective)
    assert len(known.codes) < len(retrospective.codes)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tau", "0"], "tau=0 is not possible"),
        (["--references", "everyone"], "references='everyone' is not possible"),
        (["--max-neighbors", "0"], "max_neighbors=0 is not possible"),
        (["--threads", "0"], "threads=0 is not possible"),
        (["--task", "horoscope"], "there is no task 'horoscope'"),
    ],
)
def test_mistakes_end_in_a_sentence(cohort: Path, tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(PlmError, match=message):
        run(str(cohort), "--task", "readmission", *words, "--out", str(tmp_path / "graph"))


def test_a_folder_that_is_no_graph_is_left_alone(cohort: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(PlmError, match="exists and is not a graph"):
        run(str(cohort), "--task", "readmission", "--out", str(tmp_path))
    assert (tmp_path / "note.txt").read_text() == "mine"


def test_the_mimic_demo_gives_a_graph_of_its_instances(shared_data: Path, tmp_path: Path) -> None:
    invoke(prepare, "mimic4", str(shared_data / "mimic4_demo"), "--out", str(tmp_path / "cohort"))
    run(str(tmp_path / "cohort"), "--task", "readmission", "--no-analysis")
    assert len(PatientGraph.load(tmp_path / "cohort" / "graphs" / "readmission")) == 175
