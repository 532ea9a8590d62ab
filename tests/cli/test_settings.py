"""Settings can be found: all of them in a list, a near name for a wrong one, the values of choices in the help."""

from __future__ import annotations

import io
from pathlib import Path
from typing import get_args

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from patients_like_me.cli import app, with_named_values
from patients_like_me.cli.evaluation import _print_measures
from patients_like_me.errors import PlmError
from patients_like_me.evaluation.evaluate import evaluate
from patients_like_me.explanation.scene import EvaluatedSplit
from patients_like_me.graph.settings import References, SelfLoop
from patients_like_me.records.assemble import CohortSettings
from patients_like_me.records.registry import all_readers
from patients_like_me.runs.calibration import Wanted
from patients_like_me.runs.run import load_run
from patients_like_me.settings import preset_names, preset_values
from patients_like_me.systems.choosing import chosen_settings
from patients_like_me.systems.train import train


def test_every_setting_is_listed_with_its_value_in_each_preset() -> None:
    result = CliRunner().invoke(app, ["settings"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    settings, of_task = chosen_settings("readmission", "quick", system="patients_like_me")
    for name in type(settings).model_fields:
        assert name in result.output
    for name in type(of_task).model_fields:
        assert f"task.{name}" in result.output
    found = CliRunner().invoke(app, ["settings", "--find", "epochs"], env={"COLUMNS": "200"}).output
    for preset in preset_names():
        assert preset in found
    assert "graph.tau" not in found
    assert "references: references" in found
    wrong = CliRunner().invoke(app, ["settings", "--find", "no such word"])
    assert isinstance(wrong.exception, PlmError)


@pytest.mark.parametrize(
    ("changes", "task_changes", "message"),
    [
        ({"graph": {"tua": 3}}, {}, r"no setting 'graph\.tua'; did you mean graph\.tau\?"),
        ({"epoch": 3}, {}, r"no setting 'epoch'; did you mean epochs"),
        ({}, {"window_day": 3}, r"no setting 'window_day'; did you mean window_days\?"),
    ],
)
def test_a_wrong_name_is_answered_with_a_near_one(
    changes: dict[str, object], task_changes: dict[str, object], message: str
) -> None:
    with pytest.raises(PlmError, match=message):
        chosen_settings("readmission", "quick", system="patients_like_me", changes=changes, task_changes=task_changes)


def test_choices_and_flags_name_their_values_in_the_help() -> None:
    command = with_named_values(typer.main.get_command(app))
    found = {
        (name, parameter.name): parameter.metavar
        for name, below in command.commands.items()
        for parameter in below.params
    }
    assert found["train", "preset"] == "|".join(preset_names())
    assert found["train", "calibrate"] == "logistic|isotonic|none"
    assert found["graph", "references"] == "cohort|bank"
    assert found["faithfulness", "references"] == "shown|all"
    assert found["predict", "every_visit"] == "flag"
    for parameter, values in (
        (("prepare", "negative_stays"), CohortSettings.model_fields["negative_stays"].annotation),
        (("train", "calibrate"), Wanted),
        (("graph", "self_loop"), SelfLoop),
        (("graph", "references"), References),
        (("explain", "split"), EvaluatedSplit),
    ):
        assert set(found[parameter].split("|")) == set(get_args(values)), parameter


def test_the_help_of_prepare_names_every_reader() -> None:
    shown = CliRunner().invoke(app, ["prepare", "--help"], env={"COLUMNS": "200"}).output
    for name in all_readers():
        assert name in shown


def test_a_preset_may_name_its_system_and_share_the_values_of_another(cohort_folder: Path, tmp_path: Path) -> None:
    assert {**preset_values("recommended"), "system": "references"} == preset_values("references")
    cheap = ['--set=own_path=["linear"]', "--set=k=[10]", "--set=folds=2"]
    for name, words in (("references", cheap), ("frequency", ["--system", "frequency"])):
        command = ["train", str(cohort_folder), "--task", "length_of_stay", "--preset", "references", *words]
        result = CliRunner().invoke(app, [*command, "--out", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        assert load_run(tmp_path / name).identity.system == name


def test_names_of_metrics_stay_in_one_piece_in_a_narrow_terminal(cohort_folder: Path, tmp_path: Path) -> None:
    run = train(cohort_folder, "drug_recommendation", tmp_path / "run", system="frequency")
    found = evaluate(run, replicates=5)
    console = Console(width=80, record=True, file=io.StringIO())
    _print_measures(console, found)
    lines = console.export_text().splitlines()
    for measure in found.measures:
        assert any(measure.title in line for line in lines), measure.title
