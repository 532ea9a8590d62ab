"""With another window every page, card, prompt and command says that window, and none says the default one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.explanation.explain import explain
from patients_like_me.explanation.scene import set_scene
from patients_like_me.report.patient_page import patient_markdown, patient_page
from patients_like_me.report.run_page import report_run as report_of_run
from patients_like_me.report.run_page import run_markdown, run_page
from patients_like_me.runs.run import load_run
from patients_like_me.systems.train import train
from patients_like_me.tasks.registry import task_settings_of
from patients_like_me.training.settings import TrainingSettings

WINDOW = ("--set", "task.window_days=30")


@pytest.fixture(scope="module")
def run(
    cohort_folder: Path, tiny_settings: Callable[..., TrainingSettings], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("window") / "run"
    settings = tiny_settings(epochs=1, graph={"tau": 2, "max_neighbors": 8, "references": "bank"})
    torch.set_num_threads(1)
    words = task_settings_of("readmission", "paper", window_days=30)
    return train(cohort_folder, "readmission", out, settings=settings, task_settings=words).folder


def says_thirty(text: str) -> None:
    words = " ".join(text.split())
    assert "30 days" in words
    assert "15 days" not in words


def test_patient_page(run: Path) -> None:
    scene = set_scene(load_run(run), "test")
    explanation = explain(scene, int(scene.rows[-1]))
    assert explanation.prediction.question == "readmission within 30 days"
    for page in (patient_page(explanation), patient_markdown(explanation)):
        says_thirty(page)


def test_report_and_card(run: Path) -> None:
    report = report_of_run(run, replicates=20)
    says_thirty(run_page(report))
    says_thirty(run_markdown(report))
    says_thirty((run / "README.md").read_text())


@pytest.mark.parametrize(
    "words",
    [
        ("task", "show", "readmission"),
        ("audit", "{cohort}", "--task", "readmission", "--page", "{page}"),
        ("show", "{cohort}", "--task", "readmission", "--preset", "paper"),
    ],
)
def test_commands(words: tuple[str, ...], cohort_folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "audit.html"
    filled = [word.format(cohort=cohort_folder, page=page) for word in words]
    finished = CliRunner().invoke(app, [*filled, *WINDOW], env={"COLUMNS": "200", "NO_COLOR": "1"})
    # In this hospital one diagnosis is the label, which the audit must call a leak.
    assert finished.exit_code == int(words[0] == "audit"), finished.output
    says_thirty(finished.output)
    if page.exists():
        says_thirty(page.read_text())


@pytest.mark.parametrize("command", ["audit", "show", "graph"])
def test_a_setting_that_the_task_does_not_have_is_refused(command: str, cohort_folder: Path) -> None:
    words = [command, str(cohort_folder), "--task", "length_of_stay", *WINDOW]
    finished = CliRunner().invoke(app, words)
    assert finished.exit_code != 0
    sentence = f"{finished.output} {finished.exception}"
    assert "the task 'length_of_stay' has no setting 'window_days'" in sentence
    assert "it has inputs, prompt, split_method" in sentence


def test_an_audit_has_the_preset_of_the_training(cohort_folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "audit.html"
    words = ["audit", str(cohort_folder), "--task", "readmission", "--page", str(page), "--preset", "clinical"]
    CliRunner().invoke(app, words)
    text = page.read_text()
    assert "<td>clock</td><td>discharge</td>" in text
    assert "<td>inputs</td><td>known</td>" in text
